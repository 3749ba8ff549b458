package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/scheduler"
	"gpubroker/scheduler/schedtest"
)

// array is a job of many tasks with a deadline, on demand, in a market that keeps
// its word: one offer without limits.
type array struct {
	tasks, slots int
	task, boot   time.Duration
	margin       time.Duration
	unit         time.Duration
	stoppable    bool
}

func genArray(t *rapid.T) array {
	return array{
		tasks: rapid.IntRange(1, 250).Draw(t, "tasks"), slots: rapid.IntRange(1, 8).Draw(t, "slots"),
		task:      time.Duration(rapid.IntRange(1, 4*3600).Draw(t, "task")) * time.Second,
		boot:      time.Duration(rapid.IntRange(0, 900).Draw(t, "boot")) * time.Second,
		margin:    pick(t, "margin", 0, time.Minute),
		unit:      pick(t, "unit", time.Second, time.Minute, time.Hour),
		stoppable: chance(t, "stoppable", 50),
	}
}

// world is the array at a moment with a time left.
func (a array) world(left time.Duration) *schedtest.World {
	w := schedtest.New()
	caps := w.Providers["sim"].Capabilities
	caps.BootTime, caps.Billing = a.boot, money.Billing{Unit: a.unit}
	w.Providers["sim"] = scheduler.Provider{Capabilities: caps}
	w.Settings.Margin = a.margin
	w.Offers = []providers.Offer{{
		Market: providers.Market{Provider: "sim", Region: "a", Zone: "1", Type: "l4", Kind: providers.OnDemand},
		Shape:  providers.Shape{GPU: "l4", GPUName: "l4", GPUs: float64(a.slots)}, Price: money.Rate(money.Unit), Currency: money.USD, Seen: w.Now,
	}}
	w.Groups = []scheduler.Group{{
		ID: "g", Job: "g", Project: "p", Payer: budget.Payer{Project: "p"}, Accepted: w.Now, Since: w.Now, Waiting: a.tasks, Left: 1, Limit: -1,
		Needs: scheduler.Needs{GPUs: 1, GPU: []string{"l4"}}, Work: scheduler.Work{Task: a.task, Source: "given"},
		Interruptible: a.stoppable, OnDemand: "", Deadline: w.Now.Add(left),
	}}
	return w
}

// feasible is a time left in which a task each on as many machines as there are
// tasks is surely done.
func (a array) feasible(t *rapid.T) time.Duration {
	least := a.boot + a.margin + 2*a.task + time.Second
	return least + time.Duration(rapid.IntRange(0, 72*3600).Draw(t, "spare"))*time.Second
}

// TestTheWidthMeetsTheDeadline: the machines that are launched, each working
// through its share of the tasks, are done by a deadline that can be met; and with
// one machine less they would not be, where the hours are not filled.
func TestTheWidthMeetsTheDeadline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := genArray(t)
		left := a.feasible(t)
		r := scheduler.Plan(a.world(left).Snap(), nil)
		d := r.Decisions[0]
		if d.Launched == 0 || d.Launched != d.Best[0].Machines {
			t.Fatalf("%d machines are launched, %d needed: %s", d.Launched, d.Best[0].Machines, d.Why)
		}
		takes := func(machines int) time.Duration {
			slots := machines * a.slots
			return a.boot + a.margin + time.Duration((a.tasks+slots-1)/slots)*a.task
		}
		if takes(d.Launched) > left || d.Best[0].Late {
			t.Fatalf("%d machines take %s, and there are %s", d.Launched, takes(d.Launched), left)
		}
		if !a.stoppable && a.unit < time.Hour && d.Launched > 1 && takes(d.Launched-1) <= left {
			t.Fatalf("%d machines are launched where %d take %s of %s", d.Launched, d.Launched-1, takes(d.Launched-1), left)
		}
	})
}

// bill is what machines cost that share the tasks evenly, and are kept for the
// idle time after their last one.
func (a array) bill(t *rapid.T, machines int) money.Amount {
	rounds := (a.tasks + a.slots - 1) / a.slots
	sum := money.Amount(0)
	for i := range machines {
		own := rounds / machines
		if i < rounds%machines {
			own++
		}
		life := a.boot + time.Duration(own)*a.task
		if a.unit < time.Hour {
			life += schedtest.New().Settings.Idle
		}
		c, err := money.Charge(life, money.Rate(money.Unit), money.Billing{Unit: a.unit})
		if err != nil {
			t.Fatal(err)
		}
		sum += c
	}
	return sum
}

