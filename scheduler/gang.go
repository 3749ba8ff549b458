package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

// A gang is a task that needs several machines at once. It is placed as a whole or
// not at all: on machines of one market, and so of one zone and one model of GPU,
// each of them its own.

// gang reports whether a task needs several machines at once.
func (n *Needs) gang() bool { return n.Nodes > 1 }

// nodes is how many machines one task needs.
func (n *Needs) nodes() int { return max(1, n.Nodes) }

// placeGangs fills sets of machines in hand, then rents what is missing.
func (p *pass) placeGangs(g *Group, c *class, l *load, room int, limited reason.Reason, d *Decision) {
	for d.Placed < room && p.reuseGang(g, p.inHandOnly(g, c, l), l) {
		d.Placed++
	}
	if d.Placed < room {
		p.rentGangs(g, c, l, room, d)
		p.keep(g, c, l, d)
	} else if limited.IsZero() {
		d.Why = reason.New("reused", "tasks", d.Placed)
	}
	if d.Placed == room && !limited.IsZero() {
		d.Why = limited
	}
}

// inHand lists the empty machines that may serve the class by market, the ready
// ones first, then the cheapest.
func (p *pass) inHand(c *class) map[providers.Market][]*host {
	pl := p.pools[c.pool]
	if pl == nil {
		return nil
	}
	if c.hand != nil && c.handAt == len(p.out.Assigns) {
		return c.hand
	}
	out := map[providers.Market][]*host{}
	c.hand, c.handAt = out, len(p.out.Assigns)
	for _, b := range pl.empty {
		if len(b.machines) == 0 || p.suits(c, b).slots == 0 {
			continue
		}
		for _, r := range b.machines {
			if r.keeper == "" && c.affords(r) {
				out[r.machine.Market] = append(out[r.machine.Market], r)
			}
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b *host) int {
			return cmp.Or(truth(b.machine.Ready, a.machine.Ready), cmp.Compare(a.price, b.price), strings.Compare(a.machine.ID, b.machine.ID))
		})
	}
	return out
}

// missing is how many machines of a market one task of the class would rent there:
// those that are not in hand.
func (p *pass) missing(c *class, m providers.Market) int {
	if !c.needs.gang() {
		return 1
	}
	return max(1, c.needs.nodes()-len(p.inHand(c)[m]))
}

// fitOf is how a machine in hand would be cut.
func (p *pass) fitOf(c *class, r *host) fitted {
	v := c.fits.ask.of(p.Facts, r.machine.Shape.GPU)
	f := fitted{slots: 1, figure: 1}
	if c.needs.GPUs > 0 {
		f.figure = v.figure
	}
	return f
}

// reuseGang puts one task on a whole set of machines in hand, the cheapest, where
// keeping them costs no more than renting others.
func (p *pass) reuseGang(g *Group, c *class, l *load) bool {
	n := c.needs.nodes()
	sum := func(list []*host) (total money.Rate) {
		for _, r := range list {
			total += r.price
		}
		return total
	}
	var best []*host
	for m, list := range p.inHand(c) {
		if len(list) < n {
			continue
		}
		list = list[:n]
		f, b := p.fitOf(c, list[0]), &bucket{shape: &list[0].machine.Shape}
		if p.tooLate(c, l, b, f) || slices.ContainsFunc(list, func(r *host) bool { return !p.worth(c, l, b, f, r) }) {
			continue
		}
		if _, short := p.gangOver(g, c, list, nil); short {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(sum(list), sum(best)), m.Compare(best[0].machine.Market)) < 0 {
			best = list
		}
	}
	if best == nil {
		return false
	}
	_, ok := p.attempt(func() reason.Reason { return p.secureAll(g, best) })
	if ok {
		p.occupyGang(g, c, best, nil)
	}
	return ok
}

// attempt runs something that reserves money, and takes back all that it has
// reserved if it fails.
func (p *pass) attempt(do func() reason.Reason) (reason.Reason, bool) {
	was := p.book
	p.book = newLayer(was)
	why := do()
	trial := p.book
	p.book = was
	if !why.IsZero() {
		return why, false
	}
	maps.Copy(was.accounts, trial.accounts)
	maps.Copy(was.holds, trial.holds)
	return why, true
}

// secureAll reserves what machines in hand need for work that cannot stop.
func (p *pass) secureAll(g *Group, list []*host) reason.Reason {
	for _, r := range list {
		if !p.secured(g, r) {
			return reason.New("gang_unsecured", "machine", r.machine.ID)
		}
	}
	return reason.Reason{}
}

