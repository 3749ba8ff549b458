package policy_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"

	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

func at(h float64) time.Time { return t0.Add(time.Duration(h * float64(time.Hour))) }

func usd(f float64) money.Rate { return money.Rate(f * float64(money.Unit)) }

func spot(name string, price float64, work time.Duration) policy.Candidate {
	return policy.Candidate{Market: name, Kind: policy.Spot, Price: usd(price), Work: work, Delay: 12 * time.Minute}
}

func onDemand(name string, price float64, work time.Duration) policy.Candidate {
	return policy.Candidate{Market: name, Price: usd(price), Work: work, Delay: 12 * time.Minute}
}

func cooled(c policy.Candidate, until time.Time) policy.Candidate {
	c.Hint.CooledUntil = until
	return c
}

// The job: 48 hours to do in 60; done hours of it are done at hour now.
func job(now, done float64, cs ...func(time.Duration) policy.Candidate) policy.View {
	left := 48*time.Hour - time.Duration(done*float64(time.Hour))
	v := policy.View{
		Now: at(now), Start: t0, Deadline: at(60), Total: 48 * time.Hour, Left: left, Interruptible: true,
	}
	for _, c := range cs {
		v.Candidates = append(v.Candidates, c(left))
	}
	return v
}

func TestDecisions(t *testing.T) {
	type mk = func(time.Duration) policy.Candidate
	S := func(w time.Duration) policy.Candidate { return spot("a/spot", 1, w) }
	cheapS := func(w time.Duration) policy.Candidate { return spot("b/spot", 0.9, w) }
	downS := func(until float64) mk {
		return func(w time.Duration) policy.Candidate { return cooled(spot("a/spot", 1, w), at(until)) }
	}
	O := func(w time.Duration) policy.Candidate { return onDemand("a/on-demand", 3, w) }
	downO := func(until float64) mk {
		return func(w time.Duration) policy.Candidate { return cooled(onDemand("a/on-demand", 3, w), at(until)) }
	}
	dearS := func(w time.Duration) policy.Candidate { return spot("a/spot", 4, w) }
	held := func(v policy.View, i int, since float64, running bool) policy.View {
		v.Current = &policy.Placement{Candidate: v.Candidates[i], Since: at(since), Running: running}
		return v
	}
	with := func(v policy.View, change func(*policy.View)) policy.View { change(&v); return v }

	for name, c := range map[string]struct {
		view   policy.View
		action policy.Action
		market string
		code   policy.Code
		until  float64 // hours; 0 = zero time
		text   string
	}{
		"spot is taken, the cheaper one": {
			job(0, 0, S, cheapS, O), policy.StartSpot, "b/spot", policy.SpotCheapest, 11.6, "",
		},
		"ahead of the line without spot: wait until it is crossed": {
			job(10, 10, downS(20), O), policy.Wait, "", policy.OnSchedule, 12.5,
			"waiting for spot: 11h48m of slack left; on demand from 2026-03-02 21:48:00 at the latest",
		},
		"… or until spot may be tried again": {
			job(10, 10, downS(10.05), O), policy.Wait, "", policy.OnSchedule, 10.05, "",
		},
		"exactly on the line is not behind": {
			job(10, 8, downS(19), O), policy.Wait, "", policy.OnSchedule, 10, "",
		},
		"behind the line without spot: on demand": {
			job(10, 7, downS(18), O), policy.StartOnDemand, "a/on-demand", policy.Behind, 18,
			"a/on-demand at $3.00/h: no spot, and 1h0m of work behind the line to the deadline",
		},
		"spot that comes back too late is not waited for": {
			job(10, 10, downS(40), O), policy.StartOnDemand, "a/on-demand", policy.SafetyNet, 21.8, "",
		},
		"nor spot that the next look would be too late for": {
			with(job(49.5, 38, downS(49.52), O), func(v *policy.View) { v.Look = 4 * time.Minute }),
			policy.StartOnDemand, "a/on-demand", policy.SafetyNet, 49.52, "",
		},
		"on demand that is slow is not taken while a fast one comes back in time": {
			with(job(48, 38, downS(60), downO(49)), func(v *policy.View) {
				v.Candidates = append(v.Candidates, onDemand("slow/on-demand", 2, 13*time.Hour))
			}), policy.Wait, "", policy.CooledDown, 49, "",
		},
		"behind, but on demand refused: wait for it": {
			job(10, 7, downS(18), downO(10.5)), policy.Wait, "", policy.CooledDown, 10.5, "",
		},
		"just before the last moment for a try on spot": {
			job(59.6-10-0.001, 38, S, O), policy.StartSpot, "a/spot", policy.SpotCheapest, 49.6, "",
		},
		"at the last moment": {
			job(59.6-10, 38, S, O), policy.StartOnDemand, "a/on-demand", policy.SafetyNet, 49.8, "",
		},
		"a margin comes off": {
			with(job(59.6-10-0.001, 38, S, O), func(v *policy.View) { v.Margin = time.Minute }),
			policy.StartOnDemand, "a/on-demand", policy.SafetyNet, 49.6 + 0.2 - 1./60, "",
		},
		"work at risk comes off": {
			with(job(59.6-10-0.001, 38, S, O), func(v *policy.View) { v.AtRisk = time.Minute }),
			policy.StartOnDemand, "a/on-demand", policy.SafetyNet, 49.8, "",
		},
		"on demand comes back too late for another try on spot, and one is no worse": {
			job(49, 38, S, downO(49.7)), policy.StartSpot, "a/spot", policy.OnDemandAway, 49.7, "",
		},
		"no time left and on demand refused: spot is better than nothing": {
			job(50, 38, S, downO(50.5)), policy.StartSpot, "a/spot", policy.OnDemandAway, 50.5, "",
		},
		"running on spot stays, in the safety zone too": {
			held(job(49.7, 38, S, O), 0, 40, true), policy.Stay, "", policy.OnSpot, 49.8, "",
		},
		"running spot whose saves fall behind goes": {
			held(with(job(49.7, 38, S, O), func(v *policy.View) { v.Margin = 10 * time.Minute }), 0, 40, true),
			policy.Move, "a/on-demand", policy.SafetyNet, 49.8, "",
		},
		"… unless on demand would surely be late": {
			held(job(49.9, 38, S, O), 0, 40, true), policy.Stay, "", policy.DeadlineAtRisk, 50,
			"a/spot at $1.00/h: the deadline may be missed by 6m0s",
		},
		"… and spot as well": {
			held(job(50.1, 38, S, O), 0, 40, true), policy.Move, "a/on-demand", policy.SafetyNet, 60, "",
		},
		"spot that takes too long to start goes": {
			held(with(job(49.8, 38, S, O), func(v *policy.View) { v.Look = time.Second }), 0, 49.6, false),
			policy.Move, "a/on-demand", policy.SafetyNet, 49.8, "",
		},
		"… and is given its time before": {
			held(job(49.75, 38, S, O), 0, 49.59, false), policy.Stay, "", policy.OnSpot, 49.79, "",
		},
		"on demand is kept while there is no spot": {
			held(job(20, 19, downS(21), O), 1, 15, true), policy.Stay, "", policy.KeepOnDemand, 21, "",
		},
		"on demand leaves for spot far enough ahead": {
			held(job(20, 16.32, S, O), 1, 15, true), policy.Move, "a/spot", policy.Ahead, 20, "",
		},
		"… and catches up before": {
			held(job(20, 16, S, O), 1, 15, true), policy.Stay, "", policy.CatchUp, 21.6,
			"staying on a/on-demand at $3.00/h: 19m of work short of moving to spot safely",
		},
		"spot dearer than on demand": {
			job(0, 0, dearS, O), policy.StartOnDemand, "a/on-demand", policy.OnDemandCheaper, 11.8, "",
		},
		"nothing but on demand": {
			job(0, 0, O), policy.StartOnDemand, "a/on-demand", policy.NoSpot, 11.8, "",
		},
		"nothing but spot": {
			job(59, 0, S), policy.StartSpot, "a/spot", policy.SpotOnly, 60, "",
		},
		"a deadline that has passed counts as none": {
			job(61, 40, S, O), policy.StartSpot, "a/spot", policy.CheapestNow, 0, "",
		},
		"no deadline: least expected cost": {
			with(job(0, 0, S, cheapS, O), func(v *policy.View) { v.Deadline = time.Time{} }),
			policy.StartSpot, "b/spot", policy.CheapestNow, 0, "b/spot at $0.90/h: least expected cost, about $46.36 to finish",
		},
		"a market that loses machines all the time costs more than its price": {
			with(job(0, 0, S, cheapS, O), func(v *policy.View) {
				v.Deadline = time.Time{}
				v.Candidates[1].History = policy.History{Preemptions: 200, Held: 100 * time.Hour}
			}),
			policy.StartSpot, "a/spot", policy.CheapestNow, 0, "",
		},
		"no deadline, impatient: what there is": {
			with(job(0, 0, downS(0.5), O), func(v *policy.View) { v.Deadline = time.Time{} }),
			policy.StartOnDemand, "a/on-demand", policy.CheapestNow, 0.5, "",
		},
		"no deadline, patient: wait": {
			with(job(0, 0, downS(0.5), O), func(v *policy.View) { v.Deadline = time.Time{}; v.Patience = time.Hour }),
			policy.Wait, "", policy.Patience, 0.5,
			"waiting until 2026-03-02 00:30:00 for something cheaper than $144.60 to finish; patience ends at 2026-03-02 01:00:00",
		},
		"patience is used up": {
			with(job(0, 0, downS(0.5), O), func(v *policy.View) {
				v.Deadline, v.Patience, v.WaitingSince = time.Time{}, time.Hour, at(-0.75)
			}),
			policy.StartOnDemand, "a/on-demand", policy.CheapestNow, 0.5, "",
		},
		"everything refused": {
			with(job(0, 0, downS(0.5), downO(0.25)), func(v *policy.View) { v.Deadline = time.Time{} }),
			policy.Wait, "", policy.CooledDown, 0.25, "",
		},
		"running work moves for a large saving": {
			held(with(job(0, 0, S, O), func(v *policy.View) { v.Deadline = time.Time{} }), 1, -1, true),
			policy.Move, "a/spot", policy.MovePays, 0, "",
		},
		"… and not for a small one": {
			held(with(job(0, 0, S, func(w time.Duration) policy.Candidate { return spot("b/spot", 0.95, w) }),
				func(v *policy.View) { v.Deadline = time.Time{} }), 0, -1, true),
			policy.Stay, "", policy.CheapestHeld, 0, "",
		},
		"a lower price in the same market is no reason to move": {
			with(held(with(job(0, 0, S), func(v *policy.View) { v.Deadline = time.Time{} }), 0, -1, true),
				func(v *policy.View) { v.Current.Price = usd(2) }),
			policy.Stay, "", policy.CheapestHeld, 0, "",
		},
		"work that must not be interrupted": {
			with(job(0, 0, S, O), func(v *policy.View) { v.Interruptible = false }),
			policy.StartOnDemand, "a/on-demand", policy.NotInterruptible, 11.8, "",
		},
		"… with spot allowed": {
			with(job(0, 0, S, O), func(v *policy.View) { v.Interruptible, v.SpotAllowed = false, true }),
			policy.StartSpot, "a/spot", policy.NotInterruptible, 11.8, "",
		},
		"… is never moved": {
			held(with(job(0, 0, S, O), func(v *policy.View) { v.Interruptible, v.SpotAllowed = false, true }), 1, 0, true),
			policy.Stay, "", policy.NotInterruptible, 60, "",
		},
		"nowhere to go": {
			with(job(0, 0, S), func(v *policy.View) { v.Interruptible, v.Deadline = false, time.Time{} }),
			policy.Wait, "", policy.NoCandidate, 0, "no market is left that this work may use",
		},
		"nothing left to do": {
			job(50, 48, S, O), policy.Wait, "", policy.Done, 0, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := policy.Decide(c.view)
			market := ""
			if d.Market >= 0 {
				market = c.view.Candidates[d.Market].Market
			}
			if d.Action != c.action || market != c.market || d.Why.Code != c.code {
				t.Errorf("got %v %q %s (%v)\nwant %v %q %s", d.Action, market, d.Why.Code, d.Why, c.action, c.market, c.code)
			}
			var until time.Time
			if c.until != 0 {
				until = at(c.until)
			}
			if diff := d.Until.Sub(until).Abs(); diff > time.Second {
				t.Errorf("until %v, want %v", d.Until, until)
			}
			if c.text != "" && d.Why.String() != c.text {
				t.Errorf("text  %s\nwant  %s", d.Why, c.text)
			}
		})
	}
}

