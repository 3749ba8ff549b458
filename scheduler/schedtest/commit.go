package schedtest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/scheduler"
)

// Commit returns the world after a plan has been committed and before anything
// else has happened: machines are being launched, tasks sit on their slots.
func (w *World) Commit(r *scheduler.Result) *World {
	next := *w
	next.Groups, next.Machines, next.Snapshot.Running = slices.Clone(w.Groups), slices.Clone(w.Machines), slices.Clone(w.Snapshot.Running)
	next.Providers = maps.Clone(w.Providers)
	rows := Book{Accounts: maps.Clone(w.Rows.Accounts), Holds: maps.Clone(w.Rows.Holds)}
	next.Rows, next.Book = rows, rows
	machines := map[string]int{}
	for i := range next.Machines {
		machines[next.Machines[i].ID] = i
	}
	begun := map[int]int{} // gangs, by number, and where they run
	for _, a := range r.Assigns {
		m := &next.Machines[machines[a.Machine]]
		if a.Slots > 0 {
			m.Slots, m.SlotKey = a.Slots, a.SlotKey
		}
		next.run(a.Group, m, a.Count, a.Gang, begun)
	}
	for i := range r.Launches {
		l := &r.Launches[i]
		g := next.of(l)
		caps := next.Providers[l.Market.Provider].Capabilities
		m := scheduler.Machine{
			ID: fmt.Sprintf("new%04d", i), Market: l.Market, Shape: l.Shape, Project: g.Project, Payer: g.Payer.Job, Slots: l.Slots, SlotKey: l.SlotKey,
			Open: l.Takes == "", Price: l.Price, Bound: l.Bound, Lease: l.Lease, Billing: caps.Billing,
		}
		change, err := budget.Extend(next.Budgets, budget.Lease{
			Instance: m.ID, Payer: g.Payer, From: next.Now, Until: l.Lease.Add(caps.StopTime), Bound: l.Bound, Billing: caps.Billing,
		}, rows)
		if err != nil {
			panic(err) // Check has looked before
		}
		for _, a := range change.Accounts {
			rows.Accounts[a.Key.String()] = a
		}
		for _, h := range change.Holds {
			rows.Holds[h.Instance+" "+h.Key.String()] = h
		}
		p := next.Providers[l.Market.Provider]
		p.Launching++
		p.Quotas = slices.Clone(p.Quotas)
		for k := range p.Quotas {
			if q := &p.Quotas[k]; scheduler.Counts(q, l.Market) {
				q.Used += scheduler.Units(q, &l.Shape)
			}
		}
		next.Providers[l.Market.Provider] = p
		if l.Takes == "" {
			next.run(l.Group, &m, l.Tasks, l.Gang, begun)
		}
		for _, more := range l.More {
			next.run(more.Group, &m, more.Tasks, 0, begun)
		}
		next.Machines = append(next.Machines, m)
	}
	for _, rel := range r.Releases {
		next.Machines[machines[rel.Machine]].Open = false // it goes, and lives until it is gone
	}
	return &next
}

// of is whose machine a launch is; an attempt that it takes is under way from then on.
func (w *World) of(l *scheduler.Launch) *scheduler.Group {
	if l.Takes == "" {
		return w.find(l.Group)
	}
	r := &w.Snapshot.Running[slices.IndexFunc(w.Snapshot.Running, func(r scheduler.Running) bool { return r.Attempt == l.Takes })]
	r.Moves = true
	return &r.Group
}

func (w *World) find(group string) *scheduler.Group {
	return &w.Groups[slices.IndexFunc(w.Groups, func(g scheduler.Group) bool { return g.ID == group })]
}

// run moves n tasks of a group from waiting to running on a machine. A gang's task
// moves with its first machine.
func (w *World) run(group string, m *scheduler.Machine, n, gang int, begun map[int]int) {
	g := w.find(group)
	if at, ok := begun[gang]; ok {
		m.Used += n
		m.Idle = time.Time{}
		r := &w.Snapshot.Running[at]
		r.Beside = append(r.Beside, m.ID)
		return
	}
	if gang > 0 {
		begun[gang] = len(w.Snapshot.Running)
	}
	g.Waiting -= n
	for i := range w.Groups {
		if o := &w.Groups[i]; o.Job == g.Job && o.Limit >= 0 {
			o.Limit -= n
		}
	}
	m.Used += n
	m.Idle = time.Time{}
	for range n {
		r := scheduler.Running{Attempt: fmt.Sprintf("new%05d", len(w.Snapshot.Running)), Machine: m.ID, Group: *g, Since: w.Now}
		r.Group.Waiting = 1
		w.Snapshot.Running = append(w.Snapshot.Running, r)
	}
}
