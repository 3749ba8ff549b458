package scheduler

import (
	"cmp"
	"math"
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
	task      time.Duration // of one, staging not counted
	rate      estimate      // where task is from
	stage     time.Duration // before each
	delay     time.Duration // from launch to the first useful work
	cooled    time.Time
	late      bool
	history   policy.History
	name      string        // of the market, for the policy
	hold      time.Duration // that the machine is expected to be held
	per       money.Amount  // cost of one task
}

// Bound is the price that a machine's reservations assume for life: the price on
// demand, or for spot the lesser of that and 1.3 times the price, under the
// job's own limit.
func Bound(o *Offer, limit money.Rate) money.Rate {
	b := o.Price
	if o.Market.Kind == providers.Spot {
		b = (o.Price*13 + 9) / 10
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
	stage     time.Duration
	atRisk    time.Duration
	left      float64 // share of a whole task that is left
	source    Source
	rates     *rates.Class // nil when nothing was measured
	waiting   int
	width     int // tasks of the job that may run at once; 0 means no limit
	deadline  time.Time
	closes    time.Time
	stoppable bool // may be interrupted
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
		task: max(time.Millisecond, time.Duration(float64(task)*left)), reference: 1, left: left, source: source,
		stage: max(0, g.Work.Stage), waiting: max(1, g.Waiting), closes: g.Closes, deadline: g.Deadline, stoppable: g.Interruptible,
	}
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
			usual = max(time.Millisecond, time.Duration(float64(e.Time)*left))
		}
	}
	if l.atRisk = g.AtRisk; l.atRisk <= 0 || l.atRisk > usual {
		l.atRisk = usual
	}
	return l
}

// deep is how many tasks a slot may be given one after another: enough that the
// boot is a small part of what is paid, or that a long billing unit is filled,
// but no more than the time to the deadline holds; half of it where the work can
// be interrupted, so that it may be tried on spot and still be in time.
func (l *load) deep(now time.Time, boot, margin, task time.Duration, billing money.Billing) int {
	busy := boot * (100 - bootShare) / bootShare
	if unit := max(billing.Unit, billing.Minimum); unit >= longUnit {
		busy = max(busy, (unit-boot)/task*task)
	}
	n := (busy + task - 1) / task
	if l.deadline.After(now) {
		room := l.deadline.Sub(now) - boot - margin
		if l.stoppable {
			room /= 2
		}
		n = min(n, room/task)
	}
	return int(max(1, n))
}

// rounds is how many tasks a slot runs one after another: as many as it may, at
// least what the job's parallelism makes of it, and no more than there are.
func (l *load) rounds(deep, slots int) int {
	n := deep
	if l.width > 0 && l.width < l.waiting {
		n = max(n, (l.waiting+l.width-1)/l.width)
	}
	return min(n, (l.waiting+slots-1)/slots)
}

// price works out what the load costs at an offer, at that price per hour, where
// one task takes as long as e says.
func (s *Snapshot) price(l *load, f fitted, e estimate, o *Offer, price money.Rate) candidate {
	caps := s.Providers[o.Market.Provider].Capabilities
	out := candidate{
		offer: o, price: price, shape: &s.Catalog.Shapes[f.shape], fit: f, billing: caps.Billing, task: e.task, rate: e, stage: l.stage,
		delay: caps.BootTime + l.stage, history: s.history(o.Market),
	}
	out.deep = l.deep(s.Now, caps.BootTime, s.Settings.Margin, e.task+l.stage, caps.Billing)
	out.rounds = l.rounds(out.deep, int(f.slots))
	out.tasks = max(1, min(out.rounds*int(f.slots), l.waiting))
	out.late = l.deadline.After(s.Now) && out.done(s.Now.Add(s.Settings.Margin)).After(l.deadline)
	view := out.view()
	x := policy.Expect(&view, l.atRisk, policy.History{})
	out.hold, out.per = x.Time, x.Cost
	return out
}

// done is when the first task would be done there, launched at now.
func (c *candidate) done(now time.Time) time.Time { return now.Add(c.delay + c.task) }

