package control

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/quantity"
	"gpubroker/internal/reason"
	"gpubroker/internal/state"
	"gpubroker/internal/window"
	"gpubroker/providers"
	"gpubroker/queue"
	"gpubroker/scheduler"
	"gpubroker/scheduler/policy"
)

// picture is a snapshot with what its groups stand for.
type picture struct {
	scheduler.Snapshot
	members map[string][]queue.TaskID // by group: tasks with a row, lowest index first; nil for fresh ones
	jobs    map[string]string         // group → job
	shared  map[string]*shared        // by job; nil when its tasks cannot be drawn
}

// shared is what the running tasks of a job have in common.
type shared struct {
	group  scheduler.Group
	spec   *parsed
	job    *queue.Job
	stopAt time.Time
	flows  map[int64][]scheduler.Flow // of what resumes, by about how many bytes
}

// resumes is what a task moves that goes on elsewhere from so many bytes, which count in
// steps of a sixteenth, so that tasks share an answer.
func (s *shared) resumes(b *Broker, bytes int64) []scheduler.Flow {
	step := max(1, int64(1)<<max(0, bits.Len64(uint64(bytes))-5))
	bytes = (bytes + step - 1) / step * step
	if s.flows == nil {
		s.flows = map[int64][]scheduler.Flow{}
	}
	if _, ok := s.flows[bytes]; !ok {
		s.flows[bytes] = b.flows(s.spec, s.job, bytes)
	}
	return s.flows[bytes]
}

// snapshot draws what the scheduler may look at, from one view of the tables.
func (b *Broker) snapshot(view *state.Tables, now time.Time) *picture {
	p := &picture{
		Snapshot: scheduler.Snapshot{
			Now: now, Facts: b.facts, Egress: b.egress, Catalog: b.market.Catalog(), Settings: b.set.Plan,
			Book: viewBook{view}, Providers: map[string]scheduler.Provider{},
			Cooldowns: map[string]scheduler.Cooldown{}, Spent: b.shares.draw(view, now), History: map[string]policy.History{},
		},
		members: map[string][]queue.TaskID{}, jobs: map[string]string{}, shared: map[string]*shared{},
	}
	p.Library, p.Asked = b.tables.now()
	p.Outlooks, p.Unseen = b.spots.draw(view, now, b.complain), b.spots.unseen
	p.Settings.Margin = max(p.Settings.Margin, margin(view))
	if b.meta.Copied {
		p.Frozen = reason.New("not_adopted")
	}
	p.Budgets = b.budgets()
	for c := range view.Cooldowns.All() {
		if c.Until.After(now) {
			p.Cooldowns[c.Key] = scheduler.Cooldown{Until: c.Until, Reason: c.Reason, Taken: taken(c.Reason)}
		}
	}
	for s := range view.Settings.Prefix(historyPrefix) {
		var h history
		if json.Unmarshal(s.Value, &h) == nil {
			p.History[s.Key[len(historyPrefix):]] = policy.History{Preemptions: h.Preemptions, Held: h.Held.Std()}
		}
	}
	b.drawMachines(view, p)
	tasks := map[string][]*queue.Task{}
	for t := range view.Tasks.All() {
		if t.State == queue.TaskQueued {
			tasks[t.Job] = append(tasks[t.Job], t)
		}
	}
	b.specs.trim(view.Jobs.Len())
	p.Groups = make([]scheduler.Group, 0, view.Jobs.Len())
	for j := range view.Jobs.All() {
		b.drawJob(view, p, j, tasks[j.ID])
	}
	p.Running = make([]scheduler.Running, 0, view.On.Len())
	for a := range view.Attempts.All() {
		b.drawRunning(view, p, a)
	}
	p.Budgets = b.closed(p.Budgets, overdue(view.Instances.All()), p.Book, now)
	return p
}

func (b *Broker) drawMachines(view *state.Tables, p *picture) {
	launching := map[string]int{}
	used := map[string]int{}
	for a := range view.On.All() {
		used[a.Instance]++
	}
	p.Machines = make([]scheduler.Machine, 0, view.Instances.Len())
	for i := range view.Instances.All() {
		if !lives(i) {
			continue
		}
		if i.State == queue.InstanceRequested || i.State == queue.InstanceLaunching {
			launching[i.Provider]++
		}
		p.Machines = append(p.Machines, b.machineOf(i, used[i.ID]))
	}
	for name, a := range b.accounts {
		ready := b.unreachable(a)
		if ready.IsZero() && !b.isListed(name) {
			ready = reason.New("sync_pending", "provider", name)
		}
		p.Providers[name] = scheduler.Provider{
			Capabilities: a.Capabilities(), Cloud: a.Type, Projects: a.Projects, GuestEnd: a.GuestEnd, Limits: a.Limits, Ready: ready, Launching: launching[name],
			Quotas: b.quotasNow(view, name, p.Now),
		}
	}
}

