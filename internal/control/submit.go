package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/reason"
	"gpubroker/internal/spec"
	"gpubroker/internal/state"
	"gpubroker/internal/window"
	"gpubroker/queue"
)

// Submission is a job as it is handed in.
type Submission struct {
	Spec *spec.Job
	User string
	// Key makes the call safe to repeat: the same key with the same content is the
	// same job.
	Key string
	// Inputs are the lines of tasks.file, which only the caller can read.
	Inputs []string
	// Anywhere lets the job name places that the configuration does not list.
	Anywhere bool
	// Trial makes a trial of it: a job of the same class with some of the tasks.
	Trial *Trial
}

// Trial is what a trial of a job differs in from the job.
type Trial struct {
	Name  string `json:"name" maxLength:"100" pattern:"^[a-zA-Z0-9._-]+$" doc:"what the trial is listed as; the spec's own name stays what its class is known by"`
	First int    `json:"first,omitempty" minimum:"0" maximum:"1000000" doc:"only so many of the tasks, from the first; absent means all"`
}

// limit is how many tasks there are of so many.
func (t *Trial) limit(tasks int) int {
	if t != nil && t.First > 0 {
		return min(tasks, t.First)
	}
	return tasks
}

// digest identifies what is asked for: the spec, and inputs that came beside it.
func (s *Submission) digest() string {
	if len(s.Inputs) == 0 && s.Trial == nil {
		return s.Spec.Digest()
	}
	h := sha256.New()
	fmt.Fprintln(h, s.Spec.Digest())
	if s.Trial != nil {
		fmt.Fprintln(h, s.Trial.Name, s.Trial.First)
	}
	for _, line := range s.Inputs {
		fmt.Fprintln(h, line)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// inputs yields each task's input.
func (s *Submission) inputs(ctx context.Context, source spec.Source) iter.Seq2[string, error] {
	if len(s.Inputs) == 0 {
		return s.Spec.Expand(ctx, source)
	}
	return func(yield func(string, error) bool) {
		for _, line := range s.Inputs {
			if !yield(line, nil) {
				return
			}
		}
	}
}

// The errors of a caller. Each is wrapped with what and why.
var (
	ErrConflict = errors.New("conflict")
	ErrNotFound = errors.New("not found")
	ErrInvalid  = errors.New("invalid")
)

// Submit accepts a job: from the moment it returns, the job survives anything.
// Inputs are expanded once, here, and kept in chunks before the job's row makes
// them count.
func (b *Broker) Submit(ctx context.Context, s Submission, source spec.Source) (*queue.Job, error) {
	if err := b.checkSpec(&s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if s.Spec.Users != nil {
		return nil, fmt.Errorf("%w: seats for users are planned and not run by this version; gpubroker plan says where and at what price", ErrInvalid)
	}
	parsed, err := prepare(s.Spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if s.Key != "" {
		if j, err := b.sameKey(ctx, &s); j != nil || err != nil {
			return j, err
		}
	}
	now := b.now()
	j := &queue.Job{
		ID: state.NewID("j", now), Name: s.Spec.Name, Project: s.Spec.Project, Queue: s.Spec.Queue, User: s.User,
		Key: s.Key, Digest: s.digest(), Spec: s.Spec.Canonical(), Accepted: now, Anywhere: s.Anywhere,
	}
	if s.Trial != nil {
		j.Name = s.Trial.Name
	}
	j.Priority = b.priority(s.Spec)
	if err := b.deadline(j, s.Spec); err != nil {
		return nil, fmt.Errorf("%w: deadline: %w", ErrInvalid, err)
	}
	g := b.group(parsed, j, now)
	if why := g.Against(b.facts); !why.IsZero() {
		return nil, fmt.Errorf("%w: %s; whoever keeps the broker's configuration sets its rules", ErrInvalid, why)
	}
	var locations sample
	count, err := b.expand(ctx, j.ID, &s, source, &locations)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	j.Count, j.Data = count, b.weigh(ctx, s.Spec, &locations, source)
	accepted := j
	err = b.state.Do(ctx, func(tx *state.Tx) error {
		if s.Key != "" {
			// Two calls with one key at the same time: the first one wins.
			for other := range tx.Jobs() {
				if other.Key == s.Key && other.Project == j.Project {
					accepted = other
					return nil
				}
			}
		}
		tx.AddJob(j)
		tx.Emit(queue.Event{Kind: "job.accepted", Project: j.Project, Job: j.ID, Reason: reason.New("accepted", "tasks", j.Count)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if accepted.Digest != j.Digest {
		return nil, conflict(&s, accepted)
	}
	return accepted, nil
}

func conflict(s *Submission, j *queue.Job) error {
	return fmt.Errorf("%w: key %q belongs to job %s, whose content differs; take another key", ErrConflict, s.Key, j.ID)
}

func (b *Broker) sameKey(ctx context.Context, s *Submission) (*queue.Job, error) {
	found, err := b.state.Store().Jobs(ctx, queue.JobQuery{Project: s.Spec.Project, Key: s.Key, Page: queue.Page{Limit: 1}})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if found[0].Digest != s.digest() {
		return nil, conflict(s, found[0])
	}
	return found[0], nil
}

// priority is the job's own, else its queue's.
func (b *Broker) priority(s *spec.Job) int {
	if s.Priority != nil {
		return *s.Priority
	}
	if q, ok := b.set.Queues[s.Queue]; ok && q.Priority != 0 {
		return q.Priority
	}
	return 50
}

func (b *Broker) deadline(j *queue.Job, s *spec.Job) error {
	deadline := s.Deadline
	if deadline == nil {
		deadline = b.set.Queues[j.Queue].Deadline
	}
	if deadline == nil {
		return nil
	}
	var zone window.Zone
	if s.Window != nil {
		zone = s.Window.Zone
	} else if w := b.set.Queues[j.Queue].Window; w != nil {
		zone = w.Zone
	}
	at, err := deadline.Resolve(j.Accepted, zone)
	j.Deadline = at
	return err
}

// expand stores a job's inputs and returns how many tasks there are; locations
// gets those that are fetched.
func (b *Broker) expand(ctx context.Context, id string, s *Submission, source spec.Source, locations *sample) (int, error) {
	if s.Spec.Tasks == nil {
		return 1, nil
	}
	if s.Spec.Tasks.Count > 0 {
		return s.Trial.limit(s.Spec.Tasks.Count), nil
	}
	n := 0
	chunk := &queue.Inputs{Job: id}
	flush := func() error {
		if len(chunk.Values) == 0 {
			return nil
		}
		if err := b.state.Store().PutInputs(ctx, []*queue.Inputs{chunk}); err != nil {
			return err
		}
		chunk = &queue.Inputs{Job: id, Chunk: chunk.Chunk + 1}
		return nil
	}
	for input, err := range s.inputs(ctx, source) {
		if err == nil && spec.IsLocation(input) {
			err = b.mayTouch(who{s.Spec.Project, s.Anywhere}, input)
			locations.add(input)
		}
		if err != nil {
			return 0, err
		}
		chunk.Values = append(chunk.Values, input)
		n++
		if s.Trial.limit(n+1) == n {
			break
		}
		if len(chunk.Values) == queue.ChunkSize {
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, flush()
}

// inputs reads tasks' inputs, keeping the chunks used last.
type inputs struct {
	store queue.Store
	mu    sync.Mutex
	kept  map[string]*queue.Inputs
}

func (in *inputs) of(ctx context.Context, s *parsed, j *queue.Job, index int) (string, error) {
	if s.Tasks == nil || s.Tasks.Count > 0 {
		return "", nil
	}
	var err error
	key := fmt.Sprintf("%s/%d", j.ID, index/queue.ChunkSize)
	in.mu.Lock()
	c := in.kept[key]
	in.mu.Unlock()
	if c == nil {
		if c, err = in.store.Inputs(ctx, j.ID, index/queue.ChunkSize); err != nil {
			return "", fmt.Errorf("inputs of job %s: %w", j.ID, err)
		}
		in.mu.Lock()
		if in.kept == nil || len(in.kept) > 64 {
			in.kept = map[string]*queue.Inputs{}
		}
		in.kept[key] = c
		in.mu.Unlock()
	}
	at := index % queue.ChunkSize
	if at >= len(c.Values) {
		return "", fmt.Errorf("job %s has no input %d", j.ID, index)
	}
	return c.Values[at], nil
}

func (b *Broker) knownQueues() string {
	if len(b.set.Queues) == 0 {
		return "the broker's configuration has none; leave the key out, or name one under queues there"
	}
	return "known: " + strings.Join(slices.Sorted(maps.Keys(b.set.Queues)), ", ")
}

// Cancel ends a job: what waits is cancelled at once, what runs is stopped. All
// of it is one transaction. A job that is done stays as it is.
func (b *Broker) Cancel(ctx context.Context, id, by string) (*queue.Job, error) {
	var out *queue.Job
	err := b.state.Do(ctx, func(tx *state.Tx) error {
		j := tx.EditJob(id)
		if j == nil {
			return nil
		}
		out = j
		if j.CancelledBy != "" {
			return nil
		}
		j.CancelledBy = by
		why := reason.New("cancelled", "by", by)
		for t := range tx.TasksOf(id) {
			if t.State != queue.TaskRunning {
				continue
			}
			if err := b.stopAttempt(tx, t.Attempt, queue.Stop{Why: why, Outcome: queue.CancelledOut}); err != nil {
				return err
			}
		}
		tx.Emit(queue.Event{Kind: "job.cancelled", Project: j.Project, Job: j.ID, Reason: why})
		return b.endWaiting(tx, j, queue.TaskCancelled, why)
	})
	if err != nil {
		return nil, err
	}
	if out == nil {
		return b.state.Store().Job(ctx, id)
	}
	return out, nil
}

// Hold stops new placements of a job; what runs goes on.
func (b *Broker) Hold(ctx context.Context, id, by string) (*queue.Job, error) {
	return b.editJob(ctx, id, func(tx *state.Tx, j *queue.Job) error {
		j.Held = reason.New("held", "by", by)
		tx.Emit(queue.Event{Kind: "job.held", Project: j.Project, Job: j.ID, Reason: j.Held})
		return nil
	})
}

// Release undoes Hold, and queues tasks that were held one by one.
func (b *Broker) Release(ctx context.Context, id, by string) (*queue.Job, error) {
	return b.editJob(ctx, id, func(tx *state.Tx, j *queue.Job) error {
		j.Held = reason.Reason{}
		for t := range tx.TasksOf(id) {
			if t.State == queue.TaskHeld {
				if err := queue.SetTask(j, tx.EditTask(t.TaskID), queue.TaskQueued); err != nil {
					return err
				}
			}
		}
		tx.Emit(queue.Event{Kind: "job.released", Project: j.Project, Job: j.ID, Reason: reason.New("released", "by", by)})
		return nil
	})
}

func (b *Broker) editJob(ctx context.Context, id string, fn func(*state.Tx, *queue.Job) error) (*queue.Job, error) {
	var out *queue.Job
	err := b.state.Do(ctx, func(tx *state.Tx) error {
		if out = tx.EditJob(id); out == nil {
			return nil
		}
		return fn(tx, out)
	})
	if err != nil {
		return nil, err
	}
	if out == nil {
		j, err := b.state.Store().Job(ctx, id)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: job %s is %s already", ErrConflict, id, j.State())
	}
	return out, nil
}

// Retry queues a job's tasks in one of the given end states again, with a clean
// count of failures, and returns how many.
func (b *Broker) Retry(ctx context.Context, id string, states ...queue.TaskState) (int, error) {
	// Rows that ended are not in the tables, and so no commit guards what is read
	// of them here: nobody else may bring them back meanwhile.
	b.retrying.Lock()
	defer b.retrying.Unlock()
	if _, err := b.state.Store().Job(ctx, id); err != nil {
		return 0, err
	}
	n := 0
	for _, s := range states {
		for {
			// The page shrinks as its tasks leave the state.
			tasks, err := b.state.Store().Tasks(ctx, queue.TaskQuery{Job: id, State: s, Page: queue.Page{Limit: 1000}})
			if err != nil {
				return n, err
			}
			if len(tasks) == 0 {
				break
			}
			done, err := b.requeue(ctx, id, tasks)
			n += done
			if err != nil {
				return n, err
			}
			if done == 0 {
				break
			}
		}
	}
	return n, nil
}

func (b *Broker) requeue(ctx context.Context, id string, tasks []*queue.Task) (int, error) {
	stored, err := b.state.Store().Job(ctx, id)
	if err != nil {
		return 0, err
	}
	saves := map[queue.TaskID][]*queue.Checkpoint{}
	lasts := map[queue.TaskID]*queue.Attempt{}
	for _, t := range tasks {
		if t.Saves > 0 {
			if saves[t.TaskID], err = b.state.Store().Checkpoints(ctx, t.TaskID); err != nil {
				return 0, err
			}
		}
		if t.Attempt == "" || b.state.View().Attempt(t.Attempt) != nil {
			continue
		}
		if lasts[t.TaskID], err = b.state.Store().Attempt(ctx, t.Attempt); err != nil {
			return 0, err
		}
	}
	n := 0
	err = b.state.Do(ctx, func(tx *state.Tx) error {
		n = 0
		j := tx.EditJob(id)
		if j == nil {
			j = tx.ReviveJob(stored)
		}
		j.CancelledBy, j.Ended = "", time.Time{}
		if pastDeadline(j, tx.Now) {
			j.Deadline = time.Time{} // it is over: whoever tries again wants the result all the same
		}
		for _, old := range tasks {
			t := tx.Revive(old)
			if err := queue.SetTask(j, t, queue.TaskQueued); err != nil {
				return err
			}
			t.Failures, t.Setups, t.ExitCode, t.Ended, t.Reason = 0, 0, nil, time.Time{}, reason.Reason{}
			b.revive(tx, j, t, lasts[t.TaskID], saves[t.TaskID])
			n++
		}
		tx.Emit(queue.Event{Kind: "job.retried", Project: j.Project, Job: j.ID, Reason: reason.New("retried", "tasks", n)})
		return nil
	})
	return n, err
}

// revive brings back what a task had when it ended: its last attempt, and the
// saves that have not been swept meanwhile.
func (b *Broker) revive(tx *state.Tx, j *queue.Job, t *queue.Task, last *queue.Attempt, saves []*queue.Checkpoint) {
	if last != nil {
		tx.ReviveAttempt(last)
	}
	lost := t.Committed
	t.Committed, t.Progress, t.Seconds = 0, 0, 0
	for _, k := range saves {
		if k.Swept {
			continue
		}
		tx.ReviveCheckpoint(k)
		if k.Broken.IsZero() && k.Number > t.Committed {
			t.Committed, t.Progress, t.Seconds = k.Number, k.Progress, k.Seconds
		}
	}
	if t.Committed < lost {
		tx.Emit(queue.Event{
			Kind: "checkpoint.broken", Project: j.Project, Job: j.ID, Index: new(t.Index),
			Reason: reason.New("checkpoint_broken", "number", lost, "what", "it was removed some time after the task had ended"),
		})
	}
}