// Every code has a sentence of its own.
func TestEveryReasonHasText(t *testing.T) {
	for _, code := range policy.Codes() {
		if s := (policy.Why{Code: code}).String(); s == string(code) || s == "" {
			t.Errorf("%s has no text", code)
		}
	}
}

func genView(t *rapid.T) policy.View {
	hours := func(lo, hi float64) *rapid.Generator[time.Duration] {
		return rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.IntRange(int(lo*60), int(hi*60)).Draw(t, "minutes")) * time.Minute
		})
	}
	v := policy.View{
		Policy:        rapid.SampledFrom([]policy.Name{policy.Auto, policy.UniformProgress, policy.CheapestExpected}).Draw(t, "policy"),
		Now:           t0,
		Start:         t0.Add(-hours(0, 60).Draw(t, "age")),
		Total:         hours(1, 60).Draw(t, "total"),
		AtRisk:        rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "risk"),
		Margin:        rapid.SampledFrom([]time.Duration{0, 7 * time.Minute}).Draw(t, "margin"),
		Look:          rapid.SampledFrom([]time.Duration{0, time.Second, 10 * time.Minute}).Draw(t, "look"),
		Interruptible: rapid.Bool().Draw(t, "interruptible"),
		SpotAllowed:   rapid.Bool().Draw(t, "spot allowed"),
		Patience:      hours(0, 3).Draw(t, "patience"),
		WaitingSince:  t0.Add(-hours(0, 3).Draw(t, "waiting")),
	}
	v.Left = min(v.Total, hours(0, 60).Draw(t, "left"))
	if rapid.Bool().Draw(t, "timed") {
		v.Deadline = t0.Add(v.Left + hours(-5, 60).Draw(t, "slack"))
	}
	names := rapid.Permutation([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "names")
	for i := range rapid.IntRange(0, 6).Draw(t, "n") {
		c := policy.Candidate{
			Market: names[i],
			Kind:   rapid.SampledFrom([]policy.Kind{policy.OnDemand, policy.Spot}).Draw(t, "kind"),
			Price:  money.Rate(rapid.IntRange(0, 4).Draw(t, "price")) * money.Rate(money.Unit),
			Work:   v.Left * time.Duration(rapid.SampledFrom([]int64{8, 10, 12}).Draw(t, "speed")) / 10,
			Delay:  rapid.SampledFrom([]time.Duration{0, 5 * time.Minute, 12 * time.Minute}).Draw(t, "delay"),
			Entry:  money.Amount(rapid.IntRange(0, 1).Draw(t, "entry")) * money.Unit,
			History: policy.History{
				Preemptions: rapid.IntRange(0, 20).Draw(t, "preemptions"), Held: hours(0, 50).Draw(t, "held"),
			},
		}
		if rapid.Bool().Draw(t, "cooled") {
			c.Hint.CooledUntil = t0.Add(hours(-1, 2).Draw(t, "cooled for"))
		}
		v.Candidates = append(v.Candidates, c)
	}
	if len(v.Candidates) > 0 && rapid.Bool().Draw(t, "held") {
		c := rapid.SampledFrom(v.Candidates).Draw(t, "current")
		if v.Interruptible || v.SpotAllowed || c.Kind == policy.OnDemand {
			v.Current = &policy.Placement{Candidate: c, Since: t0.Add(-hours(0, 1).Draw(t, "held for")), Running: rapid.Bool().Draw(t, "running")}
		}
	}
	return v
}

