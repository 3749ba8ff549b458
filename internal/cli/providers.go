package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/control"
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
				t.row(i.ID, note, i.Type, place(i.Provider, i.Region, i.Zone), i.Kind, rate(i.Price), reserved(i.Reserved),
					fmt.Sprintf("%d/%d", len(i.Attempts), i.Slots), a.look.age(i.Lease), strings.TrimSuffix(seen, " ago"))
			}
			return a.look.printf("%s", t.String())
		},
	}
}

func (a *app) providers() *cobra.Command {
	cmd := &cobra.Command{
		Use: "providers", Short: "List accounts and how they are",
		Args: func(cmd *cobra.Command, args []string) error { return unknownCommand(cmd, args) },
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
				return a.look.printf("%s\n", noAccounts)
			}
			t := table{
				head:  []string{"PROVIDER", "TYPE", "OFFERS", "SEEN", "MACHINES", "PROJECTS", "ENDS BY ITSELF", "COOL-DOWNS"},
				right: []int{2, 4}, flexible: []int{5, 0},
			}
			var problems strings.Builder
			for _, p := range out.Providers {
				seen := "never"
				if !p.Seen.IsZero() {
					seen = a.look.age(p.Seen)
				}
				t.row(p.Name, orDash(p.Type), strconv.Itoa(p.Offers), seen, strconv.Itoa(p.Machines),
					orDash(strings.Join(p.Projects, ",")), selfEnd(p), a.coolDowns(p))
				if text := problem(p); text != "" {
					fmt.Fprintf(&problems, "%s\n", wrap(text, 2))
				}
			}
			if err := a.look.printf("%s", t.String()); err != nil {
				return err
			}
			return a.look.printf("%s%s\n", problems.String(), styleDim.Render("gpubroker providers check asks each one whether its account can be used"))
		},
	}
	cmd.AddCommand(a.checkProviders())
	return cmd
}

const noAccounts = "no providers; name them under providers: in the broker's configuration"

// problem is the first thing that keeps an account from being used.
func problem(p control.Standing) string {
	switch {
	case p.Unreachable != nil:
		return p.Unreachable.String()
	case p.Error != "":
		return p.Name + ": " + p.Error
	case p.QuotasError != "":
		return p.Name + ": " + p.QuotasError
	}
	return ""
}

// coolDowns says how many parts of an account's market are left alone, and until
// when the last of them.
func (a *app) coolDowns(p control.Standing) string {
	if len(p.Cooldowns) == 0 {
		return "–"
	}
	until := p.Cooldowns[0].Until
	count := strconv.Itoa(len(p.Cooldowns))
	if strings.HasPrefix(p.Cooldowns[0].Key, "provider:") {
		count = "all"
	} else {
		for _, c := range p.Cooldowns {
			if c.Until.After(until) {
				until = c.Until
			}
		}
	}
	return count + ", " + strings.TrimPrefix(a.look.age(until), "in ")
}

func (a *app) checkProviders() *cobra.Command {
	return &cobra.Command{
		Use: "check [NAME...]", Short: "Ask providers whether their accounts can be used",
		Long: "check has the broker ask each provider, or those that are named: does it answer, are the credentials\n" +
			"valid, which permissions are missing, what is left of quotas and funds, and can its machines reach the\n" +
			"broker. Nothing is rented. It needs an admin's token, and ends with 1 when something fails.",
		ValidArgsFunction: a.completeProviders,
		RunE: func(cmd *cobra.Command, names []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			if len(names) == 0 {
				all, err := c.Providers(cmd.Context())
				if err != nil {
					return away(err)
				}
				for _, p := range all.Providers {
					names = append(names, p.Name)
				}
			}
			checks := make([]control.Checkup, 0, len(names))
			for _, name := range names {
				done := a.slow("asking " + name)
				one, err := c.CheckProvider(cmd.Context(), name)
				done()
				if err != nil {
					return away(err)
				}
				checks = append(checks, one)
				if a.format != "json" {
					if err := a.printCheck(one); err != nil {
						return err
					}
				}
			}
			if done, err := a.json(map[string]any{"checks": checks}); done && err != nil {
				return err
			}
			if len(names) == 0 && a.format != "json" {
				return a.look.printf("%s\n", noAccounts)
			}
			var failed []string
			for _, one := range checks {
				if one.Failed {
					failed = append(failed, one.Standing.Name)
				}
			}
			if len(failed) > 0 {
				return &exit{ExitFailed, fmt.Errorf("%s cannot be used as it is; docs/providers.md says what each cloud needs", strings.Join(failed, ", "))}
			}
			return nil
		},
	}
}

// completeProviders offers the accounts' names.
func (a *app) completeProviders(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := a.broker()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	out, err := c.Providers(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, p := range out.Providers {
		names = append(names, p.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) printCheck(c control.Checkup) error {
	var b strings.Builder
	head := c.Standing.Name
	if c.Standing.Type != "" {
		head += " (" + c.Standing.Type + ")"
	}
	fmt.Fprintf(&b, "%s\n", styleHead.Render(head))
	for _, f := range c.Findings {
		word := fmt.Sprintf("%-8s", f.Result)
		switch f.Result {
		case control.CheckOK:
			word = styleGood.Render(word)
		case control.CheckFailed:
			word = styleBad.Render(word)
		case control.CheckNote, control.CheckUnknown:
			word = styleWarn.Render(word)
		}
		fmt.Fprintf(&b, "  %s %-11s  %s\n", word, strings.ReplaceAll(f.What, "cool_downs", "cool-downs"), wrap(f.Text, 24))
	}
	b.WriteString(quotas(c.Standing.Quotas))
	b.WriteString(a.cooling(c.Standing.Cooldowns))
	return a.look.printf("%s\n", b.String())
}

// quotas shows what is left of each quota; those of nothing are only counted.
func quotas(list []providers.Quota) string {
	t := table{head: []string{"  QUOTA", "REGION", "KIND", "COUNTS", "USED", "LIMIT", "LEFT"}, right: []int{4, 5, 6}, flexible: []int{0, 3, 1}}
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	none := 0
	for _, q := range list {
		if q.Limit == 0 && q.Used == 0 {
			none++
			continue
		}
		limit, left := number(q.Limit), number(max(0, q.Limit-q.Used))
		if q.Limit < 0 {
			limit, left = "none", "–"
		}
		counts := q.Unit
		if len(q.Types) > 0 {
			counts += " of " + strings.Join(q.Types, ", ")
		}
		t.row("  "+q.Name, orDash(q.Region), orDash(string(q.Kind)), counts, number(q.Used), limit, left)
	}
	out := ""
	if len(t.rows) > 0 {
		out = "\n" + t.String()
	}
	if none > 0 {
		out += fmt.Sprintf("\n  %s with a limit of 0\n", plural(none, "quota"))
	}
	return out
}

func (a *app) cooling(list []control.CoolView) string {
	if len(list) == 0 {
		return ""
	}
	t := table{head: []string{"  COOLS DOWN", "UNTIL", "WHY"}, flexible: []int{2, 0}}
	for _, c := range list {
		t.row("  "+c.Key, a.look.age(c.Until), c.Reason.String())
	}
	return "\n" + t.String()
}

// selfEnd says who ends a machine when the broker cannot.
func selfEnd(p control.Standing) string {
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
