package scheduler

import (
	"slices"
	"time"

	"gpubroker/internal/reason"
	"gpubroker/queue"
)

// Retry is how often a task may fail by its own doing.
type Retry struct {
	Failures      int   // allowed before the task fails
	OnlyExitCodes []int // others fail at once; empty means any
}

// The first wait after a failure, doubled by each further one up to the last.
const (
	firstBackoff = 10 * time.Second
	lastBackoff  = 5 * time.Minute
	// setupsAllowed is how many machines may fail to set a task up before that
	// counts as the task's own failure.
	setupsAllowed = 5
)

// Verdict is what becomes of a task whose attempt has ended.
type Verdict struct {
	To       queue.TaskState
	Failures int           // the task's new count
	Setups   int           // likewise
	Wait     time.Duration // before the next placement
	Why      reason.Reason
}

// Next decides what becomes of a task after an attempt with the given outcome.
// Only a failure of the task itself uses up a retry: being preempted, moved,
// lost or never launched does not.
func Next(r Retry, t *queue.Task, outcome queue.Outcome, exit *int, why reason.Reason) Verdict {
	v := Verdict{To: queue.TaskQueued, Failures: t.Failures, Setups: t.Setups, Why: why}
	switch outcome {
	case queue.Succeeded:
		v.To = queue.TaskSucceeded
	case queue.CancelledOut:
		v.To = queue.TaskCancelled
	case queue.Preempted, queue.Moved, queue.Lost, queue.LaunchFailed, queue.Stopped:
	case queue.SetupFailed:
		if v.Setups++; v.Setups <= setupsAllowed {
			v.Wait = firstBackoff
			break
		}
		v.To = queue.TaskFailed
	case queue.Failed:
		v.Failures++
		final := len(r.OnlyExitCodes) > 0 && (exit == nil || !slices.Contains(r.OnlyExitCodes, *exit))
		if final || v.Failures > r.Failures {
			v.To = queue.TaskFailed
			break
		}
		v.Wait = min(firstBackoff<<min(v.Failures-1, 10), lastBackoff)
	}
	return v
}
