package scheduler

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
)

// A group that cannot be placed does not stop those behind it, and is not passed
// by them for ever: once it has waited [overtaking], what it lacks is kept for it.
// Others get no more of that thing, and as many machines as must go for it take no
// more tasks of others and are let go when they are empty. It keeps things in one
// order, from its own project outwards, and nothing beyond the first that it lacks:
// so two that wait never hold what the other one needs, and who wants something
// else is not held up. What could never be enough keeps nothing.

// overtaking is how long a group may be passed by others.
const overtaking = 30 * time.Minute

// passed reports whether others may get what a group waits for, so that it may
// have to be kept for it.
func passed(why reason.Code) bool {
	switch why {
	case "machine_limit", "gpu_limit", "hourly_limit", "quota", "sold_out", "over_budget", "no_offer_fits", "gang_limit", "gang_budget", "gang_sold_out":
		return true
	}
	return false
}

// keep keeps what a group lacks, once it has waited for long.
func (p *pass) keep(g *Group, c *class, l *load, d *Decision) {
	if d.Launched > 0 || g.Since.IsZero() || !passed(d.Why.Code) {
		return
	}
	one := p.wanted(c, l)
	if one == nil {
		return
	}
	if at := g.Since.Add(overtaking); at.After(p.Now) {
		p.wake(at)
		return
	}
	k := keeper{pass: p, group: g, offer: one.offer, n: p.missing(c, one.offer.Market), need: c.useOf(p, one.offer), runs: p.jobTasks[g.Job]+p.jobPlaced[g.Job]+d.Placed > 0}
	for _, m := range [...]*meter{p.project(g.Project), p.queue(g.Queue), p.account(one.offer.Market.Provider), &p.meters.all} {
		if !k.meter(m) {
			return
		}
	}
	for _, i := range p.counting(one.offer) {
		if !k.quota(&p.quotas.quotas[i]) {
			return
		}
	}
	if k.market() {
		k.money(c, one)
	}
}

// wanted is the best candidate that a group could have, were nothing of it in use.
func (p *pass) wanted(c *class, l *load) *candidate {
	if one := p.choose(c, *l).ready(); one != nil && !p.gone("", c, one) {
		return one
	}
	ch := c.wanted[*l]
	if ch == nil {
		p.wanting = true
		ch = p.look(c, l, false)
		p.wanting = false
		if c.wanted == nil {
			c.wanted = map[load]*choice{}
		}
		c.wanted[*l] = ch
	}
	return ch.ready()
}

// impossible says what an offer could never have room in, whatever is let go. An
// offer that is full may get room only where the machine is one of ours.
func (p *pass) impossible(c *class, o *Offer) ruling {
	if o.Full && !p.isOurs(o.Market) {
		return full
	}
	if n := p.missing(c, o.Market); n > 1 && o.Capacity > 0 && n > o.Capacity && !p.isOurs(o.Market) {
		return tooFew
	}
	need := c.useOf(p, o)
	for _, i := range p.counting(o) {
		q := &p.quotas.quotas[i]
		if Units(q.Quota, &p.Catalog.Shapes[o.shape].Shape)*float64(p.missing(c, o.Market)) > q.Limit {
			return noQuota
		}
	}
	for _, m := range [...]*meter{c.meters[0], c.meters[1], c.meters[2], p.account(o.Market.Provider)} {
		if r := m.short(use{}, need); r != usable {
			return r
		}
	}
	return usable
}

// isOurs reports whether a machine of ours is in a market.
func (p *pass) isOurs(m providers.Market) bool {
	if p.ours == nil {
		p.ours = make(map[providers.Market]bool, len(p.Machines))
		for i := range p.Machines {
			p.ours[p.Machines[i].Market] = true
		}
	}
	return p.ours[m]
}

// keeper keeps things for one group, for what one more task wants of an offer.
type keeper struct {
	*pass
	group *Group
	offer *Offer
	n     int // machines of it that a task wants
	need  use
	runs  bool // something of its job runs: it is not starved, and only its fair share counts
}

// free reports whether nobody else waits for a thing already.
func (k *keeper) free(keeper string) bool { return keeper == "" || keeper == k.group.Job }

// meter keeps room under a set of limits. It reports whether to go on.
func (k *keeper) meter(m *meter) bool {
	if !k.free(m.keeper) {
		return false
	}
	lacking := m.short(m.used, k.need)
	if lacking == usable {
		if m.onMachines() && !k.runs {
			m.held, m.keeper = k.need, k.group.Job
		}
		return true
	}
	lack, gain := m.lack(lacking, k.need)
	if k.vacate(lack, func(h *host) float64 {
		if !k.counted(m, h) {
			return 0
		}
		return gain(h.use(k.pass))
	}) {
		m.held, m.keeper = k.need, k.group.Job
	}
	return false
}

