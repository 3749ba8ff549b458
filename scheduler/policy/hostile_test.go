package policy_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"

	"pgregory.net/rapid"
)

// Spot that works more slowly than on demand is taken all the same where it is
// cheaper for the work, and left where it is not.
func TestSlowSpot(t *testing.T) {
	for _, c := range []struct {
		slower float64
		spots  int
		action policy.Action
	}{{1.1, 1, policy.StartSpot}, {1.1, 4, policy.StartSpot}, {2, 4, policy.StartSpot}, {100, 4, policy.Wait}} {
		markets := make([]known, c.spots)
		for i := range markets {
			markets[i] = seen(1, 40, true)
		}
		v := learnedJob(20*time.Hour, 60*time.Hour, markets...)
		for i := range markets {
			v.Candidates[i].Work = time.Duration(float64(v.Left) * c.slower)
		}
		d := ask(t, v)
		if d.Action != c.action {
			t.Errorf("%d markets %v times as slow: %v: %v", c.spots, c.slower, d.Action, d.Why)
		}
		if least := money.Amount(usd(20 * min(c.slower, 3))); d.Why.Cost < least*98/100 || d.Why.Cost > least*14/10 {
			t.Errorf("%d markets %v times as slow: expected to cost %v; at least %v", c.spots, c.slower, d.Why.Cost, least)
		}
	}
}

// Work that is short for its deadline is launched, not left until its slack is gone.
func TestShortWorkIsLaunched(t *testing.T) {
	markets := make([]known, 13)
	for i := range markets {
		markets[i] = known{policy.ShippedModel().Memory(t0), 1}
	}
	for _, c := range []struct{ work, within time.Duration }{
		{time.Second, 30 * time.Minute}, {5 * time.Minute, 24 * time.Hour}, {10 * time.Minute, 7 * 24 * time.Hour}, {time.Hour, 365 * 24 * time.Hour},
	} {
		v := learnedJob(c.work, c.within, markets...)
		d := ask(t, v)
		if d.Action != policy.StartSpot {
			t.Errorf("%v within %v: %v: %v", c.work, c.within, d.Action, d.Why)
		}
		// A delay at $1, and the next if it is lost: not a fraction of one.
		if least := money.Amount(usd((c.work + 12*time.Minute).Hours())); d.Why.Cost < least*99/100 || d.Why.Cost > 2*least {
			t.Errorf("%v within %v: expected to cost %v; at least %v", c.work, c.within, d.Why.Cost, least)
		}
	}
}

// What is paid to enter every market is no reason to wait.
func TestEntryEverywhere(t *testing.T) {
	for _, entry := range []float64{0, 5, 500} {
		v := learnedJob(20*time.Hour, 30*time.Hour, seen(1, 40, true))
		for i := range v.Candidates {
			v.Candidates[i].Entry = money.Amount(usd(entry))
		}
		if d := ask(t, v); d.Action != policy.StartSpot {
			t.Errorf("at $%v: %v: %v", entry, d.Action, d.Why)
		}
	}
}

// The next question is asked before no slack is left, however short delays are.
func TestAskedBeforeTheSlackIsGone(t *testing.T) {
	v := learnedJob(time.Hour, time.Hour+30*time.Second, seen(1, 40, true))
	for i := range v.Candidates {
		v.Candidates[i].Delay = 5 * time.Second
	}
	d := ask(t, v)
	// On demand needs 1 h 5 s.
	if latest := t0.Add(25 * time.Second); d.Action != policy.StartSpot || d.Until.IsZero() || d.Until.After(latest) {
		t.Errorf("%v until %v; at %v it is too late", d.Action, d.Until, latest)
	}
}

