package queue

import (
	"strconv"
	"time"

	"gpubroker/internal/reason"
)

// TaskID names a task: it is known by its job and its index.
type TaskID struct {
	Job   string `json:"job"`
	Index int    `json:"index"`
}

// String returns "job/index".
func (id TaskID) String() string { return id.Job + "/" + strconv.Itoa(id.Index) }

// Task is one unit of a job. It has no row before its first attempt.
type Task struct {
	TaskID
	Version int64         `json:"version"`
	State   TaskState     `json:"state"`
	Reason  reason.Reason `json:"reason,omitzero"` // why held, failed or cancelled

	Attempt  string `json:"attempt,omitzero"` // the one that may commit; "" when none
	Attempts int    `json:"attempts"`         // placements so far
	Failures int    `json:"failures"`         // attempts that failed by the task's own doing
	Setups   int    `json:"setups,omitzero"`  // attempts that a machine failed to set up
	// Saves is the highest checkpoint number ever handed out; numbers are never
	// used twice. Committed is the one to resume from, 0 for none.
	Saves     int64 `json:"saves,omitzero"`
	Committed int64 `json:"committed,omitzero"`
	// Progress is the share of the work, 0 to 1, that the committed checkpoint
	// holds; Seconds is the busy time it took.
	Progress  float64   `json:"progress,omitzero"`
	Seconds   float64   `json:"seconds,omitzero"`
	Region    string    `json:"region,omitzero"` // where the checkpoint lies
	ExitCode  *int      `json:"exit_code,omitzero"`
	Output    string    `json:"output,omitzero"` // digest of what was published
	NotBefore time.Time `json:"not_before,omitzero"`
	Ended     time.Time `json:"ended,omitzero"`
	// Waits is since when it looks for a machine: since its last one that worked, or
	// since the first try in vain. It means nothing while the task runs.
	Waits time.Time `json:"waits,omitzero"`
}

// Attempt is one placing of a task on an instance.
type Attempt struct {
	ID string `json:"id"`
	TaskID
	Version int64 `json:"version"`
	// Token proves that a call is this attempt's; only the task's current attempt
	// can commit.
	Token    string        `json:"token"`
	Number   int           `json:"number"` // 1 for the task's first
	Instance string        `json:"instance"`
	Slot     int           `json:"slot"`
	State    AttemptState  `json:"state"`
	Outcome  Outcome       `json:"outcome,omitzero"`
	ExitCode *int          `json:"exit_code,omitzero"`
	Reason   reason.Reason `json:"reason,omitzero"`

	// Member is the attempt's place in a gang; nil for a task on one machine.
	Member *Member `json:"member,omitempty"`

	// Move is under way while it runs: machines are rented that take its task.
	Move *Moving `json:"move,omitempty"`

	Resume  int64  `json:"resume,omitzero"` // the checkpoint it began from
	Stop    *Stop  `json:"stop,omitzero"`   // asked to stop
	LogSize int64  `json:"log_size,omitzero"`
	Publish string `json:"publish,omitzero"` // digest of the output being published, set by the fenced transaction
	// Sealed means that its agent saw its end: nothing of it runs any more.
	Sealed bool `json:"sealed,omitzero"`

	Created time.Time `json:"created"`
	Started time.Time `json:"started,omitzero"` // the command began
	Ended   time.Time `json:"ended,omitzero"`
	// Busy is the time the command ran, Kept the part of it that a committed
	// checkpoint or a success holds: Busy − Kept was lost.
	Busy time.Duration `json:"busy,omitzero"`
	Kept time.Duration `json:"kept,omitzero"`
	// Done is the share of the task that was done in Busy, kept or not; 0 is unknown.
	Done float64 `json:"done,omitzero"`
	// Usage is what the command used of the machine; nil when nobody looked.
	Usage *Usage `json:"usage,omitempty"`
}

// Moving is where the task of an attempt goes on once that has stopped.
type Moving struct {
	To  []string      `json:"to"` // machines, of a gang by rank
	Why reason.Reason `json:"why"`
}

// Stop is the wish that an attempt ends.
type Stop struct {
	Why        reason.Reason `json:"why"`
	Outcome    Outcome       `json:"outcome"`     // what it will have been: preempted, moved, cancelled, …
	By         time.Time     `json:"by,omitzero"` // the machine is gone after this; zero means the usual grace
	Checkpoint bool          `json:"checkpoint"`  // a save is wanted if it fits
}

// Checkpoint is a committed save. The row is the commit.
type Checkpoint struct {
	TaskID
	Number   int64         `json:"number"`
	Version  int64         `json:"version"`
	Attempt  string        `json:"attempt"`
	Digest   string        `json:"digest"` // of its manifest
	Bytes    int64         `json:"bytes"`
	Sent     int64         `json:"sent"` // bytes uploaded for it, parts that were reused not counted
	Progress float64       `json:"progress,omitzero"`
	Seconds  float64       `json:"seconds,omitzero"` // busy time up to it, over all attempts
	Region   string        `json:"region,omitzero"`
	At       time.Time     `json:"at"`
	Broken   reason.Reason `json:"broken,omitzero"` // set when it proved unreadable
	Swept    bool          `json:"swept,omitzero"`
}
