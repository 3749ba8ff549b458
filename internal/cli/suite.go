package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"gpubroker/internal/backtest"
)

func (a *app) suite() *cobra.Command {
	var o backtest.SuiteOptions
	var observe string
	cmd := &cobra.Command{
		Use: "suite", Short: "Replay all recorded markets and compare our decisions with published rules",
		Long: "Replay the recorded markets of a folder: A one pool, B zones with moving prices, C gangs. Scores are\n" +
			"costs ÷ the clairvoyant optimum's. Optima are kept in the user's cache folder from one time to the next.",
		Example: "  gpubroker backtest suite --traces traces --track B",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Traces == "" {
				return usage("--traces is missing: the folder of the recorded markets")
			}
			if o.Full && cmd.Flags().Changed("starts") {
				return usage("give either --starts or --full")
			}
			var err error
			if o.Free, err = seesAll(observe); err != nil {
				return err
			}
			o.CacheDir = optimaDir()
			tell := a.counting()
			s, err := backtest.RunSuite(cmd.Context(), o, func(at, of int) { tell("cell", at, of) })
			if errors.Is(err, backtest.ErrInput) {
				return &exit{ExitUsage, err}
			}
			if err != nil {
				return err
			}
			if done, err := a.json(s); done {
				return err
			}
			return a.printSuite(s)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Traces, "traces", "", "folder of the recorded markets")
	f.StringSliceVar(&o.Tracks, "track", nil, "only these of A, B and C; default: all")
	f.IntVar(&o.Starts, "starts", 24, "of each cell, in track A of each pool")
	f.BoolVar(&o.Full, "full", false, "every start of a stride instead: 4h in tracks A and B, 1h in C; takes minutes")
	f.StringSliceVar(&o.Policies, "policies", []string{"all"}, "all, or some of "+strings.Join(backtest.PolicyNames(), ", "))
	f.BoolVar(&o.Cold, "cold", false, "start each job knowing nothing of its market; otherwise the capture before the start is known")
	f.StringVar(&observe, "observe", "own", "what a policy sees: own (its own launches and machine) or free (every pool)")
	return cmd
}

// optimaDir keeps optima from one time to the next; "" where there is no place.
func optimaDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "gpubroker", "optima")
}

// counting tells on standard error what is replayed, not before two seconds have
// passed and at most once a second.
func (a *app) counting() func(what string, at, of int) {
	var mu sync.Mutex
	next := time.Now().Add(2 * time.Second)
	return func(what string, at, of int) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.After(next) {
			next = now.Add(time.Second)
			fmt.Fprintf(a.Err, "%s %d of %d\n", what, at+1, of)
		}
	}
}

// seesAll reads --observe.
func seesAll(observe string) (bool, error) {
	switch observe {
	case "own":
		return false, nil
	case "free":
		return true, nil
	}
	return false, usage("--observe %s: expected own or free", observe)
}

func (a *app) printSuite(s backtest.Suite) error {
	var b strings.Builder
	f := func(x float64) string { return strconv.FormatFloat(x, 'f', 3, 64) }
	sum := table{head: []string{"POLICY"}}
	for _, t := range s.Tracks {
		sum.head = append(sum.head, t.Track, "P90", "WORST")
	}
	sum.head = append(sum.head, "MEAN", "MISSES")
	for i := range len(sum.head) - 1 {
		sum.right = append(sum.right, i+1)
	}
	for p := range s.Tracks[0].Policies {
		row := []string{s.Tracks[0].Policies[p].Name}
		mean, misses := 0.0, 0
		for _, t := range s.Tracks {
			score := t.Policies[p]
			row = append(row, f(score.SumRatio), f(score.P90Ratio), f(score.MaxRatio))
			mean += score.SumRatio / float64(len(s.Tracks))
			misses += score.Misses
		}
		sum.row(append(row, f(mean), strconv.Itoa(misses))...)
	}
	b.WriteString("Sum of costs ÷ sum of optima, mean over the cells of each track\n\n" + sum.String() + "\n")

	// Each cell: ours, and the best of the rules that cannot look ahead.
	cells := table{head: []string{"CELL", "STARTS", "OPT ÷ OD", "OURS", "OTHER", "WHICH"}, right: []int{1, 2, 3, 4}, flexible: []int{0}}
	for _, c := range s.Cells {
		ours, best := "", backtest.Score{}
		for _, p := range c.Policies {
			switch {
			case p.Name == "ours":
				ours = f(p.SumRatio)
			case p.Name != "up-oracle" && (best.Name == "" || p.SumRatio < best.SumRatio):
				best = p
			}
		}
		other := ""
		if best.Name != "" {
			other = f(best.SumRatio)
		}
		cells.row(c.Track+" "+c.Name, strconv.Itoa(c.Windows), f(c.Optimum.OverOnDemand), ours, other, best.Name)
	}
	b.WriteString("Cell by cell: the optimum ÷ on demand, ours and the best other rule ÷ the optimum\n\n" + cells.String())
	for _, n := range s.Notes {
		fmt.Fprintln(&b, wrap(n, 0))
	}
	return a.look.printf("%s", b.String())
}
