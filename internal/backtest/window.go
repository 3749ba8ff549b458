package backtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gpubroker/internal/money"
)

// Window is one job in a recorded market, for whoever plays the same elsewhere.
type Window struct {
	// Step is the length of a tick. The market of the first is that of the job's start.
	Step  time.Duration
	Pools []Pool
	// Up says of each tick and pool whether the whole gang can be had there, Price what
	// one instance costs on spot. They end with the last tick before the deadline.
	Up    [][]bool
	Price [][]money.Rate
	// Length, Deadline and Delay of the job, from its start.
	Length, Deadline, Delay time.Duration
	Gang                    int
	w                       *window
}

// Pool is one place to rent in. On demand can always be had.
type Pool struct {
	Name, Region string
	OnDemand     money.Rate // of one instance
}

// Windows reads a market and returns the windows that [Run] would replay.
func Windows(o Options) ([]Window, error) {
	o.school = newSchool(o.knowledge())
	all, _, err := o.all()
	if err != nil {
		return nil, err
	}
	out := make([]Window, len(all))
	for k, w := range all {
		ticks := slices.Clone(w.stretch.up[w.first : w.first+w.ticks])
		out[k] = Window{
			Step: w.market.step, Up: ticks, Price: w.stretch.price[w.first : w.first+w.ticks],
			Length: o.Length, Deadline: w.opt.Deadline, Delay: o.Delay, Gang: o.Gang, w: w,
		}
		for _, p := range w.market.pools {
			out[k].Pools = append(out[k].Pools, Pool{Name: p.name, Region: p.region, OnDemand: p.onDemand})
		}
	}
	return out, nil
}

// Spent is what a policy spends on a window, in US dollars, and what it does there.
type Spent struct {
	Cost               float64
	Preemptions, Moves int
	Missed             bool
	Finish             time.Duration // since the start
	Stays              []Stay
}

// Stay is a machine that was held from a moment after the start on: a pool on spot, or
// on demand; none is "idle".
type Stay struct {
	At time.Duration
	On string
}

// Play replays a policy in the window.
func (w Window) Play(ctx context.Context, name string) (Spent, error) {
	start := ruleOf(name)
	if start == nil {
		return Spent{}, inputError("unknown policy %q", name)
	}
	out := Spent{}
	was := ""
	done := w.w.follow(start, func(r *run) {
		on := "idle"
		if r.held != none {
			on = r.market.machine(r.held)
		}
		if on != was {
			out.Stays, was = append(out.Stays, Stay{time.Duration(r.tick)*r.market.step + r.off, on}), on
		}
	})
	if err := ctx.Err(); err != nil {
		return Spent{}, fmt.Errorf("backtest: %w", err)
	}
	out.Cost, out.Preemptions, out.Moves, out.Missed, out.Finish = done.cost, done.preemptions, done.moves, done.missed, done.finish
	return out, nil
}
