package schedtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gpubroker/internal/budget"
	"gpubroker/internal/geo"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

// Check reports what a plan breaks of the promises that hold for every plan.
func Check(s *scheduler.Snapshot, r *scheduler.Result) error {
	c := checker{s: s, r: r, groups: map[string]*scheduler.Group{}, placed: map[string]int{}, job: map[string]int{}}
	for i := range s.Groups {
		c.groups[s.Groups[i].ID] = &s.Groups[i]
	}
	for i := range s.Running {
		c.running(&s.Running[i])
	}
	c.machines()
	c.launches()
	c.gangs()
	c.decisions()
	c.limits()
	c.releases()
	if !r.Wake.IsZero() && !r.Wake.After(s.Now) {
		c.fail("the next look, %s, is not after now", r.Wake)
	}
	return errors.Join(c.errs...)
}

type checker struct {
	s      *scheduler.Snapshot
	r      *scheduler.Result
	groups map[string]*scheduler.Group
	placed map[string]int
	job    map[string]int
	errs   []error
}

func (c *checker) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

// running checks that what moves is rented whole, and once.
func (c *checker) running(r *scheduler.Running) {
	n := 0
	for i := range c.r.Launches {
		l := &c.r.Launches[i]
		if l.Takes != r.Attempt {
			continue
		}
		c.groups[l.Group] = &r.Group
		if n++; l.Tasks != 0 || l.Gang != 0 || l.Why.IsZero() || r.Moves || !r.Group.Interruptible {
			c.fail("a launch takes %s: %d tasks, gang %d, reason %q, it moves already: %v", r.Attempt, l.Tasks, l.Gang, l.Why.Code, r.Moves)
		}
	}
	if want := max(1, r.Group.Needs.Nodes); n > 0 && n != want {
		c.fail("%d machines take %s, which needs %d", n, r.Attempt, want)
	}
}

// place counts tasks of a group on a market.
func (c *checker) place(group string, n int, m providers.Market, p string, slotKey string) {
	g := c.groups[group]
	if g == nil {
		c.fail("tasks of %s, which does not wait, are placed", group)
		return
	}
	if g.Needs.Nodes < 2 { // gangs are counted as wholes
		c.count(g, n)
	}
	switch {
	case n <= 0:
		c.fail("%d tasks of %s are placed", n, group)
	case m.Kind == providers.Spot && !g.Interruptible && !g.SpotAllowed:
		c.fail("%s, which may not be interrupted, is placed on %s", group, m)
	case !g.Needs.Near.IsZero() && !c.near(g, m):
		c.fail("%s is placed on %s, more than %s from %v", group, m, g.Needs.Near.RTT, g.Needs.Near.From)
	case g.Project != p:
		c.fail("%s of project %s is placed on a machine of %s", group, g.Project, p)
	case slotKey != g.Needs.SlotKey():
		c.fail("%s is placed on a machine cut for %s", group, slotKey)
	}
}

func (c *checker) near(g *scheduler.Group, m providers.Market) bool {
	cloud := c.s.Providers[m.Provider].Cloud
	return !slices.ContainsFunc(g.Needs.Near.From, func(from string) bool {
		rtt, ok := geo.RTT(from, strings.TrimPrefix(cloud+"/"+m.Region, "/"))
		return !ok || rtt > g.Needs.Near.RTT
	})
}

func (c *checker) machines() {
	type left struct {
		*scheduler.Machine
		slots, used int
		key         string
	}
	machines := map[string]*left{}
	for i := range c.s.Machines {
		m := &c.s.Machines[i]
		machines[m.ID] = &left{m, m.Slots, m.Used, m.SlotKey}
	}
	for _, a := range c.r.Assigns {
		m := machines[a.Machine]
		if m == nil || !m.Open {
			c.fail("tasks are put on %s, which takes none", a.Machine)
			continue
		}
		if a.Slots > 0 {
			if m.used > 0 {
				c.fail("%s is cut anew while it works", a.Machine)
			}
			m.slots, m.key = a.Slots, a.SlotKey
		}
		if m.used += a.Count; m.used > m.slots {
			c.fail("%s runs %d tasks on %d slots", a.Machine, m.used, m.slots)
		}
		if g := c.groups[a.Group]; g != nil && g.Needs.MaxPrice > 0 && m.Price > g.Needs.MaxPrice {
			c.fail("%s is reused at %s for %s, which pays %s at most", a.Machine, m.Price, a.Group, g.Needs.MaxPrice)
		}
		if g := c.groups[a.Group]; g != nil {
			c.rules(g, m.Market, &m.Shape, m.Price)
		}
		if g := c.groups[a.Group]; g != nil && (m.Payer != "" || g.Own) && m.Payer != g.Job {
			c.fail("%s of job %q serves job %s", a.Machine, m.Payer, g.Job)
		}
		c.place(a.Group, a.Count, m.Market, m.Project, m.key)
	}
	for _, rel := range c.r.Releases {
		if m := machines[rel.Machine]; m == nil || m.used > 0 {
			c.fail("%s is released while it works", rel.Machine)
		}
	}
}

