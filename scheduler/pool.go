package scheduler

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// pool is the machines of one project and payer, by how they are cut. Machines
// that a pass launches join it, so that what one group rents serves the next.
type pool struct {
	cuts  map[string]*cut // machines with work, by slot key
	empty []*bucket       // machines without any
}

type poolKey struct{ project, payer string }

// cut is the machines whose slots are alike.
type cut struct {
	buckets []*bucket
	// claimed is the slot time that groups of this pass count on, beyond the
	// tasks that were placed.
	claimed time.Duration
}

// bucket is machines that differ in nothing that a group could ask for but their
// price, in the order in which they are filled.
type bucket struct {
	market   providers.Market // without its type
	shape    *providers.Shape
	machines []*host
	next     int // those before have no free slot
	slots    int
	used     int
}

type bucketKey struct {
	pool   poolKey
	key    string // "" for machines without work
	market providers.Market
	shape  providers.Shape
}

// host is a machine's slots, as this pass leaves them.
type host struct {
	machine *Machine // nil for one that this pass launches
	launch  int      // its index in the result
	slots   int
	used    int
	key     string
	price   money.Rate
	billing money.Billing
	keeper  string // the job that it is kept for; "" when any may use it
	spans   span   // of the tasks that run on it
	overdue int    // of them, how many should have ended long ago
}

// free reports whether one more task finds a slot.
func (r *host) free() int { return r.slots - r.used }

// index sorts the machines into pools: those with the most work first, so that
// the others fall empty and can be let go, then the cheapest.
func (p *pass) index(machines []Machine) {
	p.hosts, p.byID = make([]host, len(machines)), make(map[string]*host, len(machines))
	open := make([]*host, 0, len(machines))
	for i := range machines {
		m := &machines[i]
		r := &p.hosts[i]
		*r = host{machine: m, slots: m.Slots, used: m.Used, key: m.SlotKey, price: m.Price, billing: m.Billing}
		p.byID[m.ID] = r
		if !m.Open {
			continue
		}
		open = append(open, r)
		if !m.Ready {
			p.coming[m.Market]++
		}
	}
	slices.SortFunc(open, func(a, b *host) int {
		if order := cmp.Or(cmp.Compare(b.used, a.used), cmp.Compare(a.price, b.price), truth(b.machine.Ready, a.machine.Ready)); order != 0 {
			return order
		}
		return strings.Compare(a.machine.ID, b.machine.ID)
	})
	for _, r := range open {
		key := cmp.Or(r.key, "unknown")
		if r.used == 0 {
			key = ""
		}
		p.put(poolKey{r.machine.Project, r.machine.Payer}, key, r.machine.Market, &r.machine.Shape, r)
	}
}

// bornIn says when the machines of a market were launched that are not under way.
func (p *pass) bornIn(market providers.Market) []time.Time {
	if p.born == nil {
		p.born = map[providers.Market][]time.Time{}
		for i := range p.Machines {
			if m := &p.Machines[i]; (!m.Open || m.Ready) && !m.Born.IsZero() {
				p.born[m.Market] = append(p.born[m.Market], m.Born)
			}
		}
	}
	return p.born[market]
}

// put adds a machine to the bucket where it belongs.
func (p *pass) put(pk poolKey, key string, m providers.Market, shape *providers.Shape, r *host) {
	m.Type = ""
	at := bucketKey{pk, key, m, *shape}
	b := p.buckets[at]
	if b == nil {
		b = &bucket{market: m, shape: shape}
		p.buckets[at] = b
		pl := p.pools[pk]
		if pl == nil {
			pl = &pool{cuts: map[string]*cut{}}
			p.pools[pk] = pl
		}
		if key == "" {
			pl.empty = append(pl.empty, b)
		} else {
			c := pl.cut(key)
			c.buckets = append(c.buckets, b)
		}
	}
	b.machines = append(b.machines, r)
	b.slots += r.slots
	b.used += r.used
}

func (pl *pool) cut(key string) *cut {
	c := pl.cuts[key]
	if c == nil {
		c = &cut{}
		pl.cuts[key] = c
	}
	return c
}

func (g *Group) pool() poolKey {
	if g.Own {
		return poolKey{g.Project, g.Job}
	}
	return poolKey{project: g.Project}
}

// suits decides whether a bucket's machines may run the class's tasks, and how
// they would be cut for them; no slots when not.
func (p *pass) suits(c *class, b *bucket) fitted {
	f, looked := c.suits[b]
	if !looked {
		f = p.suit(c, b)
		c.suits[b] = f
	}
	return f
}

