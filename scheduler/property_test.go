package scheduler_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"gpubroker/internal/budget"
	"gpubroker/internal/egress"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/rates"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler"
	"gpubroker/scheduler/policy"
	"gpubroker/scheduler/schedtest"
)

var models = []string{"l4", "t4", "a10g", "l40s", "a100-sxm-80gb", "h100-sxm-80gb", "mi300x", "z9000", ""}

// regions are places that are not known, and one that is.
var regions = []string{"a", "b", "eu-west-1"}

func pick[T any](t *rapid.T, name string, from ...T) T { return rapid.SampledFrom(from).Draw(t, name) }

func chance(t *rapid.T, name string, percent int) bool {
	return rapid.IntRange(1, 100).Draw(t, name) <= percent
}

func genShape(t *rapid.T) providers.Shape {
	s := providers.Shape{NetworkBps: pick[int64](t, "network", 0, 1e9, 1e11), GPUs: pick(t, "gpus", 0, 0.125, 1, 1, 1, 2, 8.0), VCPU: pick(t, "vcpus", 0, 2, 4, 8.0), Memory: pick[int64](t, "mem", 0, 16<<30, 64<<30)}
	if s.GPUs > 0 {
		s.GPU = pick(t, "gpu", models...)
		s.GPUName = s.GPU
	}
	return s
}

func genMarket(t *rapid.T) providers.Market {
	return providers.Market{
		Provider: pick(t, "provider", "sim", "sim", "hourly", "guest", "stranger"), Region: pick(t, "region", regions...), Zone: pick(t, "zone", "1", "2"),
		Type: pick(t, "type", "s", "m", "l"), Kind: pick(t, "kind", providers.Spot, providers.OnDemand),
	}
}

func genPrice(t *rapid.T) money.Rate {
	return money.Rate(rapid.Int64Range(1, 500).Draw(t, "cents") * int64(money.Unit) / 100)
}

func genOffer(t *rapid.T) providers.Offer {
	o := providers.Offer{Market: genMarket(t), Shape: genShape(t), Price: genPrice(t), Currency: money.USD, Seen: schedtest.Start.Add(-time.Hour)}
	if chance(t, "odd", 10) {
		o.Price = 0
	}
	if chance(t, "full", 10) {
		o.Available = providers.Full
	}
	if chance(t, "old", 10) {
		o.Seen = schedtest.Start.Add(-48 * time.Hour)
	}
	if chance(t, "few", 20) {
		o.Capacity = rapid.IntRange(1, 3).Draw(t, "capacity")
	}
	return o
}

// commit pays for machines of some of the offers.
func commit(t *rapid.T, w *schedtest.World) {
	for i := range w.Offers {
		m := w.Offers[i].Market
		if !chance(t, "paid", 10) {
			continue
		}
		c := scheduler.Commitment{Provider: m.Provider, Region: m.Region, Type: m.Type, Kind: m.Kind, Machines: rapid.IntRange(1, 3).Draw(t, "paid machines")}
		if chance(t, "ended", 10) {
			c.Until = schedtest.Start.Add(-time.Hour)
		}
		w.Commitments = append(w.Commitments, c)
	}
}

func genNeeds(t *rapid.T) scheduler.Needs {
	n := scheduler.Needs{
		GPUs: pick(t, "want", 0, 1, 1, 1, 2.0), Slots: pick(t, "slots", 0, 1, 2, 8), VCPU: pick(t, "vcpu", 0, 0, 1, 4.0), Memory: pick[int64](t, "memory", 0, 0, 8<<30),
	}
	if chance(t, "gang", 25) {
		n.Nodes, n.Slots = rapid.IntRange(2, 5).Draw(t, "nodes"), 0
	}
	if n.GPUs > 0 {
		n.Figure = pick(t, "figure", "", "fp32", "memory_bandwidth")
		if chance(t, "named", 40) {
			n.GPU = []string{pick(t, "named gpu", models[:7]...)}
		}
		if chance(t, "require", 30) {
			n.Require = gpu.Requirements{"memory": gpu.AtLeast(pick(t, "least", 16, 48.0))}
		}
	}
	if chance(t, "regional", 20) {
		n.Regions = []string{pick(t, "in", regions...)}
	}
	if chance(t, "live", 15) {
		n.Near = scheduler.Near{
			From: rapid.SampledFrom([][]string{{"london"}, {"oslo", "se"}, {"eu-west"}}).Draw(t, "users in"),
			RTT:  pick(t, "round trip", 10*time.Millisecond, 25*time.Millisecond, 150*time.Millisecond),
		}
	}
	if chance(t, "limited", 30) {
		n.MaxPrice = genPrice(t)
	}
	return n
}