func market(v policy.View, d policy.Decision) string {
	if d.Market < 0 {
		return ""
	}
	return v.Candidates[d.Market].Market
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := genView(t)
		before := slices.Clone(v.Candidates)
		d := policy.Decide(v)

		// Well formed, and it names what it was given.
		if launches := d.Action != policy.Wait && d.Action != policy.Stay; launches != (d.Market >= 0) {
			t.Fatalf("%v with market %d", d.Action, d.Market)
		}
		if (d.Action == policy.Stay || d.Action == policy.Move) && v.Current == nil {
			t.Fatalf("%v without a placement", d.Action)
		}
		if (d.Action == policy.StartSpot || d.Action == policy.StartOnDemand) && v.Current != nil {
			t.Fatalf("%v although a machine is held", d.Action)
		}
		if d.Action == policy.Wait && v.Current != nil && v.Left > 0 {
			t.Fatalf("a machine is let go for nothing: %v", d.Why)
		}
		if !slices.Equal(before, v.Candidates) {
			t.Fatal("the view was changed")
		}
		if d.Market >= 0 {
			c := v.Candidates[d.Market]
			if c.Hint.CooledUntil.After(v.Now) {
				t.Fatalf("%v at a market that is cooled down", d.Action)
			}
			// Work that must not be interrupted never goes on spot.
			if c.Kind == policy.Spot && !v.Interruptible && !v.SpotAllowed {
				t.Fatal("work that must not be interrupted on spot")
			}
		}
		if !d.Until.IsZero() && !d.Until.After(v.Now) {
			t.Fatalf("until %v is not after now: %v", d.Until, d.Why)
		}

		// The order of the candidates does not matter.
		w := v
		w.Candidates = slices.Clone(v.Candidates)
		rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).Shuffle(len(w.Candidates), func(i, j int) {
			w.Candidates[i], w.Candidates[j] = w.Candidates[j], w.Candidates[i]
		})
		e := policy.Decide(w)
		if d.Action != e.Action || market(v, d) != market(w, e) || d.Until != e.Until || d.Why != e.Why {
			t.Fatalf("shuffled: %v %q %v\nbefore: %v %q %v", e.Action, market(w, e), e.Why, d.Action, market(v, d), d.Why)
		}

		// Nothing changes before Until.
		span := 100 * time.Hour
		if !d.Until.IsZero() {
			span = d.Until.Sub(v.Now)
		}
		w = v
		w.Now = v.Now.Add(time.Duration(rapid.Int64Range(0, int64(span)-1).Draw(t, "later")))
		e = policy.Decide(w)
		if d.Action != e.Action || d.Market != e.Market {
			t.Fatalf("at %v: %v %q %v\nbut until %v: %v %q %v",
				w.Now, e.Action, market(w, e), e.Why, d.Until, d.Action, market(v, d), d.Why)
		}
	})
}