func (p *pass) suit(c *class, b *bucket) fitted {
	n := c.needs
	if c.kinds[kindIndex(b.market.Kind)] != usable ||
		len(n.Providers) > 0 && !slices.Contains(n.Providers, b.market.Provider) ||
		len(n.Regions) > 0 && !slices.Contains(n.Regions, b.market.Region) ||
		len(n.Zones) > 0 && !slices.Contains(n.Zones, b.market.Zone) ||
		!n.Near.IsZero() && n.Near.rule(p.awayOf(n.Near.From, region{b.market.Provider, b.market.Region})) != usable {
		return fitted{}
	}
	if _, broken := c.ruled(p.Facts, &b.market, b.shape, 0); broken != usable {
		return fitted{}
	}
	v := c.fits.ask.of(p.Facts, b.shape.GPU)
	slots, code := n.slots(b.shape, v)
	if code != "" {
		return fitted{}
	}
	f := fitted{slots: int32(slots), figure: 1}
	if n.GPUs > 0 {
		f.figure = v.figure
	}
	return f
}

func kindIndex(k providers.Kind) int {
	if k == providers.Spot {
		return 0
	}
	return 1
}

// reuse fills free slots of machines that are already paid for: first on
// machines that work, which cost nothing more, then on empty ones where that is
// not dearer than renting one for the purpose.
func (p *pass) reuse(g *Group, c *class, l *load, want int) int {
	pl := p.pools[g.pool()]
	if pl == nil || want == 0 {
		return 0
	}
	placed := 0
	if busy := pl.cuts[c.slotKey]; busy != nil {
		for _, b := range busy.buckets {
			if placed == want {
				return placed
			}
			if b.used >= b.slots {
				continue
			}
			if f := p.suits(c, b); f.slots == 0 || p.tooLate(c, l, b, f) {
				continue
			}
			placed += p.fill(g, c, b, want-placed)
		}
	}
	for i := 0; i < len(pl.empty) && placed < want; i++ {
		b := pl.empty[i]
		if f := p.suits(c, b); len(b.machines) > 0 && f.slots > 0 && !p.tooLate(c, l, b, f) {
			placed += p.cut(g, c, l, b, f, want-placed)
		}
	}
	return placed
}

// tooLate reports whether machines of that fit miss the deadline while the
// market has some that keep it.
func (p *pass) tooLate(c *class, l *load, b *bucket, f fitted) bool {
	if !l.deadline.After(p.Now) {
		return false
	}
	task := p.on(c, l, b.shape, f.figure).task
	if !p.Now.Add(l.in(b.shape.NetworkBps, int(f.slots)) + task).After(l.deadline) {
		return false
	}
	best := p.choose(c, *l).ready()
	return best != nil && !best.late
}

// fill places tasks on the free slots of a bucket.
func (p *pass) fill(g *Group, c *class, b *bucket, want int) int {
	placed := 0
	for i := b.next; i < len(b.machines) && placed < want; i++ {
		r := b.machines[i]
		if n := p.startable(g, r, min(want-placed, r.free())); n > 0 && c.affords(r) {
			if !p.secured(g, r) {
				break
			}
			p.occupy(g, r, n, false)
			b.used += n
			placed += n
		}
		if i == b.next && r.free() == 0 {
			b.next++
		}
	}
	return placed
}

// cut cuts empty machines of a bucket for the class, and places tasks on them.
func (p *pass) cut(g *Group, c *class, l *load, b *bucket, f fitted, want int) int {
	placed, kept := 0, 0
	at := 0
	for ; at < len(b.machines) && placed < want; at++ {
		r := b.machines[at]
		if p.startable(g, r, 1) == 0 {
			b.machines[kept] = r
			kept++
			continue
		}
		if !c.affords(r) || !p.worth(c, l, b, f, r) {
			if r.billing.Unit < longUnit {
				break // the others are dearer
			}
			b.machines[kept] = r
			kept++
			continue
		}
		if !p.secured(g, r) {
			break
		}
		b.slots -= r.slots
		recut := r.key != c.slotKey || r.slots != int(f.slots)
		r.slots, r.key = int(f.slots), c.slotKey
		n := p.startable(g, r, min(want-placed, r.slots))
		p.occupy(g, r, n, recut)
		p.put(g.pool(), c.slotKey, r.machine.Market, &r.machine.Shape, r)
		placed += n
	}
	b.machines = append(b.machines[:kept], b.machines[at:]...)
	return placed
}

func (c *class) affords(r *host) bool { return c.limit <= 0 || r.price <= c.limit }

