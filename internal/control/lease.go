package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/reason"
	"gpubroker/internal/state"
	"gpubroker/providers"
	"gpubroker/queue"
)

// lastSave is how long before a lease without an extension runs out its tasks
// are asked to save and stop.
const lastSave = 90 * time.Second

// lease extends the leases of machines that are needed, at half of their length,
// moves what has been used from reserved to cost, ends the machines whose time is
// up, and books what machines cost that outlive their time.
func (b *Broker) lease(ctx context.Context) (time.Duration, error) {
	if b.meta.Copied || b.state.Health() != nil {
		return 0, nil
	}
	var errs []error
	now := b.now()
	for i := range b.state.View().Instances.All() {
		if !lives(i) || i.State == queue.InstanceRequested || b.turnOf(i, now) == stay {
			continue
		}
		if err := b.state.Do(ctx, func(tx *state.Tx) error { return b.leaseOne(tx, i.ID) }); err != nil {
			errs = append(errs, fmt.Errorf("lease of %s: %w", i.ID, err))
		}
	}
	return 0, errors.Join(errs...)
}

func (b *Broker) leaseLength(project string) time.Duration {
	if l, ok := b.set.Plan.ProjectLease[project]; ok {
		return l
	}
	return b.set.Plan.Lease
}

// turn is what a machine's lease asks for.
type turn int

const (
	stay    turn = iota
	extend       // half of its lease is over and it is needed
	late         // it did not call in
	drained      // its time came and the provider let it live
	over         // its lease has ended
	beyond       // it still costs money after its lease and stop time
)

// overrunStep is how often what a machine costs beyond its lease is booked.
const overrunStep = time.Minute

func (b *Broker) turnOf(i *queue.Instance, now time.Time) turn {
	left := i.Lease.Sub(now)
	working := i.State == queue.InstanceBooting || i.State == queue.InstanceReady || i.State == queue.InstanceDraining
	switch {
	case i.State == queue.InstanceBooting && now.After(i.Boot):
		return late
	case i.State == queue.InstanceDraining && !i.DrainBy.IsZero() && now.After(i.DrainBy.Add(30*time.Second)):
		return drained
	case !i.Launched.IsZero() && left < -b.stopTime(i) && now.Sub(maxTime(i.Overdue, i.Lease)) >= overrunStep:
		return beyond
	case i.State == queue.InstanceTerminating:
		return stay
	case left <= 0:
		return over
	case working && left <= b.leaseLength(i.Project)/2 && !b.unheard(i):
		return extend
	}
	return stay
}

// unheard reports whether a machine's agent is given up: nothing more is paid
// for it in advance.
func (b *Broker) unheard(i *queue.Instance) bool {
	if i.State == queue.InstanceBooting {
		return false
	}
	now := time.Now()
	return now.Sub(b.lastSeen(i.ID, now)) > b.set.Every.Lost
}

func (b *Broker) stopTime(i *queue.Instance) time.Duration {
	if a := b.accounts[i.Provider]; a != nil {
		return a.Capabilities().StopTime
	}
	return 0
}

func (b *Broker) leaseOne(tx *state.Tx, id string) error {
	i := tx.Instance(id)
	if i == nil || !lives(i) {
		return nil
	}
	switch b.turnOf(i, tx.Now) {
	case stay:
	case late:
		why := reason.New("boot_deadline", "limit", i.Boot.Sub(i.Requested).Round(time.Second))
		b.coolLost(tx, i, why, tx.Now)
		return b.end(tx, id, why, queue.Lost)
	case drained:
		return b.end(tx, id, i.Gone, queue.Preempted)
	case beyond:
		return b.overrun(tx, id)
	case over:
		why := i.Gone
		if why.IsZero() {
			why = reason.New("lease_ended", "why", "nothing more could be reserved for it")
		}
		return b.end(tx, id, why, queue.Stopped)
	case extend:
		return b.extend(tx, id)
	}
	return nil
}

// guestLife is how long a machine may live that nothing at its provider ends: its
// delete-at, which cannot be moved, tells a sweep elsewhere that nobody needs it.
const guestLife = 24 * time.Hour

// lastEnd is the moment past which no lease of a machine goes; zero means none.
func (b *Broker) lastEnd(i *queue.Instance) time.Time {
	switch providers.SelfEnd(i.SelfEnd) {
	case providers.EndFixed:
		return i.End
	case providers.EndGuest, providers.EndNone:
		if a := b.accounts[i.Provider]; a == nil || !a.Capabilities().Shared {
			return i.Requested.Add(guestLife)
		}
	case providers.EndRolling:
	}
	return time.Time{}
}

// deleteAt is when nobody needs a machine any more, as it is known at its launch:
// a provider that ends machines by itself moves that end with each lease.
func (b *Broker) deleteAt(i *queue.Instance) time.Time {
	return maxTime(i.Lease, b.lastEnd(i))
}

