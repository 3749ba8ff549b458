package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/internal/publish"
	"gpubroker/internal/state"
	"gpubroker/queue"
)

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
	view, now := b.state.View(), b.now()
	for t := range view.Tasks.All() {
		if t.Attempts == 0 {
			continue
		}
		if err := b.sweepTask(ctx, view, t, now); err != nil {
			errs = append(errs, err)
		}
	}
	if err := b.sweepEnded(ctx, now); err != nil {
		errs = append(errs, err)
	}
	if err := b.dropSpots(ctx, view, now); err != nil {
		errs = append(errs, fmt.Errorf("forgetting spot markets: %w", err))
	}
	if _, err := objects.AbortOlder(ctx, b.objects, "", now.Add(-checkpoint.Grace)); err != nil {
		errs = append(errs, fmt.Errorf("sweeping uploads: %w", err))
	}
	if _, err := b.state.Store().Prune(ctx, now.Add(-pruneAge), 10_000); err != nil {
		errs = append(errs, fmt.Errorf("pruning the store: %w", err))
	}
	for _, stage := range b.forget(view) {
		if err := stage.Drop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("giving up an output: %w", err))
		}
	}
	return 0, errors.Join(errs...)
}

// sweepTask removes the saves of a task that no attempt will resume from. Their
// rows are marked first: what is about to go is not fallen back to.
func (b *Broker) sweepTask(ctx context.Context, view *state.Tables, t *queue.Task, now time.Time) error {
	keep := b.set.Keep
	if j := view.Job(t.Job); j != nil {
		s, err := b.specs.of(j)
		if err != nil {
			return err
		}
		if s.Checkpoint == nil {
			return nil
		}
		if s.Checkpoint.Keep > 0 {
			keep = s.Checkpoint.Keep
		}
	}
	sw := checkpoint.Sweeping{Task: t.TaskID, Live: map[string]int64{}, Now: now}
	err := b.state.Do(ctx, func(tx *state.Tx) error {
		sw.Keep, sw.Live = nil, map[string]int64{}
		t := tx.Task(t.TaskID)
		if t == nil {
			return nil
		}
		a := tx.Attempt(t.Attempt)
		if a != nil && a.State != queue.AttemptEnded {
			sw.Live[a.ID] = t.Saves
		}
		var rows, usable []*queue.Checkpoint
		for c := range tx.CheckpointsOf(t.TaskID) {
			rows = append(rows, c)
			if c.Broken.IsZero() && !c.Swept {
				usable = append(usable, c)
			}
		}
		stays := map[int64]bool{t.Committed: true}
		if a != nil {
			stays[a.Resume] = true
		}
		for _, c := range usable[max(0, len(usable)-keep):] {
			stays[c.Number] = true
		}
		for _, c := range rows {
			switch {
			case stays[c.Number] && c.Broken.IsZero(), now.Sub(c.At) < checkpoint.Grace:
				if c.Broken.IsZero() && !c.Swept {
					sw.Keep = append(sw.Keep, checkpoint.Kept{Attempt: c.Attempt, Number: c.Number, Digest: c.Digest})
				}
			case !c.Swept:
				tx.EditCheckpoint(c.TaskID, c.Number).Swept = true
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sweeping saves of %s: %w", t.TaskID, err)
	}
	_, err = checkpoint.Sweep(ctx, b.objects, sw)
	return err
}

// sweptAge is for how long after its end a job's folder is looked through for
// saves to remove.
const sweptAge = checkpoint.Grace + 24*time.Hour

// sweepEnded removes the saves of tasks that ended some time ago: those of jobs
// that checkpoint, and that live or ended not long ago.
func (b *Broker) sweepEnded(ctx context.Context, now time.Time) error {
	var errs []error
	for after := ""; ; {
		page, err := b.state.Store().Jobs(ctx, queue.JobQuery{Since: now.Add(-sweptAge), Page: queue.Page{After: after, Limit: 1000}})
		if err != nil {
			return fmt.Errorf("sweeping ended tasks: %w", err)
		}
		for _, j := range page {
			after = j.ID
			s, err := b.specs.of(j)
			if err != nil || s.Checkpoint == nil {
				continue
			}
			if err := b.sweepJob(ctx, j, now); err != nil {
				errs = append(errs, err)
			}
		}
		if len(page) < 1000 {
			return errors.Join(errs...)
		}
	}
}

// sweepJob looks through what there is under a job's folder.
func (b *Broker) sweepJob(ctx context.Context, j *queue.Job, now time.Time) error {
	old := map[int]bool{}
	for o, err := range b.objects.List(ctx, j.ID+"/") {
		if err != nil {
			return fmt.Errorf("sweeping job %s: %w", j.ID, err)
		}
		index, _, _ := strings.Cut(strings.TrimPrefix(o.Key, j.ID+"/"), "/")
		if n, err := strconv.Atoi(index); err == nil && now.Sub(o.Modified) >= checkpoint.Grace {
			old[n] = true
		}
	}
	for _, n := range slices.Sorted(maps.Keys(old)) {
		if err := b.sweepGone(ctx, queue.TaskID{Job: j.ID, Index: n}, now); err != nil {
			return err
		}
	}
	return nil
}

func (b *Broker) sweepGone(ctx context.Context, id queue.TaskID, now time.Time) error {
	b.retrying.Lock() // what is swept is not brought back meanwhile
	defer b.retrying.Unlock()
	t, err := b.state.Store().Task(ctx, id)
	if err != nil {
		return fmt.Errorf("sweeping %s: %w", id, err)
	}
	if !t.State.Terminal() || now.Sub(t.Ended) < checkpoint.Grace {
		return nil
	}
	saves, err := b.state.Store().Checkpoints(ctx, id)
	if err != nil {
		return fmt.Errorf("sweeping %s: %w", id, err)
	}
	saves = slices.DeleteFunc(saves, func(k *queue.Checkpoint) bool { return k.Swept })
	if len(saves) > 0 {
		err := b.state.Do(ctx, func(tx *state.Tx) error {
			if tx.Task(id) != nil {
				return nil
			}
			for _, k := range saves {
				tx.ReviveCheckpoint(k).Swept = true
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("sweeping %s: %w", id, err)
		}
	}
	_, err = checkpoint.Sweep(ctx, b.objects, checkpoint.Sweeping{Task: id, Now: now})
	return err
}

// forget drops what is only in memory of attempts and machines that are no more,
// and returns the outputs that were on their way and will never be published.
func (b *Broker) forget(view *state.Tables) (drop []*publish.Stage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.progress {
		if view.Attempt(id) == nil {
			delete(b.progress, id)
			if stage := b.stages[id]; stage != nil && !b.isPublished[id] {
				drop = append(drop, stage)
			}
			delete(b.isPublished, id)
			delete(b.published, id)
			delete(b.stages, id)
		}
	}
	if len(b.strays) > 10_000 {
		clear(b.strays)
	}
	for key, at := range b.pressed {
		if time.Since(at) > time.Minute {
			delete(b.pressed, key)
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
	return drop
}
