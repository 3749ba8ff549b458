package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler"
	"gpubroker/scheduler/schedtest"
)

// TestGangsAreWhole: in any world, a gang gets all of its machines, in one market and
// each its own, or none; and what is not whole takes nothing from others.
func TestGangsAreWhole(t *testing.T) {
	placed, reused, waiting := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := genWorld(t)
		for n, capacity := range []int{0, 4, 9} {
			o := genOffer(t)
			o.Shape, o.Capacity, o.Price = providers.Shape{GPU: "l4", GPUName: "l4", GPUs: 1, VCPU: 8, Memory: 64 << 30}, capacity, genPrice(t)
			o.Provider, o.Type, o.Seen, o.Available = "sim", fmt.Sprint("plain", n), schedtest.Start, ""
			w.Offers = append(w.Offers, o)
		}
		for i := range w.Groups {
			g := &w.Groups[i]
			g.Limit = -1
			if chance(t, "plain", 70) { // else hardly any world has room for them
				g.Needs, g.Interruptible, g.Waiting = scheduler.Needs{GPUs: 1}, true, max(1, g.Waiting)
				g.Held, g.Opens = reason.Reason{}, time.Time{}
			}
			g.Needs.Nodes, g.Needs.Slots = rapid.IntRange(2, 6).Draw(t, "members"), 0
		}
		for i := range w.Machines { // sets of empty ones, to be used again
			m := &w.Machines[i]
			m.Used, m.Slots, m.Idle = 0, 1, schedtest.Start
			if i > 0 && chance(t, "together", 70) {
				m.Market, m.Shape, m.Project, m.Payer = w.Machines[i-1].Market, w.Machines[i-1].Shape, w.Machines[i-1].Project, w.Machines[i-1].Payer
			}
		}
		w.Snapshot.Running = nil
		s := w.Snap()
		r := scheduler.Plan(s, &w.Memo)
		if err := schedtest.Check(s, &r); err != nil {
			t.Fatalf("%v\n%s", err, schedtest.Render(s, &r))
		}
		for _, d := range r.Decisions {
			placed += d.Placed
			if d.Wait {
				waiting++
			}
		}
		reused += len(r.Assigns)
		next := w.Commit(&r)
		again := scheduler.Plan(next.Snap(), &next.Memo)
		if err := schedtest.Check(next.Snap(), &again); err != nil {
			t.Fatalf("after the commit: %v\n%s", err, schedtest.Render(next.Snap(), &again))
		}
	})
	t.Logf("%d gangs placed, %d machines used again, %d groups that wait", placed, reused, waiting)
	if !testing.Short() && (placed == 0 || reused == 0 || waiting == 0) { // few worlds may miss one of them
		t.Errorf("%d gangs placed, %d machines used again, %d groups that wait: nothing was tried", placed, reused, waiting)
	}
}
