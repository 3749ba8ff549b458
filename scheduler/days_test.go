package scheduler_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/scheduler"
	"gpubroker/scheduler/schedtest"
)

// days is a small world in virtual time, in which passes are committed, tasks run
// to their end, and machines come and go.
type days struct {
	t     fataler
	w     *schedtest.World
	jobs  []*dayJob
	tasks []dayTask
	ready map[string]time.Time // of machines that boot
	gone  map[string]time.Time // of machines that were let go
	born  map[string]time.Time
	spent map[string][]stretch // by project: what machines cost
	sells map[providers.Market]int
	n     int
	each  func(r *scheduler.Result) // looks at every pass
}

type fataler interface{ Fatalf(string, ...any) }

type dayJob struct {
	group   scheduler.Group
	endless bool // as many wait again as start
	length  time.Duration
	started time.Time // of its first task
}

type dayTask struct {
	job     *dayJob
	machine string
	from    time.Time
	end     time.Time
}

type stretch struct {
	from, to time.Time
	price    money.Rate
}

func newDays(t fataler) *days {
	d := &days{t: t, w: schedtest.New(), ready: map[string]time.Time{}, gone: map[string]time.Time{}, born: map[string]time.Time{}, spent: map[string][]stretch{}, sells: map[providers.Market]int{}}
	d.w.Settings.Stale = scheduler.Stale{}
	return d
}

// offer sells machines: as many as sells, when it is not 0.
func (d *days) offer(market, shape string, price string, sells int) {
	if _, err := d.w.Command("offers", fmt.Sprintf("%s %s %s", market, price, shape)); err != nil {
		d.t.Fatalf("%v", err)
	}
	d.sells[schedtest.Market(market)] = sells
}

// submit hands in a job of so many tasks, each of that length, from now on.
func (d *days) submit(id, project string, tasks int, length time.Duration, needs scheduler.Needs) *dayJob {
	j := &dayJob{length: length, group: scheduler.Group{
		ID: id, Job: id, Project: project, Accepted: d.w.Now, Since: d.w.Now, Waiting: tasks, Left: 1, Limit: -1, Needs: needs,
		Work: scheduler.Work{Task: length, Source: "given"}, Interruptible: true, Payer: budget.Payer{Project: project},
	}}
	d.jobs = append(d.jobs, j)
	return j
}

const (
	dayBoot = 2 * time.Minute
	dayEnd  = 30 * time.Second // from a release until the machine is gone
)

// until runs passes until a moment.
func (d *days) until(end time.Time) {
	for passes := 0; d.w.Now.Before(end); passes++ {
		if passes > 200_000 {
			d.t.Fatalf("no end of passes at %s", d.w.Now)
		}
		wake := d.pass()
		next := end
		earlier := func(t time.Time) {
			if t.After(d.w.Now) && t.Before(next) {
				next = t
			}
		}
		earlier(wake)
		for _, x := range d.tasks {
			earlier(x.end)
		}
		for _, at := range d.ready {
			earlier(at)
		}
		for _, at := range d.gone {
			earlier(at)
		}
		d.w.Now = next
		d.advance()
	}
}

// advance ends what has ended by now.
func (d *days) advance() {
	now := d.w.Now
	d.tasks = slices.DeleteFunc(d.tasks, func(x dayTask) bool {
		if x.end.After(now) {
			return false
		}
		m := d.machine(x.machine)
		if m.Used--; m.Used == 0 {
			m.Idle = now
		}
		return true
	})
	d.w.Machines = slices.DeleteFunc(d.w.Machines, func(m scheduler.Machine) bool {
		at, going := d.gone[m.ID]
		if !going || at.After(now) {
			return false
		}
		delete(d.gone, m.ID)
		d.spent[m.Project] = append(d.spent[m.Project], stretch{d.born[m.ID], now, m.Price})
		return true
	})
	for id, at := range d.ready {
		if !at.After(now) {
			d.machine(id).Ready = true
			delete(d.ready, id)
		}
	}
}

