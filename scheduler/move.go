package scheduler

import (
	"slices"
	"time"

	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

// A move rents first and stops then: the machines that take a task are asked for while
// it runs on, and only when all of them are accepted does it save, stop and go on there.
// A launch that is refused costs nothing but its cool-down.

// reconsider asks the policy whether a running task, or a gang, is better off elsewhere,
// and rents the machines for a move.
func (p *pass) reconsider(r *Running, m *Machine) {
	g := &r.Group
	c := p.classOf(g)
	v := c.fits.ask.of(p.Facts, m.Shape.GPU)
	if _, code := g.Needs.slots(&m.Shape, v); code != "" {
		return // it was placed under other facts: leave it
	}
	figure := 1.0
	if g.Needs.GPUs > 0 {
		figure = v.figure
	}
	// Attempts share the choice of a rounded load; what is left of each is exact.
	exact := c.fits.ask.loadOf(g, p.jobTasks[g.Job])
	steps := *g
	steps.Left, steps.Waiting = octave(g.Left), 1
	l := c.fits.ask.loadOf(&steps, p.jobTasks[g.Job])
	ch := p.choose(c, l)
	left := slices.Clone(p.inStock(g.Job, c, ch.candidates))
	for i := range left {
		left[i].task = part(left[i].task, exact.left/l.left)
		if left[i].saved > 0 {
			left[i].saved = part(left[i].saved, exact.left/l.left)
		}
	}
	d := p.decide(g, &l, left, p.placement(r, m, c, &exact, figure))
	p.wake(d.Until)
	if d.Action == policy.Move && len(left) > 0 {
		p.move(r, c, &left[d.Market], reason.New("moved", "why", d.Why.String()))
	}
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
			Tail: p.regime(m.Market.Provider).tail, Value: l.value, History: history,
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
		p.give(g.Project, &l, one.billing)
		p.coming[l.Market]++
		p.draw(one.offer)
		if k := one.offer.commitment; k > 0 {
			p.committed[k-1]++
		}
		p.launching++
	}
}