func (b *Broker) isListed(account string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.listed[account].IsZero()
}

func (b *Broker) machineOf(i *queue.Instance, used int) scheduler.Machine {
	m := scheduler.Machine{
		ID: i.ID, Market: marketOf(i), Project: i.Project, Payer: i.Payer,
		Shape: providers.Shape{
			GPU: i.GPU, GPUName: i.GPUName, GPUs: i.GPUs, GPUMemory: i.GPUMemory,
			VCPU: i.VCPU, Memory: i.Memory, Disk: i.Disk, Arch: i.Arch,
		},
		Slots: i.Slots, Used: used, SlotKey: i.SlotKey, Price: i.Price, Bound: i.Bound, Born: i.Launched,
		Idle: i.Idle, Lease: i.Lease, Billing: i.Billing, Ready: i.State == queue.InstanceReady,
	}
	cloud := i.Provider
	if a, ok := b.accounts[i.Provider]; ok {
		cloud = a.Type
	}
	m.Shape.Fabric, m.Shape.RDMA = b.facts.Joined(cloud, i.Type, i.GPU, i.GPUs)
	switch i.State {
	case queue.InstanceRequested, queue.InstanceLaunching, queue.InstanceBooting, queue.InstanceReady:
		m.Open = i.Unknown.IsZero() && i.Takes == ""
	case queue.InstanceDraining, queue.InstanceTerminating, queue.InstanceGone:
	}
	return m
}

// saved is the share of a task that its committed checkpoint holds. Where the program
// does not tell, it is the time that it took, of the time that the job says.
func saved(s *parsed, t *queue.Task) float64 {
	if t.Progress <= 0 && t.Seconds > 0 && s.work.Task > 0 && len(s.needs.GPU) == 1 {
		return min(0.99, t.Seconds/s.work.Task.Seconds())
	}
	return t.Progress
}

// leftOf is the share of a task that is left, and the step that it is counted in: eighths
// of octaves, or with a deadline, which is exact, small ones that never promise too much.
func leftOf(s *parsed, j *queue.Job, t *queue.Task) (float64, string) {
	left := 1 - saved(s, t)
	if !j.Deadline.IsZero() {
		const steps = 1 << 14
		n := max(1, math.Ceil(left*steps))
		return n / steps, fmt.Sprintf("%d of %d", int(n), steps)
	}
	octave := int(math.Round(-8 * math.Log2(max(left, 1.0/1024))))
	return math.Exp2(-float64(octave) / 8), strconv.Itoa(octave)
}

// drawJob makes a job's groups: its fresh tasks, and those with a row by where
// their checkpoint lies and how much work is left.
func (b *Broker) drawJob(view *state.Tables, p *picture, j *queue.Job, rows []*queue.Task) {
	spec, err := b.specs.of(j)
	if err != nil {
		b.complain("snapshot", err)
		return
	}
	if own, ok := b.specs.budget(j); ok {
		p.Budgets = append(p.Budgets, own)
	}
	if j.CancelledBy != "" {
		return
	}
	add := func(id string, left float64, since time.Time, notBefore time.Time) *scheduler.Group {
		g := b.group(spec, j, p.Now)
		g.Work.Rates = b.measured(view, spec.class)
		g.ID, g.Left, g.Since, g.NotBefore = id, left, since, notBefore
		p.Groups = append(p.Groups, g)
		p.jobs[id] = j.ID
		return &p.Groups[len(p.Groups)-1]
	}
	if fresh := j.Count - j.Next; fresh > 0 {
		add(j.ID+"/fresh", 1, j.Accepted, time.Time{}).Waiting = fresh
	}
	groups := map[string]int{}
	for _, t := range rows {
		if spec.Exclusive {
			if machine := mayRun(view.Attempt(t.Attempt), view.Instance); machine != "" {
				id := j.ID + "/exclusive/" + machine
				at, ok := groups[id]
				if !ok {
					add(id, 1, j.Accepted, time.Time{}).Held = reason.New("exclusive", "instance", machine)
					at = len(p.Groups) - 1
					groups[id] = at
				}
				p.Groups[at].Waiting++
				continue
			}
		}
		left, steps := leftOf(spec, j, t)
		id := fmt.Sprintf("%s/%s/%s", j.ID, t.Region, steps)
		if t.NotBefore.After(p.Now) {
			id += "/" + t.NotBefore.UTC().Format(time.RFC3339)
		}
		waits := b.waits(spec, t)
		if !waits.IsZero() {
			id += "/waits/" + waits.UTC().Format(time.RFC3339)
		}
		at, ok := groups[id]
		if !ok {
			g := add(id, left, j.Accepted, t.NotBefore)
			g.Tried = true
			if waits.After(g.Waits) {
				g.Waits = waits
			}
			at = len(p.Groups) - 1
			groups[id] = at
		}
		if g := &p.Groups[at]; t.Committed > 0 && len(p.members[id]) == 0 {
			if k := view.Checkpoints.Get(state.CheckpointKey(t.TaskID, t.Committed)); k != nil {
				g.Work.Flows = b.flows(spec, j, k.Bytes)
			}
		}
		p.Groups[at].Waiting++
		p.members[id] = append(p.members[id], t.TaskID)
	}
}

