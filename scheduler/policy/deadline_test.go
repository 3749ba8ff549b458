package policy_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"

	"pgregory.net/rapid"
)

// world is a job in continuous virtual time among markets that do their worst
// within what the policy was told: spot is refused, lost, slow to start; losses
// are noticed late; unsaved work is lost; on demand takes all of delay + margin.
type world struct {
	t    *rapid.T
	view policy.View // the static part
	now  time.Time
	// saved and done are work at the reference rate; saved ≤ done.
	saved, done time.Duration
	held        int // candidate, -1 for none
	since       time.Time
	running     bool
	runsAt      time.Time // when the held machine starts to work
	diesAt      time.Time // when a held spot machine is lost
	savesAt     time.Time
	until       []time.Time // cool-downs
	log         []string
	// memory is of the spot candidates, nil where nothing is learned; late says that
	// tables are never built.
	memory []*policy.Memory
	late   bool
	// restless, if not nil: prices change and tables are dropped now and then, and spot
	// is lost when its work was about to be saved.
	restless *rand.Rand
}

// Work at candidate i runs speed[i]/10 times as fast as the reference.
func (w *world) play(speed []int64) time.Time {
	v := w.view
	for range 20000 {
		if w.done >= v.Total {
			return w.now
		}
		v.Now, v.Left, v.Current = w.now, v.Total-w.saved, nil
		for i := range v.Candidates {
			v.Candidates[i].Work = (v.Total - w.saved) * 10 / time.Duration(speed[i])
			v.Candidates[i].Hint.CooledUntil = w.until[i]
			if w.memory != nil && v.Candidates[i].Kind == policy.Spot {
				if w.held == i {
					w.memory[i].Hold(w.now)
				}
				v.Candidates[i].Outlook = w.memory[i].Outlook(w.now)
			}
		}
		if r := w.restless; r != nil && r.IntN(60) == 0 {
			for i := range v.Candidates {
				v.Candidates[i].Price = usd(float64(5+r.IntN(40)) / 10)
			}
			if v.Library != nil {
				v.Library = &policy.Library{}
			}
		}
		if w.held >= 0 {
			v.Current = &policy.Placement{Candidate: v.Candidates[w.held], Since: w.since, Running: w.running}
			v.Current.Work = (v.Total - w.done) * 10 / time.Duration(speed[w.held])
		}
		d := policy.Decide(v)
		if d.Want != nil && !w.late {
			v.Library = v.Library.With(policy.Build(*d.Want), 100)
			d = policy.Decide(v)
		}
		w.log = append(w.log, fmt.Sprintf("%8s saved %s done %s: %v %d until %s: %v", w.now.Sub(t0), w.saved, w.done, d.Action, d.Market, d.Until.Sub(t0), d.Why))
		switch d.Action {
		case policy.Wait:
			w.held = -1
		case policy.Stay:
		default:
			w.launch(d.Market, v)
			if w.held < 0 {
				continue // refused: ask again at once
			}
		}
		w.pass(d.Until, speed)
	}
	w.t.Fatal("no end")
	return w.now
}

func (w *world) launch(i int, v policy.View) {
	c := v.Candidates[i]
	w.done, w.running, w.since = w.saved, false, w.now
	w.held = i
	if c.Kind == policy.OnDemand {
		w.runsAt, w.diesAt = w.now.Add(c.Delay+v.Margin), time.Time{}
		return
	}
	what := rapid.IntRange(0, 3).Draw(w.t, "launch")
	if w.memory != nil {
		w.memory[i].See(w.now, what != 0)
	}
	switch what {
	case 0:
		w.held, w.until[i] = -1, w.now.Add(rapid.SampledFrom([]time.Duration{time.Minute, 3 * time.Minute, time.Hour}).Draw(w.t, "cool"))
		return
	case 1: // slow to start
		w.runsAt = w.now.Add(c.Delay * time.Duration(rapid.IntRange(1, 5).Draw(w.t, "slow")))
	default:
		w.runsAt = w.now.Add(c.Delay)
	}
	w.diesAt = w.now.Add(time.Duration(rapid.IntRange(1, 600).Draw(w.t, "life")) * time.Minute)
	if w.restless != nil && w.restless.IntN(2) == 0 {
		w.diesAt = w.runsAt.Add(v.AtRisk - 1)
	}
}

