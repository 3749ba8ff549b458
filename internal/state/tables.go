package state

import (
	"iter"
	"strconv"
	"strings"

	"github.com/tidwall/btree"

	"gpubroker/internal/budget"
	"gpubroker/queue"
)

// Table is an ordered set of rows by key. Rows in it are never changed.
type Table[R any] struct{ m btree.Map[string, *R] }

// Get returns the row or nil.
func (t *Table[R]) Get(key string) *R {
	r, _ := t.m.Get(key)
	return r
}

// Len returns the number of rows.
func (t *Table[R]) Len() int { return t.m.Len() }

// All yields the rows by ascending key.
func (t *Table[R]) All() iter.Seq[*R] {
	return func(yield func(*R) bool) {
		t.m.Scan(func(_ string, r *R) bool { return yield(r) })
	}
}

// Prefix yields the rows whose key begins with prefix, ascending.
func (t *Table[R]) Prefix(prefix string) iter.Seq[*R] {
	return func(yield func(*R) bool) {
		t.m.Ascend(prefix, func(k string, r *R) bool {
			return strings.HasPrefix(k, prefix) && yield(r)
		})
	}
}

func (t *Table[R]) copy() Table[R] { return Table[R]{*t.m.Copy()} }

// Tables are the rows at one revision.
type Tables struct {
	Revision uint64

	Jobs        Table[queue.Job]
	Tasks       Table[queue.Task]
	Attempts    Table[queue.Attempt]
	On          Table[queue.Attempt] // attempts not ended, by "instance/attempt"
	Checkpoints Table[queue.Checkpoint]
	Instances   Table[queue.Instance]
	Accounts    Table[budget.Account]
	Holds       Table[budget.Hold]
	Cooldowns   Table[queue.Cooldown]
	Settings    Table[queue.Setting]
	Tokens      Table[queue.Token]
}

func (t *Tables) copy() *Tables {
	return &Tables{
		Revision: t.Revision,
		Jobs:     t.Jobs.copy(), Tasks: t.Tasks.copy(), Attempts: t.Attempts.copy(), On: t.On.copy(),
		Checkpoints: t.Checkpoints.copy(), Instances: t.Instances.copy(),
		Accounts: t.Accounts.copy(), Holds: t.Holds.copy(),
		Cooldowns: t.Cooldowns.copy(), Settings: t.Settings.copy(), Tokens: t.Tokens.copy(),
	}
}

// TaskKey is the key of a task's row.
func TaskKey(id queue.TaskID) string {
	var room [64]byte
	return string(appendNumber(append(room[:0], id.Job...), int64(id.Index)))
}

// CheckpointKey is the key of a checkpoint's row.
func CheckpointKey(id queue.TaskID, number int64) string {
	var room [80]byte
	return string(appendNumber(append(room[:0], TaskKey(id)...), number))
}

// appendNumber appends a slash and at least eight digits, so that keys sort as
// their numbers do. A snapshot makes a key for every running task.
func appendNumber(key []byte, n int64) []byte {
	key = append(key, '/')
	for least := int64(10_000_000); least > max(n, 1); least /= 10 {
		key = append(key, '0')
	}
	return strconv.AppendInt(key, n, 10)
}

// HoldKey is the key of a hold's row.
func HoldKey(instance string, k budget.Key) string { return instance + "/" + k.String() }

// Job returns a job or nil.
func (t *Tables) Job(id string) *queue.Job { return t.Jobs.Get(id) }

// Task returns a live task or nil: it may have no row yet, or have ended.
func (t *Tables) Task(id queue.TaskID) *queue.Task { return t.Tasks.Get(TaskKey(id)) }

// Attempt returns an attempt or nil.
func (t *Tables) Attempt(id string) *queue.Attempt { return t.Attempts.Get(id) }

// Instance returns a machine's record or nil.
func (t *Tables) Instance(id string) *queue.Instance { return t.Instances.Get(id) }

// AttemptsOn yields the attempts on a machine that have not ended.
func (t *Tables) AttemptsOn(instance string) iter.Seq[*queue.Attempt] {
	return t.On.Prefix(instance + "/")
}

