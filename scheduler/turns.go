package scheduler

import (
	"cmp"
	"container/heap"
	"iter"
	"slices"
	"strings"

	"gpubroker/internal/money"
)

// A pass serves groups by priority. Within one priority it is the turn of the
// project that has had the least money for its share: what it spent in the window
// and what this pass has given it. A project gives way as soon as that makes it
// the richer, between two machines of one group if need be; so no project takes
// all that is free. Within a project, the oldest group goes first.

// line is the groups of one project at one priority, oldest first.
type line struct {
	project string
	groups  []*Group
	next    func() (*Group, bool) // serves until it is another's turn
	head    *Group                // that is served now, or next
	had     money.Amount
}

// lines is a heap: whose turn it is stands first.
type lines []*line

func (l lines) Len() int      { return len(l) }
func (l lines) Swap(i, j int) { l[i], l[j] = l[j], l[i] }
func (l lines) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(l[i].had, l[j].had), older(l[i].head, l[j].head)) < 0
}

func (l *lines) Push(x any) {
	if one, ok := x.(*line); ok {
		*l = append(*l, one)
	}
}

func (l *lines) Pop() any {
	last := len(*l) - 1
	x := (*l)[last]
	*l = (*l)[:last]
	return x
}

// older orders groups by age.
func older(a, b *Group) int {
	return cmp.Or(a.Accepted.Compare(b.Accepted), strings.Compare(a.ID, b.ID))
}

// serveAll serves every group of the snapshot.
func (p *pass) serveAll() {
	groups := make([]*Group, len(p.Groups))
	for i := range p.Groups {
		groups[i] = &p.Groups[i]
	}
	slices.SortFunc(groups, func(a, b *Group) int { return cmp.Or(cmp.Compare(b.Priority, a.Priority), older(a, b)) })
	for len(groups) > 0 {
		n := 1
		for n < len(groups) && groups[n].Priority == groups[0].Priority {
			n++
		}
		p.serveLevel(groups[:n])
		groups = groups[n:]
	}
}

// serveLevel serves groups of one priority, oldest first in each project.
func (p *pass) serveLevel(groups []*Group) {
	var turns lines
	at := map[string]*line{}
	for _, g := range groups {
		l := at[g.Project]
		if l == nil {
			l = &line{project: g.Project, head: g, had: p.had(g.Project)}
			at[g.Project] = l
			turns = append(turns, l)
		}
		l.groups = append(l.groups, g)
	}
	if len(turns) == 1 {
		for _, g := range groups {
			p.serve(g)
		}
		return
	}
	heap.Init(&turns)
	for len(turns) > 0 {
		l := turns[0]
		if l.next == nil {
			l.next, _ = iter.Pull(p.serving(l)) // it is served to its end
		}
		p.rival, p.rivals = p.second(turns), true
		head, more := l.next()
		p.rivals = false
		if !more {
			heap.Pop(&turns)
			continue
		}
		l.head, l.had = head, p.had(l.project)
		heap.Fix(&turns, 0)
	}
}

// second is what the project has had whose turn is next.
func (p *pass) second(turns lines) money.Amount {
	least := money.MaxAmount
	for _, i := range [...]int{1, 2} {
		if i < len(turns) {
			least = min(least, turns[i].had)
		}
	}
	return least
}

// serving serves a project's groups one after another. It yields the group that
// goes on, between two groups and wherever [pass.turn] says so. What it runs is
// never run beside anything else.
func (p *pass) serving(l *line) iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		for i, g := range l.groups {
			p.pause = func() { yield(g) }
			p.serve(g)
			if i+1 < len(l.groups) {
				yield(l.groups[i+1])
			}
		}
	}
}

// turn lets others go on when a project has had more than the next one. It is
// called where a group may be left for a while.
func (p *pass) turn(project string) {
	if !p.rivals || p.had(project) <= p.rival {
		return
	}
	pause := p.pause
	pause()
	p.pause = pause
}

// had is the money of a project for its share, in the window and in this pass.
func (p *pass) had(project string) money.Amount {
	had := more(p.Spent[project], p.given[project])
	if share := p.Settings.Shares[project]; share > 1 {
		had /= money.Amount(share)
	}
	return had
}

// asks counts a machine that is asked for: its money, its market, and the launch.
func (p *pass) asks(g *Group, l *Launch, billing money.Billing) {
	p.give(g.Project, l, billing)
	p.coming[l.Market]++
	p.launching++
}

// give counts what a pass reserves for a project's machine.
func (p *pass) give(project string, l *Launch, billing money.Billing) {
	cost, err := money.Charge(l.Lease.Sub(p.Now), l.Bound, billing)
	if err != nil {
		return // more than money can count: it has no lease either
	}
	p.given[project] = more(p.given[project], cost)
}
