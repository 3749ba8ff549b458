package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/reason"
	"gpubroker/internal/state"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// scheduleEvery is how long no pass may be made at the longest.
const scheduleEvery = time.Minute

// schedule is one pass: decide on a picture of the tables, then commit what
// still holds. An action whose rows have changed meanwhile is left out, and the
// next pass decides anew.
func (b *Broker) schedule(ctx context.Context) (time.Duration, error) {
	if err := b.state.Health(); err != nil {
		// Try the store before anything is decided.
		if err := b.state.Probe(ctx); err != nil {
			return time.Second, err
		}
	}
	if err := b.deadlines(ctx); err != nil {
		return time.Second, err
	}
	now := b.now()
	p := b.snapshot(b.state.View(), now)
	r := scheduler.Plan(&p.Snapshot, &b.memo)
	b.tables.want(r.Wanted, now)
	b.remark(&r, now)
	if err := b.state.Do(ctx, func(tx *state.Tx) error { return b.commit(tx, p, &r) }); err != nil {
		return time.Second, fmt.Errorf("committing a plan: %w", err)
	}
	if r.Wake.IsZero() {
		return 0, nil
	}
	return max(r.Wake.Sub(b.now()), 10*time.Millisecond), nil
}

// deadlines fails what still waits of jobs that end at a deadline which is over.
func (b *Broker) deadlines(ctx context.Context) error {
	now := b.now()
	var due []string
	for j := range b.state.View().Jobs.All() {
		if pastDeadline(j, now) && j.Waiting()+j.Counts.Held > 0 {
			if s, err := b.specs.of(j); err == nil && s.stopsAtDeadline {
				due = append(due, j.ID)
			}
		}
	}
	if len(due) == 0 {
		return nil
	}
	return b.state.Do(ctx, func(tx *state.Tx) error {
		for _, id := range due {
			j := tx.Job(id)
			if j == nil || !pastDeadline(j, tx.Now) {
				continue
			}
			why := reason.New("deadline_passed", "deadline", j.Deadline.UTC().Format(time.RFC3339))
			tx.Emit(queue.Event{Kind: "job.late", Project: j.Project, Job: j.ID, Reason: why})
			if err := b.endWaiting(tx, tx.EditJob(id), queue.TaskFailed, why); err != nil {
				return err
			}
		}
		return nil
	})
}

func pastDeadline(j *queue.Job, now time.Time) bool {
	return !j.Deadline.IsZero() && !j.Deadline.After(now)
}

// endWaiting ends what waits of a job, as failed or cancelled: what never began
// is only counted.
func (b *Broker) endWaiting(tx *state.Tx, j *queue.Job, to queue.TaskState, why reason.Reason) error {
	*j.Counts.Of(to) += j.Count - j.Next
	j.Next = j.Count
	for t := range tx.TasksOf(j.ID) {
		if t.State != queue.TaskQueued && t.State != queue.TaskHeld {
			continue
		}
		e := tx.EditTask(t.TaskID)
		if err := queue.SetTask(j, e, to); err != nil {
			return err
		}
		e.Reason, e.Ended = why, tx.Now
	}
	b.maybeDone(tx, j)
	return nil
}

// remark keeps what was decided, for people.
func (b *Broker) remark(r *scheduler.Result, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.decisions)
	b.passed = now
	for _, d := range r.Decisions {
		if old, ok := b.decisions[d.Job]; !ok || old.Waiting == 0 || d.Wait && !old.Wait {
			b.decisions[d.Job] = d
		}
	}
}

func (b *Broker) commit(tx *state.Tx, p *picture, r *scheduler.Result) error {
	for _, s := range r.Stops {
		if err := b.stopAttempt(tx, s.Attempt, queue.Stop{Why: s.Why, Outcome: queue.Outcome(s.Outcome), Checkpoint: true}); err != nil {
			return err
		}
	}
	taken := map[string]int{}
	for _, a := range r.Assigns {
		if a.Gang > 0 {
			continue
		}
		i := tx.Instance(a.Machine)
		if i == nil || !b.machineOf(i, 0).Open {
			continue
		}
		if a.Slots > 0 {
			if len(tx.AttemptsOn(a.Machine)) > 0 {
				continue
			}
			e := tx.EditInstance(a.Machine)
			e.Slots, e.SlotKey = a.Slots, a.SlotKey
		}
		if err := b.place(tx, p, a.Group, a.Machine, a.Count, taken); err != nil {
			return err
		}
	}
	over := overdue(tx.Instances()) // no launch makes another machine so
	for i := range r.Launches {
		if r.Launches[i].Gang > 0 || r.Launches[i].Takes != "" {
			continue
		}
		if err := b.intend(tx, p, &r.Launches[i], over, taken); err != nil {
			return err
		}
	}
	for _, g := range gangsOf(r) {
		if err := b.placeGang(tx, p, g, over, taken); err != nil {
			return err
		}
	}
	taking := moves(r)
	for _, attempt := range slices.Sorted(maps.Keys(taking)) {
		if err := b.beginMove(tx, attempt, taking[attempt], over); err != nil {
			return err
		}
	}
	for _, rel := range r.Releases {
		i := tx.Instance(rel.Machine)
		if i == nil || i.State != queue.InstanceReady || len(tx.AttemptsOn(rel.Machine)) > 0 {
			continue
		}
		if err := b.end(tx, rel.Machine, rel.Why, queue.Lost); err != nil {
			return err
		}
	}
	return nil
}

