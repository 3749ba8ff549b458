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
	tick  int           // since first
	off   time.Duration // since the tick, see Options.Between
	until time.Time     // when our policy asks to be asked again
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
	// share is what the run has to share with others, nil for a run alone.
	share *share
}

type answer uint8

const (
	unknown answer = iota
	isUp
	isDown
)

// replay plays a rule through the window.
func (w *window) replay(start rule) outcome { return w.follow(start, func(*run) {}) }

// follow is replay that shows each tick's run once it is decided, before time passes.
func (w *window) follow(start rule, show func(*run)) outcome {
	r := w.run()
	rule := start(&sight{r: r})
	decide := func() {
		rule()
		show(r)
	}
	for ; r.running(); r.tick++ {
		r.begin()
		decide()
		r.pass(decide)
	}
	r.end()
	return r.out
}

// pass lets a tick pass, and asks again within it where that is asked for.
func (r *run) pass(decide func()) {
	step := r.market.step
	for r.opt.Between && r.left > 0 {
		wait := r.until.Sub(r.now())
		if r.until.IsZero() || wait <= 0 || r.off+wait >= step {
			break
		}
		r.advance(wait)
		r.off += wait
		if r.lost = none; r.left > 0 {
			decide()
		}
	}
	if r.left > 0 {
		r.advance(step - r.off)
	}
	r.off = 0
}

// run is the window before its first tick.
func (w *window) run() *run {
	return &run{window: w, left: w.opt.Length, held: none, lost: none, home: w.market.nowhere(), tried: make([]answer, len(w.market.pools))}
}

func (r *run) running() bool { return r.tick < r.ticks && r.left > 0 }

// begin finds out whether the machine held is still there.
func (r *run) begin() {
	clear(r.tried)
	r.lost = none
	if r.held == none || r.held >= len(r.market.pools) {
		return
	}
	if r.up(r.held) {
		r.tried[r.held] = isUp
	} else {
		r.tried[r.held] = isDown
		r.out.preemptions++
		r.lost, r.held = r.held, none
	}
}

// end has a policy that misses pay for on demand to the end.
func (r *run) end() {
	if r.left > 0 {
		s := sight{r: r}
		s.buy(s.cheapestOnDemand())
		r.advance(r.delay + r.left)
	}
	r.out.missed = r.out.finish > r.opt.Deadline
}

func (r *run) now() time.Time {
	return r.stretch.start.Add(time.Duration(r.first+r.tick)*r.market.step + r.off)
}

// up says whether spot can be had or kept in a pool.
func (r *run) up(pool int) bool {
	return r.stretch.up[r.first+r.tick][pool] && (r.share == nil || r.share.grants(r, pool))
}

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
	if r.share != nil {
		machine = r.share.instead(r, machine)
	}
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

// leave holds no machine any more.
func (r *run) leave() {
	if r.share == nil || r.share.pays(r, none) {
		r.held = none
	}
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