// genRates is what was measured of a group's class: often nothing, now and then
// far from what the group's own word and the figures say.
func genRates(t *rapid.T) *rates.Class {
	if !chance(t, "measured", 50) {
		return nil
	}
	var shelf rates.Shelf
	for range rapid.IntRange(1, 6).Draw(t, "observations") {
		s := genShape(t)
		o := rates.Observation{
			Machine: rates.Machine{Type: pick(t, "measured type", "s", "m"), GPU: s.GPU, GPUs: s.GPUs, VCPU: s.VCPU},
			Busy:    pick(t, "busy", time.Millisecond, time.Second, 40*time.Second, 10*time.Minute, 5*time.Hour), Done: pick(t, "done", 1, 1, 0.3),
			At: schedtest.Start.Add(-pick(t, "measured ago", 0, time.Hour, 20*24*time.Hour)),
		}
		shelf, _ = shelf.Learn("c", o)
	}
	return shelf.Find("c")
}

func genGroup(t *rapid.T, i int) scheduler.Group {
	g := scheduler.Group{
		ID: fmt.Sprintf("g%d", i), Job: fmt.Sprintf("j%d", rapid.IntRange(0, i).Draw(t, "job")), Project: pick(t, "project", "p", "q"),
		Queue: pick(t, "queue", "", "night"), Priority: rapid.IntRange(0, 1).Draw(t, "priority"), Accepted: schedtest.Start.Add(-time.Hour),
		Waiting: rapid.IntRange(0, 30).Draw(t, "waiting"), Left: pick(t, "left", 1, 1, 0.5), Limit: pick(t, "limit", -1, -1, 0, 1, 5),
		Needs: genNeeds(t), Interruptible: chance(t, "interruptible", 70),
	}
	g.Work = scheduler.Work{Task: pick(t, "task", 0, 20*time.Second, 5*time.Minute, 3*time.Hour), Stage: pick(t, "stage", 0, time.Minute)}
	g.Work.Rates = genRates(t)
	for _, what := range []string{"inputs", "outputs", "checkpoint"} {
		if chance(t, what, 30) {
			g.Work.Flows = append(g.Work.Flows, scheduler.Flow{
				What: what, Way: map[string]scheduler.Way{"inputs": scheduler.Fetch, "outputs": scheduler.Send, "checkpoint": scheduler.Keep}[what],
				Bytes: pick[int64](t, what+" bytes", 0, 1e6, 1e9, 2e12), Unknown: chance(t, what+" unknown", 20),
				At: pick(t, what+" at", egress.Place{}, egress.Place{Cloud: "aws", Region: "us-east-1"}, egress.Place{Cloud: "gcp", Region: "a"}, egress.Place{Cloud: egress.OnPremises}),
			})
		}
	}
	if chance(t, "saves", 40) {
		g.Work.Saves = scheduler.Saves{On: true, Every: pick(t, "every", 0, 0, time.Minute, time.Hour), Time: pick(t, "save", 0, 0, 10*time.Second, time.Hour)}
	}
	g.Value = pick(t, "value", 0, 0, money.Rate(money.Unit), 1000*money.Rate(money.Unit))
	if chance(t, "due", 30) {
		g.Deadline = schedtest.Start.Add(pick(t, "deadline", -time.Minute, 30*time.Minute, 10*time.Hour))
	}
	g.MaxDuration = pick(t, "max", 0, time.Hour)
	g.MaxWait = pick(t, "max wait", 0, 0, 10*time.Minute)
	g.Since = schedtest.Start.Add(-pick(t, "since", time.Minute, time.Hour))
	g.Own = chance(t, "own", 10)
	if chance(t, "held", 5) {
		g.Held = reason.New("held", "by", "maria")
	}
	if chance(t, "shut", 5) {
		g.Opens = schedtest.Start.Add(time.Hour)
	}
	if chance(t, "failed", 5) {
		g.NotBefore = schedtest.Start.Add(time.Minute)
	}
	g.Payer = budget.Payer{Project: g.Project}
	if g.Own {
		g.Payer.Job = g.Job
	}
	return g
}

func genLimits(t *rapid.T) scheduler.Limits {
	l := scheduler.Limits{Tasks: pick(t, "most tasks", 0, 0, 1, 10), Machines: pick(t, "most machines", 0, 0, 1, 5), GPUs: pick(t, "most gpus", 0, 0, 1, 8.0)}
	if chance(t, "hourly", 30) {
		l.PerHour = genPrice(t)
	}
	return l
}

