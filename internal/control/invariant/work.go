package invariant

import (
	"gpubroker/internal/spec"
	"gpubroker/queue"
)

func (c *Checker) attempt(r *queue.Attempt, m *move) error {
	old := c.attempts[r.ID]
	var was queue.Attempt
	if old != nil {
		was = *old
	}
	c.attempts[r.ID] = r
	if err := version("attempt "+r.ID, was.Version, r.Version); err != nil {
		return err
	}
	if !reaches(queue.AttemptMoves, string(was.State), string(r.State), always) {
		return breach(rows, "attempt %s goes from %q to %q", r.ID, was.State, r.State)
	}
	ended := r.State == queue.AttemptEnded
	switch {
	case old != nil && (was.TaskID != r.TaskID || was.Token != r.Token || was.Instance != r.Instance || was.Number != r.Number || place(&was) != place(r)):
		return breach(rows, "attempt %s has become another", r.ID)
	case ended != (r.Outcome != ""):
		return breach(rows, "attempt %s is %s with outcome %q", r.ID, r.State, r.Outcome)
	case was.Outcome != "" && was.Outcome != r.Outcome:
		return breach(rows, "attempt %s ended as %s and now as %s", r.ID, was.Outcome, r.Outcome)
	case ended && r.Reason.IsZero():
		return breach(rows, "attempt %s ended as %s without a cause", r.ID, r.Outcome)
	case r.Kept > r.Busy:
		return breach(noLostWork, "attempt %s kept %v of %v", r.ID, r.Kept, r.Busy)
	case ended && r.Outcome == queue.Succeeded && r.Kept != r.Busy:
		return breach(noLostWork, "attempt %s succeeded and kept %v of %v", r.ID, r.Kept, r.Busy)
	}
	if ended && was.State != queue.AttemptEnded && r.Outcome == queue.Failed {
		m.failed[r.TaskID]++
	}
	if c.on[r.Instance] == nil {
		c.on[r.Instance] = map[string]*queue.Attempt{}
	}
	if ended {
		delete(c.on[r.Instance], r.ID)
		delete(c.live[r.TaskID], r.ID)
	} else {
		c.on[r.Instance][r.ID] = r
		if c.live[r.TaskID] == nil {
			c.live[r.TaskID] = map[string]bool{}
		}
		c.live[r.TaskID][r.ID] = true
	}
	return nil
}

// placed looks at where an attempt runs, once the whole batch is in.
func (c *Checker) placed(r *queue.Attempt) error {
	if r.State == queue.AttemptEnded {
		return nil
	}
	for other := range c.live[r.TaskID] {
		if place(c.attempts[other]).lead != place(r).lead {
			return breach(oneResult, "attempts %s and %s of task %s live at once", other, r.ID, r.TaskID)
		}
	}
	if err := c.gang(r); err != nil {
		return err
	}
	t, i, j := c.tasks[r.TaskID], c.instances[r.Instance], c.jobs[r.Job]
	switch {
	case t == nil || j == nil || i == nil:
		return breach(rows, "attempt %s has no task, job or machine", r.ID)
	case t.Attempt != place(r).lead || t.State != queue.TaskRunning:
		return breach(oneResult, "attempt %s lives while task %s is %s with attempt %q", r.ID, r.TaskID, t.State, t.Attempt)
	case i.State == queue.InstanceGone:
		return breach(rows, "attempt %s lives on machine %s, which is gone", r.ID, i.ID)
	case i.Project != j.Project || i.Payer != "" && i.Payer != j.ID:
		return breach(places, "attempt %s of project %s runs on machine %s of project %s, payer %q", r.ID, j.Project, i.ID, i.Project, i.Payer)
	}
	s, err := c.spec(j)
	if err != nil {
		return err
	}
	if i.Kind == "spot" && (s.Interruption() == spec.Forbidden || s.Spot != nil && s.Spot.Policy == "never") {
		return breach(places, "attempt %s of work that cannot be interrupted runs on the spot machine %s", r.ID, i.ID)
	}
	if (s.Budget != nil) != (i.Payer != "") {
		return breach(noBrokenCap, "attempt %s runs on machine %s, payer %q, budget of its own %t", r.ID, i.ID, i.Payer, s.Budget != nil)
	}
	slots := map[int]string{}
	for id, a := range c.on[r.Instance] {
		if other, taken := slots[a.Slot]; taken || a.Slot < 0 || a.Slot >= i.Slots {
			return breach(places, "attempts %s and %q share slot %d of %d on machine %s", id, other, a.Slot, i.Slots, i.ID)
		}
		slots[a.Slot] = id
	}
	if s.Exclusive {
		return c.exclusive(r)
	}
	return nil
}

