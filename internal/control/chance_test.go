package control_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/queue"
)

// step is one thing that happens to a site.
type step struct {
	Wait  time.Duration
	What  string
	N     int // which job, machine or kind
	For   time.Duration
	Fault simapi.Fault
}

func (s step) String() string {
	return fmt.Sprintf("after %v %s %d for %v %s/%s", s.Wait, s.What, s.N, s.For, s.Fault.Op, s.Fault.Effect)
}

// chanceJobs are the kinds of jobs that are handed in.
var chanceJobs = []string{
	"name: array\nproject: media\nscenario: transcode\ntasks: {count: 12}\nwork: {time: 3m, on: l4}\nresources: {gpu: [l4, t4], slots: 2}\nrun: {command: [work, 3m]}\n",
	task(40*time.Minute, saves),
	task(30*time.Minute, saves+"exclusive: true\n"),
	task(10*time.Minute, "tasks: {count: 4}\nbudget: {max: 0.20 USD}\n"),
	"name: steady\nproject: lab\nresources: {gpu: none, vcpu: 2}\nspot: {policy: never}\nmax_duration: 1h\nrun: {command: [work, 10m]}\n",
	"name: broken\nproject: lab\ntasks: {count: 3}\nresources: {gpu: none}\nspot: {policy: always}\nwork: {time: 1m}\nrun: {command: [work, 1m, fail]}\nretry: {failures: 1}\n",
}

func drawSteps() *rapid.Generator[[]step] {
	effects := []simapi.Fault{}
	for op, all := range map[string][]string{
		"launch":    {simapi.NoCapacity, simapi.Quota, simapi.Throttle, simapi.InternalAfter, simapi.DropAfter, simapi.Drop, simapi.Truncate, simapi.Slow, simapi.Dud, simapi.PriceTooLow},
		"terminate": {simapi.Refuse, simapi.Unavailable, simapi.DropAfter, simapi.ErrorIn200, simapi.Denied},
		"list":      {simapi.Stale, simapi.Unavailable, simapi.Truncate, simapi.Hang, simapi.Proxy},
		"describe":  {simapi.Internal, simapi.Drop},
		"move_end":  {simapi.Unavailable, simapi.DropAfter},
		"bill":      {simapi.Unavailable},
		"offers":    {simapi.Unavailable},
		"notice":    {simapi.Lose, simapi.Short},
	} {
		for _, e := range all {
			effects = append(effects, simapi.Fault{Op: op, Effect: e, Delay: simapi.Duration(10 * time.Second)})
		}
	}
	slices.SortFunc(effects, func(a, b simapi.Fault) int {
		return slices.Compare([]string{a.Op, a.Effect}, []string{b.Op, b.Effect})
	})
	one := rapid.Custom(func(t *rapid.T) step {
		return step{
			Wait: time.Duration(rapid.IntRange(0, 600).Draw(t, "wait")) * time.Second,
			What: rapid.SampledFrom([]string{
				"submit", "submit", "cancel", "hold", "release", "retry", "take", "take silently", "fault", "fault", "kill", "kill",
				"write fails", "cut off", "hang", "agent dies", "dearer", "full",
			}).Draw(t, "what"),
			N:     rapid.IntRange(0, 11).Draw(t, "n"),
			For:   time.Duration(rapid.IntRange(1, 600).Draw(t, "for")) * time.Second,
			Fault: rapid.SampledFrom(effects).Draw(t, "fault"),
		}
	})
	return rapid.SliceOfN(one, 5, 30)
}

// Whatever happens in whatever order, no promise is broken, every job ends, and
// the ledger is the bill.
func TestPromisesByChance(t *testing.T) {
	checks := "12"
	if testing.Short() {
		checks = "15" // rapid divides by five when it is short
	}
	was := flag.Lookup("rapid.checks").Value.String()
	if was == "100" { // not asked for otherwise
		if err := flag.Set("rapid.checks", checks); err != nil {
			t.Fatal(err)
		}
		defer flag.Set("rapid.checks", was)
	}
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSteps().Draw(rt, "steps")
		seed := rapid.Uint64Range(1, 1000).Draw(rt, "seed")
		if !t.Run("", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { chanceNight(t, seed, steps) }) }) {
			rt.Fatal("a promise was broken, see above")
		}
	})
}