func (c *checker) launches() {
	taken := map[providers.Market]int{}
	used := map[*providers.Quota]float64{}
	accounts := map[string]budget.Account{}
	for i := range c.r.Launches {
		l := &c.r.Launches[i]
		g := c.groups[l.Group]
		if g == nil {
			c.fail("a machine is launched for %s, which does not wait", l.Group)
			continue
		}
		if l.Takes == "" {
			c.place(l.Group, l.Tasks, l.Market, g.Project, l.SlotKey)
		}
		tasks := l.Tasks
		for _, m := range l.More {
			tasks += m.Tasks
			c.place(m.Group, m.Tasks, l.Market, g.Project, l.SlotKey)
			if g := c.groups[m.Group]; g != nil {
				c.rules(g, l.Market, &l.Shape, l.Price)
			}
		}
		c.rules(g, l.Market, &l.Shape, l.Bound)
		limit := g.Needs.MaxPrice
		switch {
		case tasks > l.Slots:
			c.fail("a launch for %s takes %d tasks on %d slots", l.Group, tasks, l.Slots)
		case l.Price <= 0 || l.Bound < l.Price:
			c.fail("a launch for %s at %s is bound to %s", l.Group, l.Price, l.Bound)
		case limit > 0 && l.Bound > limit:
			c.fail("a launch for %s is bound to %s, above its limit %s", l.Group, l.Bound, limit)
		case !l.Boot.After(c.s.Now) || !l.Lease.After(l.Boot):
			c.fail("a launch for %s boots until %s under a lease until %s", l.Group, l.Boot, l.Lease)
		}
		taken[l.Market]++
		for i := range c.s.Providers[l.Market.Provider].Quotas {
			q := &c.s.Providers[l.Market.Provider].Quotas[i]
			need := 0.0
			if scheduler.Counts(q, l.Market) {
				need = scheduler.Units(q, &l.Shape)
			}
			if used[q] += need; need > 0 && q.Limit >= 0 && q.Used+used[q] > q.Limit {
				c.fail("a launch in %s takes quota %s to %g of %g", l.Market, q.Name, q.Used+used[q], q.Limit)
			}
		}
		c.reserve(l, g, accounts)
	}
	for _, shape := range c.s.Catalog.Shapes {
		for _, list := range [][]scheduler.Offer{shape.Spot, shape.OnDemand} {
			for _, o := range list {
				if o.Capacity > 0 && taken[o.Market] > o.Capacity {
					c.fail("%d machines are launched in %s, which has %d", taken[o.Market], o.Market, o.Capacity)
				}
			}
		}
	}
}

// reserve books a launch as a commit would: no cap is passed by their sum.
func (c *checker) reserve(l *scheduler.Launch, g *scheduler.Group, accounts map[string]budget.Account) {
	caps := c.s.Providers[l.Market.Provider].Capabilities
	change, err := budget.Extend(c.s.Budgets, budget.Lease{
		Instance: "check", Payer: g.Payer, From: c.s.Now, Until: l.Lease.Add(caps.StopTime), Bound: l.Bound, Billing: caps.Billing,
	}, booked{c.s.Book, accounts})
	if err != nil {
		c.fail("the launch for %s is not paid for: %w", l.Group, err)
	}
	for _, a := range change.Accounts {
		accounts[a.Key.String()] = a
	}
}

type booked struct {
	budget.Book
	accounts map[string]budget.Account
}

func (b booked) Account(k budget.Key) *budget.Account {
	if a, ok := b.accounts[k.String()]; ok {
		return &a
	}
	return b.Book.Account(k)
}

