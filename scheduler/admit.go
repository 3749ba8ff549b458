package scheduler

import (
	"errors"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/reason"
)

const (
	// bootFactor is how many times the usual boot time a machine is given to call in.
	bootFactor = 4
	// launched stands for the id of a machine that has none yet.
	launched = ""
)

// admit reserves a machine's first lease in this pass's own book, or says why it
// cannot and when that may change.
func (p *pass) admit(g *Group, c *class, one *candidate) (Launch, reason.Reason, time.Time) {
	l, change, err := p.lease(g, c, one)
	if err == nil {
		for i := range change.Accounts {
			if keeper, ok := p.kept[change.Accounts[i].Key]; ok && keeper != g.Job {
				return Launch{}, reason.New("kept_for", "budget", change.Accounts[i].Key, "job", keeper), time.Time{}
			}
		}
		p.book.apply(change)
		return l, reason.Reason{}, time.Time{}
	}
	if room, ok := errors.AsType[*budget.RoomError](err); ok {
		var next time.Time
		if _, end, err := room.Budget.Period.At(maxTime(p.Now, room.Key.Start)); err == nil {
			next = end
		}
		return Launch{}, reason.New("over_budget", "budget", room.Key, "free", room.Free.Short(), "cap", room.Budget.Cap, "need", room.Need.Short()), next
	}
	if u, ok := errors.AsType[*unboundedError](err); ok {
		return Launch{}, reason.New("no_max_duration", "budget", u.budget), time.Time{}
	}
	return Launch{}, reason.New("not_admitted", "error", err), time.Time{}
}

// lease is the launch of a machine at the candidate, with what it reserves.
func (p *pass) lease(g *Group, c *class, one *candidate) (Launch, budget.Change, error) {
	caps := p.Providers[one.offer.Market.Provider].Capabilities
	length := p.Settings.Lease
	if l, ok := p.Settings.ProjectLease[g.Project]; ok {
		length = l
	}
	boot := p.Now.Add(bootFactor * max(caps.BootTime, time.Minute))
	lease := boot.Add(length)
	if !g.Interruptible {
		if g.MaxDuration > 0 {
			lease = boot.Add(g.MaxDuration + g.Work.Stage)
		} else if b := p.capped(g); b != "" {
			return Launch{}, budget.Change{}, &unboundedError{budget: b}
		}
	}
	l := Launch{
		Group: g.ID, Market: one.offer.Market, Shape: one.shape.Shape,
		Slots: int(one.fit.slots), SlotKey: c.slotKey, Price: one.offer.Price,
		Bound: Bound(one.offer, c.limit), Reference: one.offer.Reference, Boot: boot, Lease: lease,
	}
	change, err := budget.Extend(p.Budgets, budget.Lease{
		Instance: launched, Payer: g.Payer, From: p.Now, Until: lease.Add(caps.StopTime), Bound: l.Bound, Billing: caps.Billing,
	}, p.book)
	return l, change, err
}

// secured reserves what a machine in hand needs for work that cannot stop, where
// its money has a cap: such work is only started where it is paid to its end.
func (p *pass) secured(g *Group, r *host) bool {
	if g.Interruptible || p.capped(g) == "" {
		return true
	}
	if g.MaxDuration <= 0 {
		return false
	}
	until := p.Now.Add(g.MaxDuration + g.Work.Stage)
	if r.machine == nil {
		l := &p.out.Launches[r.launch]
		return !until.Add(l.Boot.Sub(p.Now)).After(l.Lease)
	}
	m := r.machine
	if !m.Lease.Before(until) {
		return true
	}
	from := m.Born
	if from.IsZero() || from.After(p.Now) {
		from = p.Now
	}
	bound := m.Bound
	if bound <= 0 {
		bound = m.Price
	}
	change, err := budget.Extend(p.Budgets, budget.Lease{
		Instance: m.ID, Payer: g.Payer, From: from, Bound: bound, Billing: m.Billing,
		Until: until.Add(p.Providers[m.Market.Provider].Capabilities.StopTime),
	}, p.book)
	if err != nil {
		return false
	}
	p.book.apply(change)
	return true
}

// capped names the first budget with a cap that pays for the group.
func (p *pass) capped(g *Group) string {
	for i := range p.Budgets {
		if b := &p.Budgets[i]; b.Capped && b.Matches(g.Payer) {
			return b.Name
		}
	}
	return ""
}

// unboundedError says that work which cannot stop has no bound on its cost.
type unboundedError struct{ budget string }

func (e *unboundedError) Error() string {
	return "budget " + e.budget + " is capped, and work that cannot stop needs max_duration under it"
}

// layer is a book with this pass's own reservations on top.
type layer struct {
	base     budget.Book
	accounts map[budget.Key]budget.Account
	holds    map[holdKey]budget.Hold
}

type holdKey struct {
	instance string
	key      budget.Key
}

func newLayer(base budget.Book) *layer {
	return &layer{base: base, accounts: map[budget.Key]budget.Account{}, holds: map[holdKey]budget.Hold{}}
}

// Account returns a period as this pass leaves it.
func (l *layer) Account(k budget.Key) *budget.Account {
	if a, ok := l.accounts[k]; ok {
		return &a
	}
	if l.base == nil {
		return nil
	}
	return l.base.Account(k)
}

// Hold returns a machine's hold; one that is only about to be launched has none.
func (l *layer) Hold(instance string, k budget.Key) *budget.Hold {
	if instance == launched {
		return nil
	}
	if h, ok := l.holds[holdKey{instance, k}]; ok {
		return &h
	}
	if l.base == nil {
		return nil
	}
	return l.base.Hold(instance, k)
}

func (l *layer) apply(c budget.Change) {
	for _, a := range c.Accounts {
		l.accounts[a.Key] = a
	}
	for _, h := range c.Holds {
		if h.Instance != launched {
			l.holds[holdKey{h.Instance, h.Key}] = h
		}
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
