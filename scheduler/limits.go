package scheduler

import (
	"strconv"

	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
)

// Limits bound what is in use at once, of a project, a queue, an account or the
// whole broker. What is 0 is not limited.
//
// A machine counts from the wish for it until its provider says that it is gone:
// for its project, its account, and each queue whose tasks run on it. What it may
// cost per hour is the price that its reservations assume.
type Limits struct {
	Tasks    int
	Machines int
	GPUs     float64
	PerHour  money.Rate
}

// onMachines reports whether machines are limited at all, beside tasks.
func (l *Limits) onMachines() bool { return l.Machines > 0 || l.GPUs > 0 || l.PerHour > 0 }

// use is an amount of what [Limits] bound.
type use struct {
	tasks, machines int
	gpus            float64
	perHour         money.Rate
}

func (u use) plus(o use) use {
	return use{u.tasks + o.tasks, u.machines + o.machines, u.gpus + o.gpus, more(u.perHour, o.perHour)}
}

func (u use) times(n int) use {
	return use{u.tasks * n, u.machines * n, u.gpus * float64(n), times(n, u.perHour)}
}

// meter counts what is in use under one set of limits.
type meter struct {
	Limits
	of     string // whose they are, for people
	what   string // where it stands for one thing that is kept
	used   use
	held   use    // of what is left, for the job that keeps it
	keeper string // that job; "" when nothing is kept
}

// short says which limit on machines more would pass.
func (m *meter) short(used, more use) ruling {
	sum := used.plus(more)
	switch {
	case m.Machines > 0 && sum.machines > m.Machines:
		return atMachineLimit
	case m.GPUs > 0 && sum.gpus > m.GPUs+bits:
		return atGPULimit
	case m.PerHour > 0 && sum.perHour > m.PerHour:
		return atHourlyLimit
	}
	return usable
}

// lacks says what one job's next machine would pass: a limit, or what another
// job keeps of it.
func (m *meter) lacks(job string, more use) ruling {
	if r := m.short(m.used, more); r != usable {
		return r
	}
	if m.keeper != "" && m.keeper != job && m.short(m.used.plus(m.held), more) != usable {
		return keptForOther
	}
	return usable
}

// because gives a shortage its numbers.
func (m *meter) because(r ruling, more use) reason.Reason {
	if r == keptForOther {
		what := m.what
		if what == "" {
			what = m.limit(m.short(m.used.plus(m.held), more)) + " of " + m.of
		}
		return reason.New("kept_for", "what", what, "job", m.keeper)
	}
	code := rulingCodes[r]
	switch {
	case r == atTaskLimit:
		return reason.New(code, "of", m.of, "running", m.used.tasks, "limit", m.Tasks)
	case r == atGPULimit:
		return reason.New(code, "of", m.of, "running", number(m.used.gpus), "limit", number(m.GPUs), "need", number(more.gpus))
	case r == atHourlyLimit:
		return reason.New(code, "of", m.of, "running", m.used.perHour, "limit", m.PerHour, "need", more.perHour)
	}
	return reason.New(code, "of", m.of, "running", m.used.machines, "limit", m.Machines)
}