func genRules(t *rapid.T, of string) scheduler.Rules {
	r := scheduler.Rules{Of: of}
	if chance(t, "rule price", 30) {
		r.MaxPrice = genPrice(t)
	}
	if chance(t, "rule gpu", 40) {
		r.GPU = []string{pick(t, "ruled gpu", models[:7]...), "t4"}
	}
	if chance(t, "rule kind", 20) {
		r.Kinds = []providers.Kind{pick(t, "ruled kind", providers.Spot, providers.OnDemand)}
	}
	if chance(t, "rule place", 20) {
		r.Providers, r.Regions = []string{"sim"}, []string{pick(t, "ruled region", "a", "b")}
	}
	return r
}

func genWorld(t *rapid.T) *schedtest.World {
	w := schedtest.New()
	caps := w.Providers["sim"].Capabilities
	w.Providers["sim"] = scheduler.Provider{Capabilities: caps, Cloud: pick(t, "cloud", "", "aws", "gcp", "lambda")}
	caps.Billing, caps.StopTime = money.Billing{Unit: time.Hour}, time.Minute
	w.Providers["hourly"] = scheduler.Provider{Capabilities: caps}
	caps.SelfEnd = providers.EndGuest
	w.Providers["guest"] = scheduler.Provider{Capabilities: caps, Launching: rapid.IntRange(0, 2).Draw(t, "launching")}
	for range rapid.IntRange(0, 25).Draw(t, "offers") {
		w.Offers = append(w.Offers, genOffer(t))
	}
	commit(t, w)
	rules := []scheduler.Rules{}
	if chance(t, "ruled", 30) {
		rules = append(rules, genRules(t, "project p"))
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "groups") {
		g := genGroup(t, i)
		for _, o := range w.Groups { // groups of a job share what is the job's
			if o.Job == g.Job {
				g.Limit, g.Own, g.Project, g.Queue, g.Payer = o.Limit, o.Own, o.Project, o.Queue, o.Payer
			}
		}
		if g.Project == "p" {
			g.Rules = rules
		}
		w.Groups = append(w.Groups, g)
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "machines") {
		g := pick(t, "for", w.Groups...)
		m := scheduler.Machine{
			ID: fmt.Sprintf("m%d", i), Market: genMarket(t), Shape: genShape(t), Project: g.Project, Price: genPrice(t), Slots: rapid.IntRange(1, 4).Draw(t, "cut"),
			SlotKey: g.Needs.SlotKey(), Open: chance(t, "open", 90), Ready: chance(t, "ready", 80), Born: schedtest.Start.Add(-50 * time.Minute), Lease: schedtest.Start.Add(10 * time.Minute),
		}
		if g.Own {
			m.Payer = g.Job
		}
		m.Billing = w.Providers[m.Market.Provider].Capabilities.Billing
		if m.Used = rapid.IntRange(0, m.Slots).Draw(t, "used"); m.Used == 0 {
			m.Idle = schedtest.Start.Add(-rapid.SampledFrom([]time.Duration{time.Minute, 10 * time.Minute}).Draw(t, "idle"))
		}
		w.Machines = append(w.Machines, m)
		if m.Used > 0 && chance(t, "known", 70) {
			r := scheduler.Running{Attempt: "a" + m.ID, Machine: m.ID, Group: g, Since: m.Born, Useful: chance(t, "useful", 80)}
			r.Group.Waiting = 1
			w.Snapshot.Running = append(w.Snapshot.Running, r)
		}
	}
	if chance(t, "capped", 50) {
		w.Budgets = append(w.Budgets, budget.Budget{
			Name: "b", Scope: budget.Project, Match: "p", Capped: true, Cap: money.Amount(rapid.Int64Range(0, 2000).Draw(t, "cap")) * money.Unit / 100,
			Period: budget.Rule{Length: pick(t, "period", budget.Total, budget.Day)}, Guard: pick(t, "guard", budget.Normal, budget.Strict),
		})
	}
	if chance(t, "launch limit", 30) {
		w.Settings.Launches = rapid.IntRange(1, 5).Draw(t, "launches")
	}
	if chance(t, "machine limit", 30) {
		w.Settings.Projects["p"] = genLimits(t)
	}
	if chance(t, "queue limit", 30) {
		w.Settings.Queues["night"] = genLimits(t)
	}
	if chance(t, "account limit", 30) {
		p := w.Providers["sim"]
		p.Limits = genLimits(t)
		w.Providers["sim"] = p
	}
	if chance(t, "broker limit", 20) {
		w.Settings.All = genLimits(t)
	}
	for range rapid.IntRange(0, 2).Draw(t, "cooldowns") {
		scope := pick(t, "scope", providers.ScopeOffer, providers.ScopeFamily, providers.ScopeRegion, providers.ScopeProvider)
		w.Cooldowns[scheduler.CooldownKey(scope, genMarket(t))] = scheduler.Cooldown{Until: schedtest.Start.Add(3 * time.Minute), Reason: reason.New("no_capacity")}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "quotas") {
		name := pick(t, "quota at", "sim", "hourly")
		p := w.Providers[name]
		q := providers.Quota{
			Name: fmt.Sprint(i), Region: pick(t, "quota region", "", "a"), Kind: pick(t, "quota kind", "", providers.Spot),
			Unit:  pick(t, "unit", providers.UnitVCPU, providers.UnitGPU, providers.UnitMachine, "request"),
			Limit: pick(t, "limit", -1, 0, 2, 8, 64.0), Used: pick(t, "used", 0, 0, 2, 8.0),
		}
		if chance(t, "typed", 30) {
			q.Types = []string{"m", "l"}
		}
		p.Quotas = append(p.Quotas, q)
		w.Providers[name] = p
	}
	if chance(t, "past", 30) {
		w.History[genMarket(t).String()] = policy.History{Preemptions: 9, Held: time.Hour}
	}
	w.Spent["p"] = money.Amount(rapid.Int64Range(0, 2).Draw(t, "spent"))
	return w
}

