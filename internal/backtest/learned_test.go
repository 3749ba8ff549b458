package backtest

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"
)

// jobIn is a job of so many hours in a market of ten-minute ticks; rows are pools.
func jobIn(up string, length, deadline time.Duration, spot ...float64) *window {
	w := build(10*time.Minute, up, 1, 3)
	for t := range w.stretch.price {
		for p, x := range spot {
			w.stretch.price[t][p] = money.Rate(x * 1e9)
		}
	}
	w.opt.Free, w.opt.Delay = false, 12*time.Minute
	w.opt.Length, w.opt.Deadline, w.ticks = length, deadline, ticks(deadline)
	return w
}

func ticks(of time.Duration) int { return int(of / (10 * time.Minute)) }

// Where spot is never up the job costs what it costs on demand, and is in time.
func TestOursInAMarketThatIsAllDown(t *testing.T) {
	w := jobIn(strings.Repeat("0", ticks(40*time.Hour)), 20*time.Hour, 40*time.Hour)
	out := w.replay(ruleOf("ours"))
	if want := w.onDemandCost(); out.missed || out.cost > want+1e-9 {
		t.Errorf("it costs %v and ends after %v, on demand costs %v", out.cost, out.finish, want)
	}
}

// A dear pool that is always up is used while the cheap one is away for long, and
// not instead of it.
func TestOursBesideADearPoolThatIsAlwaysUp(t *testing.T) {
	n := ticks(60 * time.Hour)
	cheap := strings.Repeat("111111111111111111110000", n/24)
	w := jobIn(cheap+"\n"+strings.Repeat("1", n), 24*time.Hour, 40*time.Hour, 1, 2.8)
	out := w.replay(ruleOf("ours"))
	var dp optimizer
	if best := dp.solve(w); out.missed || out.cost > 1.1*best {
		t.Errorf("it costs %v, the optimum %v", out.cost, best)
	}
	greedy := w.replay(ruleOf("up-s"))
	if out.cost >= greedy.cost {
		t.Errorf("it costs %v, with every pool that is up taken %v", out.cost, greedy.cost)
	}
}

// What was learned in one market misleads in another for a while at most.
func TestOursWhereTheMarketHasDrifted(t *testing.T) {
	// It was up for days at a time, and now it comes and goes.
	before := build(10*time.Minute, strings.Repeat(strings.Repeat("1", 400)+strings.Repeat("0", 6), 12), 1, 3).market.sequences()
	k := fit(before)
	drifted := strings.Repeat("110100000110000100000000", 30)
	for _, deadline := range []time.Duration{30 * time.Hour, 50 * time.Hour} {
		w := jobIn(drifted[:ticks(deadline)], 24*time.Hour, deadline)
		w.opt.school = newSchool(k)
		ours, up := w.replay(ruleOf("ours")), w.replay(ruleOf("up"))
		if ours.missed || ours.cost > 1.02*up.cost {
			t.Errorf("in %v it costs %v and ends after %v, uniform progress %v", deadline, ours.cost, ours.finish, up.cost)
		}
	}
}

// Knowing nothing of a market, ours costs no more than Uniform Progress by more
// than 2 %, and no deadline is missed.
func TestOursWithoutHistory(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	hours := func(h float64) time.Duration { return time.Duration(h * float64(time.Hour)) }
	for _, c := range []struct {
		capture string
		o       Options
	}{
		{"aws-k80-v100-2022/2022-10-26", Options{Length: hours(48), Fraction: 0.8, Delay: 12 * time.Minute, PerPool: true, Alike: true, N: 8}},
		{"aws-k80-v100-2022/2022-12-13", Options{Length: hours(48), Fraction: 0.9, Delay: 12 * time.Minute, PerPool: true, Alike: true, N: 8}},
		{"aws-v100x1-2023-02/s1", Options{Length: hours(48), Deadline: hours(60), Delay: 13 * time.Minute, N: 4}},
		{"gcp-h100x16-2025-10/s2", Options{Length: hours(40), Deadline: hours(50), Delay: 12 * time.Minute, Gang: 8, SplitAtHoles: true, N: 8}},
	} {
		c.o.Market, c.o.Cold, c.o.Policies = filepath.Join(sharedTraces, c.capture), true, []string{"ours", "up"}
		k, ok, err := FitTo(sharedTraces, c.capture)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			t.Skip("the recorded markets are not beside this checkout")
		}
		c.o.Knowledge = &k
		r, err := Run(context.Background(), c.o)
		if err != nil {
			t.Fatal(err)
		}
		up, ours := r.Policies[0], r.Policies[1]
		t.Logf("%s: ours %.3f, up %.3f", c.capture, ours.SumRatio, up.SumRatio)
		if ours.Misses != 0 || ours.SumCost > 1.02*up.SumCost {
			t.Errorf("%s: ours costs %v with %d misses, uniform progress %v", c.capture, ours.SumCost, ours.Misses, up.SumCost)
		}
	}
}

// A job that goes on after what was learned was kept and read again decides as before.
func TestWhatIsKeptDecidesTheSame(t *testing.T) {
	model := policy.NewModel(policy.Shipped(), 10*time.Minute)
	start := time.Unix(0, 0).UTC()
	m := model.Memory(start)
	for i, c := range "1110010111111101000011111" {
		m.See(start.Add(time.Duration(i)*10*time.Minute), c == '1')
	}
	raw, err := m.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	again, err := model.Recall(raw)
	if err != nil {
		t.Fatal(err)
	}
	for h := range 40 {
		at := start.Add(5*time.Hour + time.Duration(h)*time.Hour)
		if a, b := m.Outlook(at), again.Outlook(at); *a != *b {
			t.Fatalf("after %d h the outlook is another", h)
		}
	}
}