// limit names a limit, for people.
func (m *meter) limit(r ruling) string {
	switch {
	case r == atGPULimit:
		return "the " + number(m.GPUs) + " GPUs"
	case r == atHourlyLimit:
		return "the " + m.PerHour.String() + "/h"
	}
	return "the " + strconv.Itoa(m.Machines) + " machines"
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// machineUse is what one machine takes. Without a bound its price counts.
func machineUse(gpus float64, price, bound money.Rate) use {
	return use{machines: 1, gpus: gpus, perHour: max(price, bound)}
}

// useOf is what the machines of an offer take that one more task wants there.
func (c *class) useOf(p *pass, o *Offer) use {
	return machineUse(p.Catalog.Shapes[o.shape].GPUs, o.Price, Bound(o, c.limit)).times(p.missing(c, o.Market))
}

// meters are the limits of a pass with what is in use.
type meters struct {
	all                        meter
	projects, queues, accounts map[string]*meter
	// serves are the machines that count for queues with limits on machines.
	serves map[served]bool
}

type served struct {
	queue string
	host  *host
}

func (p *pass) project(name string) *meter {
	m := p.meters.projects[name]
	if m == nil {
		limits, ok := p.Settings.Projects[name]
		if !ok {
			limits = p.Settings.Projects[""]
		}
		m = &meter{Limits: limits, of: "project " + name}
		p.meters.projects[name] = m
	}
	return m
}

func (p *pass) queue(name string) *meter {
	m := p.meters.queues[name]
	if m == nil {
		m = &meter{Limits: p.Settings.Queues[name], of: "queue " + name}
		p.meters.queues[name] = m
	}
	return m
}

func (p *pass) account(name string) *meter {
	m := p.meters.accounts[name]
	if m == nil {
		m = &meter{Limits: p.Providers[name].Limits, of: "provider " + name}
		p.meters.accounts[name] = m
	}
	return m
}

// measure counts what lives and runs.
func (p *pass) measure() {
	p.meters = meters{
		all:      meter{Limits: p.Settings.All, of: "the broker"},
		projects: map[string]*meter{}, queues: map[string]*meter{}, accounts: map[string]*meter{},
	}
	for i := range p.Machines {
		m := &p.Machines[i]
		one := machineUse(m.Shape.GPUs, m.Price, m.Bound)
		for _, meter := range [...]*meter{&p.meters.all, p.project(m.Project), p.account(m.Market.Provider)} {
			meter.used = meter.used.plus(one)
		}
		p.account(m.Market.Provider).used.tasks += m.Used
	}
	limited := false
	for _, l := range p.Settings.Queues {
		limited = limited || l.onMachines()
	}
	if limited {
		p.meters.serves = map[served]bool{}
	}
	for i := range p.Running {
		r := &p.Running[i]
		for _, m := range p.limitsOf(&r.Group) {
			m.used.tasks++
		}
		if !limited {
			continue
		}
		if h := p.byID[r.Machine]; h != nil {
			p.counts(r.Group.Queue, h)
		}
		for _, id := range r.Beside {
			if h := p.byID[id]; h != nil {
				p.counts(r.Group.Queue, h)
			}
		}
	}
}

// counts counts a machine for a queue whose tasks run on it.
func (p *pass) counts(queue string, h *host) {
	if p.meters.serves == nil || p.meters.serves[served{queue, h}] {
		return
	}
	p.meters.serves[served{queue, h}] = true
	q := p.queue(queue)
	q.used = q.used.plus(h.use(p))
}

// use is what a machine takes of the limits that count it.
func (r *host) use(p *pass) use {
	if r.machine == nil {
		l := &p.out.Launches[r.launch]
		return machineUse(l.Shape.GPUs, l.Price, l.Bound)
	}
	return machineUse(r.machine.Shape.GPUs, r.machine.Price, r.machine.Bound)
}

// startable is how many of n tasks a group may put on a machine in hand. Where its
// queue limits machines, one more may count for it.
func (p *pass) startable(g *Group, r *host, n int) int {
	if n <= 0 || r.keeper != "" && r.keeper != g.Job {
		return 0
	}
	if q := p.queue(g.Queue); q.onMachines() && !p.meters.serves[served{g.Queue, r}] && q.lacks(g.Job, r.use(p)) != usable {
		return 0
	}
	return p.tasksLeft(g, r.market(p).Provider, n)
}

func (r *host) market(p *pass) *providers.Market {
	if r.machine == nil {
		return &p.out.Launches[r.launch].Market
	}
	return &r.machine.Market
}

// tasksLeft is how many of n more tasks of a group may run at an account.
func (p *pass) tasksLeft(g *Group, provider string, n int) int {
	for _, m := range [...]*meter{p.project(g.Project), p.queue(g.Queue), &p.meters.all, p.account(provider)} {
		if m.Tasks > 0 {
			n = min(n, max(0, m.Tasks-m.used.tasks))
		}
	}
	return n
}

// started counts tasks of a group that a pass places at an account.
func (p *pass) started(g *Group, provider string, n int) {
	for _, m := range [...]*meter{p.project(g.Project), p.queue(g.Queue), &p.meters.all, p.account(provider)} {
		m.used.tasks += n
	}
}

// limitsOf are the limits that count a group's machines, without the account's,
// the narrowest first.
func (p *pass) limitsOf(g *Group) [3]*meter {
	return [...]*meter{p.project(g.Project), p.queue(g.Queue), &p.meters.all}
}

// limits says which limit on the number of machines, or of tasks, one more task on n
// more machines would pass. A gang that is larger than the limit on launches has its
// turn when none is under way.
func (p *pass) limits(g *Group, n int) reason.Reason {
	for _, m := range p.limitsOf(g) {
		if m.Tasks > 0 && m.used.tasks >= m.Tasks {
			return m.because(atTaskLimit, use{})
		}
	}
	return p.machineLimits(g, n)
}

// machineLimits says which limit on the number of machines n more would pass, for a task
// that waits or runs.
func (p *pass) machineLimits(g *Group, n int) reason.Reason {
	if !p.waitsFor.IsZero() {
		return p.waitsFor
	}
	if limit := p.Settings.Launches; limit > 0 && p.launching > 0 && p.launching+n > limit {
		return reason.New("launch_limit", "running", p.launching, "limit", limit)
	}
	for _, m := range p.limitsOf(g) {
		if r := m.lacks(g.Job, use{machines: n}); r != usable {
			return m.because(r, use{machines: n})
		}
	}
	return reason.Reason{}
}

// over says which limit one more machine of an offer would pass, and whose it is:
// those that depend on the offer. What depends on the number of machines alone is
// [pass.limits].
func (p *pass) over(job string, c *class, o *Offer) (*meter, ruling) {
	m := p.account(o.Market.Provider)
	if m.Tasks > 0 && m.used.tasks+c.needs.nodes() > m.Tasks {
		return m, atTaskLimit
	}
	if k := p.keptOf(job, o); k != nil {
		return k, keptForOther
	}
	if !c.metered && !m.onMachines() {
		return nil, usable
	}
	more := c.useOf(p, o)
	if r := m.lacks(job, more); r != usable {
		return m, r
	}
	more.machines = 0
	for _, m := range c.meters {
		if r := m.lacks(job, more); r != usable {
			return m, r
		}
	}
	return nil, usable
}

// keptOf says for whom an offer's market, or room in its quotas, is kept.
func (p *pass) keptOf(job string, o *Offer) *meter {
	if keeper, ok := p.keptMarkets[o.Market]; ok && keeper != job {
		return &meter{what: "market " + o.Market.String(), keeper: keeper}
	}
	for _, i := range p.counting(o) {
		q := &p.quotas.quotas[i]
		if q.keeper != "" && q.keeper != job && Units(q.Quota, &p.Catalog.Shapes[o.shape].Shape) > q.left-q.held {
			return &meter{what: "quota " + q.Name + " of provider " + q.provider, keeper: q.keeper}
		}
	}
	return nil
}

// took counts a machine that a pass launches, with the tasks on it.
func (p *pass) took(g *Group, l *Launch, h *host) {
	p.rented(g, l, h)
	p.started(g, l.Market.Provider, l.Tasks)
}

// rented counts a machine that a pass launches.
func (p *pass) rented(g *Group, l *Launch, h *host) {
	one := machineUse(l.Shape.GPUs, l.Price, l.Bound)
	for _, m := range [...]*meter{p.project(g.Project), p.account(l.Market.Provider), &p.meters.all} {
		m.used = m.used.plus(one)
	}
	p.counts(g.Queue, h)
}