// pass lets time pass to the next event or to until.
func (w *world) pass(until time.Time, speed []int64) {
	next := until
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if w.held < 0 {
		if next.IsZero() {
			w.t.Fatalf("waits for ever:\n%s", w.log[len(w.log)-1])
		}
		w.now = next
		return
	}
	end := w.now.Add((w.view.Total - w.done) * 10 / time.Duration(speed[w.held]))
	switch {
	case !w.running:
		sooner(w.runsAt)
	default:
		sooner(end.Add(1))
		sooner(w.savesAt)
	}
	if !w.diesAt.IsZero() && !w.diesAt.After(next) {
		// Lost, and noticed only after Look; what was not saved is gone.
		w.now = w.diesAt.Add(w.view.Look)
		w.until[w.held] = w.now.Add(3 * time.Minute)
		if w.memory != nil {
			w.memory[w.held].See(w.now, false)
		}
		w.held, w.done = -1, w.saved
		return
	}
	if w.running {
		w.done = min(w.view.Total, w.done+next.Sub(w.now)*time.Duration(speed[w.held])/10)
		if next.Equal(end.Add(1)) {
			w.done = w.view.Total
		}
		if !next.Before(w.savesAt) {
			w.saved, w.savesAt = w.done, next.Add(w.view.AtRisk)
		}
	} else if next.Equal(w.runsAt) {
		w.running, w.savesAt = true, next.Add(w.view.AtRisk)
	}
	w.now = next
}

// A deadline that could be met on demand at the start is met, whatever spot does.
func TestNeverMissesADeadlineThatOnDemandCanMeet(t *testing.T) {
	t.Run("uniform progress", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { neverMisses(t, false) }) })
	t.Run("learned", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { neverMisses(t, true) }) })
}

func neverMisses(t *rapid.T, learned bool) {
	v := policy.View{
		Start: t0, Interruptible: true,
		Total:  time.Duration(rapid.IntRange(1, 40*60).Draw(t, "work")) * time.Minute,
		AtRisk: rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 10 * time.Minute, time.Hour}).Draw(t, "risk"),
		Margin: rapid.SampledFrom([]time.Duration{0, 4 * time.Minute}).Draw(t, "margin"),
		Look:   rapid.SampledFrom([]time.Duration{0, time.Second, 5 * time.Minute}).Draw(t, "look"),
	}
	v.AtRisk = max(v.AtRisk, v.Total/100)
	w := world{t: t, now: t0, held: -1}
	unit := rapid.SampledFrom([]time.Duration{time.Second, time.Minute}).Draw(t, "unit of delays")
	if rapid.Bool().Draw(t, "restless") {
		w.restless = rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
	}
	var speed []int64
	add := func(c policy.Candidate) {
		c.Market = fmt.Sprint("m", len(v.Candidates))
		c.Delay = time.Duration(rapid.IntRange(1, 30).Draw(t, "delay")) * unit
		v.Candidates = append(v.Candidates, c)
		speed = append(speed, rapid.Int64Range(6, 16).Draw(t, "speed"))
		w.until = append(w.until, time.Time{})
	}
	add(policy.Candidate{Price: usd(3)})
	if rapid.Bool().Draw(t, "another on demand, away for a while") {
		add(policy.Candidate{Price: usd(2)})
		w.until[1] = t0.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "away")) * time.Minute)
	}
	for range rapid.IntRange(1, 3).Draw(t, "spots") {
		add(policy.Candidate{Kind: policy.Spot, Price: usd(float64(rapid.IntRange(5, 20).Draw(t, "price")) / 10)})
	}
	need := v.Total*10/time.Duration(speed[0]) + v.Candidates[0].Delay + v.Margin
	v.Deadline = t0.Add(need + time.Duration(rapid.IntRange(0, 20*60).Draw(t, "slack"))*rapid.SampledFrom([]time.Duration{time.Second, time.Minute}).Draw(t, "unit of slack"))
	if learned {
		v.Library = &policy.Library{}
		v.Egress = money.Amount(usd(rapid.SampledFrom([]float64{0, 1, 20}).Draw(t, "egress")))
		w.late = rapid.IntRange(0, 4).Draw(t, "tables") == 0
		for i := range v.Candidates {
			w.memory = append(w.memory, policy.ShippedModel().Memory(t0))
			v.Candidates[i].Region = rapid.SampledFrom([]string{"east", "west"}).Draw(t, "region")
		}
	}
	w.view = v
	if end := w.play(speed); end.After(v.Deadline.Add(time.Microsecond)) { // nanoseconds are rounded here at each step
		for _, l := range w.log[max(0, len(w.log)-40):] {
			t.Log(l)
		}
		t.Fatalf("%v late", end.Sub(v.Deadline))
	}
}
