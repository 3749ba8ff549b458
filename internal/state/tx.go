package state

import (
	"crypto/rand"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/reason"
	"gpubroker/queue"
)

// stage holds rows that are to be committed, by key.
type stage struct {
	jobs        map[string]*queue.Job
	tasks       map[string]*queue.Task
	attempts    map[string]*queue.Attempt
	added       map[string][]string // new attempts by instance
	checkpoints map[string]*queue.Checkpoint
	instances   map[string]*queue.Instance
	accounts    map[string]*budget.Account
	holds       map[string]*budget.Hold
	cooldowns   map[string]*queue.Cooldown
	settings    map[string]*queue.Setting
	tokens      map[string]*queue.Token
	entries     []*budget.Entry
	events      []*queue.Event
}

func newStage() *stage {
	return &stage{
		jobs: map[string]*queue.Job{}, tasks: map[string]*queue.Task{}, attempts: map[string]*queue.Attempt{}, added: map[string][]string{},
		checkpoints: map[string]*queue.Checkpoint{}, instances: map[string]*queue.Instance{},
		accounts: map[string]*budget.Account{}, holds: map[string]*budget.Hold{},
		cooldowns: map[string]*queue.Cooldown{}, settings: map[string]*queue.Setting{}, tokens: map[string]*queue.Token{},
	}
}

func (s *stage) merge(o *stage) {
	maps.Copy(s.jobs, o.jobs)
	maps.Copy(s.tasks, o.tasks)
	maps.Copy(s.attempts, o.attempts)
	for instance, ids := range o.added {
		s.added[instance] = append(s.added[instance], ids...)
	}
	maps.Copy(s.checkpoints, o.checkpoints)
	maps.Copy(s.instances, o.instances)
	maps.Copy(s.accounts, o.accounts)
	maps.Copy(s.holds, o.holds)
	maps.Copy(s.cooldowns, o.cooldowns)
	maps.Copy(s.settings, o.settings)
	maps.Copy(s.tokens, o.tokens)
	s.entries = append(s.entries, o.entries...)
	s.events = append(s.events, o.events...)
}

func (s *stage) batch(epoch int64) *queue.Batch {
	return &queue.Batch{
		Epoch: epoch,
		Jobs:  sorted(s.jobs), Tasks: sorted(s.tasks), Attempts: sorted(s.attempts),
		Checkpoints: sorted(s.checkpoints), Instances: sorted(s.instances),
		Accounts: sorted(s.accounts), Holds: sorted(s.holds),
		Cooldowns: sorted(s.cooldowns), Settings: sorted(s.settings), Tokens: sorted(s.tokens),
		Entries: s.entries, Events: s.events,
	}
}

func (s *stage) empty() bool {
	return len(s.jobs)+len(s.tasks)+len(s.attempts)+len(s.checkpoints)+len(s.instances)+len(s.accounts)+
		len(s.holds)+len(s.cooldowns)+len(s.settings)+len(s.tokens)+len(s.entries)+len(s.events) == 0
}