// extend reserves for another length. Where there is no room the machine lives
// on what it has, and is drained shortly before that is used up.
func (b *Broker) extend(tx *state.Tx, id string) error {
	i := tx.Instance(id)
	if i.Payer != "" && tx.Job(i.Payer) == nil {
		return b.end(tx, id, reason.New("job_done"), queue.Lost) // the only job that it serves
	}
	until := tx.Now.Add(b.leaseLength(i.Project))
	if last := b.lastEnd(i); !last.IsZero() && last.Before(until) {
		until = maxTime(last, i.Lease)
	}
	c, err := budget.Extend(b.budgetsFor(tx, i), b.leaseOf(i, until), txBook{tx})
	room, short := errors.AsType[*budget.RoomError](err)
	left := i.Lease.Sub(tx.Now)
	switch {
	case err != nil && !short:
		return err
	case !short && !until.After(i.Lease):
		// Its last end is near, and cannot be moved.
		if left >= lastSave || i.State == queue.InstanceDraining {
			return nil
		}
		return b.drain(tx, id, reason.New("lease_ended", "why", "it may not live longer"), queue.Stopped, i.Lease)
	case short && (left >= lastSave || i.State == queue.InstanceDraining):
		return nil
	case short:
		why := reason.New("over_budget", "budget", room.Key, "free", room.Free, "cap", room.Budget.Cap, "need", room.Need)
		b.event(tx, "budget.short", i, why)
		return b.drain(tx, id, why, queue.Stopped, i.Lease)
	}
	i = tx.EditInstance(id)
	put(tx, c)
	i.Lease = until
	return b.accrue(tx, i)
}