// Views at the limits of their types have an answer that names a candidate, and a
// next question later than now; tables stay small.
func TestExtremeViews(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		span := rapid.SampledFrom([]time.Duration{0, 1, time.Second, 12 * time.Minute, time.Hour, 300 * time.Hour, 50 * 365 * 24 * time.Hour, math.MaxInt64})
		price := rapid.SampledFrom([]money.Rate{0, 1, usd(0.5), usd(3), usd(1e9), math.MaxInt64, -usd(1)})
		amount := rapid.SampledFrom([]money.Amount{0, 1, money.Amount(usd(5)), math.MaxInt64})
		v := policy.View{
			Now: t0, Start: t0.Add(-time.Hour), Deadline: t0.Add(max(1, span.Draw(t, "deadline"))),
			Left: max(1, span.Draw(t, "left")), AtRisk: span.Draw(t, "risk"), Margin: span.Draw(t, "margin"),
			Look:          rapid.SampledFrom([]time.Duration{0, time.Second, time.Hour}).Draw(t, "look"),
			Interruptible: true, Library: &policy.Library{}, Egress: amount.Draw(t, "egress"),
			Policy: rapid.SampledFrom([]policy.Name{policy.Learned, policy.UniformProgress, policy.CheapestExpected}).Draw(t, "policy"),
		}
		v.Total = v.Left
		for i := range rapid.SampledFrom([]int{0, 1, 2, 5, 20}).Draw(t, "candidates") {
			m := policy.ShippedModel().Memory(t0)
			m.See(t0, rapid.Bool().Draw(t, "up"))
			c := policy.Candidate{
				Market: fmt.Sprint("m", i), Kind: policy.Kind(rapid.IntRange(0, 1).Draw(t, "kind")), Price: price.Draw(t, "price"),
				Work: span.Draw(t, "work"), Delay: span.Draw(t, "delay"), Entry: amount.Draw(t, "entry"), Region: fmt.Sprint(i % 20),
			}
			if c.Kind == policy.Spot {
				c.Outlook = m.Outlook(t0)
			}
			if rapid.IntRange(0, 3).Draw(t, "cooled") == 0 {
				c.Hint.CooledUntil = t0.Add(span.Draw(t, "cool"))
			}
			v.Candidates = append(v.Candidates, c)
		}
		if n := len(v.Candidates); n > 0 && rapid.Bool().Draw(t, "held") {
			v.Current = &policy.Placement{Candidate: v.Candidates[rapid.IntRange(0, n-1).Draw(t, "at")], Since: t0.Add(-span.Draw(t, "since")), Running: rapid.Bool().Draw(t, "running")}
		}
		check := func(d policy.Decision) {
			if d.Market < -1 || d.Market >= len(v.Candidates) || (d.Market >= 0) != (d.Action == policy.StartSpot || d.Action == policy.StartOnDemand || d.Action == policy.Move) {
				t.Fatalf("%v at %d", d.Action, d.Market)
			}
			if !d.Until.IsZero() && !d.Until.After(v.Now) {
				t.Fatalf("%v until %v, which is not after now: %v", d.Action, d.Until, d.Why)
			}
			_ = d.Why.String()
		}
		d := policy.Decide(v)
		check(d)
		if d.Want != nil {
			table := policy.Build(*d.Want)
			if n := table.Bytes(); n > 40<<20 {
				t.Fatalf("a table of %d MB", n>>20)
			}
			v.Library = v.Library.With(table, 1)
			d = policy.Decide(v)
			if d.Want != nil {
				t.Fatal("the table that was wanted does not do")
			}
			check(d)
		}
	})
}

// A clock that goes back, or stood still for decades, is no end of a belief.
func TestClockThatIsWrong(t *testing.T) {
	m := policy.ShippedModel().Memory(t0)
	m.See(t0, true)
	m.See(t0.Add(-5*time.Hour), false)
	if at := m.Belief.At(); !at.Equal(t0) {
		t.Errorf("a look 5 h ago takes the belief back to %v", at)
	}
	for _, from := range []time.Time{{}, time.Unix(0, 0)} {
		m, held := policy.ShippedModel().Memory(from), policy.ShippedModel().Memory(from)
		m.See(t0, true)
		held.Hold(t0)
		for _, m := range []*policy.Memory{m, held} {
			if at := m.Belief.At(); t0.Sub(at) >= policy.Grid {
				t.Errorf("from %v the belief is brought to %v", from, at)
			}
		}
	}
}

// Facts that no belief has would lead outside of tables.
func TestRecallRefusesFacts(t *testing.T) {
	model := policy.ShippedModel()
	raw, err := json.Marshal(model.Memory(t0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := model.Recall(raw); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		value any
	}{{"met", 1e9}, {"met", -1}, {"often", 2}, {"often", -0.1}, {"back", -1}, {"up", []float64{1e308}}, {"next_down", []float64{-3}}} {
		var kept map[string]any
		if err := json.Unmarshal(raw, &kept); err != nil {
			t.Fatal(err)
		}
		kept["facts"].(map[string]any)[c.name] = c.value
		bad, err := json.Marshal(kept)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := model.Recall(bad); err == nil || !strings.Contains(err.Error(), "facts") {
			t.Errorf("%s of %v: %v", c.name, c.value, err)
		}
	}
}
