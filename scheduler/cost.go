package scheduler

import (
	"cmp"
	"math"
	"slices"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

const (
	// best is how many options a decision shows.
	best = 5
	// spotMarkets and onDemandMarkets are the candidates that the policy sees.
	spotMarkets     = 11
	onDemandMarkets = policy.MaxCandidates - spotMarkets
	// assumedTask stands for the length of a task that nobody has described: it
	// only weighs the boot against the work.
	assumedTask = 30 * time.Minute
	// bootShare is the share of paid time that a boot may be before a machine is
	// given more than one round of tasks.
	bootShare = 0.1
	// quantum is what costs are rounded to before they are compared.
	quantum = money.Unit / 1_000_000
)

// candidate is an offer that may be chosen, with what finishing there costs.
type candidate struct {
	shape  *Shape
	offer  *Offer
	fit    *fit
	rounds int           // tasks that each slot runs one after another
	task   time.Duration // of one
	rate   string
	expect policy.Expectation // of one machine's whole share
	per    money.Amount       // cost of one task, quantised
	view   policy.Candidate
}

// Bound is the price that a machine's reservations assume for life: the price on
// demand, or for spot the lesser of that and 1.3 times the price, under the
// job's own limit.
func Bound(o *Offer, limit money.Rate) money.Rate {
	b := o.Price
	if o.Market.Kind == providers.Spot {
		b = money.Rate(math.Ceil(float64(o.Price) * 1.3))
		if o.Reference > 0 {
			b = min(b, max(o.Reference, o.Price))
		}
	}
	if limit > 0 {
		b = min(b, limit)
	}
	return b
}

// taskTime is how long one task of the group takes where the fit says, and where
// the figure is from. ok is false when the work was described by a figure that
// this machine's facts do not have.
func (g *Group) taskTime(f *fit) (d time.Duration, rate string, ok bool) {
	left := g.Left
	if left <= 0 {
		left = 1
	}
	task, source := g.Work.Task, cmp.Or(g.Work.Source, "given")
	if task <= 0 {
		task, source = assumedTask, "assumed"
	}
	scale := 1.0
	if g.Needs.Figure != "" {
		if f.figure <= 0 {
			return 0, "", false
		}
		reference := g.Work.Figure
		if reference <= 0 {
			reference = f.figure
		}
		scale = reference / f.figure
		if scale != 1 {
			source = "modelled"
		}
	}
	return time.Duration(float64(task) * left * scale), source, true
}

// rounds is how many tasks one slot is given, so that booting stays a small part
// of what is paid, and the deadline is kept.
func (g *Group) rounds(now time.Time, boot, task time.Duration, slots int) int {
	n := 1
	if task > 0 {
		n = int(math.Ceil(float64(boot) * (1 - bootShare) / bootShare / float64(task)))
		if g.Deadline.After(now) {
			n = min(n, int((g.Deadline.Sub(now)-boot)/2/task))
		}
	}
	if g.Limit >= 0 && g.Limit < g.Waiting {
		n = max(n, (g.Waiting+g.Limit-1)/max(1, g.Limit))
	}
	return max(1, min(n, (g.Waiting+slots-1)/slots))
}

// price works out a candidate; ok is false with the reason when it cannot be one.
func (s *Snapshot) price(g *Group, shape *Shape, f *fit, o *Offer) (candidate, reason.Reason) {
	task, rate, ok := g.taskTime(f)
	if !ok {
		return candidate{}, reason.New("rate_unknown", "figure", g.Needs.Figure, "gpu", shape.GPU)
	}
	caps := s.Providers[o.Market.Provider].Capabilities
	boot := caps.BootTime
	rounds := g.rounds(s.Now, boot, task, f.slots)
	work := time.Duration(rounds) * (task + g.Work.Stage)
	kind := policy.OnDemand
	if o.Market.Kind == providers.Spot {
		kind = policy.Spot
	}
	atRisk := g.AtRisk
	if atRisk <= 0 || atRisk > task {
		atRisk = task
	}
	c := candidate{
		shape: shape, offer: o, fit: f, rounds: rounds, task: task, rate: rate,
		view: policy.Candidate{
			Market: o.Market.String(), Kind: kind, Price: o.Price, Billing: caps.Billing,
			Work: work, Delay: boot + g.Work.Stage, History: s.History[o.Market.String()],
		},
	}
	if cool, cooling := s.cooled(o.Market); cooling {
		c.view.Hint.CooledUntil = cool.Until
	}
	c.expect = policy.Expect(&c.view, atRisk, policy.History{})
	c.per = c.expect.Cost / money.Amount(c.tasks(g))
	c.per -= c.per % quantum
	return c, reason.Reason{}
}

// tasks is how many tasks share the machine's cost.
func (c *candidate) tasks(g *Group) int { return max(1, min(c.rounds*c.fit.slots, g.Waiting)) }

func (c *candidate) less(o *candidate) int {
	return cmp.Or(cmp.Compare(c.per, o.per), cmp.Compare(c.view.Delay, o.view.Delay), c.offer.Market.Compare(o.offer.Market))
}

// option shows a candidate's cost in parts, for one task.
func (c *candidate) option(g *Group) Option {
	tasks := c.tasks(g)
	at := func(d time.Duration) money.Amount {
		a, err := money.Charge(d, c.offer.Price, money.Billing{Unit: time.Nanosecond})
		if err != nil {
			return 0
		}
		return a
	}
	paid, err := money.Charge(c.expect.Time, c.offer.Price, money.Billing{Unit: time.Nanosecond})
	if err != nil {
		paid = c.expect.Cost
	}
	share := func(a money.Amount) money.Amount { return a / money.Amount(tasks) }
	work := time.Duration(c.rounds) * c.task
	boot := c.view.Delay
	parts := Parts{
		Total: share(c.expect.Cost), Boot: share(at(boot)), Work: share(at(work)),
		Rounding: share(c.expect.Cost - paid),
	}
	parts.Redo = parts.Total - parts.Boot - parts.Work - parts.Rounding
	return Option{
		Market: c.offer.Market, Shape: c.shape.Shape, Price: c.offer.Price, Slots: c.fit.slots,
		Tasks: tasks, Time: c.task, Rate: c.rate, Cost: parts,
	}
}

// top keeps the n least candidates seen.
type top struct {
	n    int
	list []candidate
}

// full reports whether no candidate that costs at least least can enter.
func (t *top) closed(least money.Amount) bool {
	return len(t.list) == t.n && least > t.list[t.n-1].per
}

func (t *top) add(c candidate) {
	i, _ := slices.BinarySearchFunc(t.list, &c, func(a candidate, b *candidate) int { return a.less(b) })
	if i >= t.n {
		return
	}
	if len(t.list) == t.n {
		t.list = t.list[:t.n-1]
	}
	t.list = slices.Insert(t.list, i, c)
}