func load(img *queue.Image) *Tables {
	t := &Tables{}
	for _, r := range img.Jobs {
		t.Jobs.m.Set(r.ID, r)
	}
	for _, r := range img.Tasks {
		t.Tasks.m.Set(TaskKey(r.TaskID), r)
	}
	for _, r := range img.Attempts {
		t.applyAttempt(r)
	}
	for _, r := range img.Checkpoints {
		t.Checkpoints.m.Set(CheckpointKey(r.TaskID, r.Number), r)
	}
	for _, r := range img.Instances {
		t.Instances.m.Set(r.ID, r)
	}
	for _, r := range img.Accounts {
		t.Accounts.m.Set(r.Key.String(), r)
	}
	for _, r := range img.Holds {
		t.Holds.m.Set(HoldKey(r.Instance, r.Key), r)
	}
	for _, r := range img.Cooldowns {
		t.Cooldowns.m.Set(r.Key, r)
	}
	for _, r := range img.Settings {
		t.Settings.m.Set(r.Key, r)
	}
	for _, r := range img.Tokens {
		t.Tokens.m.Set(r.ID, r)
	}
	t.forgetEnded()
	return t
}

func (t *Tables) applyAttempt(a *queue.Attempt) {
	t.Attempts.m.Set(a.ID, a)
	on := a.Instance + "/" + a.ID
	if a.State == queue.AttemptEnded {
		t.On.m.Delete(on)
	} else {
		t.On.m.Set(on, a)
	}
}

// apply puts committed rows into the tables, and drops those that no longer
// live, by the same rule as [queue.Image].
func (t *Tables) apply(b *queue.Batch) {
	t.Revision++
	for _, r := range b.Jobs {
		set(&t.Jobs, r.ID, r, !r.Done())
	}
	for _, r := range b.Attempts {
		t.applyAttempt(r)
	}
	for _, r := range b.Tasks {
		key := TaskKey(r.TaskID)
		if old := t.Tasks.Get(key); old != nil && old.Attempt != r.Attempt {
			if a := t.Attempts.Get(old.Attempt); a != nil && a.State == queue.AttemptEnded {
				t.Attempts.m.Delete(a.ID)
			}
		}
		set(&t.Tasks, key, r, !r.State.Terminal())
		if r.State.Terminal() {
			t.forgetTask(key, r)
		}
	}
	for _, r := range b.Checkpoints {
		set(&t.Checkpoints, CheckpointKey(r.TaskID, r.Number), r, !r.Swept && t.Task(r.TaskID) != nil)
	}
	for _, r := range b.Attempts {
		if r.State == queue.AttemptEnded && t.current(r) == nil {
			t.Attempts.m.Delete(r.ID)
		}
	}
	for _, r := range b.Instances {
		set(&t.Instances, r.ID, r, r.Settled.IsZero())
	}
	for _, r := range b.Accounts {
		t.Accounts.m.Set(r.Key.String(), r)
	}
	for _, r := range b.Holds {
		set(&t.Holds, HoldKey(r.Instance, r.Key), r, !r.Settled)
	}
	for _, r := range b.Cooldowns {
		t.Cooldowns.m.Set(r.Key, r)
	}
	for _, r := range b.Settings {
		t.Settings.m.Set(r.Key, r)
	}
	for _, r := range b.Tokens {
		t.Tokens.m.Set(r.ID, r)
	}
}

func set[R any](t *Table[R], key string, r *R, lives bool) {
	if lives {
		t.m.Set(key, r)
	} else {
		t.m.Delete(key)
	}
}

// current returns the task that a still counts for: the one whose attempt it is.
func (t *Tables) current(a *queue.Attempt) *queue.Task {
	if task := t.Task(a.TaskID); task != nil && task.Attempt == a.ID {
		return task
	}
	return nil
}

func (t *Tables) forgetTask(key string, r *queue.Task) {
	if a := t.Attempts.Get(r.Attempt); a != nil && a.State == queue.AttemptEnded {
		t.Attempts.m.Delete(a.ID)
	}
	var drop []string // a table is not changed while it is walked
	for c := range t.Checkpoints.Prefix(key + "/") {
		drop = append(drop, CheckpointKey(c.TaskID, c.Number))
	}
	for _, k := range drop {
		t.Checkpoints.m.Delete(k)
	}
}

func (t *Tables) forgetEnded() {
	var drop []string
	for a := range t.Attempts.All() {
		if a.State == queue.AttemptEnded && t.current(a) == nil {
			drop = append(drop, a.ID)
		}
	}
	for _, id := range drop {
		t.Attempts.m.Delete(id)
	}
}