// worth reports whether keeping an empty machine for the load costs no more than
// renting the cheapest one that may be used now. What is already paid of a long
// billing unit costs nothing.
func (p *pass) worth(c *class, l *load, b *bucket, f fitted, r *host) bool {
	best := p.choose(c, *l).ready()
	if best == nil {
		return true
	}
	e := p.on(c, l, b.shape, f.figure)
	task := e.task
	slots := int(f.slots)
	task += l.in(b.shape.NetworkBps, slots) + l.out(b.shape.NetworkBps, slots)
	rounds := l.rounds(l.deep(p.Now, p.Settings.Margin, slot{round: task, slots: slots, billing: r.billing, price: r.price, guess: e.source == Assumed}), slots)
	busy := often(rounds, task)
	if r.billing.Unit >= longUnit && !r.machine.Born.IsZero() {
		lived := max(1, p.Now.Sub(r.machine.Born))
		busy = r.billing.Paid(lived+busy) - r.billing.Paid(lived)
	}
	cost, err := money.Charge(busy, r.price, money.Billing{Unit: time.Nanosecond})
	return err == nil && times(l.nodes, cost)/money.Amount(max(1, min(rounds*slots, l.waiting))) <= best.per
}

// occupy puts n tasks on a machine.
func (p *pass) occupy(g *Group, r *host, n int, recut bool) {
	r.used += n
	p.counts(g.Queue, r)
	p.started(g, r.market(p).Provider, n)
	if r.machine == nil {
		l := &p.out.Launches[r.launch]
		l.More = append(l.More, Share{g.ID, n})
		return
	}
	a := Assign{Group: g.ID, Machine: r.machine.ID, Count: n}
	if recut {
		a.Slots, a.SlotKey = r.slots, r.key
	}
	p.out.Assigns = append(p.out.Assigns, a)
}

// overdueAfter is how many times as long as it should a task may run before no
// other counts on its slot.
const overdueAfter = 3

// late reports whether a task runs far longer than it should, the boot of its
// machine apart: what waits does not wait for its slot any more.
func (p *pass) late(r *Running, on *host) bool {
	should := r.Group.Work.Task
	if should <= 0 {
		should = r.Group.assumed()
	}
	if measured := r.Group.Work.Rates; measured != nil {
		should = max(should, measured.Longest())
	}
	end := r.Since.Add(overdueAfter * (should + r.Group.Work.Stage))
	if on != nil {
		end = end.Add(p.Providers[on.machine.Market.Provider].Capabilities.BootTime)
	}
	if end.After(p.Now) && len(p.Groups) > 0 {
		p.wake(end)
	}
	return !end.After(p.Now)
}

// follow is how many more tasks of a group the slots that work now are going to
// take, one after another, less those that earlier groups count on. Work that
// cannot stop counts on none where its money has a cap: each machine is secured
// for it by itself.
func (p *pass) follow(g *Group, c *class, l *load, one *candidate) int {
	pl := p.pools[g.pool()]
	if one.deep < 2 && !l.due(p.Now) || pl == nil || pl.cuts[c.slotKey] == nil || !g.Interruptible && p.capped(g) != "" {
		return 0
	}
	busy, used := pl.cuts[c.slotKey], 0
	for _, b := range busy.buckets {
		if f := p.suits(c, b); f.slots == 0 || p.tooLate(c, l, b, f) {
			continue
		}
		if c.limit <= 0 && !l.due(p.Now) {
			used += (b.used - p.overdueOn(b)) * (one.deep - 1)
			continue
		}
		for _, r := range b.machines {
			switch n := r.used - p.overdueAt(r); {
			case n == 0 || !c.affords(r):
			case l.due(p.Now):
				more, holds := p.following(l, r, one)
				if used += n * more; more > 0 {
					p.wake(p.Now.Add(holds))
				}
			default:
				used += n * (one.deep - 1)
			}
		}
	}
	return max(0, used/one.nodes-int(busy.claimed/one.round()))
}

func (p *pass) overdueOn(b *bucket) (n int) {
	if p.overdue || p.vacated {
		for _, r := range b.machines {
			n += p.overdueAt(r)
		}
	}
	return n
}

func (p *pass) overdueAt(r *host) int {
	if r.keeper != "" {
		return r.used
	}
	if r.machine == nil {
		return 0
	}
	return min(r.used, r.overdue)
}

// claim counts tasks of a group on the slots that work now.
func (p *pass) claim(g *Group, c *class, one *candidate, tasks int) {
	if pl := p.pools[g.pool()]; pl != nil && tasks > 0 {
		cut := pl.cut(c.slotKey)
		more := float64(cut.claimed) + float64(tasks)*float64(one.round())
		cut.claimed = time.Duration(min(more, float64(math.MaxInt64/2)))
	}
}
