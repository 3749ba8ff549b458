package scheduler

import (
	"cmp"
	"slices"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/rates"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

const (
	// assumedTask stands for the length of a task that nobody has described, on
	// the fastest GPU that may be used: it compares GPUs, and weighs the boot
	// against the work.
	assumedTask = 30 * time.Minute
	// bootShare is the share of paid time that a boot may take, in percent: a
	// slot is given enough tasks one after another to keep to it.
	bootShare = 10
	// longUnit is a billing unit from which on a machine is rented for whole
	// units: it is filled with work, and let go just before the next one.
	longUnit = 10 * time.Minute
)

// candidate is an offer that may be chosen, with what finishing there costs.
type candidate struct {
	offer     *Offer
	price     money.Rate // of the whole machine per hour, as it is compared
	committed bool       // paid for already
	shape     *Shape
	fit       fitted
	billing   money.Billing
	deep      int           // tasks that a slot may run one after another
	rounds    int           // that it does, as far as there are any
	tasks     int           // that share the machine's cost
	nodes     int           // machines that each needs at once
	task      time.Duration // of one, by itself
	in, out   time.Duration // fetching before each, sending after it
	saves     int           // of each
	saved     time.Duration // what they take
	boot      time.Duration
	delay     time.Duration // from launch to the first useful work
	tail      time.Duration // paid after the last task
	transfer  *transfer
	egress    money.Amount // of one task
	value     money.Rate   // one task's share of what an hour is worth
	atRisk    time.Duration
	rate      estimate // where task is from
	cooled    time.Time
	late      bool
	warned    bool // a notice is long enough for a save
	history   policy.History
	outlook   *policy.Outlook
	name      string        // of the market, for the policy
	region    string        // likewise
	hold      time.Duration // that the machine is expected to be held
	per       money.Amount  // cost of one task
	score     money.Amount  // with the worth of the time: what is compared
}

// Bound is the price that a machine's reservations assume for life: the price on
// demand, or for spot the lesser of that and 1.3 times the price, under the
// job's own limit.
func Bound(o *Offer, limit money.Rate) money.Rate {
	b := o.Price
	if o.Market.Kind == providers.Spot {
		b = more(o.Price, o.Price/10*3+(o.Price%10*3+9)/10)
		if o.Reference > 0 {
			b = min(b, max(o.Reference, o.Price))
		}
	}
	if limit > 0 {
		b = min(b, limit)
	}
	return b
}

// load is how long the tasks of a group are, wherever they run.
type load struct {
	task      time.Duration // what is left of one on GPUs of the reference figure
	reference float64
	stage     time.Duration // beside what the bytes take
	fetch     int64         // bytes
	send      int64
	keep      int64 // with each save
	saves     Saves
	value     money.Rate
	atRisk    time.Duration
	whole     bool    // all of a task is at risk
	left      float64 // share of a whole task that is left
	source    Source
	rates     *rates.Class // nil when nothing was measured
	waiting   int
	beside    int // tasks of the job that run, where the worth of time counts
	nodes     int // machines that each needs at once
	width     int // tasks of the job that may run at once; 0 means no limit
	deadline  time.Time
	closes    time.Time
	stoppable bool // may be interrupted
}

// due is the deadline as if the window stayed open from now on: what is left until then
// is the time in which work may run. Zero is none.
func (g *Group) due() time.Time {
	if g.Deadline.IsZero() {
		return g.Deadline
	}
	return g.Deadline.Add(-g.Shut)
}

// assumed is the length of a task that nobody has described: no longer than one
// attempt may run.
func (g *Group) assumed() time.Duration {
	if g.MaxDuration > 0 {
		return min(assumedTask, g.MaxDuration)
	}
	return assumedTask
}

// loadOf reads a group's work. running is how many of its job's tasks run.
func (a *ask) loadOf(g *Group, running int) load {
	task, source := g.Work.Task, cmp.Or(Source(g.Work.Source), Given)
	if task <= 0 {
		task, source = g.assumed(), Assumed
	}
	left := g.Left
	if left <= 0 || left > 1 {
		left = 1
	}
	l := load{
		task: part(task, left), reference: 1, left: left, source: source,
		stage: min(max(0, g.Work.Stage), farAway), waiting: max(1, g.Waiting), closes: g.Closes, deadline: g.due(), stoppable: g.Interruptible,
		nodes: g.Needs.nodes(),
	}
	l.saves, l.value = g.Work.Saves, max(0, g.Value)
	if l.value > 0 {
		l.beside = running
	}
	l.flow(g.Work.Flows)
	if a.attribute.Name != "" {
		if l.reference = g.Work.Figure; l.reference <= 0 {
			l.reference = a.reference
		}
	}
	if g.Limit >= 0 {
		l.width = max(1, running+g.Limit)
	}
	usual := l.task
	if l.rates = g.Work.Rates; l.rates != nil {
		if e, ok := l.rates.Pool(anywhere); ok {
			usual = part(e.Time, left)
		}
	}
	if l.atRisk = g.AtRisk; l.atRisk <= 0 || l.atRisk > usual {
		l.atRisk, l.whole = usual, true
	}
	return l
}

// price works out what the load costs at an offer, at that price per hour, where
// one task takes as long as e says. moved is what its transfers cost there; nil is
// nothing.
func (s *Snapshot) price(l *load, f fitted, e estimate, o *Offer, price money.Rate, moved *transfer) candidate {
	caps := s.Providers[o.Market.Provider].Capabilities
	shape, slots := &s.Catalog.Shapes[f.shape], int(f.slots)
	out := candidate{
		offer: o, price: price, shape: shape, fit: f, billing: caps.Billing, task: e.task, rate: e, boot: caps.BootTime, nodes: l.nodes,
		in: l.in(shape.NetworkBps, slots), out: l.out(shape.NetworkBps, slots), transfer: moved, history: s.history(o.Market),
	}
	out.tail = s.regime(o.Market.Provider).tail
	save := l.saveTime(shape.NetworkBps, slots)
	if out.atRisk = l.atRisk; l.whole {
		out.atRisk = e.task // whatever is done of it
	}
	if every, overhead, n := l.saving(e.task, save, out.history, o.Market.Kind == providers.Spot); every > 0 {
		out.saves, out.saved = n, overhead
		out.atRisk = min(e.task, every+save)
		out.warned = caps.Notice >= 2*save // it is the typical one
	}
	if moved != nil {
		out.egress = more(moved.once, times(out.saves, moved.saved))
	}
	out.delay = out.boot + out.in
	out.deep = l.deep(s.Now, s.Settings.Margin, slot{out.boot, out.round(), out.tail, slots, caps.Billing, price, e.source == Assumed})
	out.rounds = l.rounds(out.deep, slots)
	out.tasks = max(1, min(out.rounds*slots, l.waiting))
	if l.value > 0 {
		out.value = max(1, l.value/money.Rate(l.waiting))
	}
	out.late = l.due(s.Now) && out.done(s.Now.Add(s.Settings.Margin)).After(l.deadline)
	view := out.view()
	x := policy.Expect(&view, l.atRisk, policy.History{})
	out.hold, out.per, out.score = x.Time, x.Cost, x.Score
	return out
}

// round is one task on a slot, with all that belongs to it.
func (c *candidate) round() time.Duration { return c.in + c.task + c.saved + c.out }

// done is when the last task of a slot would be done there, launched at now.
func (c *candidate) done(now time.Time) time.Time { return now.Add(c.delay + c.work()) }

// work is the running time of each slot: its tasks, with all that they fetch but
// for the first.
func (c *candidate) work() time.Duration {
	return often(c.rounds, c.round()) - c.in
}

// view shows a candidate to the policy: one task's share of the machine.
func (c *candidate) view() policy.Candidate {
	kind := policy.OnDemand
	if c.offer.Market.Kind == providers.Spot {
		kind = policy.Spot
	}
	price := max(0, (times(c.nodes, c.price)-1)/money.Rate(c.tasks)+1)
	return policy.Candidate{
		Market: c.name, Kind: kind, Price: price, Billing: c.billing, Entry: c.egress, Tail: c.tail, Machines: c.nodes,
		Work: c.work(), Delay: c.delay, AtRisk: c.atRisk, Warned: c.warned, Value: c.value, History: c.history, Outlook: c.outlook, Region: c.region, Hint: policy.Hint{CooledUntil: c.cooled},
	}
}

// named fills in what only the policy asks for.
func (c *candidate) named(s *Snapshot) {
	m := &c.offer.Market
	c.region, c.name = regionOf(m), m.String()
	if m.Kind == providers.Spot {
		c.outlook = s.outlook(c.name)
	}
	if c.committed {
		c.name += committedMark
	}
}

// regionOf names a region of a provider.
func regionOf(m *providers.Market) string { return m.Provider + "/" + m.Region }

// compare orders candidates: in time before late, then by cost and the worth of
// the time, delay and market; of the late ones the first to be done is the best.
func (c *candidate) compare(o *candidate) int {
	order := truth(c.late, o.late)
	if order == 0 && c.late {
		order = cmp.Compare(c.delay+c.work(), o.delay+o.work())
	}
	if order = cmp.Or(order, cmp.Compare(c.score, o.score), cmp.Compare(c.delay, o.delay)); order != 0 {
		return order
	}
	return cmp.Or(c.offer.Market.Compare(o.offer.Market), truth(o.committed, c.committed))
}

// alike reports whether another candidate is the same machine in another place.
func (c *candidate) alike(o candidate) bool {
	a, b := &c.offer.Market, &o.offer.Market
	return a.Type == b.Type && a.Provider == b.Provider && a.Kind == b.Kind && c.committed == o.committed
}

// option shows a candidate's cost in parts, for one task.
func (c *candidate) option(l *load, limit money.Rate) Option {
	p := Parts{Total: c.per, Egress: min(c.per, c.egress), Waiting: c.score - c.per}
	left := p.Total - p.Egress
	exact := func(d time.Duration) money.Amount {
		a, err := money.Charge(max(0, d), c.price, money.Billing{Unit: time.Nanosecond})
		if err != nil {
			return money.MaxAmount
		}
		return times(c.nodes, a) / money.Amount(c.tasks)
	}
	take := func(a money.Amount) money.Amount {
		a = min(left, max(0, a))
		left -= a
		return a
	}
	p.Boot = take(exact(c.boot))
	p.Work = take(exact(often(c.rounds, c.task)))
	p.Staging = take(exact(often(c.rounds, c.in+c.out)))
	p.Saves = take(exact(often(c.rounds, c.saved)))
	if c.offer.Market.Kind == providers.Spot {
		p.Redo = take(exact(c.hold) - p.Boot - p.Work - p.Staging - p.Saves)
	}
	p.Idle = take(exact(c.tail))
	p.Rounding = left
	low, high := rates.Band(c.task, c.rate.spread)
	return Option{
		Market: c.offer.Market, Shape: c.shape.Shape, Price: c.offer.Price, Bound: Bound(c.offer, limit),
		Slots: int(c.fit.slots), Nodes: shown(c.nodes), Rounds: c.rounds, Tasks: c.tasks, Machines: l.machines(c) * c.nodes, Delay: c.delay, Time: c.task, Done: c.delay + c.work(),
		Rate: c.rate.source, RateOn: c.rate.on, Low: low, High: high,
		Late: c.late, Cooled: c.cooled, Committed: c.committed, Cost: p, Notes: c.assumptions(l),
	}
}

// top keeps the n best candidates seen; of each type of machine at a provider only
// the best where they are to be various.
type top struct {
	n       int
	list    []candidate
	various bool
}

// late reports whether it is full of candidates of which some miss the deadline.
func (t *top) late() bool { return len(t.list) == t.n && t.list[t.n-1].late }

// closed reports whether no candidate that costs at least floor, in nano-units, and
// is done in no less than done can enter.
func (t *top) closed(floor float64, done time.Duration) bool {
	if len(t.list) < t.n {
		return false
	}
	last := &t.list[t.n-1]
	dearer := floor > float64(last.score)
	if took := last.delay + last.work(); last.late {
		return done > took || done == took && dearer
	}
	return dearer
}

func (t *top) add(c *candidate) {
	if t.various && (len(t.list) < t.n || c.compare(&t.list[t.n-1]) < 0) {
		if i := slices.IndexFunc(t.list, c.alike); i >= 0 {
			if c.compare(&t.list[i]) >= 0 {
				return
			}
			t.list = slices.Delete(t.list, i, i+1)
		}
	}
	i, _ := slices.BinarySearchFunc(t.list, c, func(a candidate, b *candidate) int { return a.compare(b) })
	if i >= t.n {
		return
	}
	if len(t.list) == t.n {
		t.list = t.list[:t.n-1]
	}
	t.list = slices.Insert(t.list, i, *c)
}

// shown is a number of machines that is worth to be told.
func shown(nodes int) int {
	if nodes < 2 {
		return 0
	}
	return nodes
}
