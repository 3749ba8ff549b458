package backtest

import (
	"cmp"
	"math"
	"slices"
	"time"

	"gpubroker/scheduler/policy"
)

// valuation is the V of the SkyNomad rule: what an hour of progress is worth, in $.
type valuation struct {
	of func(*nomad) float64
	// longest is the cap on predicted lifetimes, 0 = none.
	longest time.Duration
	// once: each pool is probed once, at the start, as the released runs do;
	// otherwise every two hours.
	once bool
}

// The three forms of V that are written down (NSDI'27), with T the deadline, t
// the time since the start, P the work, p what is done and Cod the price of on
// demand.
var (
	// The paper: Cod × needed rate ÷ achieved rate = Cod (t/(T−t)) ((P−p)/p). One
	// delay is added to t and to p, so that a start has a value too.
	paperV = valuation{of: func(n *nomad) float64 {
		t, p, d := n.elapsed().Hours(), n.progress().Hours(), max(n.delay(), time.Minute).Hours()
		return n.cod() * ((t + d) / n.remaining().Hours()) * (n.left().Hours() / (p + d))
	}}
	// The released V100 runs: Cod (T/(T−t)) ((P−p)/P), at least the cheapest spot.
	rateV = valuation{once: true, of: func(n *nomad) float64 {
		v := n.cod() * (n.deadline().Hours() / n.remaining().Hours()) * (n.left().Hours() / n.length().Hours())
		return max(v, n.price(cheapest(n.sight)[0]))
	}}
	// The released H100 runs: 1.2 × an estimated mixed price, lifetimes of at most
	// two hours. The mix is not written down; here spot counts by the share of the
	// tries that found any.
	mixedV = valuation{once: true, longest: 2 * time.Hour, of: func(n *nomad) float64 {
		share := (n.ups + 1) / (n.tries + 1)
		return 1.2 * (share*n.price(cheapest(n.sight)[0]) + (1-share)*n.cod())
	}}
)

// nomad is the SkyNomad rule: the utility of a machine is V·η − price − E/L, with
// L its predicted remaining lifetime, η = max(0, L−d)/L, or 1 for the machine
// held, and E the egress; idle has 0. Machines are tried by falling utility while
// it exceeds what is held by a margin.
type nomad struct {
	*sight
	v     valuation
	lives []lives
	next  time.Duration // of the probes
	// How many ticks some spot was tried for and how many it was had.
	tries, ups float64
}

func skynomad(v valuation) rule {
	return func(s *sight) func() {
		n := &nomad{sight: s, v: v, lives: make([]lives, s.pools()), next: probeEvery}
		if v.once {
			n.next = 0
		}
		s.before(func(pool int, up bool, at time.Duration) { n.lives[pool].see(up, at) })
		return n.decide
	}
}

func (n *nomad) cod() float64 { return n.price(n.cheapestOnDemand()) }

func (n *nomad) decide() {
	for i := range n.pools() {
		n.note(i)
	}
	if n.elapsed() >= n.next {
		if n.next += probeEvery; n.v.once {
			n.next = n.deadline()
		}
		for i := range n.pools() {
			n.probe(i)
			n.note(i)
		}
	}
	if n.unsafe() {
		if n.idle() {
			n.buy(n.cheapestOnDemand())
		}
		return
	}
	v := n.v.of(n)
	have, margin := 0.0, 0.0
	if !n.idle() {
		have, margin = v-n.price(n.r.held), n.margin(v)
	}
	if have < -margin {
		n.leave()
		have, margin = 0, 0
	}
	type option struct {
		machine int
		utility float64
	}
	var options []option
	for m := range n.pools() + len(n.r.market.onDemandAt) {
		if u := n.utility(m, v); m != n.r.held && u > have+margin {
			options = append(options, option{m, u})
		}
	}
	slices.SortStableFunc(options, func(a, b option) int { return cmp.Compare(b.utility, a.utility) })
	tried, had := false, false
	for _, o := range options {
		if o.machine >= n.pools() {
			n.buy(o.machine)
			break
		}
		tried = true
		had = n.launch(o.machine)
		n.note(o.machine)
		if had {
			break
		}
	}
	n.tries += float64(b2i(tried || n.onSpot()))
	n.ups += float64(b2i(had || n.onSpot()))
}

// margin of leaving a machine, as released: 0.5 $/h of an instance + 0.0002 $/GB + 0.05 V.
func (n *nomad) margin(v float64) float64 {
	return 0.5*float64(n.r.opt.Gang) + 0.0002*n.r.opt.Checkpoint + 0.05*v
}

func (n *nomad) utility(machine int, v float64) float64 {
	if machine >= n.pools() {
		return v - n.price(machine)
	}
	life := n.lives[machine].left(n.elapsed())
	if n.v.longest > 0 {
		life = min(life, n.v.longest)
	}
	eta := max(0, (life-n.delay()).Hours()) / life.Hours()
	return v*eta - n.price(machine) - n.entry(machine)/life.Hours()
}

// note remembers what this tick says of a pool.
func (n *nomad) note(pool int) {
	if a := n.seen(pool); a != unknown {
		n.lives[pool].see(a == isUp, n.elapsed())
	}
}

// lives are the runs of a pool: how long it was up, and whether the end was seen.
type lives struct {
	ended []time.Duration // sorted
	sum   time.Duration   // of all ended
	up    bool
	since time.Duration
	ends  []time.Duration // when
}

func (l *lives) see(up bool, at time.Duration) {
	switch {
	case up && !l.up:
		l.since = at
	case !up && l.up:
		d := at - l.since
		i, _ := slices.BinarySearch(l.ended, d)
		l.ended = slices.Insert(l.ended, i, d)
		l.sum += d
		l.ends = append(l.ends, at)
	}
	l.up = up
}

// left is the mean residual life at the present age by the Nelson–Aalen estimate
// of the cumulated hazard, which the worst recent clustering of ends multiplies:
// the ends seen in the last 1, 2 or 4 hours ÷ those expected, at least 1. The
// run that goes on is censored. With fewer than three ends it is the mean life
// of [policy.Life].
func (l *lives) left(now time.Duration) time.Duration {
	age := time.Duration(0)
	if l.up {
		age = now - l.since
	}
	mean := policy.Life(policy.History{Preemptions: len(l.ended), Held: l.sum + age}, policy.History{})
	cluster := 1.0
	for _, span := range []time.Duration{time.Hour, 2 * time.Hour, 4 * time.Hour} {
		seen := 0
		for i := len(l.ends) - 1; i >= 0 && l.ends[i] > now-span; i-- {
			seen++
		}
		if seen > 1 { // one end is no cluster
			cluster = max(cluster, float64(seen)/(span.Hours()/mean.Hours()))
		}
	}
	var life time.Duration
	if len(l.ended) >= 3 {
		from, _ := slices.BinarySearch(l.ended, age+1)
		area, survive, at := 0.0, 1.0, age
		for i := from; i < len(l.ended); i++ {
			area += survive * (l.ended[i] - at).Hours()
			at = l.ended[i]
			survive *= math.Exp(-cluster / float64(len(l.ended)-i))
		}
		area += survive * mean.Hours() / cluster // beyond what was seen
		life = time.Duration(area * float64(time.Hour))
	} else {
		life = time.Duration(float64(mean) / cluster)
	}
	return max(life, time.Second)
}
