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

// orphan ends a machine of ours that has no record. A machine of another
// generation, or any while the store is a copy, is only reported: its record may
// be in another store.
func (b *Broker) orphan(ctx context.Context, a *Account, m *providers.Instance, asked time.Time) error {
	old, err := b.state.Store().Instance(ctx, m.Tags.Request)
	known := err == nil
	if b.meta.Copied || !known && m.Tags.Generation != b.meta.Generation {
		b.complain("orphan", fmt.Errorf("machine %s at %s (%s) bears our name but not this store's generation; not touched",
			m.Ref.ID, a.Name(), perHour(m.Price)))
		return nil
	}
	switch {
	case err != nil && !errors.Is(err, queue.ErrNotFound):
		return fmt.Errorf("looking for the record of %s: %w", m.Ref.ID, err)
	case known && old.Settled.IsZero():
		return nil // in the tables by now
	case known && asked.Before(old.Ended.Add(a.Capabilities().ListLag+a.Capabilities().StopTime)):
		return nil // the list lags: it shows what is gone
	}
	err = a.Terminate(ctx, m.Ref)
	if providers.CodeOf(err) == providers.NotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ending the orphan %s: %w", m.Ref.ID, err)
	}
	if b.asked("orphan/" + m.Ref.ID) {
		return nil
	}
	b.log.Warn("ending a machine without a record", "provider", a.Name(), "machine", m.Ref.ID, "instance", m.Tags.Request)
	return b.state.Do(ctx, func(tx *state.Tx) error {
		tx.Emit(queue.Event{Kind: "instance.orphan", Instance: m.Tags.Request, Project: m.Tags.Project, Reason: reason.New("orphan", "provider", a.Name())})
		return nil
	})
}

// settleStray books what a machine has cost that was found after its request had
// been given up: its record says that no machine was made, and its provider
// charges for one.
func (b *Broker) settleStray(ctx context.Context, a *Account, m *providers.Instance, _ time.Time) error {
	if b.meta.Copied || m.Tags.Generation != b.meta.Generation {
		return nil
	}
	b.mu.Lock()
	looked := b.strays[m.Ref.ID]
	b.mu.Unlock()
	if looked {
		return nil
	}
	old, err := b.state.Store().Instance(ctx, m.Tags.Request)
	switch {
	case err != nil && !errors.Is(err, queue.ErrNotFound):
		return fmt.Errorf("looking for the record of %s: %w", m.Ref.ID, err)
	case err == nil && old.Settled.IsZero():
		return nil // in the tables by now
	case err == nil && old.CloudID == "" && old.Cost == 0:
		if err := b.bookStray(ctx, old, m); err != nil {
			return fmt.Errorf("booking %s: %w", m.Ref.ID, err)
		}
	}
	b.mu.Lock()
	b.strays[m.Ref.ID] = true
	b.mu.Unlock()
	return nil
}

func (b *Broker) bookStray(ctx context.Context, old *queue.Instance, m *providers.Instance) error {
	found := *old
	found.CloudID, found.Launched, found.Ended = m.Ref.ID, m.Launched, m.Ended
	start, end, prices, err := b.bill(ctx, &found)
	if err != nil {
		return err
	}
	return b.state.Do(ctx, func(tx *state.Tx) error {
		if tx.Instance(old.ID) != nil {
			return nil
		}
		i := tx.ReviveInstance(old)
		i.CloudID, i.Launched, i.Ended = found.CloudID, found.Launched, found.Ended
		if start.IsZero() {
			return nil
		}
		c, cost, err := budget.Late(b.budgetsFor(tx, i), b.leaseOf(i, i.Lease), start, end, prices, txBook{tx})
		if err != nil {
			return err
		}
		put(tx, c)
		i.Cost = cost
		b.event(tx, "budget.overrun", i, reason.New("overrun", "amount", cost, "why", "it was found after its launch had been given up"))
		return nil
	})
}

// twin ends a machine that a request made beside the one that has its record.
func (b *Broker) twin(ctx context.Context, a *Account, m *providers.Instance) error {
	if b.meta.Copied || m.Tags.Generation != b.meta.Generation || b.asked("twin/"+m.Ref.ID) {
		return nil
	}
	if err := a.Terminate(ctx, m.Ref); err != nil && providers.CodeOf(err) != providers.NotFound {
		return fmt.Errorf("ending %s, the second machine of request %s: %w", m.Ref.ID, m.Tags.Request, err)
	}
	b.log.Error("one request made two machines; the second is ended", "provider", a.Name(), "machine", m.Ref.ID, "instance", m.Tags.Request)
	return b.state.Do(ctx, func(tx *state.Tx) error {
		tx.Emit(queue.Event{Kind: "instance.orphan", Instance: m.Tags.Request, Project: m.Tags.Project, Reason: reason.New("orphan", "provider", a.Name(), "machine", m.Ref.ID)})
		return nil
	})
}
