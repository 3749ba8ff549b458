package backtest

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A timeline has no gaps, ends when the job is done, and knows each preemption.
func TestTimelineIsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := genWindow(t, 40, 3)
		for _, name := range PolicyNames() {
			var s spans
			o := w.follow(ruleOf(name), s.see)
			at, lost, held := time.Duration(0), 0, time.Duration(0)
			for _, span := range s.all {
				if span.From != at || span.To <= span.From || (span.Pool == "") != (span.Kind == Waiting) {
					t.Fatalf("%s: %+v", name, s.all)
				}
				at = span.To
				if span.Lost {
					lost++
				}
				if span.Kind != Waiting {
					held += span.To - span.From
				}
			}
			if at != o.finish || lost != o.preemptions || held != o.paid {
				t.Fatalf("%s: ends at %v, %d lost, held for %v; done after %v, %d preemptions, paid %v", name, at, lost, held, o.finish, o.preemptions, o.paid)
			}
		}
	})
}
