package backtest

import (
	"math"
	"os"
	"testing"
	"time"
)

const recorded = "../../../shared/traces/"

// needs skips a test where a recorded market is not at hand.
func needs(t *testing.T, stem string) string {
	t.Helper()
	for _, kind := range []string{".avail.csv.gz", ".count.csv.gz"} {
		if _, err := os.Stat(recorded + stem + kind); err == nil {
			return recorded + stem
		}
	}
	t.Skipf("the recorded market %s is not here", recorded+stem)
	return ""
}

// The bench against the figures of an independent replay: Track A, 2022-10-26, a
// delay of 0.2 h, 300 starts in each pool, mean over the pools of cost ÷ on
// demand. The tolerance is that of three digits, but for the evolved rule,
// which is known by its description only, and for fewer starts.
func TestSelfTest(t *testing.T) {
	stem := needs(t, "aws-k80-v100-2022/2022-10-26")
	n, slack := 300, 0.0
	if testing.Short() {
		n, slack = 40, 0.006
	}
	type figure struct{ want, within float64 }
	for _, c := range []struct {
		fraction float64
		optimum  float64
		over     map[string]figure // cost ÷ on demand
		ratio    map[string]figure // cost ÷ optimum
	}{
		{fraction: 0.8, optimum: 0.640, over: map[string]figure{
			"up": {0.707, 0.0006}, "greedy": {0.747, 0.0006}, "up-oracle": {0.719, 0.0015}, "evolved": {0.706, 0.004},
		}, ratio: map[string]figure{"up-idle": {1.153, 0.002}, "up": {1.106, 0.002}}},
		{fraction: 0.6, ratio: map[string]figure{"up": {1.102, 0.002}, "evolved": {1.081, 0.004}}},
		{fraction: 0.9, ratio: map[string]figure{"up": {1.140, 0.003}, "evolved": {1.147, 0.008}}},
	} {
		if testing.Short() && c.fraction != 0.8 {
			continue
		}
		r, err := Run(t.Context(), Options{
			Market: stem, PerPool: true, Length: 48 * time.Hour, Fraction: c.fraction,
			Delay: 12 * time.Minute, N: n, Free: true, Policies: []string{"greedy", "up", "up-idle", "up-oracle", "evolved"}, Alike: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		check := func(name string, got, want, within float64) {
			t.Logf("at %v %s: %.4f, elsewhere %.3f", c.fraction, name, got, want)
			if math.Abs(got-want) > within+slack {
				t.Errorf("at %v %s: %.4f, want %.3f within %v", c.fraction, name, got, want, within+slack)
			}
		}
		if c.optimum != 0 {
			check("optimum ÷ on demand", r.Optimum.OverOnDemand, c.optimum, 0.0006)
		}
		for _, s := range r.Policies {
			if f, ok := c.over[s.Name]; ok {
				check(s.Name+" ÷ on demand", s.OverOnDemand, f.want, f.within)
			}
			if f, ok := c.ratio[s.Name]; ok {
				check(s.Name+" ÷ optimum", s.SumRatio, f.want, f.within)
			}
			if s.Misses != 0 {
				t.Errorf("%s missed %d deadlines", s.Name, s.Misses)
			}
		}
	}
}
