package backtest

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// TestTracks compares many-pool figures with those of an independent replay: all
// pools seen, $1 of egress for each move to another region, sums of costs ÷ sums
// of optima. Its starts are not known, so figures differ by what windows differ:
// where whole gangs of 16 are needed a few windows cost four times the others.
// "rule" is the best of the forms of the SkyNomad utility.
func TestTracks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	const v100, h100 = "aws-v100x1-2023-02/s2", "gcp-h100x16-2025-10/s2"
	needs(t, v100)
	for _, c := range []struct {
		stem                string
		length, deadline    float64
		gang                int
		greedy, upS, rule   float64
		within, withinRules float64
	}{
		{v100, 48, 53.3, 1, 1.083, 1.160, 1.083, 0.02, 0.05},
		{v100, 48, 60, 1, 1.087, 1.129, 1.078, 0.02, 0.05},
		{v100, 48, 72, 1, 1.090, 1.119, 1.063, 0.02, 0.05},
		{h100, 40, 50, 1, 1.031, 1.059, 1.018, 0.02, 0.03},
		{h100, 40, 50, 8, 1.102, 1.144, 1.091, 0.02, 0.03},
		{h100, 40, 50, 16, 1.772, 1.768, 1.129, 0.12, 0.05},
		{h100, 40, 44, 16, 2.407, 1.890, 1.137, 0.12, 0.05},
		{h100, 12, 13.2, 16, 2.952, 2.596, 1.705, 0.12, 0.25},
		{h100, 12, 15, 16, 1.449, 1.352, 1.130, 0.12, 0.05},
		{h100, 12, 18, 16, 1.334, 1.337, 1.155, 0.12, 0.05},
	} {
		delay := 12 * time.Minute
		if c.stem == v100 {
			delay = 13 * time.Minute
		}
		hours := func(h float64) time.Duration { return time.Duration(math.Round(h*3600)) * time.Second }
		r, err := Run(t.Context(), Options{
			Market: recorded + c.stem, Length: hours(c.length), Deadline: hours(c.deadline), Delay: delay, Gang: c.gang,
			Checkpoint: 50, Egress: "0.02", N: 24, Free: true, SplitAtHoles: true,
			Policies: []string{"cheapest-greedy", "up-s", "skynomad", "skynomad-rate", "skynomad-mixed"},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{"rule": math.Inf(1)}
		for i, s := range r.Policies {
			got[s.Name] = s.SumRatio
			if i >= 2 {
				got["rule"] = min(got["rule"], s.SumRatio)
			}
			if s.Misses != 0 {
				t.Errorf("%s missed %d deadlines", s.Name, s.Misses)
			}
		}
		for _, f := range []struct {
			name         string
			want, within float64
		}{{"cheapest-greedy", c.greedy, c.within}, {"up-s", c.upS, c.within}, {"rule", c.rule, c.withinRules}} {
			t.Logf("%s, gang %d, %vh in %vh, %s: %.3f, elsewhere %.3f", c.stem, c.gang, c.length, c.deadline, f.name, got[f.name], f.want)
			if math.Abs(got[f.name]/f.want-1) > f.within {
				t.Errorf("%s, gang %d, %vh in %vh, %s: %.3f, want %.3f within %v %%", c.stem, c.gang, c.length, c.deadline,
					f.name, got[f.name], f.want, f.within*100)
			}
		}
	}
}

// A whole queue over the pools of tracks B and C: no cap is exceeded and nothing
// that was admitted is late, whatever the policy.
func TestTrackD(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	needs(t, "gcp-h100x16-2025-10/s2")
	seeds := 1
	if *figures {
		seeds = 5
	}
	for seed := range seeds {
		q := parse(t, fmt.Sprintf(`
markets: [aws-v100x1-2023-02/s2, gcp-h100x16-2025-10/s2]
delay: 13m
egress: 0.02
generate: {jobs: 220, seed: %d, lengths: jobs/philly-runtime-seconds.csv.gz}`, seed))
		q.dir = recorded
		r := q.run(t, QueueOptions{SplitAtHoles: true})
		for _, p := range r.Policies {
			if p.Misses > 0 || p.CapBreaches > 0 || p.SumCost < p.Bound || p.Admitted < 40 {
				t.Errorf("seed %d, %s: %+v", seed, p.Name, p.Tally)
			}
			t.Logf("seed %d %-16s admitted %3d, cost %8.2f, ÷ bound %.3f", seed, p.Name, p.Admitted, p.SumCost, p.Ratio)
		}
	}
}
