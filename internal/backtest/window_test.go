package backtest

import (
	"testing"
	"time"
)

// Asking between ticks is for our policy alone: rules of ticks cost what they cost, and
// ours is in time and acts off the ticks.
func TestBetweenTicks(t *testing.T) {
	o := toy()
	o.Free = false
	off := 0
	for _, name := range []string{"greedy", "up", "ours"} {
		for _, between := range []bool{false, true} {
			o.Between = between
			windows, err := Windows(o)
			if err != nil {
				t.Fatal(err)
			}
			o.Policies = []string{name}
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			sum := 0.0
			for _, w := range windows {
				s, err := w.Play(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				if sum += s.Cost; s.Missed {
					t.Errorf("%s misses a deadline", name)
				}
				for _, stay := range s.Stays {
					if stay.At%w.Step != 0 {
						off++
						if name != "ours" || !between {
							t.Errorf("%s acts at %v, between ticks", name, stay.At)
						}
					}
				}
			}
			if diff := sum - r.Policies[0].SumCost; diff*diff > 1e-12 || r.Windows != len(windows) {
				t.Errorf("%s: %d windows cost %v, %d of them together %v", name, len(windows), sum, r.Windows, r.Policies[0].SumCost)
			}
		}
	}
	if off == 0 {
		t.Error("nothing happens between ticks")
	}
	if _, err := Windows(Options{Market: o.Market, Length: time.Hour}); err == nil {
		t.Error("windows of no length")
	}
}
