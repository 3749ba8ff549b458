package queue

import (
	"encoding/json"
	"time"

	"gpubroker/internal/reason"
)

// Job is what was submitted. Its state is derived from its counts, see
// [Job.State].
type Job struct {
	ID      string `json:"id"`
	Version int64  `json:"version"`

	Name    string `json:"name"`
	Project string `json:"project"`
	Queue   string `json:"queue"`
	User    string `json:"user,omitzero"`
	// Anywhere lets the job name places that the configuration does not list: an
	// admin submitted it.
	Anywhere bool `json:"anywhere,omitzero"`
	// Key is the caller's idempotency key; the same key with the same Digest is
	// the same job.
	Key    string `json:"key,omitzero"`
	Digest string `json:"digest"`

	Spec     json.RawMessage `json:"spec"` // canonical, with defaults filled in
	Priority int             `json:"priority,omitzero"`

	// Data is what each task fetches, as far as it was known when the job came in.
	Data []Data `json:"data,omitempty"`

	Accepted    time.Time `json:"accepted"`
	Deadline    time.Time `json:"deadline,omitzero"` // zero means none
	Ended       time.Time `json:"ended,omitzero"`
	CancelledBy string    `json:"cancelled_by,omitzero"`

	// Held stops new placements; running attempts go on.
	Held reason.Reason `json:"held,omitzero"`

	Count  int    `json:"count"` // tasks in all
	Next   int    `json:"next"`  // tasks with an index from Next on are queued and have no row
	Counts Counts `json:"counts"`
}

// Data is bytes that each task of a job fetches.
type Data struct {
	What    string `json:"what"`             // inputs, workdir
	From    string `json:"from,omitzero"`    // the folder or file; "" is the broker's own store
	Bytes   int64  `json:"bytes,omitzero"`   // of one task, on average
	Unknown bool   `json:"unknown,omitzero"` // nobody says how much it is
}

// Counts are the job's tasks that have a row, by state.
type Counts struct {
	Queued    int `json:"queued"`
	Held      int `json:"held"`
	Running   int `json:"running"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
}

// Of returns a pointer to the count of a state.
func (c *Counts) Of(s TaskState) *int {
	switch s {
	case TaskQueued:
		return &c.Queued
	case TaskHeld:
		return &c.Held
	case TaskRunning:
		return &c.Running
	case TaskSucceeded:
		return &c.Succeeded
	case TaskFailed:
		return &c.Failed
	case TaskCancelled:
		return &c.Cancelled
	}
	panic("queue: no such task state: " + string(s))
}

// JobState is a job's state as people see it.
type JobState string

// The states of a job, derived from its tasks.
const (
	JobQueued    JobState = "queued"
	JobHeld      JobState = "held"
	JobRunning   JobState = "running"
	JobSucceeded JobState = "succeeded"
	JobFailed    JobState = "failed"
	JobCancelled JobState = "cancelled"
)

// Waiting returns the tasks that wait for a place, with and without a row.
func (j *Job) Waiting() int { return j.Count - j.Next + j.Counts.Queued }

// Done reports whether every task has ended.
func (j *Job) Done() bool {
	return j.Counts.Succeeded+j.Counts.Failed+j.Counts.Cancelled == j.Count
}

// State derives the job's state: an ended job has failed if a task has, and is
// cancelled if a task was and none failed.
func (j *Job) State() JobState {
	switch {
	case j.Done() && j.Counts.Failed > 0:
		return JobFailed
	case j.Done() && j.Counts.Cancelled > 0:
		return JobCancelled
	case j.Done():
		return JobSucceeded
	case j.Counts.Running > 0:
		return JobRunning
	case !j.Held.IsZero():
		return JobHeld
	default:
		return JobQueued
	}
}

// ChunkSize is the number of inputs in one [Inputs] row.
const ChunkSize = 1000

// Inputs is one chunk of a job's inputs: those of the tasks from Chunk×ChunkSize
// on. A job without inputs (tasks: count) has no chunks.
type Inputs struct {
	Job    string   `json:"job"`
	Chunk  int      `json:"chunk"`
	Values []string `json:"values"`
}
