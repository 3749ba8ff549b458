package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/backtest"
	"gpubroker/internal/backtest/report"
	"gpubroker/internal/quantity"
)

// duration is a flag that takes 48h and 2d.
type duration struct{ quantity.Duration }

func (d *duration) Set(text string) error { return d.UnmarshalText([]byte(text)) }
func (d *duration) Type() string          { return "duration" }
func (d *duration) String() string {
	if d.Duration == 0 {
		return ""
	}
	return d.Duration.String()
}

// sizeFlag is a flag that takes 50GB and 2GiB.
type sizeFlag struct{ quantity.Size }

func (s *sizeFlag) Set(text string) error { return s.UnmarshalText([]byte(text)) }
func (s *sizeFlag) Type() string          { return "size" }
func (s *sizeFlag) String() string {
	if s.Size == 0 {
		return ""
	}
	return s.Size.String()
}

func (a *app) backtest() *cobra.Command {
	var o backtest.Options
	var length, deadline, delay duration
	var checkpoint sizeFlag
	var starts, observe, jobs, html string
	var markets []string
	cmd := &cobra.Command{
		Use: "backtest", Short: "Replay a recorded spot market through the broker's own decisions",
		Long: "Replay a recorded spot market in virtual time through the code that serve decides with, beside other\n" +
			"rules and the clairvoyant optimum. STEM names the files STEM.avail.csv.gz or STEM.count.csv.gz,\n" +
			"STEM.price.csv.gz where prices move, and zones.csv beside them.\n\n" +
			"With --jobs a whole queue is replayed, on several markets at once, with the teams' budgets: see docs/backtest.md.",
		Example: "  gpubroker backtest --market traces/aws-v100/us-west-2a --length 48h --fraction 0.8 --delay 12m --starts n=40\n" +
			"  gpubroker backtest --jobs queue.yaml --policies ours,up,cheapest-greedy",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Length, o.Deadline, o.Delay = length.Std(), deadline.Std(), delay.Std()
			o.Checkpoint = float64(checkpoint.Bytes()) / 1e9
			if jobs != "" {
				return a.queue(cmd, jobs, markets, o, observe, html)
			}
			if len(markets) > 1 {
				return usage("--market names %d markets: one job is replayed in one; several are for --jobs", len(markets))
			}
			o.Market = strings.Join(markets, "")
			if o.Market == "" {
				return usage("--market is missing: DIR/STEM of a recorded market")
			}
			if o.Length == 0 {
				return usage("--length is missing: how long the job takes without interruption, for example 48h")
			}
			if (o.Deadline == 0) == (o.Fraction == 0) {
				return usage("give either --deadline (60h) or --fraction (0.8, length ÷ deadline)")
			}
			if err := parseStarts(starts, &o); err != nil {
				return err
			}
			var err error
			if o.Free, err = seesAll(observe); err != nil {
				return err
			}
			o.Timeline = html != ""
			defer a.slow("replaying")()
			r, err := backtest.Run(cmd.Context(), o)
			if errors.Is(err, backtest.ErrInput) {
				return &exit{ExitUsage, err}
			}
			if err != nil {
				return err
			}
			if err := a.report(html, func(w io.Writer) error { return report.Single(w, r, o) }); err != nil {
				return err
			}
			if done, err := a.json(r); done {
				return err
			}
			return a.printBacktest(r)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&markets, "market", nil, "recorded market: DIR/STEM; with --jobs several, in place of the file's")
	f.StringVar(&jobs, "jobs", "", "replay the queue of this file instead of one job")
	f.StringSliceVar(&o.Pools, "pools", nil, "only these pools; default: all")
	f.BoolVar(&o.PerPool, "per-pool", false, "each pool is a market of its own, and results are summed")
	f.Var(&length, "length", "of the job, without interruption: 48h")
	f.Var(&deadline, "deadline", "from the start: 60h")
	f.Float64Var(&o.Fraction, "fraction", 0, "instead of --deadline: length ÷ deadline")
	f.Var(&delay, "delay", "from launch to useful work: 12m")
	f.IntVar(&o.Gang, "gang", 1, "machines that the job needs at once")
	f.Var(&checkpoint, "checkpoint", "size of what goes along to another region, paid as egress: 50GB")
	f.StringVar(&o.Egress, "egress", "", "its price: a file of prices, or in $/GB; default: ../egress/aws-egress-usd-per-gb.csv.gz beside the market")
	f.StringVar(&starts, "starts", "n=40", "every=DURATION, or n=COUNT evenly spaced")
	f.StringSliceVar(&o.Policies, "policies", []string{"all"}, "all, or some of "+strings.Join(backtest.PolicyNames(), ", "))
	f.BoolVar(&o.Between, "between", false, "ask our policy between ticks too, when it says so, as serve does")
	f.BoolVar(&o.Cold, "cold", false, "start each job knowing nothing of its market; otherwise the capture before the start is known")
	f.StringVar(&observe, "observe", "own", "what a policy sees: own (its own launches and machine) or free (every pool)")
	f.BoolVar(&o.SplitAtHoles, "split", false, "replay the stretches between holes of the record instead of refusing them; with --jobs the longest")
	f.StringVar(&html, "html", "", "write a report with charts to this file as well")
	cmd.AddCommand(a.suite())
	return cmd
}

// report writes a report to a file that was asked for.
func (a *app) report(file string, write func(io.Writer) error) error {
	if file == "" {
		return nil
	}
	var b bytes.Buffer
	err := write(&b)
	if err == nil {
		err = os.WriteFile(file, b.Bytes(), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	fmt.Fprintf(a.Err, "the report is in %s\n", file)
	return nil
}

func parseStarts(text string, o *backtest.Options) error {
	how, value, _ := strings.Cut(text, "=")
	switch how {
	case "n":
		n, err := strconv.Atoi(value)
		if err == nil && n > 0 {
			o.N = n
			return nil
		}
	case "every":
		var d quantity.Duration
		if err := d.UnmarshalText([]byte(value)); err == nil && d > 0 {
			o.Every = d.Std()
			return nil
		}
	}
	return usage("--starts %s: expected every=DURATION or n=COUNT, for example every=4h or n=40", text)
}

func (a *app) printBacktest(r backtest.Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; the optimum costs %.2f USD, %.3f of on demand\n\n", plural(r.Windows, "start"), r.Optimum.SumCost, r.Optimum.OverOnDemand)
	t := table{head: []string{"POLICY", "COST", "÷ OPT", "MEAN", "P90", "MAX", "÷ ON DEMAND", "MISSES", "PREEMPTED", "MOVES", "WASTE"}, right: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, flexible: []int{0}}
	f := func(x float64) string { return strconv.FormatFloat(x, 'f', 3, 64) }
	for _, p := range r.Policies {
		t.row(p.Name, strconv.FormatFloat(p.SumCost, 'f', 2, 64), f(p.SumRatio), f(p.MeanRatio), f(p.P90Ratio), f(p.MaxRatio), f(p.OverOnDemand),
			strconv.Itoa(p.Misses), strconv.Itoa(p.Preemptions), strconv.Itoa(p.Moves), percent(p.WasteShare))
	}
	b.WriteString(t.String())
	for _, n := range r.Notes {
		b.WriteString(wrap(n, 0) + "\n")
	}
	return a.look.printf("%s", b.String())
}
