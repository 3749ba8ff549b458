// Package backtest replays recorded spot markets in virtual time through the
// decision code of the broker, [policy.Decide], beside published rules and the
// exact clairvoyant optimum.
//
// The replay: one decision per tick, before which the loss of the job's own
// machine is known. Entering a machine takes Delay without progress, billed at
// the new machine's price; leaving costs nothing; nothing done is lost (expected
// lost work belongs in Delay). Billing is per second at the price of each tick,
// and the last tick is billed as far as it is used. On demand always starts
// within Delay. A gang has all its machines of one kind in one pool, or none.
//
// With a checkpoint, each entry of another region than the one where it lies
// costs its egress. A probe bills a minute of spot; a refused launch is free.
//
// Not modelled: partial gangs, notices, the time that egress takes.
package backtest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"gpubroker/scheduler/policy"
)

// Options say what to replay. Zero values are as the fields say.
type Options struct {
	// Market is DIR/STEM: the files STEM.avail.csv.gz or STEM.count.csv.gz,
	// STEM.price.csv.gz where prices move, and zones.csv beside them.
	Market string
	// Pools of the market; empty = all. A job may use any of them, or with
	// PerPool each pool is a market of its own and the results are summed.
	Pools   []string
	PerPool bool
	// Alike counts costs as shares of on demand throughout, so that dear pools
	// weigh no more than cheap ones.
	Alike bool
	// Length of the job, without interruption.
	Length time.Duration
	// Deadline from the start; or Fraction = Length/Deadline. Exactly one is given.
	Deadline time.Duration
	Fraction float64
	// Delay from launch to useful work.
	Delay time.Duration
	// Gang is how many instances the job needs at once; 0 = 1.
	Gang int
	// Checkpoint is the GB that go along to another region, at the price that
	// Egress names: in $/GB, or a file of prices; empty = the file
	// ../egress/aws-egress-usd-per-gb.csv.gz beside the market's folder.
	Checkpoint float64
	Egress     string
	// Every starts a window each so often; N takes so many, evenly spaced over
	// all possible starts. Exactly one is given.
	Every time.Duration
	N     int
	// Policies by name; empty or "all" = all of [PolicyNames].
	Policies []string
	// Free shows every pool at each tick. Otherwise a policy sees only the
	// outcome of its own launches, the loss of its own machine, and prices.
	Free bool
	// Between asks our policy between ticks as well, whenever an answer says when to ask
	// again, and takes every event as seen at once: as serve does.
	Between bool
	// Cold starts each job knowing nothing of the market. Otherwise the capture's
	// past, up to the start, is known to the policies that learn.
	Cold bool
	// Knowledge is what ours believes of markets it has not seen; nil = what is shipped.
	Knowledge *policy.Knowledge
	// CacheDir keeps optima from one time to the next; empty = nowhere.
	CacheDir string
	// SplitAtHoles replays the stretches between holes instead of refusing them.
	SplitAtHoles bool

	school *school
	// Timeline records where the job was in the most typical window.
	Timeline bool
}

// Result is what a replay found, with the field names of the command's JSON.
// Costs are in US dollars.
type Result struct {
	Windows  int      `json:"windows"`
	Optimum  Optimum  `json:"optimum"`
	Policies []Score  `json:"policies"`
	Notes    []string `json:"notes,omitempty"`
	// Timeline is of one window, if it was asked for.
	Timeline *Timeline `json:"-"`
}

// Optimum is the clairvoyant lower bound: the least cost with all of the future known.
type Optimum struct {
	SumCost float64 `json:"sum_cost"`
	// OverOnDemand is its cost ÷ the cost of running on demand throughout.
	OverOnDemand float64 `json:"over_on_demand"`
}

// Score is how one policy did. Ratios are to the optimum of the same window.
type Score struct {
	Name         string  `json:"name"`
	SumCost      float64 `json:"sum_cost"`
	SumRatio     float64 `json:"sum_ratio"` // sum of costs ÷ sum of optima
	MeanRatio    float64 `json:"mean_ratio"`
	P90Ratio     float64 `json:"p90_ratio"`
	MaxRatio     float64 `json:"max_ratio"`
	OverOnDemand float64 `json:"over_on_demand"` // cost ÷ on demand throughout
	Misses       int     `json:"misses"`
	Preemptions  int     `json:"preemptions"`
	Moves        int     `json:"moves"`
	// Both are part of SumCost.
	ProbeCost  float64 `json:"probe_cost"`
	EgressCost float64 `json:"egress_cost"`
	// WasteShare is the part of the paid time that made no progress.
	WasteShare float64 `json:"waste_share"`
}

