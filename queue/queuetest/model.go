package queuetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpubroker/internal/budget"
	"gpubroker/queue"
)

// model is the store as one would write it on paper: maps, and loops over them.
type model struct {
	jobs        map[string]*queue.Job
	tasks       map[string]*queue.Task
	attempts    map[string]*queue.Attempt
	checkpoints map[string]*queue.Checkpoint
	instances   map[string]*queue.Instance
	accounts    map[string]*budget.Account
	holds       map[string]*budget.Hold
	cooldowns   map[string]*queue.Cooldown
	settings    map[string]*queue.Setting
	entries     []*budget.Entry
	events      []*queue.Event
}

func newModel() *model {
	return &model{
		map[string]*queue.Job{},
		map[string]*queue.Task{},
		map[string]*queue.Attempt{},
		map[string]*queue.Checkpoint{},
		map[string]*queue.Instance{},
		map[string]*budget.Account{},
		map[string]*budget.Hold{},
		map[string]*queue.Cooldown{},
		map[string]*queue.Setting{},
		nil, nil,
	}
}

func checkpointID(c *queue.Checkpoint) string { return fmt.Sprintf("%s/%d", c.TaskID, c.Number) }
func holdID(h *budget.Hold) string            { return h.Instance + " " + h.Key.String() }

// fits reports whether every row has the version after the stored one.
func fits[T any](stored map[string]*T, rows []*T, id func(*T) string, version func(*T) int64) bool {
	for _, r := range rows {
		have := int64(0)
		if old := stored[id(r)]; old != nil {
			have = version(old)
		}
		if version(r) != have+1 {
			return false
		}
	}
	return true
}

func replace[T any](stored map[string]*T, rows []*T, id func(*T) string) {
	for _, r := range rows {
		stored[id(r)] = r
	}
}

var (
	jobID      = func(j *queue.Job) string { return j.ID }
	taskID     = func(t *queue.Task) string { return t.TaskID.String() }
	attemptID  = func(a *queue.Attempt) string { return a.ID }
	instanceID = func(i *queue.Instance) string { return i.ID }
	accountID  = func(a *budget.Account) string { return a.Key.String() }
)

