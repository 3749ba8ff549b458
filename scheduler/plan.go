package scheduler

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

// bootFactor is how many times the usual boot time a machine is given to call in.
const bootFactor = 4

// Plan decides what to do at s.Now. It does not change s, and may be run again
// at will: what it asks for is only done by whoever commits it.
func Plan(s *Snapshot, m *Memo) Result {
	p := &pass{Snapshot: s, memo: m, book: newLayer(s.Book), projectMachines: map[string]int{}, queueTasks: map[string]int{}}
	if p.memo == nil {
		p.memo = &Memo{}
	}
	p.machines = slices.Clone(s.Machines)
	slices.SortFunc(p.machines, func(a, b Machine) int { return cmp.Compare(a.ID, b.ID) })
	for i := range p.machines {
		p.projectMachines[p.machines[i].Project]++
	}
	for _, prov := range s.Providers {
		p.launching += prov.Launching
	}
	running := slices.Clone(s.Running)
	slices.SortFunc(running, func(a, b Running) int { return cmp.Compare(a.Attempt, b.Attempt) })
	for i := range running {
		p.queueTasks[running[i].Group.Queue]++
		p.reconcile(&running[i])
	}
	for _, g := range order(s) {
		p.serve(&g)
	}
	p.release()
	return p.out
}

type pass struct {
	*Snapshot
	memo            *Memo
	book            *layer
	machines        []Machine
	projectMachines map[string]int
	queueTasks      map[string]int
	launching       int
	out             Result
}

func (p *pass) wake(t time.Time) {
	if !t.IsZero() && t.After(p.Now) && (p.out.Wake.IsZero() || t.Before(p.out.Wake)) {
		p.out.Wake = t
	}
}

// order is priority, then the project that has spent least, then age. A group
// that cannot be placed does not stop those behind it.
func order(s *Snapshot) []Group {
	groups := slices.Clone(s.Groups)
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(
			cmp.Compare(b.Priority, a.Priority),
			cmp.Compare(s.Spent[a.Project], s.Spent[b.Project]),
			a.Accepted.Compare(b.Accepted), cmp.Compare(a.ID, b.ID),
		)
	})
	return groups
}

// reconcile looks at work that runs: its window, its deadline, and whether it is
// better off elsewhere.
func (p *pass) reconcile(r *Running) {
	if r.Stops {
		return
	}
	g := &r.Group
	switch {
	case !g.Opens.IsZero():
		p.out.Stops = append(p.out.Stops, Stop{r.Attempt, "stopped", reason.New("window_closed", "opens", clock(g.Opens))})
		return
	case !r.StopAt.IsZero() && !r.StopAt.After(p.Now):
		p.out.Stops = append(p.out.Stops, Stop{r.Attempt, "stopped", reason.New("deadline_passed", "deadline", clock(r.StopAt))})
		return
	}
	p.wake(g.Closes)
	p.wake(r.StopAt)
	machine := p.machine(r.Machine)
	if machine == nil || !g.Interruptible || g.Deadline.IsZero() && g.Policy == policy.Auto || !r.Useful || machine.Slots > 1 {
		return // only timed single tasks are moved: others finish where they are
	}
	ch := p.choose(g, p.memo)
	task, _, ok := g.taskTime(new(fitShape(p.Facts, &g.Needs, &machine.Shape)))
	if !ok {
		return
	}
	kind := policy.OnDemand
	if machine.Market.Kind == providers.Spot {
		kind = policy.Spot
	}
	current := &policy.Placement{
		Candidate: policy.Candidate{
			Market: machine.Market.String(), Kind: kind, Price: machine.Price, Billing: machine.Billing,
			Work: task, History: p.History[machine.Market.String()],
		},
		Since: r.Since, Running: r.Useful,
	}
	d, _ := p.decide(g, &ch, current)
	p.wake(d.Until)
	if d.Action == policy.Move {
		p.out.Stops = append(p.out.Stops, Stop{r.Attempt, "moved", reason.New("moved", "why", d.Why.String())})
	}
}

func (p *pass) machine(id string) *Machine {
	i, ok := slices.BinarySearchFunc(p.machines, id, func(m Machine, id string) int { return cmp.Compare(m.ID, id) })
	if !ok {
		return nil
	}
	return &p.machines[i]
}