// Run replays the market. Errors in the options or the market are [ErrInput].
func Run(ctx context.Context, o Options) (Result, error) {
	names, err := chosen(o.Policies)
	if err != nil {
		return Result{}, err
	}
	rows, notes, err := replay(ctx, o, names)
	if err != nil {
		return Result{}, err
	}
	r := summarize(rows, names, notes)
	if o.Timeline {
		r.Timeline = timeline(rows, names)
	}
	return r, nil
}

// replay plays the named policies through all windows.
func replay(ctx context.Context, o Options, names []string) ([]row, []string, error) {
	windows, notes, err := o.all()
	if err != nil {
		return nil, nil, err
	}
	if len(windows) > 0 && windows[0].opt.school == nil {
		windows[0].opt.school = newSchool(o.knowledge())
	}
	kept := cache{dir: o.CacheDir, key: digest(windows)}
	optima, known := kept.load(len(windows))
	rows := make([]row, len(windows))
	solvers := make(chan *optimizer, runtime.GOMAXPROCS(0)) // with their buffers
	for range cap(solvers) {
		solvers <- &optimizer{}
	}
	err = parallel(ctx, len(windows), func(i int) error {
		dp := <-solvers
		defer func() { solvers <- dp }()
		w := windows[i]
		if !known {
			optima[i] = dp.solve(w)
		}
		rows[i].window = w
		rows[i].optimum, rows[i].onDemand = optima[i], w.onDemandCost()
		for _, name := range names {
			rows[i].outcomes = append(rows[i].outcomes, w.replay(ruleOf(name)))
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if !known {
		if err := kept.save(optima); err != nil {
			notes = append(notes, fmt.Sprintf("the optima could not be kept for the next time: %v", err))
		}
	}
	if o.Alike {
		for i := range rows {
			rows[i].share()
		}
	}
	return rows, notes, nil
}

// all reads the market and returns the windows to replay, and what is to be said of it.
func (o *Options) all() ([]*window, []string, error) {
	o.Gang = cmp.Or(o.Gang, 1)
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	m, err := load(o.Market, o.Pools, o.Gang, o.SplitAtHoles)
	if err != nil {
		return nil, nil, err
	}
	var egress egressTable
	if o.Checkpoint > 0 {
		if egress, err = readEgress(o.Egress, o.Market); err != nil {
			return nil, nil, err
		}
	}
	markets := []*market{m}
	if o.PerPool {
		markets = nil
		for i := range m.pools {
			markets = append(markets, m.only(i))
		}
	}
	var windows []*window
	for _, m := range markets {
		if err := m.settle(o.Checkpoint, egress); err != nil {
			return nil, nil, err
		}
		ws, err := o.windows(m)
		if err != nil {
			return nil, nil, err
		}
		windows = append(windows, ws...)
	}
	return windows, m.notes, nil
}

func (o *Options) knowledge() policy.Knowledge {
	if o.Knowledge != nil {
		return *o.Knowledge
	}
	return policy.Shipped()
}

func (o *Options) check() error {
	switch {
	case o.Length <= 0:
		return inputError("the job's length must be positive")
	case o.Delay < 0:
		return inputError("delay %v is negative", o.Delay)
	case !(o.Checkpoint >= 0 && o.Checkpoint < 1e9):
		return inputError("checkpoint %v GB is not a size", o.Checkpoint)
	case o.Gang < 1:
		return inputError("gang %d is not positive", o.Gang)
	case (o.Deadline != 0) == (o.Fraction != 0):
		return inputError("give either a deadline or a fraction")
	case (o.Every != 0) == (o.N != 0) || o.Every < 0 || o.N < 0:
		return inputError("give starts as every=DURATION or n=COUNT, positive")
	case o.Length%time.Second != 0 || o.Delay%time.Second != 0 || o.Deadline%time.Second != 0:
		return inputError("length, deadline and delay must be whole seconds")
	}
	if o.Fraction != 0 {
		if !(o.Fraction > 0 && o.Fraction <= 1) {
			return inputError("fraction %v is not in (0, 1]: it is the job's length ÷ its deadline", o.Fraction)
		}
		deadline := float64(o.Length) / o.Fraction
		if deadline >= math.MaxInt64 {
			return inputError("fraction %v makes a deadline beyond all records of a market", o.Fraction)
		}
		o.Deadline = time.Duration(deadline).Round(time.Second)
	}
	if o.Deadline < o.Length+o.Delay {
		return inputError("deadline %v is shorter than the job: %v of work and a delay of %v", o.Deadline, o.Length, o.Delay)
	}
	return nil
}

// chosen checks the names and puts them in the order of PolicyNames.
func chosen(names []string) ([]string, error) {
	if len(names) == 0 || slices.Contains(names, "all") {
		return PolicyNames(), nil
	}
	for _, name := range names {
		if ruleOf(name) == nil {
			return nil, inputError("unknown policy %q%s", name, meant(name, PolicyNames()))
		}
	}
	return slices.DeleteFunc(PolicyNames(), func(n string) bool { return !slices.Contains(names, n) }), nil
}

func (m *market) only(i int) *market {
	one := &market{step: m.step, counts: m.counts, pools: m.pools[i : i+1]}
	for _, s := range m.stretches {
		cut := stretch{start: s.start}
		for t := range s.up {
			cut.up = append(cut.up, s.up[t][i:i+1])
			cut.price = append(cut.price, s.price[t][i:i+1])
			cut.count = append(cut.count, s.count[t][i:i+1])
		}
		one.stretches = append(one.stretches, cut)
	}
	return one
}

// windows are the starts whose whole span up to the deadline was recorded.
func (o *Options) windows(m *market) ([]*window, error) {
	ticks := int((o.Deadline + m.step - 1) / m.step)
	stride := max(1, int(o.Every/m.step))
	if o.N > 0 {
		stride = 1
	}
	var all []*window
	for i := range m.stretches {
		s := &m.stretches[i]
		for t := 0; t+ticks <= len(s.up); t += stride {
			all = append(all, &window{opt: o, market: m, stretch: s, first: t, ticks: ticks})
		}
	}
	if len(all) == 0 {
		return nil, inputError("no unbroken stretch of %s is as long as the deadline of %v", o.Market, o.Deadline)
	}
	if o.N == 0 {
		return all, nil
	}
	n := min(o.N, len(all))
	picked := make([]*window, n)
	for i := range n {
		picked[i] = all[i*(len(all)-1)/max(1, n-1)]
	}
	return picked, nil
}

type row struct {
	window            *window
	optimum, onDemand float64
	outcomes          []outcome
}

// share turns dollars into shares of on demand.
func (r *row) share() {
	r.optimum /= r.onDemand
	for i := range r.outcomes {
		o := &r.outcomes[i]
		o.cost /= r.onDemand
		o.probes /= r.onDemand
		o.egress /= r.onDemand
	}
	r.onDemand = 1
}

func summarize(rows []row, names []string, notes []string) Result {
	r := Result{Windows: len(rows), Notes: notes}
	var onDemand float64
	for _, w := range rows {
		r.Optimum.SumCost += w.optimum
		onDemand += w.onDemand
	}
	r.Optimum.OverOnDemand = r.Optimum.SumCost / onDemand
	for p, name := range names {
		s := Score{Name: name}
		var ratios []float64
		var paid, idle time.Duration
		for _, w := range rows {
			o := w.outcomes[p]
			ratio := o.cost / w.optimum
			ratios = append(ratios, ratio)
			s.SumCost += o.cost
			s.MeanRatio += ratio / float64(len(rows))
			s.Preemptions += o.preemptions
			s.Moves += o.moves
			s.ProbeCost += o.probes
			s.EgressCost += o.egress
			if o.missed {
				s.Misses++
			}
			paid += o.paid
			idle += o.idle
		}
		slices.Sort(ratios)
		s.P90Ratio = ratios[(len(ratios)*9+9)/10-1]
		s.MaxRatio = ratios[len(ratios)-1]
		s.SumRatio = s.SumCost / r.Optimum.SumCost
		s.OverOnDemand = s.SumCost / onDemand
		s.WasteShare = idle.Seconds() / paid.Seconds()
		r.Policies = append(r.Policies, s)
	}
	return r
}