// exclusive makes sure that nothing of an earlier attempt can run: its agent said
// so, or its machine is gone.
func (c *Checker) exclusive(r *queue.Attempt) error {
	for id, a := range c.attempts {
		if a.TaskID != r.TaskID || place(a).lead == place(r).lead || a.Sealed || a.Number > r.Number {
			continue
		}
		if i := c.instances[a.Instance]; i != nil && i.State != queue.InstanceGone {
			return breach(oneResult, "attempt %s of an exclusive task began while machine %s of attempt %s may run", r.ID, i.ID, id)
		}
	}
	return nil
}

func (c *Checker) spec(j *queue.Job) (*spec.Job, error) {
	if s := c.specs[j.ID]; s != nil {
		return s, nil
	}
	s, err := spec.Reader{Accepted: true}.Decode(j.Spec)
	if err != nil {
		return nil, breach(rows, "the stored spec of job %s: %v", j.ID, err)
	}
	s = s.WithDefaults()
	c.specs[j.ID] = s
	return s, nil
}

func (c *Checker) checkpoint(r *queue.Checkpoint, b *queue.Batch) error {
	all := c.checkpoints[r.TaskID]
	if all == nil {
		all = map[int64]*queue.Checkpoint{}
		c.checkpoints[r.TaskID] = all
	}
	old := all[r.Number]
	var was queue.Checkpoint
	if old != nil {
		was = *old
	}
	all[r.Number] = r
	if err := version("a checkpoint of "+r.TaskID.String(), was.Version, r.Version); err != nil {
		return err
	}
	if old != nil {
		if was.Digest != r.Digest || was.Attempt != r.Attempt || was.Swept && !r.Swept || !was.Broken.IsZero() && r.Broken.IsZero() {
			return breach(noLostWork, "checkpoint %d of %s has become another", r.Number, r.TaskID)
		}
		return nil
	}
	for n := range all {
		if n > r.Number {
			return breach(noLostWork, "checkpoint %d of %s comes after %d", r.Number, r.TaskID, n)
		}
	}
	current := map[string]bool{}
	if t := c.tasks[r.TaskID]; t != nil {
		current[t.Attempt] = t.State == queue.TaskRunning
	}
	for _, t := range b.Tasks {
		if t.TaskID == r.TaskID && t.Attempt != "" {
			current[t.Attempt] = true
		}
	}
	if !current[r.Attempt] {
		return breach(oneResult, "checkpoint %d of %s is of attempt %s, which is not the task's", r.Number, r.TaskID, r.Attempt)
	}
	return nil
}