// serve places what it can of a group, and says why the rest waits.
func (p *pass) serve(g *Group) {
	d := Decision{Group: g.ID, Job: g.Job, Waiting: g.Waiting}
	defer func() {
		d.Wait = d.Placed < d.Waiting
		p.wake(d.Again)
		p.out.Decisions = append(p.out.Decisions, d)
	}()
	hold := func(why reason.Reason, again time.Time) { d.Why, d.Again = why, again }
	switch {
	case g.Waiting <= 0:
		return
	case !p.Frozen.IsZero():
		hold(p.Frozen, time.Time{})
		return
	case !g.Held.IsZero():
		hold(g.Held, time.Time{})
		return
	case !g.Opens.IsZero():
		hold(reason.New("outside_window", "opens", clock(g.Opens)), g.Opens)
		return
	case g.NotBefore.After(p.Now):
		hold(reason.New("backoff", "until", clock(g.NotBefore)), g.NotBefore)
		return
	}
	left := g.Waiting
	if g.Limit >= 0 && g.Limit < left {
		left = g.Limit
		hold(reason.New("parallelism", "limit", g.Limit), time.Time{})
	}
	if limit, ok := p.Settings.QueueTasks[g.Queue]; ok && limit-p.queueTasks[g.Queue] < left {
		left = max(0, limit-p.queueTasks[g.Queue])
		hold(reason.New("queue_limit", "queue", g.Queue, "running", p.queueTasks[g.Queue], "limit", limit), time.Time{})
	}
	placed := p.reuse(g, left)
	d.Placed += placed
	left -= placed
	if left == 0 {
		if d.Why.IsZero() {
			d.Why = reason.New("reused", "tasks", placed)
		}
		p.queueTasks[g.Queue] += placed
		return
	}
	limited := d.Why
	p.launch(g, left, &d)
	if !limited.IsZero() && d.Placed < d.Waiting && d.Launched > 0 {
		d.Why = limited
	}
	p.queueTasks[g.Queue] += d.Placed
}

// reuse fills free slots of machines that are already paid for.
func (p *pass) reuse(g *Group, want int) int {
	placed := 0
	key := g.Needs.SlotKey()
	for i := range p.machines {
		m := &p.machines[i]
		if placed == want {
			break
		}
		if !m.Open || m.Project != g.Project || (m.Payer != "" || g.Own) && m.Payer != g.Job || !p.suits(g, m) {
			continue
		}
		slots := m.Slots
		if m.SlotKey != key {
			if m.Used > 0 {
				continue
			}
			slots = fitShape(p.Facts, &g.Needs, &m.Shape).slots
		}
		n := min(want-placed, slots-m.Used)
		if n <= 0 {
			continue
		}
		a := Assign{Group: g.ID, Machine: m.ID, Count: n}
		if m.SlotKey != key {
			a.Slots, a.SlotKey = slots, key
			m.Slots, m.SlotKey = slots, key
		}
		m.Used += n
		placed += n
		p.out.Assigns = append(p.out.Assigns, a)
	}
	return placed
}

// suits reports whether a machine that lives may run the group's tasks.
func (p *pass) suits(g *Group, m *Machine) bool {
	if _, refused := g.kinds()[m.Market.Kind]; refused {
		return false
	}
	n := &g.Needs
	return fitShape(p.Facts, n, &m.Shape).slots > 0 &&
		(len(n.Providers) == 0 || slices.Contains(n.Providers, m.Market.Provider)) &&
		(len(n.Regions) == 0 || slices.Contains(n.Regions, m.Market.Region)) &&
		(len(n.Zones) == 0 || slices.Contains(n.Zones, m.Market.Zone)) &&
		(n.MaxPrice == 0 || m.Price <= n.MaxPrice)
}

// launch rents machines for what is left of a group.
func (p *pass) launch(g *Group, left int, d *Decision) {
	ch := p.choose(g, p.memo)
	d.Considered, d.Usable, d.Reasons = ch.considered, ch.usable, ch.reasons.sorted()
	for i := range ch.candidates[:min(best, len(ch.candidates))] {
		d.Best = append(d.Best, ch.candidates[i].option(g))
	}
	if len(ch.candidates) == 0 {
		d.Why = nothingFits(&ch)
		return
	}
	choice, _ := p.decide(g, &ch, nil)
	p.wake(choice.Until)
	if choice.Action == policy.Wait {
		d.Again = choice.Until
		d.Why = reason.New("policy_wait", "why", choice.Why.String())
		if choice.Why.Code == policy.CooledDown || choice.Why.Code == policy.NoCandidate {
			d.Why = reason.New("all_cooled_down", "until", clock(choice.Until))
		}
		return
	}
	c := &ch.candidates[choice.Market]
	d.Best = chosenFirst(d.Best, c.option(g))
	for left > 0 {
		if why := p.limits(g); !why.IsZero() {
			d.Why = why
			return
		}
		tasks := min(left, c.fit.slots)
		l, err := p.admit(g, c, tasks)
		if err != nil {
			d.Why = shortOfMoney(err)
			return
		}
		p.out.Launches = append(p.out.Launches, l)
		p.projectMachines[g.Project]++
		p.launching++
		d.Launched++
		d.Placed += tasks
		left -= tasks
		if enough(d.Launched, c, g) {
			break
		}
	}
	d.Why = reason.New("chosen", "why", choice.Why.String())
	if left > 0 {
		d.Why = reason.New("in_turn", "machines", d.Launched, "rounds", c.rounds)
	}
}

// enough reports whether the machines launched so far run the group in the
// rounds that its candidate was priced for.
func enough(launched int, c *candidate, g *Group) bool {
	return launched*c.fit.slots*c.rounds >= g.Waiting
}

