package control

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/budget"
	"gpubroker/internal/reason"
	"gpubroker/internal/spec"
	"gpubroker/internal/sshkey"
	"gpubroker/internal/state"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// A gang is one placing of a task on several machines: an attempt on each, of which
// that of rank 0 leads. It begins once all are staged, is stopped as one, and ends
// once all have ended, with what the most telling of them says.

// gang is what a plan does for one task on several machines.
type gang struct {
	assigns  []*scheduler.Assign
	launches []*scheduler.Launch
}

// gangsOf gathers what a result does for each of its gangs, in their order.
func gangsOf(r *scheduler.Result) []*gang {
	var out []*gang
	at := func(n int) *gang {
		for len(out) < n {
			out = append(out, &gang{})
		}
		return out[n-1]
	}
	for i := range r.Assigns {
		if a := &r.Assigns[i]; a.Gang > 0 {
			g := at(a.Gang)
			g.assigns = append(g.assigns, a)
		}
	}
	for i := range r.Launches {
		if l := &r.Launches[i]; l.Gang > 0 {
			g := at(l.Gang)
			g.launches = append(g.launches, l)
		}
	}
	return out
}

// placeGang puts a task on all machines of a gang, or on none where one of them is no
// longer to be had: the next pass decides anew.
func (b *Broker) placeGang(tx *state.Tx, p *picture, g *gang, over []*queue.Instance, taken map[string]int) error {
	var group string
	for _, a := range g.assigns {
		group = a.Group
		if i := tx.Instance(a.Machine); i == nil || !b.machineOf(i, 0).Open || len(tx.AttemptsOn(a.Machine)) > 0 {
			return nil
		}
	}
	for _, l := range g.launches {
		group = l.Group
		if b.accounts[l.Market.Provider] == nil {
			return nil
		}
	}
	j := tx.Job(p.jobs[group])
	if j == nil || b.waiting(tx, p, group, taken) == 0 {
		return nil
	}
	machines, changes, err := b.rent(tx, j, g.launches, over)
	if err != nil {
		if _, short := errors.AsType[*budget.RoomError](err); short {
			return nil // somebody was quicker
		}
		return err
	}
	t := b.next(tx, p, group, taken)
	if t == nil {
		return nil
	}
	var on []*queue.Instance
	together := ""
	for _, a := range g.assigns {
		i := tx.EditInstance(a.Machine)
		if a.Slots > 0 {
			i.Slots, i.SlotKey = a.Slots, a.SlotKey
		}
		i.Idle = time.Time{}
		if together == "" {
			together = i.Group
		}
		on = append(on, i)
	}
	lead := tx.NewID("a")
	if together == "" {
		together = lead
	}
	for k, i := range machines {
		i.Group = together
		tx.AddInstance(i)
		put(tx, changes[k])
		b.event(tx, "instance.requested", i, reason.New("planned", "market", marketOf(i), "price", i.Price, "bound", i.Bound))
		on = append(on, i)
	}
	return b.muster(tx, t, lead, on)
}

// rent draws the records of machines and what each reserves, with room for all of
// them; nothing is staged.
func (b *Broker) rent(tx *state.Tx, j *queue.Job, launches []*scheduler.Launch, over []*queue.Instance) ([]*queue.Instance, []budget.Change, error) {
	book := &trial{txBook: txBook{tx}, accounts: map[budget.Key]budget.Account{}}
	var machines []*queue.Instance
	var changes []budget.Change
	for _, l := range launches {
		i := b.intent(tx, j, l)
		c, err := b.reservation(tx, i, l.Lease, over, book)
		if err != nil {
			return nil, nil, err
		}
		for _, a := range c.Accounts {
			book.accounts[a.Key] = a
		}
		machines, changes = append(machines, i), append(changes, c)
	}
	return machines, changes, nil
}

// trial is the book with reservations on top that are not staged.
type trial struct {
	txBook
	accounts map[budget.Key]budget.Account
}

func (b *trial) Account(k budget.Key) *budget.Account {
	if a, ok := b.accounts[k]; ok {
		return &a
	}
	return b.txBook.Account(k)
}

