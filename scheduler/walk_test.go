package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/rates"
	"gpubroker/providers"
)

// TestTheWalkNeverOverrates: with rates that were measured on some machines and far
// from what the figures say, the walk shows every fit once, the least cost first,
// and no offer of a fit costs less than the walk says. Otherwise the walk would stop
// before the best.
func TestTheWalkNeverOverrates(t *testing.T) {
	now := time.Date(2026, 11, 5, 22, 0, 0, 0, time.UTC)
	random := rand.New(rand.NewPCG(1, 2))
	models := []string{"l4", "t4", "a10g", "l40s", "a100-sxm-80gb", "h100-sxm-80gb", "mi300x"}
	var tight, shown int
	for round := range 200 {
		var offers []providers.Offer
		shapeOf := func() providers.Shape {
			id := models[random.IntN(len(models))]
			return providers.Shape{GPU: id, GPUName: id, GPUs: float64(int(1) << random.IntN(3)), VCPU: float64(int(4) << random.IntN(3))}
		}
		for i := range 60 {
			offers = append(offers, providers.Offer{
				Market: providers.Market{Provider: "sim", Region: "a", Zone: "1", Type: fmt.Sprint(i), Kind: providers.OnDemand},
				Shape:  shapeOf(), Price: money.Rate(1+random.Int64N(500)) * money.Rate(money.Unit) / 100, Seen: now,
			})
		}
		caps := providers.Capabilities{Billing: money.Billing{Unit: time.Second}}
		settings := Settings{}
		if round%3 == 0 { // a boot and an idle time, and units that are paid whole
			caps.BootTime, settings.Idle = time.Duration(random.IntN(600))*time.Second, time.Duration(random.IntN(600))*time.Second
			caps.Billing.Unit = []time.Duration{time.Second, time.Minute, time.Hour}[random.IntN(3)]
		}
		s := &Snapshot{
			Settings: settings,
			Now:      now, Facts: gpu.Builtin(), Catalog: NewCatalog(1, offers),
			Providers: map[string]Provider{"sim": {Capabilities: caps}},
		}
		g := &Group{
			ID: "g", Job: "g", Waiting: 1 + random.IntN(4), Left: []float64{1, 0.3}[random.IntN(2)], Limit: -1,
			Needs: Needs{GPUs: float64(1 + round%2), Figure: []string{"fp32", ""}[round/2%2]},
			Work:  Work{Task: time.Duration(random.Int64N(int64(3 * time.Hour)))},
		}
		if round%6 == 0 {
			g.Waiting, g.Deadline = 1+random.IntN(400), now.Add(time.Duration(random.Int64N(int64(48*time.Hour))))
		}
		var shelf rates.Shelf
		for range random.IntN(6) {
			m := shapeOf()
			shelf, _ = shelf.Learn("c", rates.Observation{
				Machine: rates.Machine{GPU: m.GPU, GPUs: m.GPUs, VCPU: m.VCPU}, Done: 1, At: now,
				Busy: time.Duration(float64(time.Second) * float64(int(1)<<random.IntN(14))),
			})
		}
		g.Work.Rates = shelf.Find("c")
		p := newPass(s, &Memo{})
		c := p.classOf(g)
		l := c.fits.ask.loadOf(g, 0)
		w := p.walk(c, &l, 1)
		var seen []int32
		last := 0.0
		for {
			at, least, ok := w.next()
			if !ok {
				break
			}
			if seen = append(seen, at); least < last {
				t.Fatalf("round %d: %g after %g", round, least, last)
			}
			last = least
			f := c.fits.fits[at]
			shape := &s.Catalog.Shapes[f.shape]
			e := p.on(c, &l, &shape.Shape, f.figure)
			for i := range shape.OnDemand {
				o := &shape.OnDemand[i]
				one := p.price(&l, f, e, o, o.Price, nil)
				if least > float64(one.per) || float64(o.least)*p.floor(&l, f, e) > float64(one.per) || p.soonest(&l, f, e) > one.delay+one.work() {
					t.Fatalf("round %d: %s costs %s, and the walk says %g at the least (%+v)", round, o.Market, one.per, least, e)
				}
				shown++
				if i == 0 && least > 0.98*float64(one.per) {
					tight++
				}
			}
		}
		slices.Sort(seen)
		if len(seen) != len(c.fits.fits) || len(slices.Compact(seen)) != len(c.fits.fits) {
			t.Fatalf("round %d: %d of %d fits", round, len(seen), len(c.fits.fits))
		}
	}
	// A bound that is always far below would pass, and stop nothing.
	if tight*4 < shown {
		t.Errorf("the bound is within 2 %% of the cost for %d of %d offers only", tight, shown)
	}
}