func (d *days) machine(id string) *scheduler.Machine {
	return &d.w.Machines[slices.IndexFunc(d.w.Machines, func(m scheduler.Machine) bool { return m.ID == id })]
}

// money is what a project has cost in the last day.
func (d *days) money(project string) money.Amount {
	start, sum := d.w.Now.Add(-24*time.Hour), 0.0
	for _, s := range d.spent[project] {
		if from := later(s.from, start); s.to.After(from) {
			sum += s.price.Float() * s.to.Sub(from).Hours()
		}
	}
	for i := range d.w.Machines {
		if m := &d.w.Machines[i]; m.Project == project {
			sum += m.Price.Float() * d.w.Now.Sub(later(d.born[m.ID], start)).Hours()
		}
	}
	return money.Amount(sum * float64(money.Unit))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (d *days) pass() time.Time {
	w := d.w
	live := map[providers.Market]int{}
	for i := range w.Machines {
		live[w.Machines[i].Market]++
	}
	for i := range w.Offers {
		o := &w.Offers[i]
		o.Seen, o.Available, o.Capacity = w.Now, "", 0
		if n := d.sells[o.Market]; n > 0 {
			if o.Capacity = n - live[o.Market]; o.Capacity <= 0 {
				o.Available, o.Capacity = providers.Full, 0
			}
		}
	}
	for name, p := range w.Providers {
		for k := range p.Quotas {
			q := &p.Quotas[k]
			q.Used = 0
			for i := range w.Machines {
				if m := &w.Machines[i]; m.Market.Provider == name && scheduler.Counts(q, m.Market) {
					q.Used += scheduler.Units(q, &m.Shape)
				}
			}
		}
	}
	w.Groups, w.Snapshot.Running, w.Catalog = nil, nil, nil
	jobs := map[string]*dayJob{}
	for _, j := range d.jobs {
		jobs[j.group.ID] = j
		w.Groups = append(w.Groups, j.group)
		w.Spent[j.group.Project] = d.money(j.group.Project)
	}
	for i, x := range d.tasks {
		g := x.job.group
		g.Waiting = 1
		w.Snapshot.Running = append(w.Snapshot.Running, scheduler.Running{Attempt: fmt.Sprint("a", i), Machine: x.machine, Group: g, Since: x.from, Useful: true})
	}
	s := w.Snap()
	r := scheduler.Plan(s, nil)
	if err := schedtest.Check(s, &r); err != nil {
		d.t.Fatalf("%v", err)
	}
	if d.each != nil {
		d.each(&r)
	}
	start := func(group string, m *scheduler.Machine, n int) {
		j := jobs[group]
		if j.started.IsZero() {
			j.started = w.Now
		}
		begin := w.Now
		if !m.Ready {
			begin = d.ready[m.ID]
		}
		for range n {
			d.tasks = append(d.tasks, dayTask{j, m.ID, w.Now, begin.Add(j.length)})
		}
		if !j.endless {
			j.group.Waiting -= n
		}
		m.Used += n
		m.Idle = time.Time{}
	}
	for _, a := range r.Assigns {
		m := d.machine(a.Machine)
		if a.Slots > 0 {
			m.Slots, m.SlotKey = a.Slots, a.SlotKey
		}
		start(a.Group, m, a.Count)
	}
	for _, rel := range r.Releases {
		d.machine(rel.Machine).Open = false
		d.gone[rel.Machine] = w.Now.Add(dayEnd)
	}
	for i := range r.Launches {
		l := &r.Launches[i]
		d.n++
		m := scheduler.Machine{
			ID: fmt.Sprintf("m%05d", d.n), Market: l.Market, Shape: l.Shape, Project: jobs[l.Group].group.Project, Slots: l.Slots, SlotKey: l.SlotKey,
			Open: true, Price: l.Price, Bound: l.Bound, Born: w.Now, Lease: l.Lease, Billing: w.Providers[l.Market.Provider].Capabilities.Billing,
		}
		d.ready[m.ID], d.born[m.ID] = w.Now.Add(dayBoot), w.Now
		w.Machines = append(w.Machines, m)
		start(l.Group, &w.Machines[len(w.Machines)-1], l.Tasks)
		for _, more := range l.More {
			start(more.Group, &w.Machines[len(w.Machines)-1], more.Tasks)
		}
	}
	return r.Wake
}

// TestProjectsOfEqualDemandGetEqualMoney: over any day, whatever their tasks cost,
// and also when one of them comes some hours later.
func TestProjectsOfEqualDemandGetEqualMoney(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDays(t)
		prices := [...]float64{rapid.Float64Range(0.5, 2).Draw(t, "price of one"), rapid.Float64Range(0.5, 2).Draw(t, "price of the other")}
		d.offer("sim/a/1/l4/on-demand", "1xl4", fmt.Sprintf("%.2f", prices[0]), 0)
		d.offer("sim/a/1/t4/on-demand", "1xt4", fmt.Sprintf("%.2f", prices[1]), 0)
		limit := rapid.IntRange(4, 10).Draw(t, "machines")
		switch rapid.IntRange(0, 2).Draw(t, "limit of") {
		case 0:
			d.w.Settings.All.Machines = limit
		case 1:
			d.w.Settings.All.GPUs = float64(limit)
		default:
			p := d.w.Providers["sim"]
			p.Limits.Machines = limit
			d.w.Providers["sim"] = p
		}
		length := func(what string) time.Duration {
			return time.Duration(rapid.IntRange(5, 40).Draw(t, what)) * time.Minute
		}
		lengths := [...]time.Duration{length("a task of one"), length("a task of the other")}
		d.submit("one", "a", 100, lengths[0], scheduler.Needs{GPUs: 1, GPU: []string{"l4"}}).endless = true
		d.until(schedtest.Start.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "hours alone")) * time.Hour))
		d.submit("other", "b", 100, lengths[1], scheduler.Needs{GPUs: 1, GPU: []string{"t4"}}).endless = true
		share := rapid.IntRange(1, 2).Draw(t, "share of b")
		d.w.Settings.Shares["b"] = share
		d.until(schedtest.Start.Add(30 * time.Hour))
		a, b := d.money("a").Float(), d.money("b").Float()/float64(share)
		// Nobody is stopped: what runs when the balance tips goes on to its end.
		slack := 0.1*max(a, b) + float64(limit)*max(prices[0], prices[1])*(max(lengths[0], lengths[1])+10*time.Minute).Hours()
		if a > b+slack || b > a+slack {
			t.Fatalf("a was given %.2f and b, for each share, %.2f; they may be %.2f apart", a, b, slack)
		}
	})
}