// same compares plans, shown when they differ.
func same(t *rapid.T, what string, a, b *scheduler.Result) {
	t.Helper()
	if d := cmp.Diff(a, b, cmpopts.EquateComparable(time.Time{})); d != "" {
		t.Fatalf("%s: %s", what, d)
	}
}

// TestEveryPlanKeepsItsPromises: the shared checker over generated worlds, the
// same plan from shuffled rows and from a warm memo, and counts that sum in
// explanations too.
func TestEveryPlanKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := genWorld(t)
		s := w.Snap()
		var memo scheduler.Memo
		r := scheduler.Plan(s, &memo)
		if err := schedtest.Check(s, &r); err != nil {
			t.Fatalf("%v\n%s", err, schedtest.Render(s, &r))
		}
		warm := scheduler.Plan(s, &memo)
		same(t, "a warm memo", &r, &warm)

		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		shuffled := *w
		shuffled.Catalog = nil
		shuffled.Offers, shuffled.Groups = slices.Clone(w.Offers), slices.Clone(w.Groups)
		shuffled.Machines, shuffled.Snapshot.Running = slices.Clone(w.Machines), slices.Clone(w.Snapshot.Running)
		random.Shuffle(len(w.Offers), func(i, j int) {
			shuffled.Offers[i], shuffled.Offers[j] = shuffled.Offers[j], shuffled.Offers[i]
		})
		random.Shuffle(len(w.Groups), func(i, j int) {
			shuffled.Groups[i], shuffled.Groups[j] = shuffled.Groups[j], shuffled.Groups[i]
		})
		random.Shuffle(len(w.Machines), func(i, j int) {
			shuffled.Machines[i], shuffled.Machines[j] = shuffled.Machines[j], shuffled.Machines[i]
		})
		shuffled.Providers = maps.Clone(w.Providers)
		for name, p := range shuffled.Providers {
			p.Quotas = slices.Clone(p.Quotas)
			slices.Reverse(p.Quotas)
			shuffled.Providers[name] = p
		}
		other := scheduler.Plan(shuffled.Snap(), nil)
		same(t, "shuffled rows", &r, &other)

		e, _ := scheduler.Explain(s, &memo, w.Groups[0].ID)
		sum := e.Usable
		for _, c := range e.Reasons {
			sum += c.Offers
			if c.Code == "dearer" {
				t.Fatal("an explanation did not look at every offer")
			}
		}
		if sum != e.Considered || e.Considered != s.Catalog.Offers {
			t.Fatalf("explained %d of %d offers of %d", sum, e.Considered, s.Catalog.Offers)
		}
	})
}

