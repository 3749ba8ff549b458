package queue_test

import (
	"testing"

	"gpubroker/queue"
)

// What a gang's ends say of it, in whatever order they come.
func TestTheMostTellingEnd(t *testing.T) {
	for _, c := range []struct {
		ends []queue.End
		want queue.End
	}{
		{[]queue.End{{Rank: 1, Outcome: queue.Failed}, {Rank: 2, Outcome: queue.Lost}, {Outcome: queue.Stopped}}, queue.End{Rank: 2, Outcome: queue.Lost}},
		{[]queue.End{{Rank: 1, Outcome: queue.Preempted}, {Outcome: queue.Succeeded}, {Rank: 2, Outcome: queue.Stopped}}, queue.End{Outcome: queue.Succeeded}},
		{[]queue.End{{Rank: 1, Outcome: queue.Succeeded}, {Outcome: queue.Failed}, {Rank: 2, Outcome: queue.Stopped}}, queue.End{Outcome: queue.Failed}},
		{[]queue.End{{Rank: 3, Outcome: queue.LaunchFailed}, {Outcome: queue.Stopped}, {Rank: 1, Outcome: queue.SetupFailed}}, queue.End{Rank: 3, Outcome: queue.LaunchFailed}},
		{[]queue.End{{Outcome: queue.CancelledOut}, {Rank: 1, Outcome: queue.Lost}, {Rank: 2, Outcome: queue.Stopped}}, queue.End{Outcome: queue.CancelledOut}},
	} {
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}, {1, 2, 0}, {2, 0, 1}} {
			var end *queue.End
			for _, i := range order {
				end = end.Tell(c.ends[i])
			}
			if end.Rank != c.want.Rank || end.Outcome != c.want.Outcome {
				t.Errorf("%v in the order %v says %+v, want %+v", c.ends, order, *end, c.want)
			}
		}
	}
}
