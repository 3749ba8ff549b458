//go:build unix

package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/rates"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler"
	"gpubroker/scheduler/policy"
	"gpubroker/scheduler/schedtest"
)

// big is a world of 2,000 shapes in 25 markets each: 50,000 offers.
func big(groups, queued, machines int) *schedtest.World {
	random := rand.New(rand.NewPCG(1, 2))
	w := schedtest.New()
	names := []string{"l4", "t4", "a10g", "l40s", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "mi300x", "a100-sxm-40gb", "rtx-4090"}
	base := map[string]float64{}
	for i, name := range names {
		base[name] = 0.3 + float64(i)*0.6
	}
	for i := range 2000 {
		name := names[i%len(names)]
		shape := providers.Shape{GPU: name, GPUName: name, GPUs: float64(int(1) << (i / 10 % 4)), VCPU: float64(int(4) << (i / 40 % 5)), Memory: int64(16+i) << 30, Arch: "amd64"}
		if i%20 == 19 {
			shape = providers.Shape{VCPU: shape.VCPU, Memory: shape.Memory, Arch: "amd64"}
		}
		for j := range 25 {
			price := base[name] * max(1, shape.GPUs) * (0.5 + random.Float64()) * (1 + shape.VCPU/200)
			kind := providers.Spot
			if j%5 == 0 {
				kind, price = providers.OnDemand, price*2.5
			}
			w.Offers = append(w.Offers, providers.Offer{
				Market: providers.Market{Provider: fmt.Sprintf("p%d", j%5), Region: fmt.Sprintf("r%d", j/5), Zone: fmt.Sprint(j), Type: fmt.Sprintf("t%d", i), Kind: kind},
				Shape:  shape, Price: money.Rate(price * float64(money.Unit)), Currency: money.USD, Seen: w.Now.Add(-time.Minute),
			})
		}
	}
	for p := range 5 {
		w.Providers[fmt.Sprintf("p%d", p)] = w.Providers["sim"]
	}
	w.Budgets = []budget.Budget{
		{Name: "all", Scope: budget.Org, Period: budget.Rule{Length: budget.Month}},
		{Name: "org", Scope: budget.Org, Capped: true, Cap: 1_000_000 * money.Unit, Period: budget.Rule{Length: budget.Month}},
	}
	for i := range groups {
		n := scheduler.Needs{GPUs: 1, Figure: "fp32", VCPU: 2, Memory: int64(8+i%16) << 30, Require: gpu.Requirements{"memory": gpu.AtLeast(float64(8 + i%4*8))}}
		if i%3 == 0 {
			n.GPU = []string{names[i%8], names[(i+1)%8]}
		}
		if i%7 == 0 {
			n.Regions = []string{"r1", "r3"}
		}
		g := scheduler.Group{
			ID: fmt.Sprintf("g%05d", i), Job: fmt.Sprintf("j%05d", i), Project: fmt.Sprintf("project%d", i%20), Accepted: w.Now.Add(-time.Duration(i) * time.Second),
			Waiting: queued / groups, Left: 1, Limit: 8, Needs: n, Interruptible: i%5 > 0, AtRisk: 5 * time.Minute, MaxDuration: 2 * time.Hour,
			Work: scheduler.Work{Task: time.Duration(5+i%90) * time.Minute, Figure: 30, Source: "given"},
		}
		if i%4 == 0 {
			g.Deadline = w.Now.Add(24 * time.Hour)
		}
		g.Payer = budget.Payer{Project: g.Project}
		w.Groups = append(w.Groups, g)
	}
	for i := range machines {
		o := &w.Offers[random.IntN(len(w.Offers))]
		g := &w.Groups[i%groups]
		m := scheduler.Machine{
			ID: fmt.Sprintf("m%05d", i), Market: o.Market, Shape: o.Shape, Project: g.Project, Slots: 2, Used: 1 + i%2, SlotKey: g.Needs.SlotKey(),
			Open: true, Ready: true, Price: o.Price, Born: w.Now.Add(-time.Hour), Lease: w.Now.Add(10 * time.Minute), Billing: money.Billing{Unit: time.Second},
		}
		w.Machines = append(w.Machines, m)
		for range m.Used {
			r := scheduler.Running{Attempt: fmt.Sprintf("a%06d", len(w.Snapshot.Running)), Machine: m.ID, Group: *g, Since: m.Born, Useful: true}
			r.Group.Waiting = 1
			w.Snapshot.Running = append(w.Snapshot.Running, r)
		}
	}
	return w
}