// TestEarlyStopLosesNothing: what the walk that stops early finds best is what
// the whole walk finds best.
func TestEarlyStopLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := schedtest.New()
		for range rapid.IntRange(1, 150).Draw(t, "offers") {
			o := genOffer(t)
			o.Type = fmt.Sprint(len(w.Offers))
			o.Capacity = 0
			w.Offers = append(w.Offers, o)
		}
		commit(t, w)
		if chance(t, "at once", 50) { // a boot adds to every cost, and hides a bound that is too high
			p := w.Providers["sim"]
			p.Capabilities.BootTime = 0
			w.Providers["sim"] = p
		}
		g := genGroup(t, 0)
		g.Waiting, g.Limit, g.Held, g.Opens, g.NotBefore = max(1, g.Waiting), -1, reason.Reason{}, time.Time{}, time.Time{}
		if chance(t, "rushed", 30) { // a deadline makes slots take many tasks, and the worth of time fewer
			g.Waiting, g.Value = pick(t, "many", 20, 500), pick(t, "worth", money.Rate(money.Unit)/100, money.Rate(money.Unit), 1000*money.Rate(money.Unit))
			g.Work.Task, g.Deadline = pick(t, "each", time.Minute, 10*time.Minute), w.Now.Add(pick(t, "until", 10*time.Hour, 100*time.Hour))
		}
		w.Groups = []scheduler.Group{g}
		s := w.Snap()
		d := scheduler.Plan(s, nil).Decisions[0]
		e, _ := scheduler.Explain(s, nil, g.ID)
		if d.Launched > 0 {
			for i := range d.Best[1:] {
				if i+1 < len(e.Options) && d.Best[i+1].Market != e.Options[i+1].Market {
					t.Fatalf("option %d is %s, and %s when all are looked at", i+1, d.Best[i+1].Market, e.Options[i+1].Market)
				}
			}
			return
		}
		if diff := cmp.Diff(d.Best, e.Options); diff != "" {
			t.Fatalf("early stop: %s", diff)
		}
	})
}

// single is one job without limits of time, so that only money decides.
func single(t *rapid.T) *schedtest.World {
	w := schedtest.New()
	w.Providers["sim"] = scheduler.Provider{Capabilities: w.Providers["sim"].Capabilities, Cloud: pick(t, "cloud", "", "aws", "gcp", "lambda")}
	for range rapid.IntRange(1, 20).Draw(t, "offers") {
		o := genOffer(t)
		o.Type, o.Capacity, o.Provider = fmt.Sprint(len(w.Offers)), 0, "sim"
		w.Offers = append(w.Offers, o)
	}
	g := genGroup(t, 0)
	g.Waiting, g.Limit, g.Deadline, g.Held, g.Opens, g.NotBefore = max(1, g.Waiting), -1, time.Time{}, reason.Reason{}, time.Time{}, time.Time{}
	w.Groups = []scheduler.Group{g}
	return w
}

// cost is what is compared: what one task costs, and what its time is worth.
func cost(d *scheduler.Decision) money.Amount {
	if d.Launched == 0 {
		return money.MaxAmount
	}
	return d.Best[0].Cost.Total + d.Best[0].Cost.Waiting
}

func TestOneMoreOfferNeverCostsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := single(t)
		before := scheduler.Plan(w.Snap(), nil).Decisions[0]
		o := genOffer(t)
		o.Type, o.Provider, o.Capacity = "new", "sim", 0
		w.Offers, w.Catalog = append(w.Offers, o), nil
		after := scheduler.Plan(w.Snap(), nil).Decisions[0]
		if cost(&after) > cost(&before) {
			t.Fatalf("with %s at %s a task costs %s instead of %s", o.Market, o.Price, cost(&after), cost(&before))
		}
	})
}

func TestADearerOfferIsNotNewlyChosen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := single(t)
		before := scheduler.Plan(w.Snap(), nil)
		i := rapid.IntRange(0, len(w.Offers)-1).Draw(t, "which")
		if w.Offers[i].Price <= 0 {
			return // a price at all is good news
		}
		w.Offers[i].Price += genPrice(t)
		w.Catalog = nil
		after := scheduler.Plan(w.Snap(), nil)
		chose := func(r scheduler.Result) bool {
			return slices.ContainsFunc(r.Launches, func(l scheduler.Launch) bool { return l.Market == w.Offers[i].Market })
		}
		if chose(after) && !chose(before) {
			t.Fatalf("%s is chosen once it costs %s", w.Offers[i].Market, w.Offers[i].Price)
		}
	})
}

