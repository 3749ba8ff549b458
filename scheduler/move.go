package scheduler

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/rates"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

// A move rents first and stops then: the machines that take a task are asked for while
// it runs on, and only when all of them are accepted does it save, stop and go on there.
// A launch that is refused costs nothing but its cool-down.

// worthMoving is how much work without a deadline must be left to be stopped for a better
// market.
const worthMoving = time.Hour

// reconsider asks the policy whether a running task, or a gang, is better off elsewhere,
// and rents the machines for a move.
func (p *pass) reconsider(r *Running, m *Machine) {
	g := &r.Group
	key := p.standing(r, m)
	if old, ok := p.memo.stays[r.Attempt]; ok && old.facts == key && (old.until.IsZero() || old.until.After(p.Now)) {
		p.wake(old.until)
		return
	}
	c := p.classOf(g)
	v := c.fits.ask.of(p.Facts, m.Shape.GPU)
	if _, code := g.Needs.slots(&m.Shape, v); code != "" {
		return // it was placed under other facts: leave it
	}
	figure := 1.0
	if g.Needs.GPUs > 0 {
		figure = v.figure
	}
	l := c.fits.ask.loadOf(g, p.jobTasks[g.Job])
	if l.waiting = 1; g.Deadline.IsZero() && l.task < worthMoving {
		return
	}
	left, all, spare := p.shared(g, c, &l)
	if !spare {
		ch := p.choose(c, l)
		left = p.inStock(g.Job, c, ch.candidates)
		all = len(left) == len(ch.candidates)
	}
	d := p.decide(g, &l, left, p.placement(r, m, c, &l, figure))
	p.wake(d.Until)
	delete(p.memo.stays, r.Attempt)
	if d.Action == policy.Stay && all && d.Want == nil {
		p.memo.stays[r.Attempt] = stay{key, d.Until}
	}
	if d.Action == policy.Move && len(left) > 0 {
		p.move(r, c, &left[d.Market], reason.New("moved", "why", d.Why.String()))
	}
}

// stay is an answer that holds until a moment, unless a fact changes.
type stay struct {
	facts standing
	until time.Time
}

// standing is what an answer about a running task depends on beside the time, the catalog
// and its job. What is in use elsewhere is no part of it: no answer is kept for which that
// left anything out.
type standing struct {
	machine  string
	left     float64
	useful   bool
	price    money.Rate
	deadline time.Time
	margin   time.Duration
	rates    *rates.Class
	world    uint64 // cool-downs and what was seen of markets
}

func (p *pass) standing(r *Running, m *Machine) standing {
	return standing{m.ID, r.Group.Left, r.Useful, p.margin(m), r.Group.due(), p.Settings.Margin, r.Group.Work.Rates, p.seen()}
}

// seen tells one state of the cool-downs and histories from another.
func (p *pass) seen() uint64 {
	if p.world != 0 {
		return p.world
	}
	p.world = 1
	add := func(key string, n uint64) {
		h := fnv.New64a()
		_, _ = h.Write(binary.LittleEndian.AppendUint64([]byte(key), n)) // it never fails
		p.world += h.Sum64()
	}
	for key, c := range p.Cooldowns {
		add(key, uint64(c.Until.UnixNano()))
	}
	for key, h := range p.History {
		add(key, uint64(h.Held)+uint64(h.Preemptions))
	}
	return p.world
}

// shared are the candidates for what is left of a running task, priced for it, from the
// choice of all that want the same: of a load in steps of four, without a deadline. It
// reports whether none was left out, and whether that can do: whether one of them keeps
// the deadline on demand.
func (p *pass) shared(g *Group, c *class, l *load) (list []candidate, all, spare bool) {
	steps := *l
	steps.deadline, steps.width, steps.beside = time.Time{}, 0, 0
	down := func(x float64) float64 { return math.Exp2(2*math.Floor(math.Log2(x)/2)) / x }
	share := down(float64(l.task))
	if l.rates != nil {
		share = down(l.left)
		steps.left *= share
	} else {
		steps.left = 1
	}
	steps.task = part(l.task, share)
	if l.whole {
		steps.atRisk = part(l.atRisk, share)
	}
	ch := p.choose(c, steps)
	p.scaled = append(p.scaled[:0], p.inStock(g.Job, c, ch.candidates)...)
	for i := range p.scaled {
		one := &p.scaled[i]
		was := one.task
		one.task = part(was, 1/share)
		if one.saved > 0 {
			one.saved = part(one.saved, 1/share)
		}
		if one.atRisk == was {
			one.atRisk = one.task
		}
		spare = spare || one.offer.Market.Kind == providers.OnDemand && !one.done(p.Now.Add(p.Settings.Margin)).After(l.deadline)
	}
	return p.scaled, len(p.scaled) == len(ch.candidates), spare || !l.due(p.Now) || g.OnDemand == OnDemandNever
}

// placement shows the policy where a task runs: what is left there counts from now, with
// what is not saved yet.
func (p *pass) placement(r *Running, m *Machine, c *class, l *load, figure float64) *policy.Placement {
	kind := policy.OnDemand
	if m.Market.Kind == providers.Spot {
		kind = policy.Spot
	}
	history := p.history(m.Market)
	whole := p.on(c, l, &m.Shape, figure).task
	now := max(0, whole-max(0, r.Unsaved))
	save := l.saveTime(m.Shape.NetworkBps, 1)
	risk := whole
	every, saved, _ := l.saving(now, save, history, kind == policy.Spot)
	if every > 0 {
		risk = min(whole, every+save)
	}
	price := p.margin(m)
	for _, id := range r.Beside {
		if h := p.byID[id]; h != nil {
			price = more(price, p.margin(h.machine))
		}
	}
	caps := p.Providers[m.Market.Provider].Capabilities
	return &policy.Placement{
		Candidate: policy.Candidate{
			Market: m.Market.String(), Kind: kind, Price: price, Billing: m.Billing, Machines: l.nodes, AtRisk: risk,
			Work: max(time.Second, now+saved+l.out(m.Shape.NetworkBps, 1)), Delay: caps.BootTime + l.in(m.Shape.NetworkBps, 1),
			Tail: p.regime(m.Market.Provider).tail, Value: l.value, History: history, Region: regionOf(&m.Market),
		},
		Since: r.Since, Running: r.Useful,
	}
}

// move rents all machines that a running task moves to, if they may be had beside those
// that it is on.
func (p *pass) move(r *Running, c *class, one *candidate, why reason.Reason) {
	g := &r.Group
	n := g.Needs.nodes()
	if !p.machineLimits(g, n).IsZero() {
		return
	}
	if _, over := p.gangOver(g, c, nil, one.offer); g.Needs.gang() && over {
		return
	}
	var launches []Launch
	if _, ok := p.attempt(func() reason.Reason {
		for range n {
			lease, short, _ := p.admit(g, c, one)
			if !short.IsZero() {
				return short
			}
			launches = append(launches, lease)
		}
		return reason.Reason{}
	}); !ok {
		return
	}
	for _, l := range launches {
		l.Takes, l.Why = r.Attempt, why
		p.out.Launches = append(p.out.Launches, l)
		h := &host{launch: len(p.out.Launches) - 1, slots: l.Slots, key: c.slotKey, price: l.Price, billing: one.billing}
		p.rented(g, &l, h)
		p.draw(one.offer)
		p.asks(g, &l, one.billing)
	}
}