// intend stores the wish for a machine, with its reservation, and puts its first
// tasks on it.
func (b *Broker) intend(tx *state.Tx, p *picture, l *scheduler.Launch, over []*queue.Instance, taken map[string]int) error {
	j := tx.Job(p.jobs[l.Group])
	if j == nil || b.accounts[l.Market.Provider] == nil || b.waiting(tx, p, l.Group, taken) == 0 {
		return nil
	}
	i := tx.AddInstance(b.intent(tx, j, l))
	if err := b.reserve(tx, i, l.Lease, over); err != nil {
		if _, short := errors.AsType[*budget.RoomError](err); short {
			tx.DropInstance(i.ID)
			return nil // somebody was quicker: the next pass says so
		}
		return err
	}
	b.event(tx, "instance.requested", i, reason.New("planned", "market", marketOf(i), "price", i.Price, "bound", i.Bound))
	if err := b.place(tx, p, l.Group, i.ID, l.Tasks, taken); err != nil {
		return err
	}
	for _, m := range l.More {
		if j := tx.Job(p.jobs[m.Group]); j == nil || j.Project != i.Project || i.Payer != "" && i.Payer != j.ID {
			continue
		}
		if err := b.place(tx, p, m.Group, i.ID, m.Tasks, taken); err != nil {
			return err
		}
	}
	return nil
}

// intent draws the record of a machine for a job; nothing is staged.
func (b *Broker) intent(tx *state.Tx, j *queue.Job, l *scheduler.Launch) *queue.Instance {
	caps := b.accounts[l.Market.Provider].Capabilities()
	i := &queue.Instance{
		ID: tx.NewID("i"), State: queue.InstanceRequested, Project: j.Project,
		Provider: l.Market.Provider, Region: l.Market.Region, Zone: l.Market.Zone, Type: l.Market.Type, Kind: string(l.Market.Kind),
		GPU: l.Shape.GPU, GPUName: l.Shape.GPUName, GPUs: l.Shape.GPUs, GPUMemory: l.Shape.GPUMemory,
		VCPU: l.Shape.VCPU, Memory: l.Shape.Memory, Disk: l.Shape.Disk, Arch: l.Shape.Arch,
		Slots: l.Slots, SlotKey: l.SlotKey, Price: l.Price, Bound: l.Bound, OnDemand: l.Reference,
		Billing: caps.Billing, SelfEnd: string(caps.SelfEnd),
		Requested: tx.Now, Boot: l.Boot, Lease: l.Lease,
	}
	if _, own := b.specs.budget(j); own {
		i.Payer = j.ID
	}
	return i
}

// waiting is how many of a group's tasks are still to be placed.
func (b *Broker) waiting(tx *state.Tx, p *picture, group string, taken map[string]int) int {
	if rows, ok := p.members[group]; ok {
		return len(rows) - taken[group]
	}
	j := tx.Job(p.jobs[group])
	if j == nil || j.CancelledBy != "" || !j.Held.IsZero() {
		return 0
	}
	return j.Count - j.Next
}

// place binds the lowest indices of a group to a machine.
func (b *Broker) place(tx *state.Tx, p *picture, group, machine string, count int, taken map[string]int) error {
	i := tx.Instance(machine)
	slots := freeSlots(tx, i)
	for count > 0 && len(slots) > 0 {
		t := b.next(tx, p, group, taken)
		if t == nil {
			return nil
		}
		if err := b.assign(tx, tx.EditJob(t.Job), t, machine, slots[0]); err != nil {
			return err
		}
		slots = slots[1:]
		count--
		if i := tx.EditInstance(machine); !i.Idle.IsZero() {
			i.Idle = time.Time{}
		}
	}
	return nil
}

// assign makes a task's attempt on a slot of a machine.
func (b *Broker) assign(tx *state.Tx, j *queue.Job, t *queue.Task, machine string, slot int) error {
	if err := queue.SetTask(j, t, queue.TaskRunning); err != nil {
		return err
	}
	t.Attempts++
	a := tx.AddAttempt(&queue.Attempt{
		ID: tx.NewID("a"), TaskID: t.TaskID, Token: tx.NewToken(), Number: t.Attempts,
		Instance: machine, Slot: slot, State: queue.AttemptAssigned, Resume: t.Committed, Created: tx.Now,
	})
	t.Attempt, t.Reason, t.NotBefore = a.ID, reason.Reason{}, time.Time{}
	tx.EmitTask("attempt.assigned", j, a, reason.Reason{})
	return nil
}

// next takes the lowest index of a group that still waits; nil when there is none.
func (b *Broker) next(tx *state.Tx, p *picture, group string, taken map[string]int) *queue.Task {
	rows, hasRows := p.members[group]
	for {
		j := tx.EditJob(p.jobs[group])
		if j == nil || j.CancelledBy != "" || !j.Held.IsZero() {
			return nil
		}
		switch {
		case hasRows && taken[group] < len(rows):
			t := tx.EditTask(rows[taken[group]])
			taken[group]++
			if t == nil || t.State != queue.TaskQueued {
				continue // it moved on meanwhile
			}
			if s, err := b.specs.of(j); err != nil || s.Exclusive && mayRun(tx.Attempt(t.Attempt), tx.Instance) != "" {
				continue
			}
			return t
		case !hasRows && j.Next < j.Count:
			j.Next++
			return tx.AddTask(&queue.Task{TaskID: queue.TaskID{Job: j.ID, Index: j.Next - 1}})
		}
		return nil
	}
}

func freeSlots(tx *state.Tx, i *queue.Instance) []int {
	used := make([]bool, i.Slots)
	for _, a := range tx.AttemptsOn(i.ID) {
		if a.Slot < len(used) {
			used[a.Slot] = true
		}
	}
	var free []int
	for s, taken := range used {
		if !taken {
			free = append(free, s)
		}
	}
	return free
}