// TestNoHeadStarves: a job that needs a large machine, or another kind of one,
// starts in bounded time beside an endless stream of small jobs, whatever it is
// that both want and there is not enough of.
func TestNoHeadStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDays(t)
		d.offer("sim/a/1/small/on-demand", "1xl4", "0.30", 0)
		d.offer("sim/a/1/large/on-demand", "8xl4", "2.40", 0)
		d.offer("sim/a/1/other/on-demand", "1xt4", "0.20", 0)
		sameProject := rapid.Bool().Draw(t, "of the same project")
		project := "big"
		if sameProject {
			project = "small"
		}
		needs := pick(t, "the head needs", scheduler.Needs{GPUs: 8, GPU: []string{"l4"}}, scheduler.Needs{GPUs: 1, GPU: []string{"t4"}})
		need := needs.GPUs
		l := scheduler.Limits{}
		what := pick(t, "scarce", "machines", "gpus", "money", "quota", "market")
		switch what {
		case "machines":
			l.Machines = rapid.IntRange(1, 6).Draw(t, "machines")
		case "gpus":
			l.GPUs = need + float64(rapid.IntRange(0, 4).Draw(t, "more gpus"))
		case "money":
			l.PerHour = money.Rate(money.Unit) * 5 / 2
		}
		limited := 1
		if l != (scheduler.Limits{}) {
			limited = rapid.IntRange(1, 2).Draw(t, "limits")
		}
		for range limited {
			switch pick(t, "limit of", "project", "account", "broker") {
			case "project":
				d.w.Settings.Projects[project] = l
			case "account":
				p := d.w.Providers["sim"]
				p.Limits = l
				d.w.Providers["sim"] = p
			case "broker":
				d.w.Settings.All = l
			}
		}
		switch what {
		case "quota":
			p := d.w.Providers["sim"]
			p.Quotas = []providers.Quota{{Name: "gpus", Unit: providers.UnitGPU, Limit: need + 2}}
			d.w.Providers["sim"] = p
		case "market": // only the large machines are sold, and two of them
			d.w.Offers = slices.DeleteFunc(d.w.Offers, func(o providers.Offer) bool { return o.Type == "small" })
			d.sells[schedtest.Market("sim/a/1/large/on-demand")] = 2
			d.sells[schedtest.Market("sim/a/1/other/on-demand")] = 2
		}
		length := time.Duration(rapid.IntRange(3, 30).Draw(t, "minutes of a small task")) * time.Minute
		small := scheduler.Needs{GPUs: 1, GPU: []string{"l4"}}
		if what == "market" && need == 1 {
			small = scheduler.Needs{GPUs: 1, GPU: []string{"l4", "t4"}}
		}
		streams := rapid.IntRange(1, 2).Draw(t, "streams")
		for i := range streams {
			d.submit(fmt.Sprint("stream", i), "small", 20, length, small).endless = true
		}
		d.until(schedtest.Start.Add(2 * time.Hour))
		head := d.submit("ahead", project, 1, 20*time.Minute, needs)
		// It stands before the stream in its own project.
		if sameProject {
			head.group.Accepted = schedtest.Start.Add(-time.Hour)
		}
		at := d.w.Now
		bound := 30*time.Minute + 2*length + 40*time.Minute
		d.until(at.Add(bound))
		if head.started.IsZero() {
			s := d.w.Snap()
			r := scheduler.Plan(s, nil)
			t.Fatalf("the head has waited %s:\n%s", bound, schedtest.Render(s, &r))
		}
	})
}

