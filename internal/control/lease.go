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
// moves what has been used from reserved to cost, and ends the machines whose
// time is up.
func (b *Broker) lease(ctx context.Context) (time.Duration, error) {
	if b.meta.Copied || b.state.Health() != nil {
		return 0, nil
	}
	var errs []error
	now := time.Now()
	for i := range b.state.View().Instances.All() {
		if !lives(i) || i.State == queue.InstanceRequested {
			continue
		}
		length := b.leaseLength(i.Project)
		left := i.Lease.Sub(now)
		overdue := i.State == queue.InstanceBooting && now.After(i.Boot)
		drained := i.State == queue.InstanceDraining && !i.DrainBy.IsZero() && now.After(i.DrainBy.Add(30*time.Second))
		if left > length/2 && !overdue && !drained {
			continue
		}
		if err := b.state.Do(ctx, func(tx *state.Tx) error { return b.leaseOne(tx, i.ID, length) }); err != nil {
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

func (b *Broker) leaseOne(tx *state.Tx, id string, length time.Duration) error {
	i := tx.EditInstance(id)
	if i == nil || !lives(i) {
		return nil
	}
	left := i.Lease.Sub(tx.Now)
	switch {
	case i.State == queue.InstanceBooting && tx.Now.After(i.Boot):
		b.coolLost(tx, i, reason.New("boot_deadline", "limit", i.Boot.Sub(i.Requested)))
		return b.end(tx, id, reason.New("boot_deadline", "limit", i.Boot.Sub(i.Requested).Round(time.Second)), queue.Lost)
	case i.State == queue.InstanceDraining && !i.DrainBy.IsZero() && tx.Now.After(i.DrainBy.Add(30*time.Second)):
		// Its time came and the provider let it live: it is not needed.
		return b.end(tx, id, i.Gone, queue.Preempted)
	case i.State == queue.InstanceTerminating, left > length/2:
		return nil
	}
	if err := b.accrue(tx, i); err != nil {
		return err
	}
	err := b.reserve(tx, i, maxTime(i.Lease, tx.Now.Add(length)))
	room, short := errors.AsType[*budget.RoomError](err)
	switch {
	case err == nil:
		return nil
	case !short:
		return err
	case left <= 0:
		return b.end(tx, id, i.Gone, queue.Stopped)
	case left < lastSave:
		why := reason.New("lease_ended", "why", fmt.Sprintf("budget %s has %s free and needs %s", room.Key, room.Free.Round(2), room.Need.Round(2)))
		b.event(tx, "budget.short", i, why)
		return b.drain(tx, id, why, queue.Stopped, i.Lease)
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
	if providers.SelfEnd(i.SelfEnd) == providers.EndRolling && !i.End.IsZero() && i.End.Before(until) {
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
	now := time.Now()
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
				b.coolLost(tx, cur, why)
			}
			return b.end(tx, i.ID, why, queue.Lost)
		})
		if err != nil {
			errs = append(errs, err)
		}
	}
	return 0, errors.Join(errs...)
}

// look asks the provider about one silent machine.
func (b *Broker) look(ctx context.Context, a *Account, i *queue.Instance) error {
	m, err := a.Describe(ctx, ref(i))
	if providers.CodeOf(err) == providers.NotFound {
		return b.missing(ctx, a, i, time.Now())
	}
	if err != nil {
		return err
	}
	if m.State == providers.Terminated {
		return b.compare(ctx, a, i, &m, time.Now())
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
	if i == nil || i.State != queue.InstanceReady && i.State != queue.InstanceBooting {
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
		b.coolLost(tx, i, why)
		return b.drain(tx, id, why, queue.Preempted, at)
	})
}