// occupyGang puts one task on machines in hand and on new ones.
func (p *pass) occupyGang(g *Group, c *class, hosts []*host, launches []Launch) {
	p.gangs++
	for _, m := range p.limitsOf(g) {
		m.used.tasks++
	}
	for _, b := range p.pools[c.pool].emptyBuckets() {
		b.machines = slices.DeleteFunc(b.machines, func(r *host) bool {
			taken := slices.Contains(hosts, r)
			if taken {
				b.slots -= r.slots
			}
			return taken
		})
	}
	for _, r := range hosts {
		a := Assign{Group: g.ID, Machine: r.machine.ID, Count: 1, Gang: p.gangs}
		if r.slots != 1 || r.key != c.slotKey {
			r.slots, r.key = 1, c.slotKey
			a.Slots, a.SlotKey = 1, c.slotKey
		}
		r.used = 1
		p.counts(g.Queue, r)
		p.account(r.machine.Market.Provider).used.tasks++
		p.out.Assigns = append(p.out.Assigns, a)
		p.put(c.pool, c.slotKey, r.machine.Market, &r.machine.Shape, r)
	}
	for _, l := range launches {
		l.Tasks, l.Gang = 1, p.gangs
		p.out.Launches = append(p.out.Launches, l)
		h := &host{
			launch: len(p.out.Launches) - 1, slots: 1, used: 1, key: c.slotKey, price: l.Price,
			billing: p.Providers[l.Market.Provider].Capabilities.Billing,
		}
		p.put(c.pool, c.slotKey, l.Market, &l.Shape, h)
		p.rented(g, &l, h)
		p.account(l.Market.Provider).used.tasks++
		p.asks(g, &l, h.billing)
	}
}

func (pl *pool) emptyBuckets() []*bucket {
	if pl == nil {
		return nil
	}
	return pl.empty
}

// rentGangs rents the machines of one task after another: what is missing of a set
// in hand in its own market, else a whole set in the market that the policy picks.
func (p *pass) rentGangs(g *Group, c *class, l *load, room int, d *Decision) {
	ch := p.choose(c, *l)
	d.Considered, d.Usable, d.Reasons, d.Best = ch.considered, ch.usable, ch.reasons, ch.options(l, c.limit)
	for k := range kinds {
		p.wake(p.Catalog.staleAt(k, p.Now, p.Settings.Stale))
	}
	for d.Placed < room {
		one, hosts := p.topUp(c, l, ch)
		var why policy.Why
		if one == nil {
			if len(ch.candidates) == 0 {
				d.Why = nothingFits(ch)
				return
			}
			left := p.inStock(g.Job, c, ch.candidates)
			if len(left) == 0 {
				if d.Why = p.usedUp(g.Job, c, ch); d.Why.Code == "sold_out" {
					d.Why = reason.New("gang_sold_out", "nodes", c.needs.nodes(), "offers", len(ch.candidates))
				}
				return
			}
			answer := p.decide(g, l, left, nil)
			p.wake(answer.Until)
			if answer.Action == policy.Wait {
				d.Why, d.Again = waits(&answer), answer.Until
				return
			}
			one, why = &left[answer.Market], answer.Why
			hosts = p.inHand(c)[one.offer.Market]
			hosts = hosts[:min(len(hosts), c.needs.nodes()-1)]
		}
		rest := g.Waiting - d.Placed
		if follows := p.follow(g, c, l, one); len(hosts) == 0 && rest <= follows {
			p.claim(g, c, one, rest)
			d.Why = reason.New("follows", "tasks", rest, "rounds", one.deep)
			if d.Launched > 0 {
				d.Why = reason.New("in_turn", "machines", d.Launched, "rounds", one.deep)
			}
			return
		}
		if !p.launchGang(g, c, l, one, hosts, d) {
			return
		}
		switch {
		case len(hosts) > 0:
			d.Why = reason.New("gang_completed", "machines", c.needs.nodes()-len(hosts), "nodes", c.needs.nodes(), "market", one.offer.Market)
		default:
			d.Why = reason.New("chosen", "why", why.String())
		}
		p.turn(g.Project)
	}
}