// lack is how much of a limit is missing, and what of it a machine takes.
func (m *meter) lack(r ruling, need use) (float64, func(use) float64) {
	sum := m.used.plus(need)
	switch {
	case r == atGPULimit:
		return sum.gpus - m.GPUs, func(u use) float64 { return u.gpus }
	case r == atHourlyLimit:
		return (sum.perHour - m.PerHour).Float(), func(u use) float64 { return u.perHour.Float() }
	}
	return float64(sum.machines - m.Machines), func(u use) float64 { return float64(u.machines) }
}

// counted reports whether a machine is counted by a meter.
func (k *keeper) counted(m *meter, h *host) bool {
	switch m {
	case k.project(h.machine.Project), k.account(h.machine.Market.Provider), &k.meters.all:
		return true
	}
	for name, q := range k.meters.queues {
		if q == m {
			return k.meters.serves[served{name, h}]
		}
	}
	return false
}

// quota keeps room in a quota of the account.
func (k *keeper) quota(q *quota) bool {
	if !k.free(q.keeper) {
		return false
	}
	need := Units(q.Quota, &k.Catalog.Shapes[k.offer.shape].Shape) * float64(k.n)
	if need <= q.left {
		if !k.runs {
			q.held, q.keeper = need, k.group.Job
		}
		return true
	}
	if k.vacate(need-q.left, func(h *host) float64 {
		if m := h.machine; m.Market.Provider == q.provider && Counts(q.Quota, m.Market) {
			return Units(q.Quota, &m.Shape)
		}
		return 0
	}) {
		q.held, q.keeper = need, k.group.Job
	}
	return false
}

// market keeps the next machine of a market that has no more.
func (k *keeper) market() bool {
	m := k.offer.Market
	if job, ok := k.keptMarkets[m]; ok && job != k.group.Job {
		return false
	}
	lack := k.n
	if !k.offer.Full {
		if lack = k.taken(k.offer) + k.n - k.offer.Capacity; k.offer.Capacity == 0 || lack <= 0 {
			return true
		}
	}
	if k.vacate(float64(lack), func(h *host) float64 {
		if h.machine.Market == m {
			return 1
		}
		return 0
	}) {
		k.keptMarkets[m] = k.group.Job
	}
	return false
}

// money keeps what is free of the budget that has no room, where it could ever
// have.
func (k *keeper) money(c *class, one *candidate) {
	_, _, err := k.lease(k.group, c, one)
	room, ok := errors.AsType[*budget.RoomError](err)
	if !ok || room.Need > room.Budget.Cap/money.Amount(k.n) || k.runs {
		return
	}
	if _, ok := k.kept[room.Key]; !ok {
		k.kept[room.Key] = k.group.Job
	}
}

// hourOf is what a machine costs in an hour.
func hourOf(h *host) money.Amount { return money.Amount(max(h.price, 1)) }

// vacate marks the machines that must go for a thing to have so much more room,
// the emptiest first: they are kept for the group's job. Those that go already
// count. It reports whether the thing is to be kept. Where something of the job
// runs, only machines of richer projects go; and of those as many go as make up for
// the difference within an hour.
func (k *keeper) vacate(lack float64, gain func(*host) float64) bool {
	g := k.group
	var list []*host
	for i := range k.hosts {
		h := &k.hosts[i]
		takes := gain(h)
		switch {
		case takes <= 0:
		case !h.machine.Open || h.keeper == g.Job:
			lack -= takes
		case h.keeper != "":
		case k.runs && !k.richer(h, 0):
		default:
			list = append(list, h)
		}
	}
	if lack > bits && k.runs && len(list) == 0 {
		return false
	}
	slices.SortFunc(list, func(a, b *host) int {
		return cmp.Or(cmp.Compare(a.used, b.used), strings.Compare(a.machine.ID, b.machine.ID))
	})
	moved, machines := money.Amount(0), 0
	for _, h := range list {
		if lack <= bits && (machines >= g.Waiting*k.n || !k.richer(h, 2*moved)) {
			continue
		}
		h.keeper, k.vacated = g.Job, true
		lack -= gain(h)
		moved += hourOf(h)
		machines++
	}
	return true
}

// richer reports whether a machine's project has had so much more than the group's
// that it makes room: what the machine costs in an hour, after what has been moved
// already.
func (k *keeper) richer(h *host, moved money.Amount) bool {
	project := h.machine.Project
	return project != k.group.Project && k.had(project)-k.had(k.group.Project)-moved >= hourOf(h)
}
