package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

func (a *app) instances() *cobra.Command {
	return &cobra.Command{
		Use: "instances", Short: "List machines that are not settled", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			out, err := c.Instances(cmd.Context())
			if err != nil {
				return away(err)
			}
			if done, err := a.json(out); done {
				return err
			}
			if len(out.Instances) == 0 {
				return a.look.printf("no machines\n")
			}
			t := table{head: []string{"MACHINE", "STATE", "TYPE", "WHERE", "KIND", perHour(out.Currency), "RESERVED", "TASKS", "LEASE", "SEEN"}, right: []int{5, 6, 7}, flexible: []int{3, 2}}
			for _, i := range out.Instances {
				seen := a.look.age(i.Seen)
				note := state(string(i.State))
				if i.DeleteErr != "" {
					note = styleBad.Render("will not end")
				}
				where := i.Provider + "/" + i.Zone
				if i.Zone == "" {
					where = i.Provider + "/" + i.Region
				}
				t.row(i.ID, note, i.Type, where, i.Kind, rate(i.Price), reserved(i.Reserved),
					fmt.Sprintf("%d/%d", len(i.Attempts), i.Slots), a.look.age(i.Lease), strings.TrimSuffix(seen, " ago"))
			}
			return a.look.printf("%s", t.String())
		},
	}
}

func (a *app) providers() *cobra.Command {
	return &cobra.Command{
		Use: "providers", Short: "List accounts and how they are", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			out, err := c.Providers(cmd.Context())
			if err != nil {
				return away(err)
			}
			if done, err := a.json(out); done {
				return err
			}
			if len(out.Providers) == 0 {
				return a.look.printf("no providers; name them under providers: in the broker's configuration\n")
			}
			t := table{head: []string{"PROVIDER", "OFFERS", "SEEN", "MACHINES", "NOTICE", "ENDS BY ITSELF", "PROJECTS", "PROBLEM"}, right: []int{1, 3}, flexible: []int{7, 6}}
			for _, p := range out.Providers {
				t.row(p.Name, strconv.Itoa(p.Offers), a.seen(p), strconv.Itoa(p.Machines), notice(p), selfEnd(p),
					orDash(strings.Join(p.Projects, ",")), p.Error)
			}
			return a.look.printf("%s", t.String())
		},
	}
}

func (a *app) seen(p api.Provider) string {
	if p.Seen == nil {
		return "never"
	}
	return a.look.age(*p.Seen)
}

func notice(p api.Provider) string {
	if p.Capabilities.Notice == 0 {
		return "none"
	}
	return span(p.Capabilities.Notice)
}

// selfEnd says who ends a machine when the broker cannot.
func selfEnd(p api.Provider) string {
	switch p.Capabilities.SelfEnd {
	case providers.EndRolling:
		return "yes"
	case providers.EndFixed:
		return "at a fixed time"
	case providers.EndGuest:
		if p.Capabilities.Shared {
			return "stays (yours)"
		}
		return "only from within"
	case providers.EndNone:
		return "no"
	}
	return string(p.Capabilities.SelfEnd)
}

// reserved shows what a machine has reserved; text that is no amount stays as it is.
func reserved(text string) string {
	a, err := money.ParseAmount(text)
	if err != nil {
		return orDash(text)
	}
	return amount(a)
}

// perHour heads a column of prices.
func perHour(c money.Currency) string { return string(cmp.Or(c, money.USD)) + "/H" }