// muster makes the attempts of a gang.
func (b *Broker) muster(tx *state.Tx, t *queue.Task, lead string, on []*queue.Instance) error {
	j := tx.EditJob(t.Job)
	if err := queue.SetTask(j, t, queue.TaskRunning); err != nil {
		return err
	}
	t.Attempts++
	all := make([]string, len(on))
	for rank := range on {
		if all[rank] = lead; rank > 0 {
			all[rank] = tx.NewID("a")
		}
	}
	for rank, i := range on {
		m := &queue.Member{Lead: lead, Rank: rank, Nodes: len(on)}
		if rank == 0 {
			m.All = all
		}
		a := tx.AddAttempt(&queue.Attempt{
			ID: all[rank], TaskID: t.TaskID, Token: tx.NewToken(), Number: t.Attempts, Member: m,
			Instance: i.ID, State: queue.AttemptAssigned, Resume: t.Committed, Created: tx.Now,
		})
		tx.EmitTask("attempt.assigned", j, a, reason.Reason{})
	}
	t.Attempt, t.Reason, t.NotBefore = lead, reason.Reason{}, time.Time{}
	return nil
}

// others are the members of an attempt's gang beside itself that have not ended.
func others(tx *state.Tx, a *queue.Attempt) (out []*queue.Attempt) {
	if a.Member == nil {
		return nil
	}
	lead := tx.Attempt(a.Member.Lead)
	if lead == nil || lead.Member == nil {
		return nil
	}
	for _, id := range lead.Member.All {
		if o := tx.Attempt(id); id != a.ID && o != nil && o.State != queue.AttemptEnded {
			out = append(out, o)
		}
	}
	return out
}

// forOthers reports whether a stop is for another member's sake: what befalls the
// member itself tells more.
func forOthers(s *queue.Stop) bool { return s != nil && s.Why.Code == "gang_stopped" }

// stopOthers asks the rest of a gang to end, with the same signal and grace.
func (b *Broker) stopOthers(tx *state.Tx, a *queue.Attempt, stop queue.Stop) error {
	for _, o := range others(tx, a) {
		if err := b.stopOne(tx, o.ID, stop); err != nil {
			return err
		}
	}
	return nil
}

func (b *Broker) stopForMember(a *queue.Attempt, why reason.Reason, save bool) queue.Stop {
	return queue.Stop{Why: reason.New("gang_stopped", "rank", a.Member.Rank, "why", why), Outcome: queue.Stopped, Checkpoint: save}
}

// endMember takes up that a member of a gang has ended. A member that has done its
// part leaves the others to theirs; any other end, and that of the leading one, is
// the end of all.
func (b *Broker) endMember(tx *state.Tx, a *queue.Attempt) error {
	t, j := tx.Task(a.TaskID), tx.EditJob(a.Job)
	lead := tx.EditAttempt(a.Member.Lead)
	if t == nil || j == nil || lead == nil || lead.Member == nil || t.Attempt != lead.ID || t.State != queue.TaskRunning {
		return nil
	}
	m := *lead.Member
	m.End = m.End.Tell(queue.End{Rank: a.Member.Rank, Outcome: a.Outcome, ExitCode: a.ExitCode, Reason: a.Reason})
	if !a.Sealed {
		m.Unsealed = append(slices.Clip(m.Unsealed), a.Instance)
	}
	lead.Member = &m
	tx.EmitTask("attempt."+string(a.Outcome), j, a, a.Reason)
	s, err := b.specs.of(j)
	if err != nil {
		return err
	}
	leads, well := a.ID == lead.ID, a.Outcome == queue.Succeeded
	stop := b.stopForMember(a, a.Reason, true)
	if leads && well {
		stop = queue.Stop{Why: reason.New("gang_done"), Outcome: queue.Succeeded}
	}
	switch {
	case !leads && well:
	case leads && s.Launcher == spec.LauncherMPI:
		// The others run nothing of their own.
		for _, o := range others(tx, a) {
			outcome, why := stop.Outcome, stop.Why
			if !well && o.Stop != nil {
				outcome, why = o.Stop.Outcome, o.Stop.Why
			}
			if err := b.endAttempt(tx, o.ID, outcome, nil, why); err != nil {
				return err
			}
		}
	default:
		if err := b.stopOthers(tx, a, stop); err != nil {
			return err
		}
	}
	if lead.State != queue.AttemptEnded || len(others(tx, lead)) > 0 {
		return nil
	}
	t = tx.EditTask(a.TaskID)
	if t.State != queue.TaskRunning {
		return nil // the last of those that were ended here has seen to it
	}
	e := lead.Member.End
	return b.conclude(tx, j, t, lead, e.Outcome, e.ExitCode, e.Reason)
}

