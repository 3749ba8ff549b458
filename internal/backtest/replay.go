package backtest

import (
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"
)

// window is one job in one market: from a first tick to its deadline.
type window struct {
	opt     *Options
	market  *market
	stretch *stretch
	first   int
	ticks   int
}

// outcome is how one policy did in one window.
type outcome struct {
	cost               float64
	finish             time.Duration // since the start
	missed             bool
	preemptions, moves int
	paid, idle         time.Duration // idle: paid without progress
}

// cheapestOnDemand is the pool whose on-demand machines are used: in the replay
// they always start, so no other is ever better.
func (m *market) cheapestOnDemand() int {
	at := 0
	for i := range m.pools {
		if m.pools[i].onDemand < m.pools[at].onDemand {
			at = i
		}
	}
	return at
}

// onDemandCost is the cost of running on demand throughout.
func (w *window) onDemandCost() float64 {
	rate := w.market.pools[w.market.cheapestOnDemand()].onDemand
	return dollars(w.opt.Length+w.opt.Delay, rate, w.opt.Gang)
}

func dollars(d time.Duration, r money.Rate, gang int) float64 {
	return d.Hours() * r.Float() * float64(gang)
}

// run is the state of one replay.
type run struct {
	*window
	tick  int // since first
	left  time.Duration
	delay time.Duration // until the held machine makes progress
	// held is the pool of the held spot machine, len(pools) for on demand, -1 for none.
	held   int
	since  time.Time
	cooled []policy.Cooled
	seen   []policy.History
	out    outcome
}

func (w *window) replay(decide func(policy.View) policy.Decision) outcome {
	n := len(w.market.pools)
	r := run{window: w, left: w.opt.Length, held: -1, cooled: make([]policy.Cooled, n), seen: make([]policy.History, n)}
	for r.tick = 0; r.tick < w.ticks && r.left > 0; r.tick++ {
		if r.held >= 0 && r.held < n && !r.up(r.held) {
			r.out.preemptions++
			r.seen[r.held].Preemptions++
			r.cooled[r.held] = policy.DefaultCooldown.Fail(r.cooled[r.held], r.now())
			r.held = -1
		}
		r.decide(decide)
		r.advance(w.market.step)
	}
	if r.left > 0 { // a policy that misses pays for on demand to the end
		r.hold(n)
		r.advance(r.delay + r.left)
	}
	r.out.missed = r.out.finish > w.opt.Deadline
	return r.out
}

func (r *run) now() time.Time {
	return r.stretch.start.Add(time.Duration(r.first+r.tick) * r.market.step)
}

func (r *run) up(pool int) bool { return r.stretch.up[r.first+r.tick][pool] }

// price of one instance at this tick.
func (r *run) price(held int) money.Rate {
	if held == len(r.market.pools) {
		return r.market.pools[r.market.cheapestOnDemand()].onDemand
	}
	return r.stretch.price[r.first+r.tick][held]
}

func (r *run) hold(at int) {
	if at != r.held {
		r.held, r.delay, r.since = at, r.opt.Delay, r.now()
	}
}

// decide asks until an answer can be carried out: each refused launch cools its
// pool down, so there are at most as many refusals as pools.
func (r *run) decide(decide func(policy.View) policy.Decision) {
	for {
		v := r.view()
		d := decide(v)
		switch d.Action {
		case policy.Stay:
			return
		case policy.Wait:
			r.held = -1
			return
		case policy.StartSpot, policy.StartOnDemand, policy.Move:
		}
		at := len(r.market.pools)
		if v.Candidates[d.Market].Kind == policy.Spot {
			at = d.Market
		}
		if at < len(r.market.pools) && !r.up(at) {
			r.cooled[at] = policy.DefaultCooldown.Fail(r.cooled[at], r.now())
			continue
		}
		if d.Action == policy.Move && at != r.held {
			r.out.moves++
		}
		r.hold(at)
		return
	}
}

// view shows what a policy may know. The spot candidates come in the order of
// the pools, then on demand.
func (r *run) view() policy.View {
	n, now := len(r.market.pools), r.now()
	start := r.stretch.start.Add(time.Duration(r.first) * r.market.step)
	v := policy.View{
		Now: now, Start: start, Deadline: start.Add(r.opt.Deadline),
		Total: r.opt.Length, Left: r.left, Look: r.market.step, Interruptible: true,
	}
	for i := range n + 1 {
		c := policy.Candidate{
			Price: money.Rate(r.opt.Gang) * r.price(i),
			Work:  r.left, Delay: r.opt.Delay,
		}
		if i == n {
			c.Market, c.Kind = "on-demand", policy.OnDemand
			c.Hint.Up = true
		} else {
			c.Market, c.Kind, c.History = r.market.pools[i].name, policy.Spot, r.seen[i]
			switch {
			case !r.opt.Free:
				c.Hint.CooledUntil = r.cooled[i].Until
			case r.up(i):
				c.Hint.Up = true
			default:
				c.Hint.CooledUntil = now.Add(r.market.step)
			}
		}
		v.Candidates = append(v.Candidates, c)
	}
	if r.held >= 0 {
		v.Current = &policy.Placement{Candidate: v.Candidates[r.held], Since: r.since, Running: r.delay == 0}
	}
	return v
}

// advance lets up to dt pass.
func (r *run) advance(dt time.Duration) {
	r.out.finish += dt
	if r.held < 0 {
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
	if r.held < len(r.seen) {
		r.seen[r.held].Held += used
	}
}
