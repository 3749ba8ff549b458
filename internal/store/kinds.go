package store

import (
	"strconv"

	"gpubroker/internal/budget"
	"gpubroker/queue"
)

// kind says how rows of one type are written: into which table, under which
// name in messages, and with which columns. version is nil for rows that are
// appended or replaced.
type kind[T any] struct {
	table   string
	put     string // the statement for rows without a version
	what    string
	id      func(*T) string
	version func(*T) int64
	columns func(*rowset, *T)
}

var jobs = kind[queue.Job]{
	table: "jobs", what: "job",
	id:      func(j *queue.Job) string { return j.ID },
	version: func(j *queue.Job) int64 { return j.Version },
	columns: func(r *rowset, j *queue.Job) {
		r.text(j.ID)
		r.num(j.Version)
		r.text(j.Project)
		r.text(j.Queue)
		r.text(j.Name)
		r.text(j.Key)
		r.time(j.Accepted)
		r.time(j.Ended)
		r.flag(j.Done())
		r.doc(j)
	},
}

var tasks = kind[queue.Task]{
	table: "tasks", what: "task",
	id:      func(t *queue.Task) string { return t.TaskID.String() },
	version: func(t *queue.Task) int64 { return t.Version },
	columns: func(r *rowset, t *queue.Task) {
		r.text(t.Job)
		r.num(int64(t.Index))
		r.num(t.Version)
		r.text(string(t.State))
		r.doc(t)
	},
}

var attempts = kind[queue.Attempt]{
	table: "attempts", what: "attempt",
	id:      func(a *queue.Attempt) string { return a.ID },
	version: func(a *queue.Attempt) int64 { return a.Version },
	columns: func(r *rowset, a *queue.Attempt) {
		r.text(a.ID)
		r.num(a.Version)
		r.text(a.Job)
		r.num(int64(a.Index))
		r.num(int64(a.Number))
		r.text(a.Instance)
		r.time(a.Created)
		r.time(a.Ended)
		r.flag(a.State != queue.AttemptEnded)
		r.doc(a)
	},
}

var checkpoints = kind[queue.Checkpoint]{
	table: "checkpoints", what: "checkpoint",
	id:      func(c *queue.Checkpoint) string { return c.TaskID.String() + "/" + strconv.FormatInt(c.Number, 10) },
	version: func(c *queue.Checkpoint) int64 { return c.Version },
	columns: func(r *rowset, c *queue.Checkpoint) {
		r.text(c.Job)
		r.num(int64(c.Index))
		r.num(c.Number)
		r.num(c.Version)
		r.flag(c.Swept)
		r.doc(c)
	},
}

var instances = kind[queue.Instance]{
	table: "instances", what: "instance",
	id:      func(i *queue.Instance) string { return i.ID },
	version: func(i *queue.Instance) int64 { return i.Version },
	columns: func(r *rowset, i *queue.Instance) {
		r.text(i.ID)
		r.num(i.Version)
		r.text(i.Project)
		r.text(i.Provider)
		r.time(i.Requested)
		r.time(i.Ended)
		r.flag(i.State == queue.InstanceGone)
		r.flag(!i.Settled.IsZero())
		r.doc(i)
	},
}

var accounts = kind[budget.Account]{
	table: "accounts", what: "account",
	id:      func(a *budget.Account) string { return a.Key.String() },
	version: func(a *budget.Account) int64 { return a.Version },
	columns: func(r *rowset, a *budget.Account) {
		r.text(a.Budget)
		r.time(a.Start)
		r.num(a.Version)
		r.doc(a)
	},
}

var holds = kind[budget.Hold]{
	table: "holds", what: "hold",
	id:      func(h *budget.Hold) string { return h.Instance + " on " + h.Key.String() },
	version: func(h *budget.Hold) int64 { return h.Version },
	columns: func(r *rowset, h *budget.Hold) {
		r.text(h.Instance)
		r.text(h.Budget)
		r.time(h.Start)
		r.num(h.Version)
		r.flag(h.Settled)
		r.doc(h)
	},
}

var entries = kind[budget.Entry]{
	put: "entries.insert", what: "entry",
	id: func(e *budget.Entry) string { return strconv.FormatInt(e.Seq, 10) },
	columns: func(r *rowset, e *budget.Entry) {
		r.num(e.Seq)
		r.time(e.At)
		r.text(e.Budget)
		r.text(e.Project)
		r.text(e.Job)
		r.text(e.Instance)
		r.doc(e)
	},
}

var events = kind[queue.Event]{
	put: "events.insert", what: "event",
	id: func(e *queue.Event) string { return strconv.FormatInt(e.Seq, 10) },
	columns: func(r *rowset, e *queue.Event) {
		r.num(e.Seq)
		r.time(e.At)
		r.text(e.Job)
		r.text(e.Project)
		r.doc(e)
	},
}

var cooldowns = kind[queue.Cooldown]{
	put: "documents.cooldowns_put", what: "cool-down",
	id: func(c *queue.Cooldown) string { return c.Key },
	columns: func(r *rowset, c *queue.Cooldown) {
		r.text(c.Key)
		r.time(c.Until)
		r.doc(c)
	},
}

var settings = kind[queue.Setting]{
	put: "documents.settings_put", what: "setting",
	id: func(s *queue.Setting) string { return s.Key },
	columns: func(r *rowset, s *queue.Setting) {
		r.text(s.Key)
		r.doc(s)
	},
}

var tokens = kind[queue.Token]{
	put: "documents.tokens_put", what: "token",
	id: func(t *queue.Token) string { return t.ID },
	columns: func(r *rowset, t *queue.Token) {
		r.text(t.ID)
		r.doc(t)
	},
}