// overrun books what a machine costs that lives on after its lease and its stop
// time: nothing at its provider ends it, and the provider does not end it for us.
func (b *Broker) overrun(tx *state.Tx, id string) error {
	i := tx.EditInstance(id)
	first := i.Overdue.IsZero()
	i.Overdue = tx.Now
	start := maxTime(i.Launched, i.Requested)
	c, err := budget.Overrun(b.budgetsFor(tx, i), b.leaseOf(i, i.Lease), start, tx.Now, []budget.Stretch{{From: start, Price: i.Price}}, txBook{tx})
	if err != nil {
		return err
	}
	put(tx, c)
	if first || tx.Now.Sub(i.Lease)/overrunStep%10 == 0 {
		why := reason.New("overrun", "since", tx.Now.Sub(i.Lease).Round(time.Second), "price", perHour(i.Price), "code", i.DeleteErr)
		b.event(tx, "instance.overrun", i, why)
		b.log.Error("a machine lives beyond its lease and costs money", "instance", i.ID, "cloud_id", i.CloudID, "provider", i.Provider, "price", perHour(i.Price), "since", i.Lease)
	}
	if i.State != queue.InstanceTerminating {
		return b.end(tx, id, reason.New("lease_ended", "why", "it outlived its lease"), queue.Stopped)
	}
	return nil
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// accrue moves what a machine has cost so far from reserved to cost: an
// estimate, at the price of the decision.
func (b *Broker) accrue(tx *state.Tx, i *queue.Instance) error {
	if i.Launched.IsZero() {
		return nil
	}
	start := maxTime(i.Launched, i.Requested)
	c, err := budget.Accrue(b.budgetsFor(tx, i), b.leaseOf(i, i.Lease), start, tx.Now, []budget.Stretch{{From: start, Price: i.Price}}, txBook{tx})
	if err != nil {
		return err
	}
	put(tx, c)
	return nil
}

// moveEnds tells providers that end machines by themselves of longer leases. The
// agent is granted nothing that its provider has not confirmed.
func (b *Broker) moveEnds(ctx context.Context) (time.Duration, error) {
	if b.meta.Copied {
		return 0, nil
	}
	for i := range b.state.View().Instances.All() {
		a := b.accounts[i.Provider]
		rolling := providers.SelfEnd(i.SelfEnd) == providers.EndRolling && a != nil && a.MoveEnd != nil
		working := i.State == queue.InstanceBooting || i.State == queue.InstanceReady || i.State == queue.InstanceDraining
		if !rolling || !working || !i.End.Before(i.Lease) {
			continue
		}
		b.act("end/"+i.ID, func() {
			if err := b.moveEnd(ctx, a, i); err != nil && ctx.Err() == nil {
				b.complain("ends", err)
			}
		})
	}
	return 0, nil
}

func (b *Broker) moveEnd(ctx context.Context, a *Account, i *queue.Instance) error {
	if err := a.MoveEnd(ctx, ref(i), i.Lease); err != nil {
		if providers.CodeOf(err) == providers.NotFound {
			return nil // the list tells what became of it
		}
		return fmt.Errorf("moving the end of %s: %w", i.ID, err)
	}
	return b.state.Do(ctx, func(tx *state.Tx) error {
		if cur := tx.EditInstance(i.ID); cur != nil && cur.End.Before(i.Lease) {
			cur.End = i.Lease
		}
		return nil
	})
}

// grant is how long the agent may let its machine live from now on: until the
// reservation ends, or until the provider's own end where that comes first. The
// broker counts a little longer than the agent.
func grant(i *queue.Instance, now time.Time) time.Duration {
	until := i.Lease
	if s := providers.SelfEnd(i.SelfEnd); (s == providers.EndRolling || s == providers.EndFixed) && !i.End.IsZero() && i.End.Before(until) {
		until = i.End
	}
	d := until.Sub(now)
	return max(0, d-d/1000)
}

// silence looks for agents that have not called: first it asks the provider,
// and after a while it gives their work to others. Its timers run only while the
// broker could hear: they start anew with it, and stand while the store cannot
// be written.
func (b *Broker) silence(ctx context.Context) (time.Duration, error) {
	if b.meta.Copied || b.state.Health() != nil {
		b.hearAnew()
		return 0, nil
	}
	now := time.Now() // with its monotonic reading
	if b.stoodStill(now) {
		b.hearAnew()
		return 0, nil
	}
	var silent, ready int
	var lost, look []*queue.Instance
	for i := range b.state.View().Instances.All() {
		if i.State != queue.InstanceReady && i.State != queue.InstanceDraining {
			continue
		}
		ready++
		quiet := now.Sub(b.lastSeen(i.ID, now))
		if quiet > b.set.Every.Silence {
			silent++
			look = append(look, i)
		}
		if quiet > b.set.Every.Lost {
			lost = append(lost, i)
		}
	}
	if ready >= 4 && silent*2 > ready {
		b.complain("silence", fmt.Errorf("%d of %d agents are silent at once: taken for a fault of the network, not of the machines", silent, ready))
		lost = nil
	}
	var errs []error
	for _, i := range look {
		a := b.accounts[i.Provider]
		if a == nil {
			continue
		}
		b.act("look/"+i.ID, func() {
			if err := b.look(ctx, a, i); err != nil && ctx.Err() == nil {
				b.complain("silence", err)
			}
		})
	}
	for _, i := range lost {
		err := b.state.Do(ctx, func(tx *state.Tx) error {
			why := reason.New("lost", "since", b.lastSeen(i.ID, now).UTC().Format(time.TimeOnly+"Z"))
			if cur := tx.Instance(i.ID); cur != nil && providers.Kind(cur.Kind) == providers.Spot {
				b.coolLost(tx, cur, why, tx.Now)
			}
			return b.end(tx, i.ID, why, queue.Lost)
		})
		if err != nil {
			errs = append(errs, err)
		}
	}
	return 0, errors.Join(errs...)
}

// stoodStill reports whether this process did not run for a while, stopped or
// starved: it could hear nobody then, whoever called.
func (b *Broker) stoodStill(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.listened
	b.listened = now
	return !last.IsZero() && now.Sub(last) > b.set.Every.Silence/2
}

// look asks the provider about one silent machine.
func (b *Broker) look(ctx context.Context, a *Account, i *queue.Instance) error {
	m, err := a.Describe(ctx, ref(i))
	if providers.CodeOf(err) == providers.NotFound {
		return b.missing(ctx, a, i, b.now())
	}
	if err != nil {
		return err
	}
	if m.State == providers.Terminated {
		return b.compare(ctx, a, i, &m, b.now())
	}
	return nil
}

func (b *Broker) lastSeen(id string, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, ok := b.seen[id]
	if !ok {
		b.seen[id] = now
		return now
	}
	return t
}

func (b *Broker) hear(id string) {
	b.mu.Lock()
	b.seen[id] = time.Now()
	b.mu.Unlock()
}

func (b *Broker) hearAnew() {
	b.mu.Lock()
	now := time.Now()
	for id := range b.seen {
		b.seen[id] = now
	}
	b.mu.Unlock()
}

// interruptions follows a provider's own stream of notices.
func (b *Broker) interruptions(ctx context.Context, a *Account) error {
	for ctx.Err() == nil {
		notices, err := a.Interruptions(ctx)
		if err != nil {
			b.complain("interruptions", err)
		}
		for notices != nil {
			n, open := <-notices
			if !open {
				break
			}
			if err := b.notice(ctx, n.Ref.Request, n.Kind, n.At); err != nil {
				b.complain("interruptions", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	}
	return ctx.Err()
}

// notice acts on a warning: the market is left alone, what runs on the machine
// is asked to save, and the tasks that will need a place are planned for as soon
// as they are back. Advice to rebalance only means: save now.
func (b *Broker) notice(ctx context.Context, id string, kind providers.NoticeKind, at time.Time) error {
	if kind != providers.NoticePreempt {
		return nil // the agent saves by itself
	}
	i := b.state.View().Instance(id)
	if i == nil || i.State != queue.InstanceReady && i.State != queue.InstanceBooting &&
		(i.State != queue.InstanceDraining || !i.DrainBy.IsZero() && !at.Before(i.DrainBy)) {
		return nil
	}
	return b.state.Do(ctx, func(tx *state.Tx) error {
		i := tx.Instance(id)
		if i == nil {
			return nil
		}
		if at.IsZero() {
			at = tx.Now.Add(30 * time.Second)
		}
		why := reason.New("preempted_notice", "notice", at.Sub(tx.Now).Round(time.Second))
		if i.State == queue.InstanceDraining {
			return b.hurry(tx, id, why, queue.Preempted, at)
		}
		b.coolLost(tx, i, why, tx.Now)
		return b.drain(tx, id, why, queue.Preempted, at)
	})
}
