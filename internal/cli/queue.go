package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpubroker/internal/backtest"
	"gpubroker/internal/backtest/report"
	"gpubroker/internal/quantity"
)

// queue is backtest --jobs.
func (a *app) queue(cmd *cobra.Command, file string, markets []string, single backtest.Options, observe, html string) error {
	for _, name := range []string{"pools", "per-pool", "length", "deadline", "fraction", "delay", "gang", "checkpoint", "starts"} {
		if cmd.Flags().Changed(name) {
			return usage("--%s describes one job; with --jobs that stands in %s", name, file)
		}
	}
	free, err := seesAll(observe)
	if err != nil {
		return err
	}
	o := backtest.QueueOptions{
		File: file, Markets: markets, Egress: single.Egress, Policies: single.Policies, Free: free, Cold: single.Cold,
		SplitAtHoles: single.SplitAtHoles, CacheDir: optimaDir(),
		Timeline: html != "", Progress: a.counting(),
	}
	r, err := backtest.RunQueue(cmd.Context(), o)
	if errors.Is(err, backtest.ErrInput) {
		return &exit{ExitUsage, err}
	}
	if err != nil {
		return err
	}
	if err := a.report(html, func(w io.Writer) error { return report.Queue(w, r) }); err != nil {
		return err
	}
	if done, err := a.json(r); done {
		return err
	}
	return a.printQueue(r)
}

// mostRefused is how many refusals are shown; JSON has them all.
const mostRefused = 5

func (a *app) printQueue(r backtest.QueueResult) error {
	var b strings.Builder
	usd := func(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }
	ratio := func(x float64) string {
		if x == 0 {
			return ""
		}
		return strconv.FormatFloat(x, 'f', 3, 64)
	}
	fmt.Fprintf(&b, "%s on %s of %s over %s; each alone and with all known they would cost %s USD at least\n\n",
		plural(r.Jobs, "job"), plural(r.Pools, "pool"), plural(len(r.Markets), "market"),
		quantity.Duration(time.Duration(r.Horizon)*time.Second), usd(r.Bound))
	t := table{
		head:  []string{"POLICY", "ADMITTED", "COST", "BOUND", "÷ BOUND", "÷ ON DEMAND", "MISSES", "OVER CAP", "PREEMPTED"},
		right: []int{1, 2, 3, 4, 5, 6, 7, 8}, flexible: []int{0},
	}
	for _, p := range r.Policies {
		t.row(p.Name, strconv.Itoa(p.Admitted), usd(p.SumCost), usd(p.Bound), ratio(p.Ratio), ratio(p.OverOnDemand),
			strconv.Itoa(p.Misses), strconv.Itoa(p.CapBreaches), strconv.Itoa(p.Preemptions))
	}
	b.WriteString(t.String() + "\n")

	teams := table{
		head:  []string{"TEAM", "POLICY", "JOBS", "ADMITTED", "COST", "CAP", "OF CAP", "÷ BOUND", "MISSES"},
		right: []int{2, 3, 4, 5, 6, 7, 8}, flexible: []int{0},
	}
	for i := range r.Policies[0].Teams {
		for _, p := range r.Policies {
			s := p.Teams[i]
			limit, of := "none", ""
			if s.Cap != nil {
				limit, of = usd(*s.Cap), percent(s.SumCost/max(*s.Cap, 1e-9))
			}
			teams.row(s.Name, p.Name, strconv.Itoa(s.Jobs), strconv.Itoa(s.Admitted), usd(s.SumCost), limit, of, ratio(s.Ratio), strconv.Itoa(s.Misses))
		}
	}
	b.WriteString(teams.String())

	// The reasons of one policy are enough to read: ours, or else the first.
	at := max(0, slices.IndexFunc(r.Policies, func(p backtest.QueueScore) bool { return p.Name == "ours" }))
	if p := r.Policies[at]; p.Admitted < p.Jobs {
		refused := p.Jobs - p.Admitted
		fmt.Fprintf(&b, "\n%s: %d not admitted\n", p.Name, refused)
		shown := 0
		for _, j := range p.Details {
			if !j.Admitted && shown < mostRefused {
				b.WriteString("  " + wrap(j.Name+": "+j.Why, 4) + "\n")
				shown++
			}
		}
		if refused > shown {
			fmt.Fprintf(&b, "  … and %d more (-o json)\n", refused-shown)
		}
	}
	if len(r.Notes) > 0 {
		b.WriteString("\n")
	}
	for _, n := range r.Notes {
		b.WriteString(wrap(n, 0) + "\n")
	}
	return a.look.printf("%s", b.String())
}