func (m *model) commit(b *queue.Batch) error {
	ok := fits(m.jobs, b.Jobs, jobID, func(j *queue.Job) int64 { return j.Version }) &&
		fits(m.tasks, b.Tasks, taskID, func(t *queue.Task) int64 { return t.Version }) &&
		fits(m.attempts, b.Attempts, attemptID, func(a *queue.Attempt) int64 { return a.Version }) &&
		fits(m.checkpoints, b.Checkpoints, checkpointID, func(c *queue.Checkpoint) int64 { return c.Version }) &&
		fits(m.instances, b.Instances, instanceID, func(i *queue.Instance) int64 { return i.Version }) &&
		fits(m.accounts, b.Accounts, accountID, func(a *budget.Account) int64 { return a.Version }) &&
		fits(m.holds, b.Holds, holdID, func(h *budget.Hold) int64 { return h.Version })
	for _, e := range b.Events {
		ok = ok && !slices.ContainsFunc(m.events, func(o *queue.Event) bool { return o.Seq == e.Seq })
	}
	for _, e := range b.Entries {
		ok = ok && !slices.ContainsFunc(m.entries, func(o *budget.Entry) bool { return o.Seq == e.Seq })
	}
	if !ok {
		return queue.ErrConflict
	}
	replace(m.jobs, b.Jobs, jobID)
	replace(m.tasks, b.Tasks, taskID)
	replace(m.attempts, b.Attempts, attemptID)
	replace(m.checkpoints, b.Checkpoints, checkpointID)
	replace(m.instances, b.Instances, instanceID)
	replace(m.accounts, b.Accounts, accountID)
	replace(m.holds, b.Holds, holdID)
	replace(m.cooldowns, b.Cooldowns, func(c *queue.Cooldown) string { return c.Key })
	replace(m.settings, b.Settings, func(s *queue.Setting) string { return s.Key })
	m.entries = append(m.entries, b.Entries...)
	m.events = append(m.events, b.Events...)
	slices.SortFunc(m.entries, func(a, b *budget.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	slices.SortFunc(m.events, func(a, b *queue.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return nil
}

// pick returns the rows that pass, in order.
func pick[T any](rows map[string]*T, order func(a, b *T) int, pass func(*T) bool) []*T {
	var all []*T
	for _, r := range rows {
		if pass(r) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, order)
	return all
}

func (m *model) live(id queue.TaskID) bool {
	t := m.tasks[id.String()]
	return t != nil && !t.State.Terminal()
}

func (m *model) load() *queue.Image {
	im := &queue.Image{
		Jobs:      pick(m.jobs, oldestJob, func(j *queue.Job) bool { return !j.Done() }),
		Tasks:     pick(m.tasks, byTask, func(t *queue.Task) bool { return !t.State.Terminal() }),
		Instances: pick(m.instances, by(instanceID), func(i *queue.Instance) bool { return i.Settled.IsZero() }),
		Accounts: pick(m.accounts, func(a, b *budget.Account) int {
			return cmp.Or(strings.Compare(a.Budget, b.Budget), a.Start.Compare(b.Start))
		}, func(*budget.Account) bool { return true }),
		Holds:     pick(m.holds, by(holdID), func(h *budget.Hold) bool { return !h.Settled }),
		Cooldowns: pick(m.cooldowns, by(func(c *queue.Cooldown) string { return c.Key }), func(*queue.Cooldown) bool { return true }),
		Settings:  pick(m.settings, by(func(s *queue.Setting) string { return s.Key }), func(*queue.Setting) bool { return true }),
		Attempts: pick(m.attempts, by(attemptID), func(a *queue.Attempt) bool {
			if a.State != queue.AttemptEnded {
				return true
			}
			for _, o := range m.attempts {
				if o.TaskID == a.TaskID && o.Number > a.Number {
					return false
				}
			}
			return m.live(a.TaskID)
		}),
		Checkpoints: pick(m.checkpoints, by(checkpointID), func(c *queue.Checkpoint) bool { return !c.Swept && m.live(c.TaskID) }),
	}
	if n := len(m.events); n > 0 {
		im.EventSeq = m.events[n-1].Seq
	}
	if n := len(m.entries); n > 0 {
		im.EntrySeq = m.entries[n-1].Seq
	}
	return im
}

func by[T any](id func(*T) string) func(a, b *T) int {
	return func(a, b *T) int { return strings.Compare(id(a), id(b)) }
}

func oldestJob(a, b *queue.Job) int {
	return cmp.Or(a.Accepted.Compare(b.Accepted), strings.Compare(a.ID, b.ID))
}

func byTask(a, b *queue.Task) int {
	return cmp.Or(strings.Compare(a.Job, b.Job), cmp.Compare(a.Index, b.Index))
}

func testModel(t *testing.T, e Engine) {
	runs, broken := 0, false
	rapid.Check(t, func(rt *rapid.T) {
		// Enough runs; but once one has failed, rapid repeats it to make it smaller.
		if runs++; e.Runs > 0 && runs > e.Runs && !broken {
			return
		}
		defer func() { broken = broken || rt.Failed() }()
		place := e.New(t)
		s := place.open(t)
		defer func() { s.Close() }()
		epoch := lead(t, s, "a")
		m := newModel()
		rt.Repeat(map[string]func(*rapid.T){
			"commit": func(rt *rapid.T) {
				b := m.draw(rt)
				b.Epoch = epoch
				got, want := s.Commit(t.Context(), b), m.commit(b)
				if !errors.Is(got, want) {
					rt.Fatalf("commit: %v, want %v", got, want)
				}
			},
			"open again": func(rt *rapid.T) {
				if err := s.Close(); err != nil {
					rt.Fatal(err)
				}
				s = place.open(t)
			},
			"ask": func(rt *rapid.T) { m.ask(rt, t, s) },
			"": func(rt *rapid.T) {
				got, err := s.Load(t.Context())
				if err != nil {
					rt.Fatal(err)
				}
				same(rt, "image", got, m.load())
			},
		})
	})
}

// draw makes a batch of a few rows of each kind: mostly the next version, now
// and then another one.
func (m *model) draw(rt *rapid.T) *queue.Batch {
	b := new(queue.Batch)
	wrong := rapid.IntRange(0, 3).Draw(rt, "wrong") == 0
	version := func(have int64) int64 {
		if wrong && rapid.IntRange(0, 3).Draw(rt, "off") == 0 {
			return max(1, have+int64(rapid.SampledFrom([]int{-1, 0, 2}).Draw(rt, "by")))
		}
		return have + 1
	}
	second := func(name string) time.Time { return at(rapid.IntRange(0, 6).Draw(rt, name)) }
	keys := func(kind string, n int) []int {
		return rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 0, min(n, 3), rapid.ID[int]).Draw(rt, kind)
	}
	for _, k := range keys("jobs", 4) {
		j := job(fmt.Sprint("j", k), 2)
		j.Project, j.Key, j.Accepted = fmt.Sprint("p", k%2), []string{"", "key"}[k/2], at(k/2)
		j.Version = version(versionOf(m.jobs[j.ID], func(j *queue.Job) int64 { return j.Version }))
		if rapid.Bool().Draw(rt, "done") {
			j.Next, j.Counts.Failed, j.Ended = 2, 2, second("ended")
		}
		b.Jobs = append(b.Jobs, j)
	}
	for _, k := range keys("tasks", 8) {
		x := running(fmt.Sprint("j", k%4), k/4, "")
		x.State = rapid.SampledFrom([]queue.TaskState{queue.TaskQueued, queue.TaskHeld, queue.TaskRunning, queue.TaskSucceeded, queue.TaskFailed, queue.TaskCancelled}).Draw(rt, "state")
		x.Version = version(versionOf(m.tasks[taskID(x)], func(t *queue.Task) int64 { return t.Version }))
		b.Tasks = append(b.Tasks, x)
	}
	for _, k := range keys("attempts", 12) {
		a := attempt(fmt.Sprintf("a%02d", k), fmt.Sprint("j", k%2), k/2%2, k/4+1)
		a.Created, a.Instance = at(k/3), fmt.Sprint("i", k%3)
		if rapid.Bool().Draw(rt, "over") {
			a.State, a.Ended = queue.AttemptEnded, second("ended")
		}
		a.Version = version(versionOf(m.attempts[a.ID], func(a *queue.Attempt) int64 { return a.Version }))
		b.Attempts = append(b.Attempts, a)
	}
	for _, k := range keys("checkpoints", 6) {
		c := &queue.Checkpoint{TaskID: queue.TaskID{Job: fmt.Sprint("j", k%2), Index: k % 2}, Number: int64(k), Swept: rapid.Bool().Draw(rt, "swept")}
		c.Version = version(versionOf(m.checkpoints[checkpointID(c)], func(c *queue.Checkpoint) int64 { return c.Version }))
		b.Checkpoints = append(b.Checkpoints, c)
	}
	for _, k := range keys("instances", 4) {
		i := &queue.Instance{ID: fmt.Sprint("i", k), Project: fmt.Sprint("p", k%2), Provider: "sim", State: queue.InstanceReady, Requested: at(k / 2)}
		if rapid.Bool().Draw(rt, "gone") {
			i.State, i.Ended = queue.InstanceGone, second("ended")
			if rapid.Bool().Draw(rt, "settled") {
				i.Settled = second("settled")
			}
		}
		i.Version = version(versionOf(m.instances[i.ID], func(i *queue.Instance) int64 { return i.Version }))
		b.Instances = append(b.Instances, i)
		h := &budget.Hold{Instance: i.ID, Key: budget.Key{Budget: "all"}, Settled: !i.Settled.IsZero()}
		h.Version = version(versionOf(m.holds[holdID(h)], func(h *budget.Hold) int64 { return h.Version }))
		b.Holds = append(b.Holds, h)
	}
	for _, k := range keys("accounts", 3) {
		a := &budget.Account{Key: budget.Key{Budget: "b", Start: at(k)}}
		a.Version = version(versionOf(m.accounts[accountID(a)], func(a *budget.Account) int64 { return a.Version }))
		b.Accounts = append(b.Accounts, a)
	}
	for _, k := range keys("documents", 3) {
		b.Cooldowns = append(b.Cooldowns, &queue.Cooldown{Key: fmt.Sprint("offer:", k), Until: second("until")})
		b.Settings = append(b.Settings, &queue.Setting{Key: fmt.Sprint("s", k), Value: []byte(fmt.Sprint(rapid.Int().Draw(rt, "value")))})
	}
	seq := int64(len(m.events) + 1)
	for range rapid.IntRange(0, 3).Draw(rt, "events") {
		e := event(seq, rapid.SampledFrom([]string{"", "j0", "j1"}).Draw(rt, "job"))
		b.Events = append(b.Events, e)
		b.Entries = append(b.Entries, &budget.Entry{Seq: seq, At: second("at"), Key: budget.Key{Budget: "b"}, Job: e.Job, Instance: "i0", Amount: 1})
		seq++
	}
	if wrong && len(m.events) > 0 && rapid.Bool().Draw(rt, "number twice") {
		b.Events = append(b.Events, event(1, ""))
	}
	return b
}

func versionOf[T any](row *T, version func(*T) int64) int64 {
	if row == nil {
		return 0
	}
	return version(row)
}

// ask puts one random question to both.
func (m *model) ask(rt *rapid.T, t *testing.T, s queue.Store) {
	ctx := t.Context()
	project := rapid.SampledFrom([]string{"", "p0", "p1"}).Draw(rt, "project")
	since := rapid.SampledFrom([]time.Time{{}, at(2), at(4)}).Draw(rt, "since")
	open := rapid.Bool().Draw(rt, "open")
	limit := rapid.IntRange(1, 5).Draw(rt, "limit")
	// follow walks a list page by page.
	follow := func(what string, ask func(queue.Page) ([]string, error), want []string) {
		rt.Helper()
		var all []string
		p := queue.Page{Limit: limit}
		for {
			got, err := ask(p)
			if err != nil {
				rt.Fatalf("%s: %v", what, err)
			}
			all = append(all, got...)
			if len(got) < limit {
				break
			}
			p.After = got[len(got)-1]
		}
		same(rt, what, all, want)
	}
	switch rapid.IntRange(0, 4).Draw(rt, "what") {
	case 0:
		key := rapid.SampledFrom([]string{"", "key"}).Draw(rt, "key")
		want := pick(m.jobs, func(a, b *queue.Job) int { return oldestJob(b, a) }, func(j *queue.Job) bool {
			return (project == "" || j.Project == project) && (key == "" || j.Key == key) &&
				(!j.Done() || !open && !j.Ended.Before(since))
		})
		follow("jobs", func(p queue.Page) ([]string, error) {
			got, err := s.Jobs(ctx, queue.JobQuery{Page: p, Project: project, Key: key, Open: open, Since: since})
			return ids(got, jobID), err
		}, ids(want, jobID))
	case 1:
		q := queue.AttemptQuery{
			Job:      rapid.SampledFrom([]string{"", "j0", "j1"}).Draw(rt, "job"),
			Instance: rapid.SampledFrom([]string{"", "i0", "i1"}).Draw(rt, "instance"), Since: since,
		}
		if q.Job != "" && open {
			q.Index = new(limit % 2)
		}
		want := pick(m.attempts, func(a, b *queue.Attempt) int {
			return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
		}, func(a *queue.Attempt) bool {
			return (q.Job == "" || a.Job == q.Job) && (q.Index == nil || a.Index == *q.Index) && (q.Instance == "" || a.Instance == q.Instance) &&
				(a.State != queue.AttemptEnded || !a.Ended.Before(since))
		})
		follow("attempts", func(p queue.Page) ([]string, error) {
			q.Page = p
			got, err := s.Attempts(ctx, q)
			return ids(got, attemptID), err
		}, ids(want, attemptID))
	case 2:
		want := pick(m.instances, func(a, b *queue.Instance) int {
			return cmp.Or(b.Requested.Compare(a.Requested), strings.Compare(b.ID, a.ID))
		}, func(i *queue.Instance) bool {
			return (project == "" || i.Project == project) && (i.State != queue.InstanceGone || !open && !i.Ended.Before(since))
		})
		follow("instances", func(p queue.Page) ([]string, error) {
			got, err := s.Instances(ctx, queue.InstanceQuery{Page: p, Project: project, Open: open, Since: since})
			return ids(got, instanceID), err
		}, ids(want, instanceID))
	case 3:
		q := queue.EventQuery{Job: rapid.SampledFrom([]string{"", "j0"}).Draw(rt, "job"), After: int64(rapid.IntRange(0, 5).Draw(rt, "after")), Limit: limit, Last: open}
		var want []*queue.Event
		for _, e := range m.events {
			if e.Seq > q.After && (q.Job == "" || e.Job == q.Job) {
				want = append(want, e)
			}
		}
		if n := min(limit, len(want)); q.Last {
			want = want[len(want)-n:]
		} else {
			want = want[:n]
		}
		got, err := s.Events(ctx, q)
		if err != nil {
			rt.Fatal(err)
		}
		same(rt, "events", got, want)
	case 4:
		q := queue.EntryQuery{Job: rapid.SampledFrom([]string{"", "j0"}).Draw(rt, "job"), Limit: limit, Since: since}
		if open {
			q.Until, q.Instance = at(5), "i0"
		}
		var want []*budget.Entry
		for _, e := range m.entries {
			if len(want) < limit && (q.Job == "" || e.Job == q.Job) && !e.At.Before(since) && (!open || e.At.Before(q.Until)) {
				want = append(want, e)
			}
		}
		got, err := s.Entries(ctx, q)
		if err != nil {
			rt.Fatal(err)
		}
		same(rt, "entries", got, want)
	}
}
