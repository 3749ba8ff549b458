package control

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/reason"
	"gpubroker/internal/state"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// A move of a running task rents first and stops then. The machines that take it bear
// the attempt's id, serve nobody else, and wait for it. Once all of them are accepted it
// is asked to save and stop, and where it ends it begins anew on them in the same
// transaction. A refusal ends the others, and the task has lost nothing.

// moves gathers the launches of a result by the attempt that they take.
func moves(r *scheduler.Result) map[string][]*scheduler.Launch {
	out := map[string][]*scheduler.Launch{}
	for i := range r.Launches {
		if l := &r.Launches[i]; l.Takes != "" {
			out[l.Takes] = append(out[l.Takes], l)
		}
	}
	return out
}

// beginMove stores the wish for the machines that take an attempt's task: for all or none.
func (b *Broker) beginMove(tx *state.Tx, attempt string, launches []*scheduler.Launch, over []*queue.Instance) error {
	a := tx.Attempt(attempt)
	if a == nil || a.State == queue.AttemptEnded || a.Stop != nil || a.Move != nil {
		return nil
	}
	j := tx.Job(a.Job)
	if j == nil || j.CancelledBy != "" || !j.Held.IsZero() {
		return nil
	}
	for _, l := range launches {
		if b.accounts[l.Market.Provider] == nil {
			return nil
		}
	}
	machines, changes, err := b.rent(tx, j, launches, over)
	if err != nil {
		if _, short := errors.AsType[*budget.RoomError](err); short {
			return nil // somebody was quicker
		}
		return err
	}
	m := &queue.Moving{Why: launches[0].Why}
	for k, i := range machines {
		i.Takes = attempt
		if len(machines) > 1 {
			i.Group = "to-" + attempt
		}
		tx.AddInstance(i)
		put(tx, changes[k])
		b.event(tx, "instance.requested", i, reason.New("planned", "market", marketOf(i), "price", i.Price, "bound", i.Bound))
		m.To = append(m.To, i.ID)
	}
	a = tx.EditAttempt(attempt)
	a.Move = m
	tx.EmitTask("attempt.moving", j, a, m.Why)
	return nil
}

// busied reports whether a machine that is asked for has something to do.
func busied(tx *state.Tx, i *queue.Instance) bool {
	if len(tx.AttemptsOn(i.ID)) > 0 {
		return true
	}
	if i.Takes == "" {
		return false
	}
	a := tx.Attempt(i.Takes)
	return a != nil && a.State != queue.AttemptEnded
}

// takeOver stops an attempt once all machines that take it are accepted.
func (b *Broker) takeOver(tx *state.Tx, i *queue.Instance) error {
	a := tx.Attempt(i.Takes)
	if i.Takes == "" || a == nil || a.State == queue.AttemptEnded || a.Stop != nil || a.Move == nil {
		return nil
	}
	for _, id := range a.Move.To {
		if o := tx.Instance(id); o == nil || o.State != queue.InstanceBooting && o.State != queue.InstanceReady {
			return nil
		}
	}
	return b.stopAttempt(tx, a.ID, queue.Stop{Why: a.Move.Why, Outcome: queue.Moved, Checkpoint: true})
}

// offMove takes up that a machine goes before its task came: the others go with it. What
// has been asked to stop already waits for another place as any other.
func (b *Broker) offMove(tx *state.Tx, i *queue.Instance) error {
	if i.Takes == "" {
		return nil
	}
	a := tx.EditAttempt(i.Takes)
	tx.EditInstance(i.ID).Takes = ""
	if a == nil || a.Move == nil {
		return nil
	}
	to := a.Move.To
	a.Move = nil
	return b.endTaking(tx, to, reason.New("move_off", "machine", i.ID))
}

// endTaking ends machines whose task does not come.
func (b *Broker) endTaking(tx *state.Tx, ids []string, why reason.Reason) error {
	for _, id := range ids {
		if i := tx.Instance(id); i == nil || i.Takes == "" || !lives(i) {
			continue
		}
		tx.EditInstance(id).Takes = ""
		if err := b.end(tx, id, why, queue.Lost); err != nil {
			return err
		}
	}
	return nil
}

// goOn puts a task that has just stopped on the machines that were rented for it, or lets
// them go.
func (b *Broker) goOn(tx *state.Tx, j *queue.Job, t *queue.Task, a *queue.Attempt, s *parsed, outcome queue.Outcome) error {
	if a.Move == nil {
		return nil
	}
	to := a.Move.To
	e := tx.EditAttempt(a.ID)
	e.Move = nil
	on := make([]*queue.Instance, 0, len(to))
	for _, id := range to {
		i := tx.Instance(id)
		if i != nil && i.Takes == a.ID && i.Unknown.IsZero() && slices.Contains([]queue.InstanceState{
			queue.InstanceRequested, queue.InstanceLaunching, queue.InstanceBooting, queue.InstanceReady,
		}, i.State) {
			on = append(on, i)
		}
	}
	went := outcome == queue.Moved || outcome == queue.Preempted || outcome == queue.Lost
	if t.State != queue.TaskQueued || !went || len(on) < len(to) || j.CancelledBy != "" || !j.Held.IsZero() ||
		s.Exclusive && mayRun(e, tx.Instance) != "" {
		return b.endTaking(tx, to, reason.New("job_done"))
	}
	for k, i := range on {
		on[k] = tx.EditInstance(i.ID)
		on[k].Takes, on[k].Idle = "", time.Time{}
	}
	if len(on) > 1 {
		return b.muster(tx, t, tx.NewID("a"), on)
	}
	if on[0].Slots < 1 {
		return fmt.Errorf("machine %s has no slot for %s", on[0].ID, t.TaskID)
	}
	return b.assign(tx, tx.EditJob(t.Job), t, on[0].ID, 0)
}
