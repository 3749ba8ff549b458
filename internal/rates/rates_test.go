package rates_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpubroker/internal/rates"
)

var (
	start = time.Date(2026, 11, 5, 22, 0, 0, 0, time.UTC)
	g6    = rates.Machine{Type: "sim/g6", GPU: "l4", GPUs: 1, VCPU: 4}
)

func all(*rates.Row) bool { return true }

// learn takes attempts of whole tasks in, an hour apart.
func learn(t testing.TB, s rates.Shelf, at *time.Time, busy ...time.Duration) rates.Shelf {
	t.Helper()
	for _, b := range busy {
		var ok bool
		if s, ok = s.Learn("c", rates.Observation{Machine: g6, Busy: b, Done: 1, At: *at}); !ok {
			t.Fatalf("%s tells nothing", b)
		}
		*at = at.Add(time.Hour)
	}
	return s
}

func estimate(t testing.TB, s rates.Shelf) rates.Estimate {
	t.Helper()
	e, ok := s.Find("c").Pool(all)
	if !ok {
		t.Fatal("nothing is known")
	}
	return e
}

func within(t *testing.T, what string, got time.Duration, low, high float64) {
	t.Helper()
	if m := got.Minutes(); m < low || m > high {
		t.Errorf("%s: %.2f min, want %v to %v", what, m, low, high)
	}
}

func TestWhatAnAttemptTells(t *testing.T) {
	for what, row := range map[string]struct {
		busy time.Duration
		done float64
		want time.Duration // 0: nothing
	}{
		"a whole task":          {10 * time.Minute, 1, 10 * time.Minute},
		"a part of one":         {10 * time.Minute, 0.25, 40 * time.Minute},
		"ten minutes of a week": {10 * time.Minute, 0.001, 10000 * time.Minute},
		"next to nothing":       {10 * time.Minute, 0.0001, 0},
		"no progress":           {10 * time.Minute, 0, 0},
		"it was never busy":     {0, 1, 0},
		"more than all":         {time.Minute, 1.5, 0},
		"no number":             {time.Minute, math.NaN(), 0},
	} {
		s, ok := rates.Shelf{}.Learn("c", rates.Observation{Machine: g6, Busy: row.busy, Done: row.done, At: start})
		if ok != (row.want > 0) {
			t.Errorf("%s: told %t", what, ok)
		} else if ok {
			if e := estimate(t, s); (e.Time - row.want).Abs() > time.Millisecond {
				t.Errorf("%s: %s a task, want %s", what, e.Time, row.want)
			}
		}
	}
}

// One attempt that hung does not move what twenty agree on; a change that repeats is
// believed at once.
func TestOutliers(t *testing.T) {
	at := start
	var s rates.Shelf
	for range 10 {
		s = learn(t, s, &at, 9*time.Minute, 11*time.Minute)
	}
	within(t, "before", estimate(t, s).Time, 9.8, 10.2)
	s = learn(t, s, &at, 10*time.Hour)
	within(t, "after one that hung", estimate(t, s).Time, 9.8, 10.5)
	s = learn(t, s, &at, 10*time.Minute, 20*time.Second)
	within(t, "after one that did nothing", estimate(t, s).Time, 9.6, 10.5)
	s = learn(t, s, &at, 10*time.Minute, 30*time.Minute, 30*time.Minute)
	within(t, "after two of three times the length", estimate(t, s).Time, 9.8, 11.5)
	s = learn(t, s, &at, 30*time.Minute)
	within(t, "after the third", estimate(t, s).Time, 29, 31)
	s = learn(t, s, &at, 29*time.Minute, 31*time.Minute, 30*time.Minute)
	within(t, "and on", estimate(t, s).Time, 29, 31)
}

// Outliers on both sides are no change.
func TestOutliersOnBothSides(t *testing.T) {
	at := start
	s := learn(t, nil, &at, 10*time.Minute, 10*time.Minute, 10*time.Minute, 10*time.Minute, 10*time.Minute, 10*time.Minute)
	for range rates.Confirm {
		s = learn(t, s, &at, 5*time.Hour, 10*time.Second)
	}
	within(t, "between", estimate(t, s).Time, 7, 14)
}

