package queue

import (
	"context"
	"errors"
	"time"

	"gpubroker/internal/budget"
)

// Batch is one transaction: every row in it is written, or none.
//
// A versioned row carries its new version, and is refused with [ErrConflict]
// unless the stored row has the version before it; version 1 inserts. Entries
// and events are appended, cool-downs, settings and tokens replaced.
type Batch struct {
	Epoch int64 // of the leader; a batch with an old one is refused with [ErrFenced]

	Jobs        []*Job
	Tasks       []*Task
	Attempts    []*Attempt
	Checkpoints []*Checkpoint
	Instances   []*Instance
	Accounts    []*budget.Account
	Holds       []*budget.Hold
	Entries     []*budget.Entry
	Cooldowns   []*Cooldown
	Settings    []*Setting
	Tokens      []*Token
	Events      []*Event
}

// Image is all that lives: what the broker keeps in memory.
type Image struct {
	Jobs        []*Job        // not done
	Tasks       []*Task       // not terminal
	Attempts    []*Attempt    // not ended, and the last one of each task above
	Checkpoints []*Checkpoint // not swept, of the tasks above
	Instances   []*Instance   // not settled
	Accounts    []*budget.Account
	Holds       []*budget.Hold // not settled
	Cooldowns   []*Cooldown
	Settings    []*Setting
	Tokens      []*Token
	EventSeq    int64 // the highest sequence numbers used
	EntrySeq    int64
}

// Meta is what a store says of itself.
type Meta struct {
	// Generation is drawn when the store is made and when it is adopted. Every
	// machine is tagged with it.
	Generation string `json:"generation"`
	// Copied means that the store is not where its generation was made: it was
	// restored or copied. Sweeps only report until it is adopted.
	Copied bool   `json:"copied"`
	Why    string `json:"why,omitzero"` // what shows that it is a copy
	Schema int    `json:"schema"`
}

// The errors of a store. Each is wrapped with what happened where.
var (
	ErrConflict = errors.New("store: a row has changed since it was read")
	ErrFenced   = errors.New("store: another broker leads this store")
	ErrLocked   = errors.New("store: another broker uses this store")
	ErrNewer    = errors.New("store: written by a newer version of gpubroker")
	ErrFull     = errors.New("store: no space left")
	ErrNotFound = errors.New("store: no such row")
	// ErrDamaged is a file that is torn or no store, or a row that cannot be read.
	ErrDamaged = errors.New("store: damaged")
	// ErrUnknown is a commit of which the engine did not say, even when asked
	// again, whether it was written: load again before writing.
	ErrUnknown = errors.New("store: it is unknown whether the rows were written")
)

// Page asks for part of a list. After is the key that the last page ended with.
type Page struct {
	After string
	Limit int // 0 means 100
}

// JobQuery selects jobs, newest first.
type JobQuery struct {
	Page
	Project string
	Queue   string
	Name    string
	Key     string    // idempotency key
	Open    bool      // only those not done
	Since   time.Time // not done, or ended since
}

// TaskQuery selects a job's tasks that have a row, by index.
type TaskQuery struct {
	Page  // After is an index
	Job   string
	State TaskState // "" means all
}

// AttemptQuery selects attempts, oldest first.
type AttemptQuery struct {
	Page
	Job      string
	Index    *int
	Instance string
	Since    time.Time // ended since, or not ended
}

// InstanceQuery selects instances, newest first.
type InstanceQuery struct {
	Page
	Project  string
	Provider string
	Open     bool      // only those not gone
	Since    time.Time // not gone, or gone since
}

// EntryQuery selects ledger entries by sequence.
type EntryQuery struct {
	After        int64
	Limit        int
	Budget       string
	Project      string
	Job          string
	Instance     string
	Since, Until time.Time
}

// EventQuery selects events by sequence.
type EventQuery struct {
	After   int64
	Limit   int
	Job     string
	Project string
	Last    bool // the newest Limit events, in ascending order
}

// Store keeps the rows. It is safe for concurrent use; lists are in the order
// that the queries state and never partial.
type Store interface {
	Meta(ctx context.Context) (Meta, error)
	// Adopt makes the store's place its own under a new generation.
	Adopt(ctx context.Context) (Meta, error)
	// Lead takes or renews the leadership for ttl and returns its epoch, which
	// rises whenever the holder changes; [ErrFenced] while another holds it.
	Lead(ctx context.Context, holder string, ttl time.Duration) (epoch int64, err error)

	Load(ctx context.Context) (*Image, error)
	Commit(ctx context.Context, b *Batch) error

	// PutInputs stores chunks of a job that is not yet accepted; the same chunk
	// again replaces it. Chunks of jobs that never came are swept by Prune.
	PutInputs(ctx context.Context, chunks []*Inputs) error
	Inputs(ctx context.Context, job string, chunk int) (*Inputs, error)

	Job(ctx context.Context, id string) (*Job, error)
	Jobs(ctx context.Context, q JobQuery) ([]*Job, error)
	Task(ctx context.Context, id TaskID) (*Task, error)
	Tasks(ctx context.Context, q TaskQuery) ([]*Task, error)
	Attempts(ctx context.Context, q AttemptQuery) ([]*Attempt, error)
	Attempt(ctx context.Context, id string) (*Attempt, error)
	Checkpoints(ctx context.Context, id TaskID) ([]*Checkpoint, error)
	Instance(ctx context.Context, id string) (*Instance, error)
	Instances(ctx context.Context, q InstanceQuery) ([]*Instance, error)
	Accounts(ctx context.Context, budget string) ([]*budget.Account, error)
	Holds(ctx context.Context, instance string) ([]*budget.Hold, error)
	Entries(ctx context.Context, q EntryQuery) ([]*budget.Entry, error)
	Events(ctx context.Context, q EventQuery) ([]*Event, error)

	// Prune removes ended rows and events older than before, at most limit of
	// them, and returns how many it removed. Ledger entries stay.
	Prune(ctx context.Context, before time.Time, limit int) (int, error)
	Close() error
}
