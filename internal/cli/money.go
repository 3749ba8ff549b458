package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/budget"
	"gpubroker/internal/control"
	"gpubroker/internal/quantity"
)

func (a *app) budgets() *cobra.Command {
	return &cobra.Command{
		Use: "budgets", Short: "List caps: what is spent, reserved and free", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			out, err := c.Budgets(cmd.Context())
			if err != nil {
				return away(err)
			}
			if done, err := a.json(out); done {
				return err
			}
			t := table{head: []string{"BUDGET", "OF", "CAP", "SPENT", "RESERVED", "FREE", "PERIOD", "UNTIL", "GUARD"}, right: []int{2, 3, 4, 5}, flexible: []int{0, 1}}
			for _, b := range out.Budgets {
				most, free := "–", "–"
				if b.Capped {
					most = amount(b.Cap)
					left := b.Cap - b.Current.Committed()
					free = amount(left)
					if left <= 0 {
						free = styleBad.Render(free)
					}
				}
				t.row(b.Name, of(b), most, amount(b.Current.Cost), amount(b.Current.Reserved), free, orDash(string(b.Period.Length)), until(b), orDash(string(b.Guard)))
			}
			return a.look.printf("%s%s\n", t.String(), styleDim.Render("amounts in "+string(out.Currency)+"; until: the first day of the next period"))
		},
	}
}

func of(b control.BudgetView) string {
	if b.Scope == budget.Org {
		return "all"
	}
	return strings.TrimSpace(string(b.Scope) + " " + b.Match)
}

// until is the day that the next period begins, in the budget's own zone.
func until(b control.BudgetView) string {
	if b.Current.End.IsZero() {
		return "–"
	}
	zone, err := time.LoadLocation(b.Period.Zone)
	if err != nil {
		zone = time.UTC // this machine does not know the zone
	}
	return b.Current.End.In(zone).Format("2006-01-02 MST")
}

// since reads a moment: an instant, a date, or how long ago.
func (a *app) since(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if t, err := time.ParseInLocation(time.DateOnly, text, time.Local); err == nil {
		return t, nil
	}
	var d quantity.Duration
	if err := d.UnmarshalText([]byte(text)); err == nil {
		return a.Now().Add(-d.Std()), nil
	}
	return time.Time{}, usage("--%s %q: expected how long ago (24h, 7d), a date (2026-07-20) or an instant (2026-07-20T22:00:00+08:00)", name, text)
}

func (a *app) costs() *cobra.Command {
	var q client.CostQuery
	var since, until string
	cmd := &cobra.Command{
		Use: "costs", Short: "Sum what was spent, and what it would have cost on demand", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if q.Since, err = a.since("since", since); err != nil {
				return err
			}
			if q.Until, err = a.since("until", until); err != nil {
				return err
			}
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			if q.Job != "" {
				j, err := a.find(cmd.Context(), c, q.Job)
				if err != nil {
					return err
				}
				q.Job = j.ID
			}
			out, err := c.Costs(cmd.Context(), q)
			if err != nil {
				return away(err)
			}
			if done, err := a.json(out); done {
				return err
			}
			return a.printCosts(out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.Project, "project", "", "only of this project")
	f.StringVar(&q.Job, "job", "", "only machines that this job alone paid for")
	f.StringVar(&since, "since", "", "from then on: 24h, 7d, 2026-07-20")
	f.StringVar(&until, "until", "", "up to then")
	return cmd
}

func (a *app) printCosts(c api.Costs) error {
	var b strings.Builder
	line := func(name, value string) { fmt.Fprintf(&b, "%-14s %s\n", name, wrap(value, 15)) }
	line("spent", in(c.Spent, c.Currency))
	line("reserved", in(c.Reserved, c.Currency)+" more may be spent by machines that live")
	if c.OnDemand > 0 {
		line("on demand", in(c.OnDemand, c.Currency)+" for the same paid time")
	}
	line("saved", saved(c))
	line("machines", machines(c))
	line("work", work(c))
	if len(c.Projects) > 0 {
		t := table{head: []string{"PROJECT", "SPENT", "RESERVED", "MACHINES"}, right: []int{1, 2, 3}, flexible: []int{0}}
		for _, p := range c.Projects {
			t.row(p.Project, in(p.Spent, c.Currency), in(p.Reserved, c.Currency), fmt.Sprint(p.Machines))
		}
		b.WriteString("\n" + t.String())
	}
	return a.look.printf("%s", b.String())
}

// saved is what spot saved against on demand, or why that is not known.
func saved(c api.Costs) string {
	switch {
	case c.Unpriced > 0:
		return "not known: " + span(c.Unpriced) + " of paid time have no on-demand price"
	case c.Spent == 0 || c.OnDemand == 0 || c.Saved == nil:
		return "not known yet: nothing has been billed"
	case *c.Saved < 0:
		return fmt.Sprintf("nothing: it cost %.1f %% more", -*c.Saved)
	}
	return fmt.Sprintf("%.1f %%", *c.Saved)
}

func machines(c api.Costs) string {
	var paid []string
	if c.Spot > 0 {
		paid = append(paid, span(c.Spot)+" paid on spot")
	}
	if c.Steady > 0 {
		paid = append(paid, span(c.Steady)+" paid on demand")
	}
	switch {
	case c.Machines == 0:
		return "none yet"
	case len(paid) == 0:
		return fmt.Sprint(c.Machines)
	}
	return fmt.Sprintf("%d: %s", c.Machines, strings.Join(paid, ", "))
}

func work(c api.Costs) string {
	switch {
	case c.Attempts == 0:
		return "none yet"
	case c.Lost == 0:
		return fmt.Sprintf("%s, %s busy, nothing lost", plural(c.Attempts, "attempt"), span(c.Busy))
	}
	return fmt.Sprintf("%s, %s busy, %s of it lost", plural(c.Attempts, "attempt"), span(c.Busy), span(c.Lost))
}

func (a *app) ledger() *cobra.Command {
	var q client.EntryQuery
	cmd := &cobra.Command{
		Use: "ledger", Short: "List rows of the ledger", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			out, err := c.Ledger(cmd.Context(), q)
			if err != nil {
				return away(err)
			}
			if done, err := a.json(out); done {
				return err
			}
			if len(out.Entries) == 0 {
				return a.look.printf("no rows\n")
			}
			t := table{head: []string{"ROW", "WHEN", "KIND", "AMOUNT", "PROJECT", "MACHINE", "BUDGET"}, right: []int{0, 3}, flexible: []int{6, 4}}
			for _, e := range out.Entries {
				t.row(fmt.Sprint(e.Seq), local(e.At), string(e.Kind), e.Amount.String()+" "+string(out.Currency), e.Project, e.Instance, e.Budget)
			}
			if err := a.look.printf("%s", t.String()); err != nil || out.Next == 0 {
				return err
			}
			return a.look.printf("%s\n", styleDim.Render(fmt.Sprintf("there are more: --after %d", out.Next)))
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.Budget, "budget", budget.Ledger, "rows of this budget; "+budget.Ledger+" is the ledger of all cost")
	f.StringVar(&q.Project, "project", "", "only of this project")
	f.StringVar(&q.Instance, "instance", "", "only of this machine")
	f.Int64Var(&q.After, "after", 0, "rows after this one")
	f.IntVar(&q.Limit, "limit", 100, "at most so many")
	return cmd
}