// TestWakeMissesNothing: until the next look, the same snapshot at another time
// asks for the same machines and reuse.
func TestWakeMissesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := genWorld(t)
		s := w.Snap()
		r := scheduler.Plan(s, nil)
		span := time.Hour
		if !r.Wake.IsZero() {
			span = min(span, r.Wake.Sub(s.Now)-1)
		}
		if span <= 0 || len(r.Launches)+len(r.Assigns)+len(r.Stops) > 0 {
			return // it acts now: the next pass sees other rows
		}
		later := *s
		later.Now = s.Now.Add(time.Duration(rapid.Int64Range(0, int64(span)).Draw(t, "later")))
		again := scheduler.Plan(&later, nil)
		if len(again.Launches)+len(again.Assigns)+len(again.Stops)+len(again.Releases) != len(r.Releases) {
			t.Fatalf("at %s, before the next look at %s:\n%sinstead of\n%s", later.Now, r.Wake, schedtest.Render(&later, &again), schedtest.Render(s, &r))
		}
	})
}

// TestACommittedPlanIsDone: once its plan is committed, the same world at the
// same moment asks for no further machine: what is under way is counted.
func TestACommittedPlanIsDone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := genWorld(t)
		r := scheduler.Plan(w.Snap(), nil)
		next := w.Commit(&r)
		again := scheduler.Plan(next.Snap(), nil)
		if err := schedtest.Check(next.Snap(), &again); err != nil {
			t.Fatalf("the plan after it: %v", err)
		}
		if len(again.Launches) > 0 {
			t.Fatalf("first\n%sand then\n%s", schedtest.Render(w.Snap(), &r), schedtest.Render(next.Snap(), &again))
		}
	})
}

// TestARelaxedConstraintNeverCostsMore: of a lone task in a market of which all is
// known, no constraint is lifted that the plan would be dearer without, and what an
// explanation says that it saves is what the plan without it saves.
func TestARelaxedConstraintNeverCostsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := single(t)
		g := &w.Groups[0]
		g.Waiting, g.Interruptible, g.SpotAllowed, g.MaxWait, g.Own = 1, true, true, 0, false
		g.Needs.Slots = 0
		if chance(t, "at a provider", 20) {
			g.Needs.Providers = []string{"elsewhere", "sim"}[:rapid.IntRange(1, 2).Draw(t, "providers")]
		}
		if chance(t, "kinds", 30) {
			g.Needs.Kinds = []providers.Kind{pick(t, "kind", providers.Spot, providers.OnDemand)}
		}
		before := scheduler.Plan(w.Snap(), nil).Decisions[0]
		e, _ := scheduler.Explain(w.Snap(), nil, g.ID)
		sum := e.Usable
		for _, c := range e.Reasons {
			sum += c.Offers
		}
		if sum != e.Considered {
			t.Fatalf("reasons sum to %d of %d offers", sum, e.Considered)
		}
		said := map[scheduler.Relax]scheduler.Counterfactual{}
		for _, c := range e.Otherwise {
			said[c.Relax] = c
			if c.Saves < 0 || c.Saves > 0 && c.Costs > 0 {
				t.Fatalf("%s saves %s and costs %s", c.Relax, c.Saves, c.Costs)
			}
		}
		for relax, lift := range map[scheduler.Relax]func(n *scheduler.Needs){
			scheduler.RelaxPrice:    func(n *scheduler.Needs) { n.MaxPrice = 0 },
			scheduler.RelaxRegion:   func(n *scheduler.Needs) { n.Regions, n.Zones = nil, nil },
			scheduler.RelaxProvider: func(n *scheduler.Needs) { n.Providers = nil },
			scheduler.RelaxKind:     func(n *scheduler.Needs) { n.Kinds = nil },
			scheduler.RelaxSize:     func(n *scheduler.Needs) { n.VCPU, n.Memory, n.Disk = 0, 0, 0 },
		} {
			other := *w
			other.Groups = slices.Clone(w.Groups)
			lift(&other.Groups[0].Needs)
			after := scheduler.Plan(other.Snap(), nil).Decisions[0]
			if cost(&after) > cost(&before) {
				t.Fatalf("without %s a task costs %s instead of %s:\n%+v\ninstead of\n%+v", relax, cost(&after), cost(&before), after.Best, before.Best)
			}
			c, ok := said[relax]
			if helps := cost(&after) < cost(&before); helps && !ok || ok && c.Option.Cost.Total+c.Option.Cost.Waiting != cost(&after) {
				t.Fatalf("without %s a task costs %s instead of %s, and the explanation says %+v", relax, cost(&after), cost(&before), c)
			}
		}
	})
}
