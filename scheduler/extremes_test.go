package scheduler_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpubroker/internal/egress"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/scheduler"
	"gpubroker/scheduler/schedtest"
)

const year = 365 * 24 * time.Hour

// TestExtremesNeverWrap: whatever the sizes, lengths, prices and numbers, what an
// option says is no less than any part of it, and what takes long is late.
func TestExtremesNeverWrap(t *testing.T) {
	launched, late := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		a := genArray(t)
		a.tasks = pick(t, "many", 1, 7, 1000, 1_000_000)
		a.task = pick(t, "long", time.Millisecond, time.Minute, 3*time.Hour, 400*time.Hour, 20*year)
		a.slots = pick(t, "seats", 1, 8)
		left := pick(t, "left", 0, time.Minute, 24*time.Hour, year)
		w := a.world(left)
		g, o := &w.Groups[0], &w.Offers[0]
		if left == 0 {
			g.Deadline = time.Time{}
		}
		g.Limit = pick(t, "limit", -1, 1, 3)
		g.Needs.Nodes = pick(t, "nodes", 0, 2, 1024)
		if g.Needs.Nodes > 0 {
			o.GPUs = 1
		}
		g.Value = pick(t, "value", 0, 1, money.Rate(money.Unit), math.MaxInt64)
		size := func(what string) int64 { return pick(t, what, 0, 1, int64(1e15), math.MaxInt64) }
		at := egress.Place{Cloud: "aws", Region: "us-east-1"}
		g.Work.Flows = []scheduler.Flow{
			{What: "inputs", Way: scheduler.Fetch, Bytes: size("in"), At: at},
			{What: "inputs", Way: scheduler.Fetch, Bytes: size("more"), At: at},
			{What: "outputs", Way: scheduler.Send, Bytes: size("out"), At: at},
			{What: "checkpoint", Way: scheduler.Keep, Bytes: size("keep"), At: at},
		}
		if g.Interruptible = a.stoppable; a.stoppable {
			g.Work.Saves = scheduler.Saves{On: true, Every: pick(t, "every", 0, time.Second, time.Hour)}
			o.Kind, g.SpotAllowed = pick(t, "kind", providers.OnDemand, providers.Spot), true
		}
		g.Work.Figure = pick(t, "figure", 0, 1e-9, 1e9)
		o.NetworkBps = pick(t, "bps", 0, 1, int64(100e9), math.MaxInt64)
		o.Price = pick(t, "price", 1, money.Rate(money.Unit), 1_000_000*money.Rate(money.Unit), math.MaxInt64)
		g.Needs.GPU = nil
		second := *o
		second.Type, second.Price = "other", pick(t, "another", 1, money.Rate(money.Unit))
		w.Offers = append(w.Offers, second)
		w.Settings.Launches = 9
		s := w.Snap()
		r := scheduler.Plan(s, nil)
		if err := schedtest.Check(s, &r); err != nil {
			t.Fatal(err)
		}
		e, _ := scheduler.Explain(s, nil, g.ID)
		for _, b := range append(r.Decisions[0].Best, e.Options...) {
			c := b.Cost
			sum, least := c.Egress, min(c.Total, c.Boot, c.Staging, c.Work, c.Saves, c.Redo, c.Egress, c.Rounding, c.Idle, c.Waiting)
			for _, part := range []money.Amount{c.Boot, c.Staging, c.Work, c.Saves, c.Redo, c.Rounding, c.Idle} {
				sum += part
			}
			if least < 0 || sum != c.Total {
				t.Fatalf("%v: the parts sum to %v: %+v", b.Market, sum, c)
			}
			all := float64(b.Delay) + float64(b.Rounds)*float64(b.Time)
			if b.Time <= 0 || b.Delay < 0 || b.Bound < 0 || float64(b.Done) < min(all, float64(year))*0.999 || b.Machines < 1 || b.Tasks < 1 {
				t.Fatalf("%v: %d rounds of %v after %v are done after %v: %+v", b.Market, b.Rounds, b.Time, b.Delay, b.Done, b)
			}
			if b.Price > 0 && b.Done >= time.Second && c.Total == 0 {
				t.Fatalf("%v costs nothing: %+v", b.Market, b)
			}
			if left > 0 && b.Done > left && !b.Late {
				t.Fatalf("%v is done after %v of %v, and not late", b.Market, b.Done, left)
			}
			if b.Late {
				late++
			}
		}
		launched += len(r.Launches)
	})
	if launched == 0 || late == 0 {
		t.Errorf("%d launches, %d late options: nothing was tried", launched, late)
	}
}
