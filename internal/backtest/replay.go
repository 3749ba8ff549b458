package backtest

import (
	"time"

	"gpubroker/internal/money"
)

// window is one job in one market: from a first tick to its deadline.
type window struct {
	opt     *Options
	market  *market
	stretch *stretch
	first   int
	ticks   int
}

// outcome is how one policy did in one window. Costs are in US dollars; cost
// holds those of probes and egress too.
type outcome struct {
	cost, probes, egress float64
	finish               time.Duration // since the start
	missed               bool
	preemptions, moves   int
	paid, idle           time.Duration // idle: paid without progress
}

// onDemandCost is the cost of running on demand throughout, where that is cheapest.
func (w *window) onDemandCost() float64 {
	rate := w.market.pools[w.market.cheapestOnDemand()].onDemand
	return dollars(w.opt.Length+w.opt.Delay, rate, w.opt.Gang)
}

func dollars(d time.Duration, r money.Rate, gang int) float64 {
	return d.Hours() * r.Float() * float64(gang)
}

// none is held when no machine is.
const none = -1

// run is the state of one replay. A machine is a number: a pool's for spot
// there, then those of market.onDemandAt.
type run struct {
	*window
	tick  int // since first
	left  time.Duration
	delay time.Duration // until the held machine makes progress
	held  int
	since time.Time
	// lost is the pool of the machine that was taken away at this tick, or none.
	lost int
	// home is the region of the checkpoint.
	home int
	// tried says of each pool what this tick's launches and probes found.
	tried []answer
	out   outcome
}

type answer uint8

const (
	unknown answer = iota
	isUp
	isDown
)

// replay plays a rule through the window.
func (w *window) replay(start rule) outcome {
	n := len(w.market.pools)
	r := run{window: w, left: w.opt.Length, held: none, lost: none, home: w.market.nowhere(), tried: make([]answer, n)}
	s := &sight{r: &r}
	decide := start(s)
	for r.tick = 0; r.tick < w.ticks && r.left > 0; r.tick++ {
		clear(r.tried)
		r.lost = none
		if r.held >= 0 && r.held < n {
			if r.up(r.held) {
				r.tried[r.held] = isUp
			} else {
				r.tried[r.held] = isDown
				r.out.preemptions++
				r.lost, r.held = r.held, none
			}
		}
		decide()
		r.advance(w.market.step)
	}
	if r.left > 0 { // a policy that misses pays for on demand to the end
		s.buy(s.cheapestOnDemand())
		r.advance(r.delay + r.left)
	}
	r.out.missed = r.out.finish > w.opt.Deadline
	return r.out
}

func (r *run) now() time.Time {
	return r.stretch.start.Add(time.Duration(r.first+r.tick) * r.market.step)
}

func (r *run) up(pool int) bool { return r.stretch.up[r.first+r.tick][pool] }

// price of one instance of a machine at this tick. Time past the deadline, which
// only on demand is ever held in, has the price of on demand.
func (r *run) price(machine int) money.Rate {
	if n := len(r.market.pools); machine >= n {
		return r.market.pools[r.market.onDemandAt[machine-n]].onDemand
	}
	return r.stretch.price[r.first+r.tick][machine]
}

// hold enters a machine: the checkpoint comes along, and the delay begins.
func (r *run) hold(machine int) {
	if machine == r.held {
		return
	}
	if r.held != none {
		r.out.moves++
	}
	to := r.market.regionOf(machine)
	r.out.egress += r.market.egress[r.home][to]
	r.out.cost += r.market.egress[r.home][to]
	r.home, r.held, r.delay, r.since = to, machine, r.opt.Delay, r.now()
}

// advance lets up to dt pass.
func (r *run) advance(dt time.Duration) {
	r.out.finish += dt
	if r.held == none {
		return
	}
	used := min(dt, r.delay+r.left)
	r.out.finish += used - dt
	r.out.cost += dollars(used, r.price(r.held), r.opt.Gang)
	idle := min(used, r.delay)
	r.delay -= idle
	r.left -= used - idle
	r.out.paid += used
	r.out.idle += idle
}