func (b booked) Hold(string, budget.Key) *budget.Hold { return nil }

func (c *checker) decisions() {
	if len(c.r.Decisions) != len(c.s.Groups) {
		c.fail("%d decisions on %d groups", len(c.r.Decisions), len(c.s.Groups))
	}
	for i := range c.r.Decisions {
		d := &c.r.Decisions[i]
		sum := d.Usable
		for _, n := range d.Reasons {
			sum += n.Offers
			if n.Offers <= 0 || n.Sample.Code != n.Code {
				c.fail("%s: reason %s counts %d, with a sample of %s", d.Group, n.Code, n.Offers, n.Sample.Code)
			}
		}
		parts := true
		for _, o := range d.Best {
			p := o.Cost
			parts = parts && p.Boot+p.Staging+p.Work+p.Saves+p.Redo+p.Egress+p.Rounding+p.Idle == p.Total &&
				min(p.Boot, p.Staging, p.Work, p.Saves, p.Redo, p.Egress, p.Rounding, p.Idle, p.Waiting) >= 0
		}
		switch {
		case sum != d.Considered:
			c.fail("%s: %d usable and ruled out of %d considered", d.Group, sum, d.Considered)
		case d.Waiting > 0 && d.Why.IsZero():
			c.fail("%s: no reason", d.Group)
		case d.Placed != c.placed[d.Group] || d.Placed > d.Waiting:
			c.fail("%s: %d placed by its decision, %d by the actions, of %d", d.Group, d.Placed, c.placed[d.Group], d.Waiting)
		case d.Wait != (d.Placed < d.Waiting):
			c.fail("%s: wait is %v with %d of %d placed", d.Group, d.Wait, d.Placed, d.Waiting)
		case !parts:
			c.fail("%s: parts do not sum: %+v", d.Group, d.Best)
		case len(d.Best) > 5:
			c.fail("%s: %d options", d.Group, len(d.Best))
		}
	}
}

func (c *checker) limits() {
	for _, g := range c.groups {
		if g.Limit >= 0 && c.job[g.Job] > g.Limit {
			c.fail("%d tasks of %s are placed, %d were allowed", c.job[g.Job], g.Job, g.Limit)
		}
	}
	launching := 0
	for _, p := range c.s.Providers {
		launching += p.Launching
	}
	alone := len(c.r.Launches) > 0 && !slices.ContainsFunc(c.r.Launches, func(l scheduler.Launch) bool {
		return l.Gang == 0 && l.Takes == "" || l.Gang != c.r.Launches[0].Gang || l.Takes != c.r.Launches[0].Takes // a gang larger than the limit has its turn alone
	})
	if limit, n := c.s.Settings.Launches, len(c.r.Launches); limit > 0 && n > 0 && n+launching > limit && (launching > 0 || !alone) {
		c.fail("%d launches, %d are allowed", n+launching, limit)
	}
	c.meters()
}

