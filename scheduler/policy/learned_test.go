package policy_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"

	"pgregory.net/rapid"
)

// known is a spot market as a learning broker knows it.
type known struct {
	*policy.Memory
	price float64
}

// seen is a market that was seen to be up, or down, for so many hours until t0.
func seen(price, hours float64, up bool) known {
	m := policy.ShippedModel().Memory(t0.Add(-time.Duration(hours * float64(time.Hour))))
	for at := m.Belief.At(); !at.After(t0); at = at.Add(policy.Grid) {
		m.See(at, up)
	}
	m.Facts, m.Drawn = m.Belief.Facts(), t0
	return known{m, price}
}

// learnedJob is a view of so much work and time among markets, with on demand at $3.
func learnedJob(work, within time.Duration, markets ...known) policy.View {
	v := policy.View{
		Now: t0, Start: t0, Deadline: t0.Add(within), Total: work, Left: work, Look: 5 * time.Second,
		Interruptible: true, Library: &policy.Library{},
	}
	for i, m := range markets {
		v.Candidates = append(v.Candidates, policy.Candidate{
			Market: fmt.Sprintf("spot-%d", i), Kind: policy.Spot, Price: usd(m.price), Work: work, Delay: 12 * time.Minute,
			Region: "here", Outlook: m.Outlook(t0),
		})
	}
	v.Candidates = append(v.Candidates, policy.Candidate{Market: "net", Price: usd(3), Work: work, Delay: 12 * time.Minute, Region: "here"})
	return v
}

// ask decides with the table that is wanted.
func ask(t testing.TB, v policy.View) policy.Decision {
	t.Helper()
	d := policy.Decide(v)
	if d.Want == nil {
		t.Fatal("no table is wanted")
	}
	v.Library = v.Library.With(policy.Build(*d.Want), 8)
	if d = policy.Decide(v); d.Want != nil {
		t.Fatal("the table that was wanted does not do")
	}
	return d
}

// A dear market that is always up is left alone while there is time for a cheap
// one to come back, and is taken before on demand when there is not.
func TestReservationPrice(t *testing.T) {
	cheap := func() known {
		m := seen(1, 40, true) // up for long, then lost: it comes back soon
		m.See(t0, false)
		return m
	}
	dear := seen(1.9, 40, true)
	v := learnedJob(20*time.Hour, 40*time.Hour, cheap(), dear)
	v.Candidates[0].Hint.CooledUntil = t0.Add(3 * time.Minute)
	d := ask(t, v)
	if d.Action != policy.Wait || d.Why.Code != policy.SpotSoon {
		t.Errorf("with 20 h of slack: %v %v", d.Action, d.Why)
	}
	if text := d.Why.String(); !strings.Contains(text, "spot expected within") || !strings.Contains(text, "on demand from 2026-") {
		t.Errorf("it is explained as %q", text)
	}
	v = learnedJob(20*time.Hour, 20*time.Hour+50*time.Minute, cheap(), dear)
	v.Candidates[0].Hint.CooledUntil = t0.Add(3 * time.Minute)
	if d := ask(t, v); d.Action != policy.StartSpot || d.Market != 1 {
		t.Errorf("with half an hour of slack: %v %v", d.Action, d.Why)
	}
}

// Of two markets at one price the one that lasts is taken.
func TestTheMarketThatLasts(t *testing.T) {
	flapping := policy.ShippedModel().Memory(t0.Add(-30 * time.Hour))
	for i := range 180 {
		flapping.See(t0.Add(-30*time.Hour+time.Duration(i)*10*time.Minute), i%3 != 0)
	}
	flapping.See(t0, true)
	flapping.Facts, flapping.Drawn = flapping.Belief.Facts(), t0
	v := learnedJob(12*time.Hour, 14*time.Hour, known{flapping, 1}, seen(1.05, 60, true))
	if d := ask(t, v); d.Action != policy.StartSpot || d.Market != 1 {
		t.Errorf("%v %d: %v", d.Action, d.Market, d.Why)
	}
}