// TestAHeadHoldsUpNobodyElse: a head that waits for what its own project has used
// up, for ever, does not keep others from what they want, nor from the last of what
// it would need once its project lets it.
func TestAHeadHoldsUpNobodyElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDays(t)
		d.offer("sim/a/1/small/on-demand", "1xl4", "0.30", 0)
		d.offer("sim/a/1/large/on-demand", "8xl4", "2.40", 0)
		d.w.Settings.Projects["big"] = pick(t, "the project's limit", scheduler.Limits{Machines: 1}, scheduler.Limits{GPUs: 8}, scheduler.Limits{PerHour: money.Rate(money.Unit) * 5 / 2})
		switch pick(t, "what is left", "machine", "gpus", "quota") {
		case "machine":
			d.w.Settings.All.Machines = 2
		case "gpus":
			p := d.w.Providers["sim"]
			p.Limits.GPUs = 9
			d.w.Providers["sim"] = p
		case "quota":
			p := d.w.Providers["sim"]
			p.Quotas = []providers.Quota{{Name: "gpus", Unit: providers.UnitGPU, Limit: 9}}
			d.w.Providers["sim"] = p
		}
		d.submit("runs", "big", 1, 100*time.Hour, scheduler.Needs{GPUs: 8, GPU: []string{"l4"}})
		d.until(schedtest.Start.Add(time.Hour))
		d.submit("head", "big", 1, time.Hour, scheduler.Needs{GPUs: 8, GPU: []string{"l4"}}).group.Priority = 9
		d.until(schedtest.Start.Add(3 * time.Hour))
		other := d.submit("other", "small", 1, time.Hour, scheduler.Needs{GPUs: 1, GPU: []string{"l4"}})
		d.until(d.w.Now.Add(time.Minute))
		if other.started.IsZero() {
			s := d.w.Snap()
			r := scheduler.Plan(s, nil)
			t.Fatalf("held up:\n%s", schedtest.Render(s, &r))
		}
	})
}