func chanceNight(t *testing.T, seed uint64, steps []step) {
	cfg := calm()
	cfg.Seed = seed
	s := newSite(t, cfg)
	limit := budget.Budget{Name: "lab", Scope: budget.Project, Match: "lab", Capped: true, Cap: money.Unit, Period: budget.Rule{Length: budget.Day}, Guard: budget.Strict}
	s.set.Budgets = []budget.Budget{limit, capped(20)}
	s.rig(func() { s.check.Caps = s.set.Budgets })
	s.start()
	defer s.close()
	cut, hung, dead := map[string]time.Time{}, map[string]time.Time{}, map[string]bool{}
	var failUntil time.Time
	s.rig(func() {
		s.deaf = func(id string) bool { return time.Now().Before(cut[id]) }
		s.hung = func(id string) bool { return time.Now().Before(hung[id]) }
		s.agentDead = func(id string) bool { return dead[id] }
		s.fail = func() error {
			if time.Now().Before(failUntil) {
				return queue.ErrFull
			}
			return nil
		}
	})
	jobs := []*queue.Job{s.submit(chanceJobs[0]), s.submit(chanceJobs[1])}
	for _, st := range steps {
		time.Sleep(st.Wait)
		t.Log(time.Now().UTC().Format(time.TimeOnly), st)
		s.happen(st, &jobs, cut, hung, dead, &failUntil)
	}
	s.rig(func() { failUntil = time.Time{} })
	s.world.ClearFaults()
	s.do(simapi.Action{Capacity: &simapi.Capacity{Machines: nil}})
	time.Sleep(time.Minute)
	for _, j := range jobs {
		if now, err := s.up().Job(context.Background(), j.ID); err == nil && !now.Done() && !now.Held.IsZero() {
			if _, err := s.up().Release(context.Background(), j.ID, "test"); err != nil {
				t.Error(err)
			}
		}
	}
	time.Sleep(2 * time.Hour)
	for _, j := range jobs {
		if now, err := s.up().Job(context.Background(), j.ID); err == nil && !now.Done() && now.Name == "one" {
			if _, err := s.up().Cancel(context.Background(), j.ID, "test"); err != nil { // its own budget may be used up
				t.Error(err)
			}
		}
	}
	for _, j := range jobs {
		s.await(j.ID, 48*time.Hour)
	}
	s.quiet(3 * time.Hour)
	s.squared()
}

func (s *site) happen(st step, jobs *[]*queue.Job, cut, hung map[string]time.Time, dead map[string]bool, failUntil *time.Time) {
	ctx := context.Background()
	until := time.Now().Add(st.For)
	job := (*jobs)[st.N%len(*jobs)].ID
	var ready []*queue.Instance
	for i := range s.up().State().View().Instances.All() {
		if i.State == queue.InstanceReady {
			ready = append(ready, i)
		}
	}
	var machine *queue.Instance
	if len(ready) > 0 {
		machine = ready[st.N%len(ready)]
	}
	var err error
	switch st.What {
	case "submit":
		if s.writes(failUntil) {
			*jobs = append(*jobs, s.submit(chanceJobs[st.N%len(chanceJobs)]))
		}
	case "cancel":
		_, err = s.up().Cancel(ctx, job, "chance")
	case "hold":
		_, err = s.up().Hold(ctx, job, "chance")
	case "release":
		_, err = s.up().Release(ctx, job, "chance")
	case "retry":
		_, err = s.up().Retry(ctx, job, queue.TaskFailed, queue.TaskCancelled)
	case "fault":
		f := st.Fault
		if f.For = simapi.Duration(st.For); f.Op == "launch" {
			f.For, f.Times = 0, 1+st.N%3
		}
		s.fault(f)
	case "kill":
		s.stop()
		time.Sleep(st.For / 2)
		s.start()
		time.Sleep(time.Millisecond)
	case "write fails":
		s.rig(func() { *failUntil = until })
	case "dearer":
		_, err = s.world.Do(simapi.Action{Price: &simapi.Price{Match: simapi.Place{Kind: providers.Spot}, Percent: int64(50 + 10*st.N)}})
	case "full":
		_, err = s.world.Do(simapi.Action{Capacity: &simapi.Capacity{Match: simapi.Place{Kind: providers.Spot, Zone: "sim-east-a"}, Machines: new(st.N % 3)}})
	}
	if err != nil {
		s.t.Log("  answered:", err)
	}
	if machine == nil {
		return
	}
	switch st.What {
	case "take", "take silently":
		p := &simapi.Preempt{Pick: simapi.Pick{Machine: machine.CloudID}, Notice: new(simapi.Duration(0))}
		if st.What == "take" {
			p.Notice = new(simapi.Duration(30 * time.Second))
		}
		if _, err := s.world.Do(simapi.Action{Preempt: p}); err != nil {
			s.t.Log("  answered:", err)
		}
	case "cut off":
		s.rig(func() { cut[machine.ID] = until })
	case "hang":
		s.rig(func() { hung[machine.ID] = until })
	case "agent dies":
		s.rig(func() { dead[machine.ID] = true })
	}
}

// writes reports whether the store can be written.
func (s *site) writes(failUntil *time.Time) (ok bool) {
	s.rig(func() { ok = time.Now().After(*failUntil) })
	return ok
}