func (c *Checker) task(r *queue.Task, m *move) error {
	var was queue.Task
	if old := c.tasks[r.TaskID]; old != nil {
		was = *old
	}
	c.tasks[r.TaskID] = r
	m.moved[r.Job] = true
	n := c.taskRows[r.Job]
	if n == nil {
		n = &queue.Counts{}
		c.taskRows[r.Job] = n
	}
	if was.State != "" {
		*n.Of(was.State)--
	}
	*n.Of(r.State)++
	if err := version("task "+r.TaskID.String(), was.Version, r.Version); err != nil {
		return err
	}
	retried := m.retried[r.Job]
	may := func(v queue.Move) bool { return retried || !queue.TaskState(v.From).Terminal() }
	if !reaches(queue.TaskMoves, string(was.State), string(r.State), may) {
		return breach(rows, "task %s goes from %q to %q", r.TaskID, was.State, r.State)
	}
	if was.State.Terminal() && !retried && (was.Output != r.Output || was.Attempt != r.Attempt) {
		return breach(oneResult, "task %s has ended and changes its result", r.TaskID)
	}
	failed := m.failed[r.TaskID]
	if a := c.attempts[was.Attempt]; a != nil && a.Member != nil && was.State == queue.TaskRunning && c.memberFailed(a) {
		failed = max(failed, 1) // one of a gang may have failed a while ago
	}
	switch failures := r.Failures - was.Failures; {
	case retried:
	case failures < 0 || failures > failed:
		return breach(notAFailure, "task %s has %d failures after %d, and %d of its attempts failed", r.TaskID, r.Failures, was.Failures, failed)
	}
	switch {
	case r.Saves < was.Saves || r.Saves < r.Committed:
		return breach(noLostWork, "task %s knows %d saves after %d, committed %d", r.TaskID, r.Saves, was.Saves, r.Committed)
	case r.Committed < was.Committed && !m.broken[r.TaskID]:
		return breach(noLostWork, "task %s falls from checkpoint %d to %d without a word", r.TaskID, was.Committed, r.Committed)
	case r.State != queue.TaskRunning && len(c.live[r.TaskID]) > 0:
		return breach(rows, "task %s is %s, and %d of its attempts live", r.TaskID, r.State, len(c.live[r.TaskID]))
	case r.State == queue.TaskRunning && r.Attempt == "":
		return breach(rows, "task %s runs without an attempt", r.TaskID)
	case r.State.Terminal() == r.Ended.IsZero():
		return breach(rows, "task %s is %s, ended %v", r.TaskID, r.State, r.Ended)
	case (r.State == queue.TaskFailed || r.State == queue.TaskCancelled || r.State == queue.TaskHeld) && r.Reason.IsZero():
		return breach(rows, "task %s is %s without a cause", r.TaskID, r.State)
	}
	if r.Committed > 0 && !r.State.Terminal() {
		k := c.checkpoints[r.TaskID][r.Committed]
		if k == nil || k.Swept || !k.Broken.IsZero() {
			return breach(noLostWork, "task %s is to resume from checkpoint %d, which is not to be had", r.TaskID, r.Committed)
		}
	}
	if r.State == queue.TaskSucceeded {
		a := c.attempts[r.Attempt]
		if a == nil || a.Outcome != queue.Succeeded {
			return breach(oneResult, "task %s succeeded and its attempt %q did not", r.TaskID, r.Attempt)
		}
	}
	return nil
}

func (c *Checker) job(r *queue.Job, m *move) error {
	var was queue.Job
	if old := c.jobs[r.ID]; old != nil {
		was = *old
	}
	c.jobs[r.ID] = r
	m.moved[r.ID] = true
	if err := version("job "+r.ID, was.Version, r.Version); err != nil {
		return err
	}
	done := was.Version > 0 && was.Done()
	switch {
	case done && !r.Done() && !m.retried[r.ID]:
		return breach(rows, "job %s was done and is %s", r.ID, r.State())
	case r.Done() == r.Ended.IsZero():
		return breach(rows, "job %s is %s, ended %v", r.ID, r.State(), r.Ended)
	case r.Next < was.Next || r.Next > r.Count || was.Version > 0 && was.Count != r.Count:
		return breach(rows, "job %s has begun %d of %d tasks after %d of %d", r.ID, r.Next, r.Count, was.Next, was.Count)
	}
	return nil
}

// counts compares a job's counts with its tasks' rows. Tasks that never had a
// row end with their job: as cancelled or as failed.
func (c *Checker) counts(job string) error {
	j := c.jobs[job]
	if j == nil {
		return breach(rows, "a task of job %s, which is not there", job)
	}
	n := j.Counts
	if got := n.Queued + n.Held + n.Running + n.Succeeded + n.Failed + n.Cancelled + j.Count - j.Next; got != j.Count {
		return breach(rows, "job %s counts %d of %d tasks: %+v, begun %d", job, got, j.Count, n, j.Next)
	}
	r := c.taskRows[job]
	if r == nil {
		r = &queue.Counts{}
	}
	if r.Queued != n.Queued || r.Held != n.Held || r.Running != n.Running || r.Succeeded != n.Succeeded || r.Failed > n.Failed || r.Cancelled > n.Cancelled {
		return breach(rows, "job %s counts %+v, its rows are %+v", job, n, *r)
	}
	return nil
}