func sorted[R any](m map[string]*R) []*R {
	out := make([]*R, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

// Tx stages the changes of one function. Rows that it returns for reading must
// not be changed; Edit methods return a copy to change, whose version has
// already been raised.
type Tx struct {
	Now   time.Time
	base  *Tables
	group *stage // of the functions before this one in the same commit
	own   *stage
	seq   *sequences
}

type sequences struct{ event, entry int64 }

// NewID draws an id: prefix, a time part that sorts, and 60 random bits.
func (tx *Tx) NewID(prefix string) string { return NewID(prefix, tx.Now) }

const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// NewID draws an id, see [Tx.NewID].
func NewID(prefix string, now time.Time) string {
	var b strings.Builder
	b.WriteString(prefix)
	ms := now.UnixMilli()
	for shift := 40; shift >= 0; shift -= 5 {
		b.WriteByte(alphabet[ms>>shift&31])
	}
	b.WriteString(strings.ToLower(rand.Text()[:8]))
	return b.String()
}

// NewToken draws a secret of 130 bits.
func (tx *Tx) NewToken() string { return rand.Text() }

func get[R any](key string, own, group map[string]*R, base *Table[R]) *R {
	if r, ok := own[key]; ok {
		return r
	}
	if r, ok := group[key]; ok {
		return r
	}
	return base.Get(key)
}

func edit[R any](key string, own, group map[string]*R, base *Table[R], raise func(*R)) *R {
	if r, ok := own[key]; ok {
		return r
	}
	r, staged := group[key]
	if !staged {
		if r = base.Get(key); r == nil {
			return nil
		}
	}
	c := *r
	if !staged {
		raise(&c) // one commit raises a version once
	}
	own[key] = &c
	return &c
}

// Job, Task, Attempt, Instance, Account, Cooldown and Setting read a row as the
// transaction sees it; nil when there is none.
func (tx *Tx) Job(id string) *queue.Job { return get(id, tx.own.jobs, tx.group.jobs, &tx.base.Jobs) }

// Task reads a live task.
func (tx *Tx) Task(id queue.TaskID) *queue.Task {
	return get(TaskKey(id), tx.own.tasks, tx.group.tasks, &tx.base.Tasks)
}

// Attempt reads an attempt.
func (tx *Tx) Attempt(id string) *queue.Attempt {
	return get(id, tx.own.attempts, tx.group.attempts, &tx.base.Attempts)
}

// Instance reads a machine's record.
func (tx *Tx) Instance(id string) *queue.Instance {
	return get(id, tx.own.instances, tx.group.instances, &tx.base.Instances)
}

// Account reads one period of a budget.
func (tx *Tx) Account(k budget.Key) *budget.Account {
	return get(k.String(), tx.own.accounts, tx.group.accounts, &tx.base.Accounts)
}

// Hold reads what a machine has reserved in one period of a budget.
func (tx *Tx) Hold(instance string, k budget.Key) *budget.Hold {
	return get(HoldKey(instance, k), tx.own.holds, tx.group.holds, &tx.base.Holds)
}

// Cooldown reads a cool-down.
func (tx *Tx) Cooldown(key string) *queue.Cooldown {
	return get(key, tx.own.cooldowns, tx.group.cooldowns, &tx.base.Cooldowns)
}

// Setting reads a named document.
func (tx *Tx) Setting(key string) *queue.Setting {
	return get(key, tx.own.settings, tx.group.settings, &tx.base.Settings)
}

// Token reads an API token.
func (tx *Tx) Token(id string) *queue.Token {
	return get(id, tx.own.tokens, tx.group.tokens, &tx.base.Tokens)
}

// Checkpoint reads a committed save.
func (tx *Tx) Checkpoint(id queue.TaskID, number int64) *queue.Checkpoint {
	return get(CheckpointKey(id, number), tx.own.checkpoints, tx.group.checkpoints, &tx.base.Checkpoints)
}

// overlay yields the rows of a table with the staged ones in place, by key.
func overlay[R any](prefix string, base *Table[R], stages ...map[string]*R) iter.Seq[*R] {
	staged := map[string]*R{}
	for _, s := range stages {
		for k, r := range s {
			if strings.HasPrefix(k, prefix) {
				staged[k] = r
			}
		}
	}
	return func(yield func(*R) bool) {
		keys := slices.Sorted(maps.Keys(staged))
		next := func(until string, all bool) bool {
			for len(keys) > 0 && (all || keys[0] < until) {
				if !yield(staged[keys[0]]) {
					return false
				}
				keys = keys[1:]
			}
			return true
		}
		done := false
		base.m.Ascend(prefix, func(k string, r *R) bool {
			if !strings.HasPrefix(k, prefix) {
				return false
			}
			if !next(k, false) {
				done = true
				return false
			}
			if len(keys) > 0 && keys[0] == k {
				r, keys = staged[k], keys[1:]
			}
			done = !yield(r)
			return !done
		})
		if !done {
			next("", true)
		}
	}
}

// TasksOf yields a job's live tasks that have a row.
func (tx *Tx) TasksOf(job string) iter.Seq[*queue.Task] {
	return overlay(job+"/", &tx.base.Tasks, tx.group.tasks, tx.own.tasks)
}

// CheckpointsOf yields a task's checkpoints by number.
func (tx *Tx) CheckpointsOf(id queue.TaskID) iter.Seq[*queue.Checkpoint] {
	return overlay(TaskKey(id)+"/", &tx.base.Checkpoints, tx.group.checkpoints, tx.own.checkpoints)
}

// HoldsOf yields a machine's holds that are not settled.
func (tx *Tx) HoldsOf(instance string) iter.Seq[*budget.Hold] {
	return overlay(instance+"/", &tx.base.Holds, tx.group.holds, tx.own.holds)
}

// Instances yields every machine that is not settled.
func (tx *Tx) Instances() iter.Seq[*queue.Instance] {
	return overlay("", &tx.base.Instances, tx.group.instances, tx.own.instances)
}

// Jobs yields every job that is not done.
func (tx *Tx) Jobs() iter.Seq[*queue.Job] {
	return overlay("", &tx.base.Jobs, tx.group.jobs, tx.own.jobs)
}

// AttemptsOn yields the attempts on a machine that have not ended.
func (tx *Tx) AttemptsOn(instance string) []*queue.Attempt {
	ids := slices.Concat(tx.group.added[instance], tx.own.added[instance])
	for a := range tx.base.AttemptsOn(instance) {
		ids = append(ids, a.ID)
	}
	slices.Sort(ids)
	var out []*queue.Attempt
	for _, id := range slices.Compact(ids) {
		if a := tx.Attempt(id); a != nil && a.State != queue.AttemptEnded {
			out = append(out, a)
		}
	}
	return out
}

// EditJob and its like return the row to change, or nil when there is none.
func (tx *Tx) EditJob(id string) *queue.Job {
	return edit(id, tx.own.jobs, tx.group.jobs, &tx.base.Jobs, func(r *queue.Job) { r.Version++ })
}

// EditTask returns a task to change.
func (tx *Tx) EditTask(id queue.TaskID) *queue.Task {
	return edit(TaskKey(id), tx.own.tasks, tx.group.tasks, &tx.base.Tasks, func(r *queue.Task) { r.Version++ })
}

// EditAttempt returns an attempt to change.
func (tx *Tx) EditAttempt(id string) *queue.Attempt {
	return edit(id, tx.own.attempts, tx.group.attempts, &tx.base.Attempts, func(r *queue.Attempt) { r.Version++ })
}

// EditInstance returns a machine's record to change.
func (tx *Tx) EditInstance(id string) *queue.Instance {
	return edit(id, tx.own.instances, tx.group.instances, &tx.base.Instances, func(r *queue.Instance) { r.Version++ })
}

// EditCheckpoint returns a checkpoint to change.
func (tx *Tx) EditCheckpoint(id queue.TaskID, number int64) *queue.Checkpoint {
	return edit(CheckpointKey(id, number), tx.own.checkpoints, tx.group.checkpoints, &tx.base.Checkpoints,
		func(r *queue.Checkpoint) { r.Version++ })
}

// EditToken returns an API token to change.
func (tx *Tx) EditToken(id string) *queue.Token {
	return edit(id, tx.own.tokens, tx.group.tokens, &tx.base.Tokens, func(*queue.Token) {})
}

// Revive stages a row that ended and left the tables, read from the store with
// its version.
func (tx *Tx) Revive(t *queue.Task) *queue.Task {
	c := *t
	c.Version++
	tx.own.tasks[TaskKey(t.TaskID)] = &c
	return &c
}

// ReviveInstance stages the record of a settled machine, read from the store.
func (tx *Tx) ReviveInstance(i *queue.Instance) *queue.Instance {
	c := *i
	c.Version++
	tx.own.instances[i.ID] = &c
	return &c
}

// ReviveAttempt stages the last attempt of a revived task, read from the store.
func (tx *Tx) ReviveAttempt(a *queue.Attempt) *queue.Attempt {
	c := *a
	c.Version++
	tx.own.attempts[a.ID] = &c
	tx.own.added[a.Instance] = append(tx.own.added[a.Instance], a.ID)
	return &c
}

// ReviveCheckpoint stages a checkpoint of a task that ended, read from the store.
func (tx *Tx) ReviveCheckpoint(k *queue.Checkpoint) *queue.Checkpoint {
	c := *k
	c.Version++
	tx.own.checkpoints[CheckpointKey(k.TaskID, k.Number)] = &c
	return &c
}

// ReviveJob stages a done job, read from the store with its version.
func (tx *Tx) ReviveJob(j *queue.Job) *queue.Job {
	c := *j
	c.Version++
	tx.own.jobs[j.ID] = &c
	return &c
}

// AddJob stages a new row, as do its like.
func (tx *Tx) AddJob(r *queue.Job) *queue.Job { r.Version = 1; tx.own.jobs[r.ID] = r; return r }

// AddTask stages a task's first row.
func (tx *Tx) AddTask(r *queue.Task) *queue.Task {
	r.Version = 1
	tx.own.tasks[TaskKey(r.TaskID)] = r
	return r
}

// AddAttempt stages a new attempt.
func (tx *Tx) AddAttempt(r *queue.Attempt) *queue.Attempt {
	r.Version = 1
	tx.own.attempts[r.ID] = r
	tx.own.added[r.Instance] = append(tx.own.added[r.Instance], r.ID)
	return r
}

// AddInstance stages a new machine's record.
func (tx *Tx) AddInstance(r *queue.Instance) *queue.Instance {
	r.Version = 1
	tx.own.instances[r.ID] = r
	return r
}

// DropInstance takes back a record that this transaction added.
func (tx *Tx) DropInstance(id string) { delete(tx.own.instances, id) }

// AddCheckpoint stages a new checkpoint.
func (tx *Tx) AddCheckpoint(r *queue.Checkpoint) {
	r.Version = 1
	tx.own.checkpoints[CheckpointKey(r.TaskID, r.Number)] = r
}

// PutAccount stages an account, new or changed; its version is set here.
func (tx *Tx) PutAccount(r budget.Account) {
	key := r.Key.String()
	r.Version = version(key, tx.own.accounts, tx.group.accounts, &tx.base.Accounts, func(a *budget.Account) int64 { return a.Version })
	tx.own.accounts[key] = &r
}

// PutHold stages a hold, new or changed; its version is set here.
func (tx *Tx) PutHold(r budget.Hold) {
	key := HoldKey(r.Instance, r.Key)
	r.Version = version(key, tx.own.holds, tx.group.holds, &tx.base.Holds, func(h *budget.Hold) int64 { return h.Version })
	tx.own.holds[key] = &r
}

func version[R any](key string, own, group map[string]*R, base *Table[R], of func(*R) int64) int64 {
	if r, ok := own[key]; ok {
		return of(r)
	}
	if r, ok := group[key]; ok {
		return of(r)
	}
	if r := base.Get(key); r != nil {
		return of(r) + 1
	}
	return 1
}

// PutCooldown, PutSetting and PutToken stage rows without a version.
func (tx *Tx) PutCooldown(r *queue.Cooldown) { tx.own.cooldowns[r.Key] = r }

// PutSetting stages a named document.
func (tx *Tx) PutSetting(r *queue.Setting) { tx.own.settings[r.Key] = r }

// PutToken stages an API token.
func (tx *Tx) PutToken(r *queue.Token) { tx.own.tokens[r.ID] = r }

// Append adds an entry to the ledger; its number is drawn here.
func (tx *Tx) Append(e budget.Entry) {
	tx.seq.entry++
	e.Seq, e.At = tx.seq.entry, tx.Now
	tx.own.entries = append(tx.own.entries, &e)
}

// Emit records an event; its number and time are set here.
func (tx *Tx) Emit(e queue.Event) {
	tx.seq.event++
	e.Seq, e.At = tx.seq.event, tx.Now
	tx.own.events = append(tx.own.events, &e)
}

// EmitTask records an event of a task.
func (tx *Tx) EmitTask(kind string, j *queue.Job, a *queue.Attempt, why reason.Reason) {
	tx.Emit(queue.Event{
		Kind: kind, Project: j.Project, Job: j.ID, Index: new(a.Index),
		Attempt: a.ID, Instance: a.Instance, Reason: why,
	})
}
