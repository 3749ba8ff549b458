package backtest

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"
)

var figures = flag.Bool("figures", false, "print the tables of docs/spot-policy.md (about a minute)")

// TestFigures measures what docs/spot-policy.md states:
//
//	go test ./internal/backtest -run TestFigures -figures -v
func TestFigures(t *testing.T) {
	if !*figures {
		t.Skip("prints tables; run with -figures -v")
	}
	const traces = "../../../shared/traces/"
	names := []string{"cheapest-greedy", "ours"}
	var b strings.Builder
	row := func(cell string, r Result) {
		fmt.Fprintf(&b, "| %s | %d | %.3f |", cell, r.Windows, r.Optimum.OverOnDemand)
		for _, s := range r.Policies {
			fmt.Fprintf(&b, " %.3f | %.3f | %.3f | %d |", s.SumRatio, s.P90Ratio, s.MaxRatio, s.Misses)
		}
		b.WriteString("\n")
	}
	replay := func(cell string, o Options) {
		o.Policies = names
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		row(cell, r)
	}
	for _, capture := range []string{"2022-10-26", "2022-12-13"} {
		for _, fraction := range []float64{0.6, 0.7, 0.8, 0.9} {
			tab, err := readTable(traces + "aws-k80-v100-2022/" + capture + ".avail.csv")
			if err != nil {
				t.Skipf("the recorded markets are not here: %v", err)
			}
			// Pools count alike, as in the reference: costs as shares of on demand.
			var opt float64
			sum, misses, windows := map[string]float64{}, map[string]int{}, 0
			for _, p := range tab.pools {
				r, err := Run(t.Context(), Options{
					Market: traces + "aws-k80-v100-2022/" + capture, Pools: []string{p}, Length: 48 * time.Hour,
					Fraction: fraction, Delay: 12 * time.Minute, N: 300, Free: true, Policies: names,
				})
				if err != nil {
					t.Fatal(err)
				}
				opt += r.Optimum.OverOnDemand
				windows += r.Windows
				for _, s := range r.Policies {
					sum[s.Name] += s.OverOnDemand
					misses[s.Name] += s.Misses
				}
			}
			fmt.Fprintf(&b, "| A %s, %v | %d | %.3f | %.3f | %d | %.3f | %d |\n", capture, fraction, windows, opt/float64(len(tab.pools)),
				sum["cheapest-greedy"]/opt, misses["cheapest-greedy"], sum["ours"]/opt, misses["ours"])
		}
	}
	for _, free := range []bool{true, false} {
		see := map[bool]string{true: "free", false: "own"}[free]
		for _, s := range []string{"s1", "s2", "s3"} {
			for _, hours := range []float64{53.3, 60, 72} {
				replay(fmt.Sprintf("B %s, 48 h in %v h, %s", s, hours, see), Options{
					Market: traces + "aws-v100x1-2023-02/" + s, Length: 48 * time.Hour, Delay: 13 * time.Minute,
					Deadline: time.Duration(hours * float64(time.Hour)), N: 24, Free: free,
				})
			}
		}
		for _, gang := range []int{1, 8, 16} {
			replay(fmt.Sprintf("C s2, 40 h in 50 h, gang %d, %s", gang, see), Options{
				Market: traces + "gcp-h100x16-2025-10/s2", Length: 40 * time.Hour, Deadline: 50 * time.Hour,
				Delay: 12 * time.Minute, N: 24, Gang: gang, Free: free, SplitAtHoles: true,
			})
		}
		for _, hours := range []float64{13.2, 15, 18} {
			replay(fmt.Sprintf("C s2, 12 h in %v h, gang 16, %s", hours, see), Options{
				Market: traces + "gcp-h100x16-2025-10/s2", Length: 12 * time.Hour, Deadline: time.Duration(hours * float64(time.Hour)),
				Delay: 12 * time.Minute, N: 24, Gang: 16, Free: free, SplitAtHoles: true,
			})
		}
	}
	t.Log("\n" + b.String())
}
