package scheduler

import (
	"cmp"
	"slices"
	"time"

	"gpubroker/internal/reason"
)

// reconcile looks at work that runs: its window, its deadline, and whether it is
// better off elsewhere.
func (p *pass) reconcile() {
	for i := range p.Running {
		if r := &p.Running[i]; !r.Stops {
			p.consider(r, p.byID[r.Machine])
		}
	}
	slices.SortFunc(p.out.Stops, func(a, b Stop) int { return cmp.Compare(a.Attempt, b.Attempt) })
}

func (p *pass) consider(r *Running, on *host) {
	g := &r.Group
	switch {
	case g.Opens.After(p.Now):
		p.stop(r, "stopped", reason.New("window_closed", "opens", clock(g.Opens)))
		return
	case !r.StopAt.IsZero() && !r.StopAt.After(p.Now):
		p.stop(r, "stopped", reason.New("deadline_passed", "deadline", clock(r.StopAt)))
		return
	}
	p.wake(g.Closes)
	p.wake(r.StopAt)
	// Work that would start over moves for its deadline alone, and tasks that share a
	// machine finish where they are.
	keeps := !g.Deadline.IsZero() || g.Work.Saves.On
	if on == nil || !g.Interruptible || !keeps || r.Moves || on.slots > 1 {
		return
	}
	p.reconsider(r, on.machine)
}

func (p *pass) stop(r *Running, outcome string, why reason.Reason) {
	p.out.Stops = append(p.out.Stops, Stop{r.Attempt, outcome, why})
}

// lateRelease is how long before the next paid unit a machine is let go that is
// rented by long units, beside the time that its provider takes to stop billing.
const lateRelease = 2 * time.Minute

// release lets empty machines go by the way that they are billed: after the idle
// time, or just before the next paid unit where that is long.
func (p *pass) release() {
	for i := range p.hosts {
		h := &p.hosts[i]
		m := h.machine
		if h.used > 0 || m.Idle.IsZero() || !m.Open || !m.Ready {
			continue
		}
		if h.keeper != "" {
			p.out.Releases = append(p.out.Releases, Release{m.ID, reason.New("makes_room", "job", h.keeper)})
			continue
		}
		at := m.Idle.Add(p.Settings.Idle)
		if m.Billing.Unit >= longUnit && !m.Born.IsZero() {
			at = p.beforeNextUnit(m)
		}
		if at.After(p.Now) {
			p.wake(at)
			continue
		}
		p.out.Releases = append(p.out.Releases, Release{m.ID, reason.New("idle", "idle", p.Now.Sub(m.Idle).Round(time.Second))})
	}
	slices.SortFunc(p.out.Releases, func(a, b Release) int { return cmp.Compare(a.Machine, b.Machine) })
}

// beforeNextUnit is when a machine is to be let go so that its next billing unit
// is not paid; once that is too late, the end of that unit counts.
func (p *pass) beforeNextUnit(m *Machine) time.Time {
	stop := p.Providers[m.Market.Provider].Capabilities.StopTime
	lived := max(1, p.Now.Sub(m.Born))
	paid := m.Billing.Paid(lived)
	if paid-lived < stop {
		paid = m.Billing.Paid(paid + 1)
	}
	return m.Born.Add(paid - stop - lateRelease)
}