// A later deadline never turns waiting or spot into on demand.
func TestMoreTimeIsNeverDearer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := genView(t)
		v.Current, v.Interruptible, v.Policy = nil, true, policy.UniformProgress
		v.Candidates = slices.DeleteFunc(v.Candidates, func(c policy.Candidate) bool { return c.Kind == policy.OnDemand })
		od := onDemand("on-demand", 1.5, v.Left)
		v.Candidates = append(v.Candidates, od)
		v.Deadline = v.Now.Add(time.Duration(rapid.IntRange(1, 100*60).Draw(t, "minutes")) * time.Minute)
		d := policy.Decide(v)
		w := v
		w.Deadline = v.Deadline.Add(time.Duration(rapid.IntRange(1, 50*60).Draw(t, "more")) * time.Minute)
		e := policy.Decide(w)
		if d.Action != policy.StartOnDemand && e.Action == policy.StartOnDemand {
			t.Fatalf("%v (%v)\nbut with more time %v (%v)", d.Action, d.Why, e.Action, e.Why)
		}
	})
}

// Of equals the first by name is taken, wherever it stands.
func TestTiesGoByName(t *testing.T) {
	v := job(0, 0)
	for _, names := range [][]string{{"a", "b"}, {"b", "a"}} {
		v.Candidates = nil
		for _, n := range names {
			v.Candidates = append(v.Candidates, spot(n, 1, v.Left), onDemand(n+"/od", 3, v.Left))
		}
		if got := market(v, policy.Decide(v)); got != "a" {
			t.Errorf("of %v took %q", names, got)
		}
	}
}