// waits is since when a task that has a row looks for a machine, in steps of a 16th of
// the longest wait, and never later than it is; zero where nobody asks.
func (b *Broker) waits(spec *parsed, t *queue.Task) time.Time {
	if spec.Spot.MaxWait <= 0 || t.Waits.IsZero() {
		return time.Time{}
	}
	return t.Waits.Truncate(max(time.Second, spec.Spot.MaxWait.Std()/16))
}

// mayRun returns the machine on which something of an ended attempt may still
// run: its agent has not seen its end, and its provider has not said that the
// machine is gone.
func mayRun(a *queue.Attempt, instance func(string) *queue.Instance) string {
	if a == nil {
		return ""
	}
	if a.Member != nil {
		for _, id := range a.Member.Unsealed {
			if i := instance(id); i != nil && lives(i) {
				return i.ID
			}
		}
		return ""
	}
	if a.Sealed {
		return ""
	}
	if i := instance(a.Instance); i != nil && lives(i) {
		return i.ID
	}
	return ""
}

// group fills in what all tasks of a job share.
func (b *Broker) group(spec *parsed, j *queue.Job, now time.Time) scheduler.Group {
	g := scheduler.Group{
		Job: j.ID, Project: j.Project, Team: b.set.Teams[j.Project], Queue: j.Queue, Priority: j.Priority,
		Accepted: j.Accepted, Limit: -1, Needs: spec.needs, Work: spec.work,
		Notes: spec.notes, Interruptible: spec.interruptible, AtRisk: spec.atRisk, MaxDuration: spec.MaxDuration.Std(),
		Deadline: j.Deadline, Held: j.Held, SpotAllowed: spec.Spot.Policy == "always",
		OnDemand: spec.Spot.OnDemand, MaxWait: spec.Spot.MaxWait.Std(), Waits: j.Accepted, Value: spec.value,
	}
	g.Work.Flows = b.flows(spec, j, 0)
	for _, r := range [...]scheduler.Rules{b.set.Rules[j.Project], b.set.Queues[j.Queue].Rules} {
		if !r.IsZero() {
			g.Rules = append(g.Rules, r)
		}
	}
	if g.Held.IsZero() {
		g.Held = spec.unknown()
	}
	if spec.stopsAtDeadline {
		g.StopAt = j.Deadline
	}
	g.Payer = budget.Payer{Team: g.Team, Project: g.Project}
	if spec.Budget != nil {
		g.Own, g.Payer.Job = true, j.ID
	}
	if t := spec.Tasks; t != nil && t.Parallelism > 0 {
		g.Limit = max(0, t.Parallelism-j.Counts.Running)
	}
	if spec.AfterDeadline == "carry-over" && !g.Deadline.IsZero() {
		for !g.Deadline.After(now) {
			g.Deadline = g.Deadline.AddDate(0, 0, 1)
		}
	}
	if w := b.windowOf(spec, j); w != nil {
		start, end := w.Next(now)
		if start.After(now) {
			g.Opens = start
		} else {
			g.Closes = end
			b.shut(spec, j, w, &g, now)
			if start.After(g.Waits) {
				g.Waits = start
			}
		}
	}
	return g
}

// shut is how long a window that is open is closed before and after, of a job with a
// deadline. It is worked out once for each opening.
type shut struct {
	closes, deadline time.Time
	before, after    time.Duration
	reopens          int
}