// A market that was up until just now is waited for, and that is worth more than to
// wait for one that was down for days.
func TestAllDown(t *testing.T) {
	lost := seen(1, 48, true)
	lost.See(t0, false)
	var cost [2]money.Amount
	for i, m := range []known{lost, seen(1, 48, false)} {
		v := learnedJob(20*time.Hour, 26*time.Hour, m)
		v.Candidates[0].Hint.CooledUntil = t0.Add(3 * time.Minute)
		d := ask(t, v)
		if i == 0 && d.Action != policy.Wait {
			t.Errorf("just lost: %v %v", d.Action, d.Why)
		}
		cost[i] = d.Why.Cost
	}
	if cost[0] > money.Amount(usd(38)) || cost[1] < money.Amount(usd(45)) || cost[1] > money.Amount(usd(60.7)) {
		t.Errorf("expected to cost %v just lost, %v down for days; on demand at once is 60.6, on spot 20.2", cost[0], cost[1])
	}
}

// Egress keeps work in its region unless the gap pays for it.
func TestEgressKeepsWorkInItsRegion(t *testing.T) {
	for _, c := range []struct {
		egress float64
		action policy.Action
	}{{0.5, policy.Move}, {40, policy.Stay}} {
		v := learnedJob(20*time.Hour, 40*time.Hour, seen(2, 30, true), seen(1, 30, true))
		v.Egress = money.Amount(usd(c.egress))
		v.Candidates[1].Region, v.Candidates[1].Entry = "there", v.Egress
		v.Current = &policy.Placement{Candidate: v.Candidates[0], Since: t0.Add(-time.Hour), Running: true}
		if d := ask(t, v); d.Action != c.action {
			t.Errorf("at $%v: %v %v", c.egress, d.Action, d.Why)
		}
	}
}

// What a preemption undoes makes spot dearer, unless its notice is long enough to save.
func TestWorkAtRiskCosts(t *testing.T) {
	cost := func(atRisk time.Duration, warned bool) money.Amount {
		v := learnedJob(20*time.Hour, 40*time.Hour, seen(1, 40, true))
		v.AtRisk, v.Candidates[0].Warned = atRisk, warned
		d := ask(t, v)
		if d.Action != policy.StartSpot {
			t.Fatalf("%v at risk: %v %v", atRisk, d.Action, d.Why)
		}
		return d.Why.Cost
	}
	none, hours, warned := cost(0, false), cost(4*time.Hour, false), cost(4*time.Hour, true)
	if hours < none+money.Amount(usd(1)) || warned != none {
		t.Errorf("it is expected to cost %v with nothing at risk, %v with 4 h, %v with 4 h and a notice", none, hours, warned)
	}
}

// Until a table is built work stays where it is, and idle work goes by the line.
func TestWithoutATable(t *testing.T) {
	v := learnedJob(20*time.Hour, 26*time.Hour, seen(1, 48, true))
	if d := policy.Decide(v); d.Action != policy.StartSpot || d.Want == nil {
		t.Errorf("idle: %v %v", d.Action, d.Why)
	}
	v.Current = &policy.Placement{Candidate: v.Candidates[1], Since: t0.Add(-time.Hour), Running: true}
	if d := policy.Decide(v); d.Action != policy.Stay || d.Want == nil {
		t.Errorf("on demand: %v %v", d.Action, d.Why)
	}
}

// drawMarkets draws views among random markets.
func drawLearned(t *rapid.T) policy.View {
	var all []known
	for range rapid.IntRange(1, 4).Draw(t, "markets") {
		m := policy.ShippedModel().Memory(t0.Add(-10 * time.Hour))
		at := t0.Add(-10 * time.Hour)
		for range rapid.IntRange(0, 20).Draw(t, "looks") {
			at = at.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "minutes")) * time.Minute)
			m.See(at, rapid.Bool().Draw(t, "up"))
		}
		all = append(all, known{m, float64(rapid.IntRange(2, 40).Draw(t, "price")) / 10})
	}
	work := time.Duration(rapid.IntRange(1, 60).Draw(t, "work")) * time.Hour
	v := learnedJob(work, work+time.Duration(rapid.IntRange(20, 3000).Draw(t, "slack"))*time.Minute, all...)
	for i := range v.Candidates {
		v.Candidates[i].Region = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "region")
	}
	if at := rapid.IntRange(-1, len(v.Candidates)-1).Draw(t, "held"); at >= 0 {
		v.Current = &policy.Placement{Candidate: v.Candidates[at], Since: t0.Add(-time.Hour), Running: true}
	}
	return v
}

