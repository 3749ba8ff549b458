package agent

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpubroker/internal/agentapi"
	"gpubroker/queue"
)

// A series tells the exact mean and maximum, and a 95th percentile that is never
// too low and at most a step too high.
func TestSeriesNeverTellsTooLittle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]float64{unitPercent, unitThreads, unitBytes, unitRate}).Draw(t, "unit")
		values := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 300).Draw(t, "values")
		var s series
		sum := 0.0
		for i := range values {
			values[i] *= unit
			s.add(&values[i], unit)
			sum += values[i]
		}
		s.add(nil, unit)
		f := s.figure(unit)
		slices.Sort(values)
		p95, most := values[(len(values)*95+99)/100-1], values[len(values)-1]
		const digits = 1.0011
		switch {
		case f.N != len(values):
			t.Fatalf("%d of %d values", f.N, len(values))
		case f.Max < most*(1-1e-9) || f.Max > most*digits:
			t.Fatalf("max %g, want %g", f.Max, most)
		case f.P95 < p95*(1-1e-9) && f.P95 < f.Max, f.P95 > max(p95, unit)*math.Exp2(1.0/stepsPerOctave)*digits:
			t.Fatalf("p95 %g, want %g", f.P95, p95)
		case math.Abs(f.Mean-sum/float64(len(values))) > f.Mean*(digits-1)+1e-12:
			t.Fatalf("mean %g, want %g", f.Mean, sum/float64(len(values)))
		}
	})
}

func fullGlance(i int) *glance {
	p := func(f float64) *float64 { return &f }
	g := &glance{
		span: lookEvery, alone: true, cpu: p(3.123456 + float64(i%7)), memory: p(12_345_678_901 + float64(i)), load: p(0.987654),
		machineNow: machineNow{cpus: 15.5, disk: p(12.3456), network: p(123_456_789.1), link: 1.25e9},
	}
	for n := range 8 {
		g.gpus = append(g.gpus, numbered{n, gpuNow{busy: p(39.123), used: p(70e9 + float64(i)), size: p(85_899_345_920), encoder: p(12.3), decoder: p(45.6)}})
	}
	return g
}

// A week's looks take no more room than an hour's, in memory and on the wire.
func TestUsageIsBounded(t *testing.T) {
	y := tally{gpus: 8, ran: map[int]bool{}}
	week := int(7 * 24 * time.Hour / lookEvery)
	for i := range week {
		y.add(fullGlance(i))
	}
	u := y.usage()
	text, err := json.Marshal(agentapi.ObservedAttempt{Usage: u})
	if err != nil {
		t.Fatal(err)
	}
	empty, err := json.Marshal(agentapi.ObservedAttempt{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(text) - len(empty); n >= 1024 {
		t.Errorf("a week's usage takes %d bytes: %s", n, text)
	}
	if u.Samples != week || u.Span != 7*24*time.Hour || u.GPU.N != week || !u.Plausible() {
		t.Errorf("a week is not whole: %+v", u)
	}
	if len(y.cpu.steps) != stepsPerOctave*octaves+1 || len(y.ran) != 8 {
		t.Errorf("it grew: %d steps, %d devices", len(y.cpu.steps), len(y.ran))
	}
	var back queue.Usage
	if text, err = json.Marshal(u); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &back); err != nil || *back.GPUMemory != *u.GPUMemory {
		t.Errorf("it does not come back: %v", err)
	}
}

// What cannot be read is unknown and never 0; what cannot be told apart is left
// out and said to be shared.
func TestUnknownIsNotZero(t *testing.T) {
	y := tally{gpus: 2, ran: map[int]bool{}}
	y.add(&glance{span: lookEvery, gpus: []numbered{{0, gpuNow{}}, {1, gpuNow{}}}})
	u := y.usage()
	if u.CPU != nil || u.Memory != nil || u.GPU != nil || u.GPUMemory != nil || u.Disk != nil || u.Network != nil || u.Waiting != nil || u.Idle != 0 || u.CPUs != 0 {
		t.Errorf("nothing was read, and yet it says %+v", u)
	}
	if text, err := json.Marshal(u); err != nil || string(text) != `{"samples":1,"span":5000000000,"gpus":2}` {
		t.Errorf("%s, %v", text, err)
	}
	shared := fullGlance(0)
	shared.shared, shared.alone = true, false
	y.add(shared)
	if u = y.usage(); u.Shared != 1 || u.Alone != 0 || u.GPU != nil || u.GPUMemory != nil || u.CPU == nil {
		t.Errorf("a shared GPU: %+v", u)
	}
	// Of two GPUs one is known: their mean is not.
	p := 50.0
	y.add(&glance{span: lookEvery, gpus: []numbered{{0, gpuNow{busy: &p, used: &p}}, {1, gpuNow{}}}})
	if u = y.usage(); u.GPU != nil || u.GPUMemory != nil || u.Waiting != nil {
		t.Errorf("half of it is known: %+v", u)
	}
	none := tally{}
	if u := none.usage(); u != nil {
		t.Errorf("nobody looked: %+v", u)
	}
}

// Waiting weighs each look by how much the GPUs waited in it.
func TestWaiting(t *testing.T) {
	y := tally{gpus: 1, ran: map[int]bool{}}
	for _, c := range []struct{ busy, load, disk float64 }{{100, 0.1, 0}, {0, 1, 20}, {50, 0.7, 80}, {100, 0.1, 100}} {
		y.add(&glance{span: lookEvery, load: &c.load, machineNow: machineNow{disk: &c.disk}, gpus: []numbered{{0, gpuNow{busy: &c.busy}}}})
	}
	w := y.usage().Waiting
	if w.Share != 0.375 || *w.CPU != 0.9 || *w.Disk != 0.4 || w.Network != nil {
		t.Errorf("share %v, cpu %v, disk %v, network %v", w.Share, *w.CPU, *w.Disk, w.Network)
	}
}

func TestIdleGPUsAreCounted(t *testing.T) {
	y := tally{gpus: 3, ran: map[int]bool{}}
	busy, still := 80.0, 1.0
	for range 5 {
		y.add(&glance{span: lookEvery, gpus: []numbered{{0, gpuNow{busy: &busy}}, {1, gpuNow{busy: &still}}, {2, gpuNow{busy: &still}}}})
	}
	if u := y.usage(); u.GPUs != 3 || u.Idle != 2 {
		t.Errorf("%d of %d idle", u.Idle, u.GPUs)
	}
}