func (p *pass) limits(g *Group) reason.Reason {
	if limit := p.Settings.Launches; limit > 0 && p.launching >= limit {
		return reason.New("launch_limit", "running", p.launching, "limit", limit)
	}
	if limit, ok := p.Settings.Machines[g.Project]; ok && p.projectMachines[g.Project] >= limit {
		return reason.New("project_limit", "project", g.Project, "running", p.projectMachines[g.Project], "limit", limit)
	}
	return reason.Reason{}
}

// admit reserves the machine's first lease in this pass's own book.
func (p *pass) admit(g *Group, c *candidate, tasks int) (Launch, error) {
	caps := p.Providers[c.offer.Market.Provider].Capabilities
	length := p.Settings.Lease
	if l, ok := p.Settings.ProjectLease[g.Project]; ok {
		length = l
	}
	boot := bootFactor * max(caps.BootTime, time.Minute)
	lease := p.Now.Add(boot + length)
	if !g.Interruptible {
		if g.MaxDuration > 0 {
			lease = p.Now.Add(boot + g.MaxDuration + g.Work.Stage)
		} else if b := p.capped(g); b != "" {
			return Launch{}, &unboundedError{budget: b}
		}
	}
	l := Launch{
		Group: g.ID, Market: c.offer.Market, Shape: c.shape.Shape, Tasks: tasks,
		Slots: c.fit.slots, SlotKey: g.Needs.SlotKey(),
		Price: c.offer.Price, Bound: Bound(c.offer, g.Needs.MaxPrice), Reference: c.offer.Reference,
		Boot: p.Now.Add(boot), Lease: lease,
	}
	change, err := budget.Extend(p.Budgets, budget.Lease{
		Instance: "new", Payer: g.Payer, From: p.Now, Until: lease.Add(caps.StopTime), Bound: l.Bound, Billing: caps.Billing,
	}, p.book)
	if err != nil {
		return Launch{}, err
	}
	p.book.apply(change)
	return l, nil
}

func (p *pass) capped(g *Group) string {
	for _, b := range p.Budgets {
		if b.Capped && b.Matches(g.Payer) {
			return b.Name
		}
	}
	return ""
}

// unboundedError says that work which cannot stop has no bound on its cost.
type unboundedError struct{ budget string }

func (e *unboundedError) Error() string {
	return "budget " + e.budget + " is capped, and work that cannot stop needs max_duration under it"
}

func shortOfMoney(err error) reason.Reason {
	if room, ok := errors.AsType[*budget.RoomError](err); ok {
		return reason.New("over_budget", "budget", room.Key, "free", room.Free.Round(2), "cap", room.Budget.Cap, "need", room.Need.Round(2))
	}
	if u, ok := errors.AsType[*unboundedError](err); ok {
		return reason.New("no_max_duration", "budget", u.budget)
	}
	return reason.New("not_admitted", "error", err)
}

func nothingFits(ch *choice) reason.Reason {
	counts := ch.reasons.sorted()
	if len(counts) == 0 {
		return reason.New("no_offers")
	}
	return reason.New("no_offer_fits", "top", counts[0].Sample, "offers", ch.considered)
}

func chosenFirst(list []Option, chosen Option) []Option {
	out := []Option{chosen}
	for _, o := range list {
		if o.Market != chosen.Market && len(out) < best {
			out = append(out, o)
		}
	}
	return out
}

// release lets machines go that have been empty long enough, by the way that
// they are billed: just before the next paid unit when that is long, else after
// the idle time.
func (p *pass) release() {
	for i := range p.machines {
		m := &p.machines[i]
		if m.Used > 0 || m.Idle.IsZero() || !m.Open || !m.Ready {
			continue
		}
		at := m.Idle.Add(p.Settings.Idle)
		if m.Billing.Unit >= 10*time.Minute && !m.Born.IsZero() {
			const margin = 2 * time.Minute
			paid := m.Born.Add(m.Billing.Paid(max(p.Now.Sub(m.Born), 1))).Add(-margin)
			at = paid
			if p.Now.Before(m.Idle.Add(time.Second)) && paid.Before(p.Now) {
				at = p.Now
			}
		}
		if at.After(p.Now) {
			p.wake(at)
			continue
		}
		p.out.Releases = append(p.out.Releases, Release{m.ID, reason.New("idle", "idle", p.Now.Sub(m.Idle).Round(time.Second))})
	}
}

// layer is a book with this pass's own reservations on top.
type layer struct {
	base     budget.Book
	accounts map[budget.Key]budget.Account
}

func newLayer(base budget.Book) *layer {
	return &layer{base: base, accounts: map[budget.Key]budget.Account{}}
}

func (l *layer) Account(k budget.Key) *budget.Account {
	if a, ok := l.accounts[k]; ok {
		return &a
	}
	if l.base == nil {
		return nil
	}
	return l.base.Account(k)
}

// Hold has none: every launch of a pass is a machine of its own.
func (l *layer) Hold(string, budget.Key) *budget.Hold { return nil }

func (l *layer) apply(c budget.Change) {
	for _, a := range c.Accounts {
		l.accounts[a.Key] = a
	}
}
