package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/internal/state"
	"gpubroker/queue"
)

// offers refreshes what providers offer. A failed refresh keeps the old list at
// its true age.
func (b *Broker) offers(ctx context.Context) (time.Duration, error) {
	var errs []error
	for name, a := range b.accounts {
		now := time.Now().UTC()
		catalog, err := a.Catalog(ctx, everything)
		if err != nil {
			b.market.Fail(name, err, now)
			errs = append(errs, fmt.Errorf("offers of %s: %w", name, err))
			continue
		}
		if b.market.Replace(name, catalog.Offers, now) {
			b.state.Poke()
		}
	}
	return 0, errors.Join(errs...)
}

// adopt commits saves that were whole when the last broker died before their
// commit: those of attempts that were current. It runs once, before the agents
// are heard.
func (b *Broker) adopt(ctx context.Context) error {
	view := b.state.View()
	for a := range view.Attempts.All() {
		t := view.Task(a.TaskID)
		if a.State == queue.AttemptEnded || t == nil || t.Attempt != a.ID {
			continue
		}
		found, _, err := checkpoint.Adopt(ctx, b.objects, a.TaskID, a.ID, t.Committed)
		if err != nil {
			return fmt.Errorf("adopting saves of %s: %w", a.TaskID, err)
		}
		region := ""
		if i := view.Instance(a.Instance); i != nil {
			region = i.Region
		}
		for _, f := range found {
			err := b.state.Do(ctx, func(tx *state.Tx) error {
				m := f.Manifest
				b.save(tx, a, f.Number, f.Digest, m.Bytes(), m.Sent, m.Busy.Std(), m.Progress, region)
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// pruneAge is how long ended rows and events are kept.
const pruneAge = 90 * 24 * time.Hour

// sweep removes what nothing refers to: parts of old saves, uploads that were
// never completed, rows of long ago.
func (b *Broker) sweep(ctx context.Context) (time.Duration, error) {
	if b.meta.Copied || b.state.Health() != nil {
		return 0, nil
	}
	var errs []error
	view, now := b.state.View(), time.Now()
	for t := range view.Tasks.All() {
		if t.Saves == 0 {
			continue
		}
		if err := b.sweepTask(ctx, view, t, now); err != nil {
			errs = append(errs, err)
		}
	}
	if _, err := objects.AbortOlder(ctx, b.objects, "", now.Add(-checkpoint.Grace)); err != nil {
		errs = append(errs, fmt.Errorf("sweeping uploads: %w", err))
	}
	if _, err := b.state.Store().Prune(ctx, now.Add(-pruneAge), 10_000); err != nil {
		errs = append(errs, fmt.Errorf("pruning the store: %w", err))
	}
	b.forget(view)
	return 0, errors.Join(errs...)
}

func (b *Broker) sweepTask(ctx context.Context, view *state.Tables, t *queue.Task, now time.Time) error {
	sw := checkpoint.Sweeping{Task: t.TaskID, Live: map[string]int64{}, Now: now}
	var usable []*queue.Checkpoint
	for c := range view.Checkpoints.Prefix(state.TaskKey(t.TaskID) + "/") {
		if c.Broken.IsZero() {
			usable = append(usable, c)
		}
	}
	keep := b.set.Keep
	if j := view.Job(t.Job); j != nil {
		if s, err := b.specs.of(j); err == nil && s.Checkpoint != nil && s.Checkpoint.Keep > 0 {
			keep = s.Checkpoint.Keep
		}
	}
	a := view.Attempt(t.Attempt)
	for n, c := range usable {
		if n >= len(usable)-keep || a != nil && c.Number == a.Resume {
			sw.Keep = append(sw.Keep, checkpoint.Kept{Attempt: c.Attempt, Number: c.Number, Digest: c.Digest})
		}
	}
	if a != nil && a.State != queue.AttemptEnded {
		sw.Live[a.ID] = t.Committed
	}
	_, err := checkpoint.Sweep(ctx, b.objects, sw)
	return err
}

// forget drops what is only in memory of attempts and machines that are no more.
func (b *Broker) forget(view *state.Tables) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.progress {
		if view.Attempt(id) == nil {
			delete(b.progress, id)
			delete(b.isPublished, id)
			delete(b.published, id)
			delete(b.stages, id)
		}
	}
	for id := range b.seen {
		if view.Instance(id) == nil {
			delete(b.seen, id)
		}
	}
	for key := range b.sent {
		if i := len(key) - 1; i > 0 && view.Instance(instanceOfKey(key)) == nil {
			delete(b.sent, key)
		}
	}
}