// work is the running time of each slot: its tasks, with the staging of all but
// the first.
func (c *candidate) work() time.Duration {
	return time.Duration(c.rounds)*(c.task+c.stage) - c.stage
}

// view shows a candidate to the policy: one task's share of the machine.
func (c *candidate) view() policy.Candidate {
	kind := policy.OnDemand
	if c.offer.Market.Kind == providers.Spot {
		kind = policy.Spot
	}
	tasks := money.Rate(c.tasks)
	return policy.Candidate{
		Market: c.name, Kind: kind, Price: (c.price + tasks - 1) / tasks, Billing: c.billing,
		Work: c.work(), Delay: c.delay, History: c.history, Hint: policy.Hint{CooledUntil: c.cooled},
	}
}

// floor is a cost that no offer of that price comes below, for one task of that
// length: the work alone, with no boot and no preemption, shared by as many tasks
// as run at once. An expectation is rounded to the second, so half a second is
// forgiven.
func (l *load) floor(price money.Rate, f fitted, task time.Duration) float64 {
	seconds := max(0, task.Seconds()-0.5)
	return float64(price) * seconds / 3600 / float64(min(int(f.slots), l.waiting)) * (1 - 1e-9)
}

// compare orders candidates: in time before late, then by cost, delay and
// market; of the late ones the first to be done is the best.
func (c *candidate) compare(o *candidate) int {
	order := truth(c.late, o.late)
	if order == 0 && c.late {
		order = cmp.Compare(c.delay+c.task, o.delay+o.task)
	}
	if order = cmp.Or(order, cmp.Compare(c.per, o.per), cmp.Compare(c.delay, o.delay)); order != 0 {
		return order
	}
	return cmp.Or(c.offer.Market.Compare(o.offer.Market), truth(o.committed, c.committed))
}

// option shows a candidate's cost in parts, for one task.
func (c *candidate) option(limit money.Rate) Option {
	exact := func(d time.Duration) money.Amount {
		a, err := money.Charge(d, c.price, money.Billing{Unit: time.Nanosecond})
		if err != nil {
			return money.MaxAmount
		}
		return a / money.Amount(c.tasks)
	}
	p := Parts{Total: c.per, Boot: min(c.per, exact(c.delay))}
	p.Work = min(c.per-p.Boot, exact(c.work()))
	if c.offer.Market.Kind == providers.Spot {
		p.Redo = min(c.per-p.Boot-p.Work, max(0, exact(c.hold)-p.Boot-p.Work))
	}
	p.Rounding = c.per - p.Boot - p.Work - p.Redo
	low, high := rates.Band(c.task, c.rate.spread)
	return Option{
		Market: c.offer.Market, Shape: c.shape.Shape, Price: c.offer.Price, Bound: Bound(c.offer, limit),
		Slots: int(c.fit.slots), Rounds: c.rounds, Tasks: c.tasks, Delay: c.delay,
		Time: c.task, Rate: c.rate.source, RateOn: c.rate.on, Low: low, High: high,
		Late: c.late, Cooled: c.cooled, Committed: c.committed, Cost: p,
	}
}

// top keeps the n best candidates seen.
type top struct {
	n    int
	list []candidate
}

// closed reports whether no candidate that costs at least floor, in nano-units,
// can enter.
func (t *top) closed(floor float64) bool {
	if len(t.list) < t.n {
		return false
	}
	last := &t.list[t.n-1]
	return !last.late && floor > float64(last.per)
}

func (t *top) add(c *candidate) {
	i, _ := slices.BinarySearchFunc(t.list, c, func(a candidate, b *candidate) int { return a.compare(b) })
	if i >= t.n {
		return
	}
	if len(t.list) == t.n {
		t.list = t.list[:t.n-1]
	}
	t.list = slices.Insert(t.list, i, *c)
}

// octave is a share of work in eighths of octaves: running work is compared in
// such steps, so that attempts of one job share an answer.
func octave(left float64) float64 {
	if left <= 0 || left >= 1 {
		return 1
	}
	return math.Exp2(-math.Round(-8*math.Log2(max(left, 1.0/1024))) / 8)
}