// TestALooserDeadlineNeverCostsMore: where a deadline can be met, more time never
// makes the job dearer.
func TestALooserDeadlineNeverCostsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := genArray(t)
		left := a.feasible(t)
		price := func(left time.Duration) money.Amount {
			return a.bill(t, scheduler.Plan(a.world(left).Snap(), nil).Decisions[0].Launched)
		}
		tight := price(left)
		looser := left + time.Duration(rapid.IntRange(1, 24*3600).Draw(t, "more"))*time.Second
		if loose := price(looser); loose > tight {
			t.Fatalf("%s for %s and %s for %s", tight, left, loose, looser)
		}
	})
}

// TestAWidthHolds: as time passes and the machines do what was planned, no more of
// them are launched.
func TestAWidthHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := genArray(t)
		a.task = max(a.task, a.boot) // what takes three times as long as it should counts on nothing
		w := a.world(a.feasible(t))
		if a.tasks = min(a.tasks, 300); w.Groups[0].Waiting > a.tasks {
			w.Groups[0].Waiting = a.tasks
		}
		r := scheduler.Plan(w.Snap(), nil)
		if len(r.Launches) > 50 {
			return
		}
		launched := w.Now
		after := time.Duration(rapid.Int64Range(1, int64(a.boot+4*a.task)).Draw(t, "after"))
		w.Now = launched.Add(after)
		w.Machines, w.Snapshot.Running = nil, nil
		// Whole rounds that are done by then, and how long the next has run.
		working := after - a.boot
		done := int(max(0, working) / a.task)
		used := 0
		for i, l := range r.Launches {
			m := scheduler.Machine{
				ID: fmt.Sprint("m", i), Market: l.Market, Shape: l.Shape, Project: "p", Slots: l.Slots, SlotKey: l.SlotKey, Open: true, Ready: working >= 0,
				Price: l.Price, Bound: l.Bound, Born: launched, Lease: w.Now.Add(time.Hour), Billing: money.Billing{Unit: a.unit},
			}
			for range l.Slots {
				if used+done*len(r.Launches)*a.slots >= a.tasks {
					break
				}
				run := scheduler.Running{Attempt: fmt.Sprint("a", used), Machine: m.ID, Group: w.Groups[0], Useful: working >= 0, Since: launched}
				if working >= 0 {
					run.Since = w.Now.Add(-(working % a.task))
				}
				run.Group.Waiting, m.Used, used = 1, m.Used+1, used+1
				w.Snapshot.Running = append(w.Snapshot.Running, run)
			}
			w.Machines = append(w.Machines, m)
		}
		w.Groups[0].Waiting = max(0, a.tasks-used-done*len(r.Launches)*a.slots)
		again := scheduler.Plan(w.Snap(), nil)
		if len(again.Launches) > 0 {
			t.Fatalf("%d machines at first, and %d more after %s with %d waiting: %s", len(r.Launches), len(again.Launches), after, w.Groups[0].Waiting, again.Decisions[0].Why)
		}
	})
}

// TestAWidthThatFillsItsHours: three machines would do nine tasks of 2h20m1s by then,
// each in one second more than seven hours; five leave less of their hours unused.
func TestAWidthThatFillsItsHours(t *testing.T) {
	a := array{tasks: 9, slots: 1, task: 8401 * time.Second, unit: time.Hour}
	for left, want := range map[time.Duration]int{4*time.Hour + 40*time.Minute + 3*time.Second: 5, 7*time.Hour + 3*time.Second: 5} {
		if d := scheduler.Plan(a.world(left).Snap(), nil).Decisions[0]; d.Launched != want {
			t.Errorf("%d machines are launched with %v left, want %d", d.Launched, left, want)
		}
	}
}

// TestALoneTaskHasTheLinkToItself: what a machine could run beside it fetches nothing.
func TestALoneTaskHasTheLinkToItself(t *testing.T) {
	for tasks, want := range map[int]time.Duration{1: 8 * time.Second, 3: 24 * time.Second, 9: 64 * time.Second} {
		a := array{tasks: tasks, slots: 8, task: time.Hour, unit: time.Second}
		w := a.world(24 * time.Hour)
		w.Offers[0].NetworkBps = 1e9
		w.Groups[0].Deadline = time.Time{}
		w.Groups[0].Work.Flows = []scheduler.Flow{{What: "inputs", Way: scheduler.Fetch, Bytes: 1e9}}
		if b := scheduler.Plan(w.Snap(), nil).Decisions[0].Best[0]; b.Delay != want {
			t.Errorf("%d tasks on %d slots fetch for %v, want %v", tasks, b.Slots, b.Delay, want)
		}
	}
}