// meters counts anew what is in use under each set of limits, and that a plan adds
// nothing where that passes one.
func (c *checker) meters() {
	type use struct {
		limits          scheduler.Limits
		tasks, machines int
		gpus            float64
		perHour         money.Rate
		moreTasks       bool
		moreMachines    bool
	}
	uses := map[string]*use{}
	of := func(whose string, l scheduler.Limits) *use {
		if uses[whose] == nil {
			uses[whose] = &use{limits: l}
		}
		return uses[whose]
	}
	project := func(name string) *use {
		l, ok := c.s.Settings.Projects[name]
		if !ok {
			l = c.s.Settings.Projects[""]
		}
		return of("project "+name, l)
	}
	queue := func(name string) *use { return of("queue "+name, c.s.Settings.Queues[name]) }
	account := func(name string) *use { return of("provider "+name, c.s.Providers[name].Limits) }
	serves := map[[2]string]bool{}
	machine := func(more bool, gpus float64, price money.Rate, whose ...*use) {
		for _, u := range whose {
			u.machines++
			u.gpus += gpus
			u.perHour += price
			u.moreMachines = u.moreMachines || more
		}
	}
	tasks := func(more bool, n int, whose ...*use) {
		for _, u := range whose {
			u.tasks += n
			u.moreTasks = u.moreTasks || more && n > 0
		}
	}
	machines := map[string]*scheduler.Machine{}
	for i := range c.s.Machines {
		m := &c.s.Machines[i]
		machines[m.ID] = m
		machine(false, m.Shape.GPUs, max(m.Price, m.Bound), of("all", c.s.Settings.All), project(m.Project), account(m.Market.Provider))
		tasks(false, m.Used, account(m.Market.Provider))
	}
	serve := func(more bool, name, id string, gpus float64, price money.Rate) {
		if key := [2]string{name, id}; !serves[key] {
			serves[key] = true
			machine(more, gpus, price, queue(name))
		}
	}
	for i := range c.s.Running {
		r := &c.s.Running[i]
		tasks(false, 1, project(r.Group.Project), queue(r.Group.Queue))
		for _, id := range append([]string{r.Machine}, r.Beside...) {
			if m := machines[id]; m != nil {
				serve(false, r.Group.Queue, m.ID, m.Shape.GPUs, max(m.Price, m.Bound))
			}
		}
	}
	gangs := map[int]bool{}
	once := func(gang, n int) int { // a gang is one task
		if gang > 0 && gangs[gang] {
			return 0
		}
		gangs[gang] = true
		return n
	}
	for _, a := range c.r.Assigns {
		if g, m := c.groups[a.Group], machines[a.Machine]; g != nil && m != nil {
			tasks(true, a.Count, account(m.Market.Provider))
			tasks(true, once(a.Gang, a.Count), project(g.Project), queue(g.Queue))
			serve(true, g.Queue, m.ID, m.Shape.GPUs, max(m.Price, m.Bound))
		}
	}
	for i := range c.r.Launches {
		l := &c.r.Launches[i]
		price := max(l.Price, l.Bound)
		for n, share := range append([]scheduler.Share{{Group: l.Group, Tasks: l.Tasks}}, l.More...) {
			g := c.groups[share.Group]
			if g == nil {
				continue
			}
			if n == 0 {
				machine(true, l.Shape.GPUs, price, of("all", c.s.Settings.All), project(g.Project), account(l.Market.Provider))
			}
			tasks(true, share.Tasks, account(l.Market.Provider))
			tasks(true, once(l.Gang, share.Tasks), project(g.Project), queue(g.Queue))
			serve(true, g.Queue, fmt.Sprint("launch ", i), l.Shape.GPUs, price)
		}
	}
	for whose, u := range uses {
		l := u.limits
		switch {
		case l.Tasks > 0 && u.moreTasks && u.tasks > l.Tasks:
			c.fail("%s runs %d tasks, %d are allowed", whose, u.tasks, l.Tasks)
		case !u.moreMachines:
		case l.Machines > 0 && u.machines > l.Machines:
			c.fail("%s has %d machines, %d are allowed", whose, u.machines, l.Machines)
		case l.GPUs > 0 && u.gpus > l.GPUs+1e-6:
			c.fail("%s has %g GPUs, %g are allowed", whose, u.gpus, l.GPUs)
		case l.PerHour > 0 && u.perHour > l.PerHour:
			c.fail("the machines of %s cost %s/h, %s are allowed", whose, u.perHour, l.PerHour)
		}
	}
}

// rules reports a placing that the owner's rules do not allow.
func (c *checker) rules(g *scheduler.Group, m providers.Market, s *providers.Shape, price money.Rate) {
	for i := range g.Rules {
		r := &g.Rules[i]
		switch {
		case r.MaxPrice > 0 && price > r.MaxPrice:
			c.fail("%s is placed at %s, and the rules of %s allow %s", g.ID, price, r.Of, r.MaxPrice)
		case len(r.Kinds) > 0 && !slices.Contains(r.Kinds, m.Kind),
			len(r.Providers) > 0 && !slices.Contains(r.Providers, m.Provider),
			len(r.Regions) > 0 && !slices.Contains(r.Regions, m.Region),
			len(r.GPU) > 0 && s.GPUs > 0 && !slices.Contains(r.GPU, s.GPU):
			c.fail("%s is placed on %s with %s, which the rules of %s do not allow", g.ID, m, s.GPU, r.Of)
		}
	}
}

func (c *checker) releases() {
	seen := map[string]bool{}
	for _, rel := range c.r.Releases {
		if seen[rel.Machine] || rel.Why.IsZero() {
			c.fail("%s is released twice or for no reason", rel.Machine)
		}
		seen[rel.Machine] = true
	}
}
