package queue

import (
	"fmt"
	"slices"
)

// TaskState is where a task stands.
type TaskState string

// The states of a task.
const (
	TaskQueued    TaskState = "queued"
	TaskHeld      TaskState = "held"
	TaskRunning   TaskState = "running"
	TaskSucceeded TaskState = "succeeded"
	TaskFailed    TaskState = "failed"
	TaskCancelled TaskState = "cancelled"
)

// AttemptState is where an attempt stands.
type AttemptState string

// The states of an attempt.
const (
	AttemptAssigned AttemptState = "assigned"
	AttemptStarting AttemptState = "starting"
	AttemptRunning  AttemptState = "running"
	AttemptDraining AttemptState = "draining"
	AttemptEnded    AttemptState = "ended"
)

// Outcome is how an attempt ended.
type Outcome string

// The outcomes. Only Failed uses up one of the job's retries.
const (
	Succeeded    Outcome = "succeeded"
	Failed       Outcome = "failed"
	Preempted    Outcome = "preempted"
	Moved        Outcome = "moved"
	Lost         Outcome = "lost"
	LaunchFailed Outcome = "launch_failed"
	SetupFailed  Outcome = "setup_failed" // the machine could not make the workspace: not the task's doing
	Stopped      Outcome = "stopped"      // its window or lease ended
	CancelledOut Outcome = "cancelled"
)

// InstanceState is where our record of a machine stands.
type InstanceState string

// The states of an instance.
const (
	InstanceRequested   InstanceState = "requested"
	InstanceLaunching   InstanceState = "launching"
	InstanceBooting     InstanceState = "booting"
	InstanceReady       InstanceState = "ready"
	InstanceDraining    InstanceState = "draining"
	InstanceTerminating InstanceState = "terminating"
	InstanceGone        InstanceState = "gone"
)

// Move is one allowed change of state.
type Move struct {
	From, To string
	On       string // what causes it, for people
}

// TaskMoves, AttemptMoves and InstanceMoves are the tables; docs/states.md is
// generated from them.
var (
	TaskMoves = []Move{
		{"", "running", "first placement (a task has no row before it)"},
		{"", "cancelled", "the job was cancelled before the task's first placement (it is only counted)"},
		{"", "failed", "the deadline passed before its first placement and the job says stop (it is only counted)"},
		{"queued", "running", "placed"},
		{"queued", "held", "held by a person, or no use in trying on"},
		{"queued", "cancelled", "cancelled"},
		{"queued", "failed", "its deadline passed and the job says stop"},
		{"held", "queued", "released"},
		{"held", "cancelled", "cancelled"},
		{"held", "failed", "its deadline passed and the job says stop"},
		{"running", "queued", "its attempt ended without a result"},
		{"running", "held", "its attempt ended and no other is wanted"},
		{"running", "succeeded", "the current attempt committed its result"},
		{"running", "failed", "failed more often than allowed"},
		{"running", "cancelled", "cancelled"},
		{"failed", "queued", "retry --failed"},
		{"cancelled", "queued", "retry --cancelled"},
	}
	AttemptMoves = []Move{
		{"", "assigned", "placed on an instance"},
		{"assigned", "starting", "the agent took it"},
		{"assigned", "ended", "its machine never came, or it was cancelled"},
		{"assigned", "draining", "asked to stop before it began"},
		{"starting", "running", "inputs and checkpoint are there, the command began"},
		{"starting", "draining", "asked to stop"},
		{"starting", "ended", "setting up failed, or the machine was lost"},
		{"running", "draining", "asked to stop: notice, move, cancel, window"},
		{"running", "ended", "the command ended, or the machine was lost"},
		{"draining", "ended", "saved and stopped, or the machine is gone"},
	}
	InstanceMoves = []Move{
		{"", "requested", "planned: the intent and its reservation are stored"},
		{"requested", "launching", "the provider is about to be asked"},
		{"requested", "gone", "no longer wanted before it was asked for"},
		{"launching", "booting", "the provider accepted, or the machine was found by its tag"},
		{"launching", "gone", "refused: certainly no machine exists"},
		{"launching", "terminating", "no longer wanted while the call was under way"},
		{"launching", "ready", "the agent called in before the launch call returned"},
		{"booting", "ready", "the agent called in"},
		{"booting", "draining", "a notice before the agent called in"},
		{"booting", "terminating", "boot deadline, or no longer wanted"},
		{"booting", "gone", "the provider says it is gone"},
		{"ready", "draining", "notice, or let go"},
		{"ready", "terminating", "idle, or stopped at once"},
		{"ready", "gone", "the provider says it is gone"},
		{"draining", "terminating", "empty, or its time has come"},
		{"draining", "gone", "the provider says it is gone"},
		{"terminating", "gone", "the provider says it is gone"},
	}
)

// A MoveError says that a row was to make a move that its table does not have.
type MoveError struct {
	What, ID, From, To string
}

// Error names the row and the move.
func (e *MoveError) Error() string {
	return fmt.Sprintf("queue: %s %s cannot go from %q to %q", e.What, e.ID, e.From, e.To)
}

func allowed(table []Move, from, to string) bool {
	return slices.ContainsFunc(table, func(m Move) bool { return m.From == from && m.To == to })
}

// SetTask moves a task, keeping its job's counts, or returns a [*MoveError].
func SetTask(j *Job, t *Task, to TaskState) error {
	if !allowed(TaskMoves, string(t.State), string(to)) {
		return &MoveError{"task", t.TaskID.String(), string(t.State), string(to)}
	}
	if t.State != "" {
		*j.Counts.Of(t.State)--
	}
	*j.Counts.Of(to)++
	t.State = to
	return nil
}

// SetAttempt moves an attempt, or returns a [*MoveError].
func SetAttempt(a *Attempt, to AttemptState) error {
	if !allowed(AttemptMoves, string(a.State), string(to)) {
		return &MoveError{"attempt", a.ID, string(a.State), string(to)}
	}
	a.State = to
	return nil
}

// SetInstance moves an instance, or returns a [*MoveError].
func SetInstance(i *Instance, to InstanceState) error {
	if !allowed(InstanceMoves, string(i.State), string(to)) {
		return &MoveError{"instance", i.ID, string(i.State), string(to)}
	}
	i.State = to
	return nil
}

// Terminal reports whether a task in this state has ended.
func (s TaskState) Terminal() bool {
	return s == TaskSucceeded || s == TaskFailed || s == TaskCancelled
}
