package simcloud

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// TestWhenAFaultHits counts, over a call each second, which ones are hit.
func TestWhenAFaultHits(t *testing.T) {
	tests := []struct {
		name  string
		fault simapi.Fault
		calls []call
		want  []int
	}{
		{"once", simapi.Fault{}, nil, []int{0}},
		{"twice", simapi.Fault{Times: 2}, nil, []int{0, 1}},
		{"always", simapi.Fault{Times: -1}, nil, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"the third", simapi.Fault{Nth: 3}, nil, []int{2}},
		{"from a moment", simapi.Fault{At: dur(3 * time.Second)}, nil, []int{3}},
		{"for a while", simapi.Fault{At: dur(2 * time.Second), For: dur(3 * time.Second)}, nil, []int{2, 3, 4}},
		{"twice in a while", simapi.Fault{For: dur(5 * time.Second), Times: 2}, nil, []int{0, 1}},
		{"the second from a moment", simapi.Fault{At: dur(4 * time.Second), Nth: 2}, nil, []int{5}},
		{"another operation", simapi.Fault{Op: "list", Times: -1}, nil, nil},
		{"a zone", simapi.Fault{Match: simapi.Place{Zone: "r1b"}, Times: -1}, []call{{op: "launch", place: spotA}, {op: "launch", place: spotB}, {op: "launch", place: spotB}}, []int{1, 2}},
		{"a kind", simapi.Fault{Match: simapi.Place{Kind: providers.OnDemand}, Times: -1}, []call{{op: "launch", place: spotA}, {op: "launch", place: firmA}}, []int{1}},
		{"a machine", simapi.Fault{Machine: "sim-000002", Times: -1}, []call{{op: "launch", machine: "sim-000001"}, {op: "launch", machine: "sim-000002"}}, []int{1}},
		{"any operation but a notice", simapi.Fault{Op: "any", Times: -1}, []call{{op: "notice"}, {op: "list"}}, []int{1}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, small(), nil, func(t *testing.T, w *World) {
				f := test.fault
				f.Effect = simapi.Internal
				switch f.Op {
				case "":
					f.Op = "launch"
				case "any":
					f.Op = ""
				}
				if err := w.AddFault(f); err != nil {
					t.Fatal(err)
				}
				calls := test.calls
				if calls == nil {
					calls = make([]call, 8)
					for i := range calls {
						calls[i] = call{op: "launch", place: spotA}
					}
				}
				var hit []int
				for i, c := range calls {
					w.enter()
					if w.nextFault(c) != nil {
						hit = append(hit, i)
					}
					w.mu.Unlock()
					time.Sleep(time.Second)
				}
				if diff := cmp.Diff(test.want, hit); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestChanceIsSeeded(t *testing.T) {
	draw := func(seed uint64) (hits []int) {
		cfg := small()
		cfg.Seed = seed
		cfg.Faults = []simapi.Fault{{Op: "list", Effect: simapi.Internal, Chance: 30, Times: -1}}
		inWorld(t, cfg, nil, func(t *testing.T, w *World) {
			for i := range 100 {
				w.enter()
				if w.nextFault(call{op: "list"}) != nil {
					hits = append(hits, i)
				}
				w.mu.Unlock()
			}
		})
		return hits
	}
	first := draw(1)
	if diff := cmp.Diff(first, draw(1)); diff != "" {
		t.Errorf("the same seed differs: %s", diff)
	}
	if cmp.Equal(first, draw(2)) {
		t.Error("another seed gives the same calls")
	}
	if n := len(first); n < 15 || n > 45 {
		t.Errorf("%d of 100 calls hit at 30 percent", n)
	}
}

func TestScriptedActions(t *testing.T) {
	cfg := small()
	cfg.Script = []simapi.Action{
		{OnMachine: 1, After: dur(10 * time.Second), Preempt: &simapi.Preempt{Notice: new(dur(0))}},
		{OnMachine: 2, After: dur(10 * time.Second), Preempt: &simapi.Preempt{}},
		{At: dur(20 * time.Second), Fault: &simapi.Fault{Op: "launch", Effect: simapi.NoCapacity}},
		{At: dur(30 * time.Second), Price: &simapi.Price{Match: simapi.Place{Zone: "r1b"}, Percent: 200}},
		{At: dur(40 * time.Second), Preempt: &simapi.Preempt{Pick: simapi.Pick{Number: 99}}},
	}
	inWorld(t, cfg, nil, func(t *testing.T, w *World) {
		begin := time.Now()
		launch(t, w, "1", spotA)
		launch(t, w, "2", spotA)
		time.Sleep(time.Minute)
		ends := map[string]time.Duration{}
		for _, m := range w.Truth() {
			ends[m.ID] = m.Ended.Sub(begin)
		}
		// A second of boot, ten, then at once or after thirty; two for stopping.
		if diff := cmp.Diff(map[string]time.Duration{"sim-000001": 13 * time.Second, "sim-000002": 43 * time.Second}, ends); diff != "" {
			t.Error(diff)
		}
		if f := w.Faults(); len(f) != 1 || f[0].Effect != simapi.NoCapacity {
			t.Errorf("faults %+v", f)
		}
		for _, o := range w.Offers("", 0) {
			if o.Place == spotB && o.Price != 620_000_000 {
				t.Errorf("price %s after doubling", o.Price)
			}
		}
		last := w.Events(0)
		var missed bool
		for _, e := range last {
			missed = missed || e.Kind == "error" && e.At.Equal(begin.Add(40*time.Second))
		}
		if !missed {
			t.Error("an action that hits nothing leaves no event")
		}
	})
}