// gather notes where a member is reached. With the last of them the gang begins:
// every member is told of all.
func (b *Broker) gather(tx *state.Tx, a *queue.Attempt, at queue.Endpoint) error {
	if _, err := netip.ParseAddr(at.Address); err != nil || at.Port < 1 || at.Port > 65535 {
		return fmt.Errorf("attempt %s: its agent says that it is reached at %q, port %d, which is no address", a.ID, at.Address, at.Port)
	}
	m := *a.Member
	m.At = &at
	a.Member = &m
	lead := tx.Attempt(m.Lead)
	if lead == nil || lead.Member == nil || len(lead.Member.Hosts) > 0 {
		return nil
	}
	hosts := make([]queue.Endpoint, 0, m.Nodes)
	for _, id := range lead.Member.All {
		o := tx.Attempt(id)
		if o == nil || o.State == queue.AttemptEnded || o.Member.At == nil {
			return nil
		}
		hosts = append(hosts, *o.Member.At)
	}
	for _, id := range lead.Member.All {
		tx.EditAttempt(id) // a change of its row wakes its agent's call
	}
	lead = tx.EditAttempt(lead.ID)
	all := *lead.Member
	all.Hosts = hosts
	lead.Member = &all
	if j := tx.Job(a.Job); j != nil {
		tx.EmitTask("gang.gathered", j, lead, reason.Reason{})
	}
	return nil
}

// gathers reports whether an agent tells where a member is reached, and nobody knew.
func gathers(a *queue.Attempt, o *agentapi.ObservedAttempt) bool {
	return o.At != nil && a.Member != nil && a.Member.At == nil
}

// membership tells a member its place, and once all are staged, of the others.
func (b *Broker) membership(view *state.Tables, s *parsed, a *queue.Attempt, d *agentapi.DesiredAttempt) error {
	if a.Member == nil {
		return nil
	}
	d.Task.Nodes, d.Task.Rank, d.Task.Launcher = a.Member.Nodes, a.Member.Rank, s.Launcher
	d.Task.Procs = max(1, s.Resources.GPUCount)
	if !s.NeedsGPU() {
		d.Task.Procs = max(1, s.Resources.VCPU)
	}
	lead := view.Attempt(a.Member.Lead)
	if lead == nil || lead.Member == nil || len(lead.Member.Hosts) == 0 {
		return nil
	}
	d.Gang = &agentapi.Gang{Hosts: lead.Member.Hosts}
	if s.Launcher == spec.LauncherMPI {
		pair, err := sshkey.Derive(lead.Token, "gpubroker gang "+lead.ID)
		if err != nil {
			return fmt.Errorf("the key pair of gang %s: %w", lead.ID, err)
		}
		d.Gang.Key, d.Gang.Public = pair.Private, pair.Public
	}
	return nil
}

// keptByAll counts a save of the leading member as every member's.
func (b *Broker) keptByAll(tx *state.Tx, lead *queue.Attempt, busy time.Duration) {
	for _, o := range others(tx, lead) {
		p, ok := b.progressOf(o.ID)
		if !ok {
			continue
		}
		e := tx.EditAttempt(o.ID)
		e.Busy = max(e.Busy, p.Busy)
		e.Kept = max(e.Kept, min(busy, e.Busy))
	}
}