// The order of the candidates does not matter, and the same view has one answer.
func TestLearnedIgnoresTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawLearned(t)
		first := policy.Decide(v)
		if first.Want == nil {
			t.Fatal("no table is wanted")
		}
		v.Library = v.Library.With(policy.Build(*first.Want), 1)
		want := policy.Decide(v)
		name := func(v policy.View, d policy.Decision) string {
			if d.Market < 0 {
				return ""
			}
			return v.Candidates[d.Market].Market
		}
		shuffled := v
		shuffled.Candidates = append([]policy.Candidate(nil), v.Candidates...)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		r.Shuffle(len(shuffled.Candidates), func(i, j int) {
			shuffled.Candidates[i], shuffled.Candidates[j] = shuffled.Candidates[j], shuffled.Candidates[i]
		})
		got := policy.Decide(shuffled)
		if got.Want != nil || got.Action != want.Action || name(shuffled, got) != name(v, want) {
			t.Fatalf("%v %s, in another order %v %s (want a table: %v)", want.Action, name(v, want), got.Action, name(shuffled, got), got.Want != nil)
		}
	})
}

// A belief stays one whatever is seen, and comes back from what is kept of it.
func TestBelief(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := policy.ShippedModel()
		m := model.Memory(t0)
		at := t0
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			at = at.Add(time.Duration(rapid.IntRange(-5, 600).Draw(t, "minutes")) * time.Minute)
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				m.See(at, true)
			case 1:
				m.See(at, false)
			default:
				m.Hold(at)
			}
			if up := m.Belief.Up(); !(up >= -1e-9 && up <= 1+1e-9) {
				t.Fatalf("up with chance %v", up)
			}
		}
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := model.Recall(raw)
		if err != nil {
			t.Fatal(err)
		}
		at = at.Add(3 * time.Hour)
		a, b := m.Outlook(at), again.Outlook(at)
		if math.Abs(a.Up-b.Up) > 1e-5 || a.Facts != b.Facts {
			t.Fatalf("kept and recalled, up is %v instead of %v, or the facts differ", b.Up, a.Up)
		}
	})
}

func TestRecallRefuses(t *testing.T) {
	model := policy.ShippedModel()
	raw, err := json.Marshal(model.Memory(t0))
	if err != nil {
		t.Fatal(err)
	}
	other := policy.NewModel(policy.Knowledge{Types: policy.Shipped().Types[:3]}, policy.Grid)
	if _, err := other.Recall(raw); err == nil {
		t.Error("a memory of another model is taken")
	}
	for _, text := range []string{"", "{", `{"belief":{"belief":"!"}}`, `{"belief":{"belief":""}}`} {
		if _, err := model.Recall([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// What is seen moves the belief the right way.
func TestBeliefLearns(t *testing.T) {
	model := policy.ShippedModel()
	unseen := model.Memory(t0).Outlook(t0)
	good, bad := seen(1, 60, true).Outlook(t0), seen(1, 60, false).Outlook(t0)
	if !(bad.Facts.Often < unseen.Facts.Often && unseen.Facts.Often < good.Facts.Often) {
		t.Errorf("often up: %v, unseen %v, %v", bad.Facts.Often, unseen.Facts.Often, good.Facts.Often)
	}
	for a := 1; a < len(unseen.Facts.Up); a++ {
		if unseen.Facts.Up[a] > unseen.Facts.Up[a-1] {
			t.Errorf("the hazard of an up run rises with age: %v", unseen.Facts.Up)
		}
	}
	// What was seen long ago counts little.
	old := seen(1, 60, false)
	if up := old.Outlook(t0.AddDate(0, 6, 0)).Up; math.Abs(up-unseen.Up) > 0.05 {
		t.Errorf("after half a year up is %v, unseen %v", up, unseen.Up)
	}
}
