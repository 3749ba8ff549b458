package policy_test

import (
	"math"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"

	"pgregory.net/rapid"
)

// Daly's own figures for a save of five minutes.
func TestCheckpointInterval(t *testing.T) {
	for _, c := range []struct {
		save, life time.Duration
		minutes    float64
	}{
		{5 * time.Minute, 24 * time.Hour, 117},
		{5 * time.Minute, 6 * time.Hour, 57},
		{5 * time.Minute, 15 * time.Minute, 9.1},
		{5 * time.Minute, 2 * time.Minute, 2}, // a save is as long as two lives: W = M
		{0, time.Hour, 0},
		{time.Minute, 0, 0},
	} {
		got := policy.CheckpointInterval(c.save, c.life).Minutes()
		if math.Abs(got-c.minutes) > 0.005*c.minutes+0.05 {
			t.Errorf("save %v, life %v: %.2f min, want %v", c.save, c.life, got, c.minutes)
		}
	}
}

// The interval is close to the one that loses the least time.
func TestCheckpointIntervalLosesLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		save := time.Duration(rapid.IntRange(10, 600).Draw(t, "save")) * time.Second
		life := time.Duration(rapid.IntRange(20, 2000).Draw(t, "life")) * save
		w := policy.CheckpointInterval(save, life)
		at := lostShare(save, w, time.Minute, life)
		for _, other := range []time.Duration{w / 2, w * 2} {
			if lost := lostShare(save, other, time.Minute, life); lost < at {
				t.Fatalf("save every %v loses %.4f, every %v only %.4f", w, at, other, lost)
			}
		}
	})
}

func TestCooldown(t *testing.T) {
	c := policy.DefaultCooldown
	var s policy.Cooled
	now := t0
	for i, want := range []float64{3, 6, 10, 10, 10, 10} {
		s = c.Fail(s, now)
		if got := s.Until.Sub(now).Minutes(); got != want {
			t.Errorf("failure %d: cooled down for %v min, want %v", i+1, got, want)
		}
		now = s.Until
	}
	// Two half-hours of quiet forgive two of six failures; the fifth is the cap again.
	if got := c.Level(s, now.Add(time.Hour)); got != 4 {
		t.Errorf("level after an hour: %d", got)
	}
	if s := c.Fail(s, now.Add(100*time.Hour)); s.Failures != 1 {
		t.Errorf("all is forgotten in time, but %d failures count", s.Failures)
	}
	// A clock that jumps back does not shorten a cool-down.
	if again := c.Fail(s, s.Until.Add(-50*time.Hour)); again.Until.Before(s.Until) {
		t.Errorf("shortened to %v", again.Until)
	}
}

func TestExpect(t *testing.T) {
	od := onDemand("o", 3, 10*time.Hour)
	if e := policy.Expect(&od, time.Hour, policy.History{}); e.Time != 10*time.Hour+12*time.Minute || e.Preemptions != 0 || e.Cost != 30_600_000_000 {
		t.Errorf("on demand: %+v", e)
	}
	// One preemption in two hours: e^(0.2/2) on the work, and 5.16 preemptions…
	s := spot("s", 1, 10*time.Hour)
	two := policy.History{Preemptions: 1, Held: 2 * time.Hour}
	e := policy.Expect(&s, 0, two)
	s.History = policy.History{Preemptions: 1_000_000, Held: 2_000_000 * time.Hour}
	if own := policy.Expect(&s, 0, policy.History{}); own.Time != e.Time {
		t.Errorf("much history outweighs the prior: %+v, with it as prior %+v", own, e)
	}
	want := 0.2 + 10*math.Exp(0.1)
	if math.Abs(e.Time.Hours()-want) > 0.001 || math.Abs(e.Preemptions-want/2) > 0.01 {
		t.Errorf("spot: %+v, want %.3f h", e, want)
	}
	// … and work that never saves starts again each time: (e^(λW) − 1)/λ · e^(λd) + d.
	whole := policy.Expect(&s, 1000*time.Hour, policy.History{})
	if want := 0.2 + 2*math.Expm1(5)*math.Exp(0.1); math.Abs(whole.Time.Hours()-want) > 0.01 {
		t.Errorf("without saves: %v, want %.2f h", whole.Time, want)
	}
	// A hopeless place is dear, not free, and does not overflow.
	s.Work, s.Price = 10000*time.Hour, usd(1e6)
	if e := policy.Expect(&s, 10000*time.Hour, policy.History{Preemptions: 1, Held: time.Second}); e.Cost != money.MaxAmount {
		t.Errorf("hopeless: %+v", e)
	}
}

// More work, a longer delay, more preemptions or more at risk never cost less.
func TestExpectIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dur := func(name string, hours int) time.Duration {
			return time.Duration(rapid.IntRange(0, hours*60).Draw(t, name)) * time.Minute
		}
		c := spot("s", 1, dur("work", 100))
		c.Delay = dur("delay", 2)
		c.History = policy.History{Preemptions: rapid.IntRange(0, 50).Draw(t, "preemptions"), Held: dur("held", 100)}
		risk := dur("risk", 10)
		base := policy.Expect(&c, risk, policy.History{})
		for name, change := range map[string]func(*policy.Candidate, *time.Duration){
			"work":        func(c *policy.Candidate, _ *time.Duration) { c.Work += time.Hour },
			"delay":       func(c *policy.Candidate, _ *time.Duration) { c.Delay += time.Minute },
			"preemptions": func(c *policy.Candidate, _ *time.Duration) { c.History.Preemptions++ },
			"risk":        func(_ *policy.Candidate, r *time.Duration) { *r += time.Hour },
		} {
			d, r := c, risk
			change(&d, &r)
			if e := policy.Expect(&d, r, policy.History{}); e.Cost < base.Cost {
				t.Fatalf("more %s: %v, before %v", name, e, base)
			}
		}
		if base.Time < c.Work {
			t.Fatalf("%v of work in %v", c.Work, base.Time)
		}
	})
}

// lostShare is the share of time that saving every interval costs: saves,
// redone work, and the delay of each restart. Zero if life or interval is not
// positive.
func lostShare(save, interval, delay, life time.Duration) float64 {
	if life <= 0 || interval <= 0 {
		return 0
	}
	m := life.Seconds()
	return save.Seconds()/interval.Seconds() + interval.Seconds()/(2*m) + delay.Seconds()/m
}