// gangOver says which limit a task on machines in hand, and on new ones of an offer,
// would pass, beside those on the number of machines.
func (p *pass) gangOver(g *Group, c *class, hosts []*host, o *Offer) (reason.Reason, bool) {
	var queue use
	for _, r := range hosts {
		if !p.meters.serves[served{g.Queue, r}] {
			queue = queue.plus(r.use(p))
		}
	}
	provider := ""
	if len(hosts) > 0 {
		provider = hosts[0].machine.Market.Provider
	}
	if o != nil {
		provider = o.Market.Provider
		if m, over := p.over(g.Job, c, o); over != usable {
			return m.because(over, c.useOf(p, o)), true
		}
		queue = queue.plus(c.useOf(p, o))
	}
	if m := p.account(provider); m.Tasks > 0 && m.used.tasks+c.needs.nodes() > m.Tasks {
		return m.because(atTaskLimit, use{}), true
	}
	if q := p.queue(g.Queue); q.onMachines() {
		if r := q.lacks(g.Job, queue); r != usable {
			return q.because(r, queue), true
		}
	}
	return reason.Reason{}, false
}

// launchGang rents what one task still needs at a candidate, or says why not.
func (p *pass) launchGang(g *Group, c *class, l *load, one *candidate, hosts []*host, d *Decision) bool {
	missing := c.needs.nodes() - len(hosts)
	if limit := p.limits(g, missing); !limit.IsZero() {
		if limit.Code == "launch_limit" {
			p.waitsFor = limit // launches under way are soon over, and then it has its turn
		}
		d.Why = reason.New("gang_limit", "missing", missing, "limit", limit)
		return false
	}
	if limit, short := p.gangOver(g, c, hosts, one.offer); short {
		d.Why = reason.New("gang_limit", "missing", missing, "limit", limit)
		return false
	}
	var launches []Launch
	why, ok := p.attempt(func() reason.Reason {
		for range missing {
			lease, short, again := p.admit(g, c, one)
			if !short.IsZero() {
				d.Again = again
				return reason.New("gang_budget", "fits", len(launches), "missing", missing, "why", short)
			}
			launches = append(launches, lease)
		}
		return p.secureAll(g, hosts)
	})
	if !ok {
		d.Why = why
		return false
	}
	if d.Launched == 0 {
		d.Best = chosenFirst(d.Best, one.option(l, c.limit))
	}
	p.occupyGang(g, c, hosts, launches)
	for range missing {
		p.draw(one.offer)
	}
	d.Launched += missing
	d.Placed++
	return true
}

// topUp finds the market where most of a gang is in hand, and where the rest may be
// rented: a set that lost a machine is made whole there, though the market cools down
// after that very loss, as long as going elsewhere saves less than what the machines
// in hand would cost until they are let go.
func (p *pass) topUp(c *class, l *load, ch *choice) (*candidate, []*host) {
	type set struct {
		one   candidate
		hosts []*host
	}
	best := ch.ready()
	var sets []set
	for m, hosts := range p.inHand(c) {
		if len(hosts) >= c.needs.nodes() {
			hosts = hosts[:c.needs.nodes()-1] // they were not worth keeping as a whole
		}
		one, ok := p.offered(c, l, m)
		if !ok {
			continue
		}
		if best != nil {
			idle, err := money.Charge(p.Settings.Idle, one.offer.Price, money.Billing{Unit: 1})
			if err != nil || one.late && !best.late || one.score > more(best.score, times(len(hosts), idle)) {
				continue
			}
		}
		sets = append(sets, set{one, hosts})
	}
	if len(sets) == 0 {
		return nil, nil
	}
	first := slices.MinFunc(sets, func(a, b set) int {
		return cmp.Or(cmp.Compare(len(b.hosts), len(a.hosts)), a.one.compare(&b.one))
	})
	return &first.one, first.hosts
}

// offered prices the offer of a market, if what is missing of a gang there may be
// rented now.
func (p *pass) offered(c *class, l *load, m providers.Market) (candidate, bool) {
	k := kindIndex(m.Kind)
	for _, f := range c.fits.fits {
		list := p.Catalog.Shapes[f.shape].list(k)
		for i := range list {
			o := &list[i]
			if o.Market != m {
				continue
			}
			if cool, is := p.cooled(m); is && !cool.Taken {
				return candidate{}, false
			}
			if c.kinds[k] != usable || p.rule(l, c, o) != usable || p.soldOut(o, p.missing(c, m)) {
				return candidate{}, false
			}
			one := p.price(l, f, p.on(c, l, &p.Catalog.Shapes[f.shape].Shape, f.figure), o, o.Price, p.transfer(c, m.Provider, m.Region))
			one.named(p.Snapshot)
			return one, true
		}
	}
	return candidate{}, false
}