func (b *Broker) shut(spec *parsed, j *queue.Job, w *window.Window, g *scheduler.Group, now time.Time) {
	if !g.Deadline.After(now) {
		return
	}
	s := spec.shut.Load()
	if s == nil || !s.closes.Equal(g.Closes) || !s.deadline.Equal(g.Deadline) {
		was, _ := w.Open(j.Accepted, now)
		open, reopens := w.Open(now, g.Deadline)
		s = &shut{g.Closes, g.Deadline, now.Sub(j.Accepted) - was, g.Deadline.Sub(now) - open, reopens}
		spec.shut.Store(s)
	}
	g.ShutBefore, g.Shut, g.Reopens = s.before, s.after, s.reopens
}

func (b *Broker) windowOf(spec *parsed, j *queue.Job) *window.Window {
	if spec.Window != nil {
		return spec.Window
	}
	return b.set.Queues[j.Queue].Window
}

func (b *Broker) drawRunning(view *state.Tables, p *picture, a *queue.Attempt) {
	if a.State == queue.AttemptEnded || !a.Leads() {
		return
	}
	t := view.Task(a.TaskID)
	s, ok := p.shared[a.Job]
	if !ok {
		if j := view.Job(a.Job); j != nil {
			if spec, err := b.specs.of(j); err == nil {
				s = &shared{group: b.group(spec, j, p.Now), spec: spec, job: j}
				s.group.Work.Rates = b.measured(view, spec.class)
				if spec.stopsAtDeadline {
					s.stopAt = j.Deadline
				}
			}
		}
		p.shared[a.Job] = s
	}
	if t == nil || s == nil {
		return
	}
	r := scheduler.Running{
		Attempt: a.ID, Machine: a.Instance, Group: s.group, Since: a.Created,
		Useful: a.State == queue.AttemptRunning, Stops: a.Stop != nil, Moves: a.Move != nil, StopAt: s.stopAt,
	}
	if a.Member != nil {
		for _, id := range a.Member.All {
			if o := view.Attempt(id); o != nil && id != a.ID && o.State != queue.AttemptEnded {
				r.Beside = append(r.Beside, o.Instance)
			}
		}
	}
	r.Group.ID, r.Group.Waiting, r.Group.Left = "running/"+a.ID, 1, 1-saved(s.spec, t)
	if !r.Group.Deadline.IsZero() || s.spec.work.Saves.On { // what may move
		live, _ := b.progressOf(a.ID)
		r.Unsaved = max(a.Busy, live.Busy) - a.Kept
		if c := view.Checkpoints.Get(state.CheckpointKey(t.TaskID, t.Committed)); c != nil && c.Bytes > 0 {
			r.Group.Work.Flows = s.resumes(b, c.Bytes)
		}
	}
	p.Running = append(p.Running, r)
}

// viewBook reads accounts and holds of a view.
type viewBook struct{ view *state.Tables }

func (k viewBook) Account(key budget.Key) *budget.Account { return k.view.Accounts.Get(key.String()) }

func (k viewBook) Hold(instance string, key budget.Key) *budget.Hold {
	return k.view.Holds.Get(state.HoldKey(instance, key))
}

// history is what a spot market has done so far, kept under its name.
type history struct {
	Preemptions int               `json:"preemptions"`
	Held        quantity.Duration `json:"held"`
}

// historyOf is what was seen of a machine's market so far.
func (b *Broker) historyOf(i *queue.Instance) policy.History {
	s := b.state.View().Settings.Get(historyPrefix + marketOf(i).String())
	if s == nil || providers.Kind(i.Kind) != providers.Spot {
		return policy.History{}
	}
	var h history
	if json.Unmarshal(s.Value, &h) != nil {
		return policy.History{}
	}
	return policy.History{Preemptions: h.Preemptions, Held: h.Held.Std()}
}

const historyPrefix = "history/"

// remember adds a spot machine's life to its market's history.
func (b *Broker) remember(tx *state.Tx, i *queue.Instance, preempted bool) {
	if providers.Kind(i.Kind) != providers.Spot || i.Launched.IsZero() || !i.Ended.After(i.Launched) {
		return
	}
	key := historyPrefix + marketOf(i).String()
	var h history
	if s := tx.Setting(key); s != nil {
		if err := json.Unmarshal(s.Value, &h); err != nil {
			b.complain("history", fmt.Errorf("%s: %w", key, err))
		}
	}
	h.Held += quantity.Duration(i.Ended.Sub(i.Launched))
	if preempted {
		h.Preemptions++
	}
	value, err := json.Marshal(h)
	if err != nil {
		b.complain("history", err)
		return
	}
	tx.PutSetting(&queue.Setting{Key: key, Value: value})
}
