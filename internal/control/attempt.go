package control

import (
	"time"

	"gpubroker/internal/reason"
	"gpubroker/internal/state"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// endAttempt closes an attempt and decides what becomes of its task. An attempt
// that has ended, or that is no longer its task's, changes nothing but itself.
func (b *Broker) endAttempt(tx *state.Tx, id string, outcome queue.Outcome, exit *int, why reason.Reason) error {
	a := tx.EditAttempt(id)
	if a == nil || a.State == queue.AttemptEnded {
		return nil
	}
	if t := tx.Task(a.TaskID); a.Publish != "" && t != nil && t.Attempt == id && t.Output == a.Publish && outcome != queue.Succeeded && outcome != queue.CancelledOut {
		// Its result is in place, by this very attempt: what became of the machine after
		// that undoes nothing.
		outcome, exit, why = queue.Succeeded, new(0), reason.New("succeeded")
	}
	if err := queue.SetAttempt(a, queue.AttemptEnded); err != nil {
		return err
	}
	a.Outcome, a.ExitCode, a.Reason, a.Ended = outcome, exit, why, tx.Now
	if p, ok := b.progressOf(id); ok && !a.Started.IsZero() {
		a.Busy = max(a.Busy, p.Busy)
		a.Usage = p.Usage
	}
	if outcome == queue.Succeeded {
		a.Kept = a.Busy
	}
	b.free(tx, a)
	if a.Member != nil {
		return b.endMember(tx, a)
	}
	t := tx.EditTask(a.TaskID)
	if t == nil || t.Attempt != id || t.State != queue.TaskRunning {
		return nil
	}
	j := tx.EditJob(a.Job)
	if j == nil {
		return nil
	}
	tx.EmitTask("attempt."+string(outcome), j, a, why)
	return b.conclude(tx, j, t, a, outcome, exit, why)
}

// conclude decides what becomes of a running task whose attempt, or whose gang led by
// that attempt, has ended.
func (b *Broker) conclude(tx *state.Tx, j *queue.Job, t *queue.Task, a *queue.Attempt, outcome queue.Outcome, exit *int, why reason.Reason) error {
	spec, err := b.specs.of(j)
	if err != nil {
		return err
	}
	p, _ := b.progressOf(a.ID) // nothing when its agent never told any
	b.learn(tx, a, p, spec)
	v := scheduler.Next(spec.retry, t, outcome, exit, why)
	if j.CancelledBy != "" && v.To == queue.TaskQueued {
		v.To, v.Why = queue.TaskCancelled, reason.New("cancelled", "by", j.CancelledBy)
	}
	if spec.stopsAtDeadline && !j.Deadline.IsZero() && !j.Deadline.After(tx.Now) && v.To == queue.TaskQueued {
		v.To, v.Why = queue.TaskFailed, reason.New("deadline_passed", "deadline", j.Deadline.UTC().Format(time.RFC3339))
	}
	if err := queue.SetTask(j, t, v.To); err != nil {
		return err
	}
	t.Failures, t.Setups, t.Reason, t.ExitCode = v.Failures, v.Setups, v.Why, exit
	t.NotBefore = time.Time{}
	if v.Wait > 0 {
		t.NotBefore = tx.Now.Add(v.Wait)
	}
	switch {
	case !a.Started.IsZero():
		t.Waits = tx.Now
	case t.Waits.IsZero():
		t.Waits = a.Created
	}
	if t.State.Terminal() {
		t.Ended = tx.Now
		tx.EmitTask("task."+string(t.State), j, a, v.Why)
	}
	if err := b.goOn(tx, j, t, a, spec, outcome); err != nil {
		return err
	}
	b.maybeDone(tx, j)
	return nil
}

func (b *Broker) maybeDone(tx *state.Tx, j *queue.Job) {
	if j.Done() && j.Ended.IsZero() {
		j.Ended = tx.Now
		tx.Emit(queue.Event{Kind: "job." + string(j.State()), Project: j.Project, Job: j.ID})
	}
}

// free notes that a machine has become empty.
func (b *Broker) free(tx *state.Tx, a *queue.Attempt) {
	i := tx.Instance(a.Instance)
	if i == nil || !lives(i) {
		return
	}
	for _, other := range tx.AttemptsOn(a.Instance) {
		if other.ID != a.ID {
			return
		}
	}
	i = tx.EditInstance(a.Instance)
	i.Idle = tx.Now
	if i.State == queue.InstanceDraining {
		// Nothing is left to save on it, and no second of it is of use.
		if err := queue.SetInstance(i, queue.InstanceTerminating); err == nil {
			b.event(tx, "instance.ending", i, i.Gone)
		}
	}
}

// stopAttempt asks an attempt to end, and its gang with it. A stop is only made
// sooner, never undone.
func (b *Broker) stopAttempt(tx *state.Tx, id string, stop queue.Stop) error {
	if err := b.stopOne(tx, id, stop); err != nil {
		return err
	}
	if a := tx.Attempt(id); a != nil && a.Member != nil {
		return b.stopOthers(tx, a, b.stopForMember(a, stop.Why, stop.Checkpoint))
	}
	return nil
}

func (b *Broker) stopOne(tx *state.Tx, id string, stop queue.Stop) error {
	a := tx.EditAttempt(id)
	if a == nil || a.State == queue.AttemptEnded {
		return nil
	}
	if forOthers(a.Stop) && !forOthers(&stop) && stop.Outcome != queue.Succeeded {
		if stop.By.IsZero() || !a.Stop.By.IsZero() && a.Stop.By.Before(stop.By) {
			stop.By = a.Stop.By
		}
	} else if a.Stop != nil {
		if stop.By.IsZero() || !a.Stop.By.IsZero() && !stop.By.Before(a.Stop.By) {
			return nil
		}
		stop.Why, stop.Outcome = a.Stop.Why, a.Stop.Outcome
	}
	a.Stop = &stop
	if a.State == queue.AttemptAssigned || a.State == queue.AttemptDraining {
		i := tx.Instance(a.Instance)
		if a.Member != nil && i != nil && i.Ready.IsZero() {
			// Its agent has never called in, and the gang waits for its end.
			a.Sealed = true
			return b.endAttempt(tx, id, stop.Outcome, nil, stop.Why)
		}
		if a.State == queue.AttemptAssigned && (i == nil || i.State == queue.InstanceRequested || i.State == queue.InstanceLaunching) {
			return b.endAttempt(tx, id, stop.Outcome, nil, stop.Why)
		}
	}
	if a.State != queue.AttemptDraining {
		return queue.SetAttempt(a, queue.AttemptDraining)
	}
	return nil
}

// save commits a checkpoint of the task's current attempt: the row is the
// commit.
func (b *Broker) save(tx *state.Tx, a *queue.Attempt, number int64, digest string, bytes, sent int64, busy time.Duration, progress *float64, region string) {
	t := tx.Task(a.TaskID)
	if t == nil || t.Attempt != a.ID || t.State != queue.TaskRunning || number <= t.Saves {
		return
	}
	if a = tx.EditAttempt(a.ID); a == nil || a.State == queue.AttemptEnded {
		return
	}
	t = tx.EditTask(a.TaskID)
	base := 0.0
	if c := tx.Checkpoint(a.TaskID, a.Resume); c != nil && a.Resume > 0 {
		base = c.Seconds
	}
	c := &queue.Checkpoint{
		TaskID: a.TaskID, Number: number, Attempt: a.ID, Digest: digest, Bytes: bytes, Sent: sent,
		Seconds: base + busy.Seconds(), Region: region, At: tx.Now,
	}
	if progress != nil {
		c.Progress = *progress
	}
	tx.AddCheckpoint(c)
	t.Committed, t.Saves = number, max(t.Saves, number)
	t.Seconds, t.Region = c.Seconds, region
	t.Progress = max(t.Progress, c.Progress)
	a.Kept, a.Busy = busy, max(a.Busy, busy)
	b.keptByAll(tx, a, busy)
	if j := tx.Job(a.Job); j != nil {
		tx.EmitTask("checkpoint.committed", j, a, reason.New("checkpoint", "number", number, "bytes", bytes, "sent", sent))
	}
}

// broken takes a committed checkpoint out of use after it proved unreadable, and
// falls back to the newest one before it.
func (b *Broker) broken(tx *state.Tx, a *queue.Attempt, number int64, what string) {
	c := tx.EditCheckpoint(a.TaskID, number)
	if c == nil || !c.Broken.IsZero() {
		return
	}
	c.Broken = reason.New("checkpoint_broken", "number", number, "what", what)
	t := tx.EditTask(a.TaskID)
	if t == nil || t.Committed != number {
		return
	}
	t.Committed, t.Progress, t.Seconds = 0, 0, 0
	for o := range tx.CheckpointsOf(a.TaskID) {
		if o.Broken.IsZero() && !o.Swept && o.Number > t.Committed {
			t.Committed, t.Progress, t.Seconds = o.Number, o.Progress, o.Seconds
		}
	}
	if j := tx.Job(a.Job); j != nil {
		tx.EmitTask("checkpoint.broken", j, a, c.Broken)
	}
}

func (b *Broker) progressOf(attempt string) (Progress, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.progress[attempt]
	return p, ok
}