// cpu is the processor time that this process has used, which other work on the
// machine does not change.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// report adds wall time and processor time, the collector's included, in
// milliseconds, and what the plan did.
func report(b *testing.B, start time.Duration, r *scheduler.Result) {
	b.ReportMetric(float64((cpu(b)-start).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	placed := 0
	for i := range r.Decisions {
		placed += r.Decisions[i].Placed
	}
	b.ReportMetric(float64(placed), "placed")
	b.ReportMetric(float64(len(r.Launches)), "launches")
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/op")
}

// BenchmarkPass is a pass over 1,000,000 queued tasks in 1,000 groups and 50,000
// offers with 10,000 live machines.
func BenchmarkPass(b *testing.B) {
	w := big(1000, 1_000_000, 10_000)
	s := w.Snap()
	var r scheduler.Result
	for name, memo := range map[string]*scheduler.Memo{"cold": nil, "warm": {}} {
		b.Run(name, func(b *testing.B) {
			start := cpu(b)
			for b.Loop() {
				r = scheduler.Plan(s, memo)
			}
			report(b, start, &r)
		})
	}
	b.Run("measured", func(b *testing.B) { // each group's class on two GPUs of its own, one far from its figure
		some := *s
		some.Groups = slices.Clone(s.Groups)
		for i := range some.Groups {
			var shelf rates.Shelf
			for k, busy := range []time.Duration{time.Hour, 5 * time.Minute} {
				o := &w.Offers[(i*75+k*25)%len(w.Offers)]
				shelf, _ = shelf.Learn("c", rates.Observation{Machine: rates.Machine{GPU: o.Shape.GPU, GPUs: o.Shape.GPUs, VCPU: o.Shape.VCPU}, Busy: busy, Done: 1, At: w.Now})
			}
			some.Groups[i].Work.Rates = shelf.Find("c")
		}
		var memo scheduler.Memo
		start := cpu(b)
		for b.Loop() {
			r = scheduler.Plan(&some, &memo)
		}
		report(b, start, &r)
	})
	for name, p := range w.Providers { // 100 quotas each, as at a cloud that has one per region and family
		for i := range 100 {
			p.Quotas = append(p.Quotas, providers.Quota{
				Name: fmt.Sprint(i), Region: fmt.Sprintf("r%d", i%5), Types: []string{fmt.Sprintf("t%d", i), fmt.Sprintf("t%d", i+100)},
				Unit: providers.UnitVCPU, Limit: 256, Used: float64(i),
			})
		}
		w.Providers[name] = p
	}
	var memo scheduler.Memo
	b.Run("quotas", func(b *testing.B) {
		start := cpu(b)
		for b.Loop() {
			r = scheduler.Plan(s, &memo)
		}
		report(b, start, &r)
	})
}

// BenchmarkDeadlines is the same pass where each of the 10,000 machines runs a task with a
// deadline on spot, each with another share of its work left: after new prices all are looked
// at for a move, else those of which something has changed.
func BenchmarkDeadlines(b *testing.B) {
	w := big(1000, 1_000_000, 10_000)
	s := w.Snap()
	s.Machines, s.Running = slices.Clone(s.Machines), nil
	for i := range s.Machines {
		m := &s.Machines[i]
		m.Slots, m.Used, m.Open, m.Ready, m.Idle = 1, 1, true, true, time.Time{}
		m.Market.Kind = providers.Spot
		g := s.Groups[i%len(s.Groups)]
		g.ID, g.Waiting, g.Left = fmt.Sprint("running/", i), 1, float64(i+1)/float64(len(s.Machines))
		g.Interruptible, g.AtRisk, g.Work.Task = true, 10*time.Minute, 4*time.Hour
		g.Work.Saves = scheduler.Saves{On: true, Every: 10 * time.Minute, Time: time.Second}
		g.Accepted, g.Deadline = s.Now.Add(-time.Hour), s.Now.Add(100*time.Hour)
		s.Running = append(s.Running, scheduler.Running{Attempt: fmt.Sprint("a", i), Machine: m.ID, Group: g, Since: s.Now.Add(-time.Hour), Useful: true})
	}
	for _, name := range []string{"cold", "warm", "learned"} {
		b.Run(name, func(b *testing.B) {
			var memo *scheduler.Memo
			switch name {
			case "warm":
				memo = &scheduler.Memo{}
			case "learned": // by tables, and nothing kept from the pass before
				s.Unseen = policy.ShippedModel().Memory(s.Now).Outlook(s.Now)
				s.Library = &policy.Library{}
				r := scheduler.Plan(s, nil)
				for i := range r.Wanted {
					s.Library = s.Library.With(policy.Build(r.Wanted[i]), len(r.Wanted))
				}
				b.Logf("%d tables", len(r.Wanted))
			}
			var r scheduler.Result
			start := cpu(b)
			for b.Loop() {
				r = scheduler.Plan(s, memo)
			}
			report(b, start, &r)
		})
	}
}

// bind gives a group every constraint that an explanation lifts, and rules of its
// owner.
func bind(g *scheduler.Group, now time.Time) {
	n := &g.Needs
	n.MaxPrice, n.Providers, n.Kinds = money.Rate(3*money.Unit), []string{"p1", "p2"}, []providers.Kind{providers.OnDemand}
	n.Regions, n.GPU = []string{"r1", "r3"}, []string{"l4", "t4"}
	g.Deadline, g.Closes = now.Add(4*time.Hour), now.Add(5*time.Hour)
	g.Rules = []scheduler.Rules{
		{Of: "project project0", MaxPrice: money.Rate(2 * money.Unit), GPU: []string{"l4", "t4"}, Regions: []string{"r1", "r2", "r3"}},
		{Of: "queue tests", Providers: []string{"p1", "p2", "p3"}},
	}
	for _, precision := range []string{"bf16", "fp16", "fp8", "int8", "int4"} {
		v := *n
		v.Figure = precision
		g.Variants = append(g.Variants, scheduler.Variant{Relax: scheduler.RelaxPrecision, Why: reason.New("if_precision", "precision", precision), Needs: v, Work: g.Work})
	}
}

// BenchmarkExplain is one group's full explanation: alone on the market, and as
// one of 1,000 in a full pass.
func BenchmarkExplain(b *testing.B) {
	for _, groups := range []int{1, 1000} {
		b.Run(fmt.Sprintf("groups=%d", groups), func(b *testing.B) {
			w := big(groups, groups*1000, groups*10)
			bind(&w.Groups[0], w.Now)
			s := w.Snap()
			start := cpu(b)
			for b.Loop() {
				if e, ok := scheduler.Explain(s, nil, "g00000"); !ok || e.Considered != 50_000 {
					b.Fatalf("%d offers are explained", e.Considered)
				}
			}
			report(b, start, &scheduler.Result{})
		})
	}
}

// BenchmarkSmallTasks places 32,000 tasks of as many groups on 1,000 machines of
// 32 slots: machines that are in hand, and machines that are rented and admitted.
func BenchmarkSmallTasks(b *testing.B) {
	for _, inHand := range []bool{true, false} {
		b.Run(map[bool]string{true: "in-hand", false: "rented"}[inHand], func(b *testing.B) {
			w := big(32_000, 32_000, 0)
			need := scheduler.Needs{VCPU: 1, Memory: 1 << 30}
			for i := range w.Groups {
				g := &w.Groups[i]
				g.Needs, g.Project, g.Limit, g.Interruptible, g.Deadline, g.Payer = need, "small", -1, true, time.Time{}, budget.Payer{Project: "small"}
				g.Work = scheduler.Work{Task: time.Hour, Source: "given"}
			}
			shape := providers.Shape{VCPU: 32, Memory: 64 << 30}
			market := providers.Market{Provider: "sim", Region: "a", Zone: "1", Type: "c32", Kind: providers.OnDemand}
			w.Offers = append(w.Offers, providers.Offer{Market: market, Shape: shape, Price: money.Rate(money.Unit / 100), Currency: money.USD, Seen: w.Now})
			if inHand {
				for i := range 1000 {
					w.Machines = append(w.Machines, scheduler.Machine{
						ID: fmt.Sprintf("m%05d", i), Market: market, Shape: shape, Project: "small", Slots: 32, SlotKey: need.SlotKey(),
						Open: true, Ready: true, Idle: w.Now, Price: money.Rate(money.Unit / 100), Born: w.Now, Lease: w.Now.Add(10 * time.Minute),
					})
				}
			}
			s := w.Snap()
			var memo scheduler.Memo
			var r scheduler.Result
			start := cpu(b)
			for b.Loop() {
				r = scheduler.Plan(s, &memo)
			}
			report(b, start, &r)
			b.ReportMetric(32_000*float64(b.N)/b.Elapsed().Seconds(), "placements/s")
			if len(r.Launches) > 1000 && !inHand {
				b.Fatalf("%d machines are rented", len(r.Launches))
			}
		})
	}
}

// BenchmarkCatalog groups 50,000 offers, as each refresh does.
func BenchmarkCatalog(b *testing.B) {
	w := big(1, 1, 0)
	for b.Loop() {
		runtime.KeepAlive(scheduler.NewCatalog(1, w.Offers))
	}
}