// What is old counts less, and what is very old nothing: the first observation after
// a year is taken as it is, however far off.
func TestDecay(t *testing.T) {
	at := start
	var s rates.Shelf
	for range 20 {
		s = learn(t, s, &at, 10*time.Minute)
	}
	fresh := learn(t, s, new(at), 12*time.Minute)
	later := learn(t, s, new(at.Add(8*rates.HalfLife)), 12*time.Minute)
	within(t, "at once", estimate(t, fresh).Time, 10, 10.2)
	within(t, "after eight half-lives", estimate(t, later).Time, 11.7, 12)
	within(t, "after a year", estimate(t, learn(t, s, new(at.Add(365*24*time.Hour)), 9*time.Hour)).Time, 539, 541)
	// Half of a row's weight is gone after a half-life, seen beside a fresh row.
	other := rates.Machine{Type: "sim/g6b", GPU: "l4", GPUs: 1, VCPU: 8}
	two, _ := rates.Shelf{}.Learn("c", rates.Observation{Machine: g6, Busy: 10 * time.Minute, Done: 1, At: start})
	two, _ = two.Learn("c", rates.Observation{Machine: other, Busy: 80 * time.Minute, Done: 1, At: start.Add(rates.HalfLife)})
	within(t, "one of a half-life ago and one of now", estimate(t, two).Time, 39.9, 40.1) // 10 × 8^(2/3)
}

// More observations that agree make the band narrower, and scattered ones wider.
func TestBand(t *testing.T) {
	at := start
	one := estimate(t, learn(t, nil, &at, 10*time.Minute))
	var s, scattered rates.Shelf
	for range 20 {
		s = learn(t, s, &at, 10*time.Minute)
		scattered = learn(t, scattered, &at, 5*time.Minute, 20*time.Minute)
	}
	many, wide := estimate(t, s), estimate(t, scattered)
	if !(many.Spread < one.Spread && one.Spread < wide.Spread) {
		t.Errorf("spread of one %.3f, of many alike %.3f, of many unlike %.3f", one.Spread, many.Spread, wide.Spread)
	}
	low, high := rates.Band(wide.Time, wide.Spread)
	if low > 5*time.Minute || high < 20*time.Minute || low < 2*time.Minute || high > 50*time.Minute {
		t.Errorf("tasks of 5 and of 20 minutes: %s to %s", low, high)
	}
}

// What is kept is bounded: the types of machine and the classes learned from longest
// ago go, never the one just learned.
func TestWhatIsKeptIsBounded(t *testing.T) {
	var s rates.Shelf
	for i := range 3 * rates.MaxRows {
		m := g6
		m.Type = fmt.Sprint(i)
		s, _ = s.Learn("c", rates.Observation{Machine: m, Busy: time.Minute, Done: 1, At: start.Add(time.Duration(i) * time.Minute)})
	}
	if n := len(s.Find("c").Rows); n != rates.MaxRows {
		t.Errorf("%d rows", n)
	}
	for i := range 3 * rates.MaxClasses {
		// The clock of the observations stands still: the order of learning decides.
		name := fmt.Sprint("d", i)
		s, _ = s.Learn(name, rates.Observation{Machine: g6, Busy: time.Minute, Done: 1, At: start.Add(24 * time.Hour)})
		if s.Find(name) == nil {
			t.Fatalf("%s was forgotten at once", name)
		}
	}
	if len(s) != rates.MaxClasses || s.Find("c") != nil {
		t.Errorf("%d classes, the oldest among them: %t", len(s), s.Find("c") != nil)
	}
}

// Whatever agents report: rows stay finite and bounded, survive being written and
// read, the shelf that was learned from stays as it was, and the estimate lies within
// what was observed.
func TestWhateverIsReported(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s rates.Shelf
		at := start
		low, high := math.Inf(1), 0.0
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			o := rates.Observation{
				Machine: g6, Busy: time.Duration(rapid.Int64Range(-1, math.MaxInt64).Draw(t, "busy")),
				Done: rapid.Float64Range(-0.1, 1.1).Draw(t, "done"), At: at,
			}
			at = at.Add(time.Duration(rapid.Int64Range(-int64(time.Hour), int64(40*24*time.Hour)).Draw(t, "pause")))
			before, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			next, ok := s.Learn("c", o)
			if now, err := json.Marshal(s); err != nil || string(now) != string(before) {
				t.Fatalf("the shelf changed: %v", err)
			}
			if ok {
				x := o.Busy.Seconds() / o.Done
				low, high = min(low, x), max(high, x)
			}
			s = next
			text, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			var read rates.Shelf
			if err := json.Unmarshal(text, &read); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(s, read); d != "" {
				t.Fatal(d)
			}
		}
		if c := s.Find("c"); c != nil {
			e, ok := c.Pool(all)
			// An estimate is no longer than ten years, and no shorter than a millisecond.
			top := min(high, (10 * 365 * 24 * time.Hour).Seconds())
			if got := e.Time.Seconds(); !ok || got > top*1.000001+0.001 || got < min(low*0.999999, top)-0.001 || !(e.Spread > 0) || math.IsInf(e.Spread, 0) {
				t.Fatalf("%+v of observations from %g to %g s", e, low, high)
			}
		}
	})
}
