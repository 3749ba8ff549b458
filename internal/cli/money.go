package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
				t.row(b.Name, of(b), most, amount(b.Current.Cost), amount(b.Current.Reserved), free, string(b.Period.Length), until(b), string(b.Guard))
			}
			return a.look.printf("%s", t.String())
		},
	}
}

func of(b control.BudgetView) string {
	if b.Scope == budget.Org {
		return "all"
	}
	return strings.TrimSpace(string(b.Scope) + " " + b.Match)
}

func until(b control.BudgetView) string {
	if b.Current.End.IsZero() {
		return "–"
	}
	return b.Current.End.Local().Format("2006-01-02 MST")
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

func (a *app) printCosts(c control.Costs) error {
	var b strings.Builder
	line := func(name, value string) { fmt.Fprintf(&b, "%-14s %s\n", name, wrap(value, 15)) }
	line("spent", amount(c.Spent))
	line("reserved", amount(c.Reserved)+" more may be spent by machines that live")
	saved := "not known: some machines have no on-demand price"
	switch {
	case c.OnDemand == 0:
		saved = "–"
	case c.Saved != nil && c.Spent == 0:
		saved = "not known yet: nothing has been billed"
	case c.Saved != nil:
		saved = fmt.Sprintf("%.1f %%", *c.Saved)
	}
	line("on demand", amount(c.OnDemand)+" for the same paid time")
	line("saved", saved)
	line("machines", fmt.Sprintf("%d: %s paid on spot, %s on demand", c.Machines, span(c.Spot), span(c.Steady)))
	line("work", fmt.Sprintf("%s, %s busy, %s of it lost", plural(c.Attempts, "attempt"), span(c.Busy), span(c.Lost)))
	if len(c.Projects) > 0 {
		t := table{head: []string{"PROJECT", "SPENT", "RESERVED", "MACHINES"}, right: []int{1, 2, 3}, flexible: []int{0}}
		for _, p := range c.Projects {
			t.row(p.Project, amount(p.Spent), amount(p.Reserved), fmt.Sprint(p.Machines))
		}
		b.WriteString("\n" + t.String())
	}
	return a.look.printf("%s", b.String())
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
			t := table{head: []string{"ROW", "WHEN", "KIND", "AMOUNT", "PROJECT", "MACHINE", "BUDGET"}, right: []int{0, 3}, flexible: []int{6, 4}}
			for _, e := range out.Entries {
				t.row(fmt.Sprint(e.Seq), local(e.At), string(e.Kind), e.Amount.String(), e.Project, e.Instance, e.Budget)
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
