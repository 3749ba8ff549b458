package sizing_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"gpubroker/internal/gpu"
	"gpubroker/internal/sizing"
)

const gb = 1e9

func need(t *testing.T, m sizing.Model) sizing.Memory {
	t.Helper()
	got, err := m.Memory()
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, p := range got.Parts {
		if p.Bytes < 0 {
			t.Errorf("%+v: a negative part %+v", m, p)
		}
		sum += p.Bytes
	}
	if sum != got.Total {
		t.Errorf("%+v: parts sum to %d, not %d", m, sum, got.Total)
	}
	return got
}

// The published needs, rounded up by their authors; full tuning is bounded by 18
// bytes for each parameter, where the table rounds down.
func TestTuningNeedsAreThePublishedOnes(t *testing.T) {
	for _, c := range []struct {
		method sizing.Method
		b      float64
		gb     float64
	}{
		{sizing.Full, 7, 126 + 1.5},
		{sizing.Full, 30, 600},
		{sizing.Full, 175, 175*18 + 1.5},
		{sizing.FullBF16, 7, 60},
		{sizing.FullBF16, 70, 600},
		{sizing.LoRA, 7, 16},
		{sizing.LoRA, 70, 160},
		{sizing.QLoRA8, 14, 20},
		{sizing.QLoRA4, 14, 12},
		{sizing.QLoRA4, 70, 48},
		{sizing.QLoRA2, 70, 24},
	} {
		got := need(t, sizing.Model{Parameters: c.b * 1e9, Method: c.method})
		if math.Abs(float64(got.Total)/gb-c.gb) > 0.02*c.gb {
			t.Errorf("%s of %g B: %s, want %g GB", c.method, c.b, got, c.gb)
		}
		if got.Assumed == "" {
			t.Errorf("%s of %g B: it does not say that activations were not described", c.method, c.b)
		}
	}
}

// Llama-3.1-8B in bf16 keeps 131 kB for each token: 17 GB for 16 requests of 8 k.
func TestInferenceNeeds(t *testing.T) {
	llama := sizing.Model{Parameters: 8e9, Method: sizing.Infer, Context: 8192, Batch: 16, Layers: 32, Hidden: 4096, Heads: 32, KVHeads: 8}
	got := need(t, llama)
	if cache := got.Parts[1]; cache.Name != "kv-cache" || math.Abs(float64(cache.Bytes)/gb-17.2) > 0.1 || got.Assumed != "" {
		t.Errorf("%s, assumed %q", got, got.Assumed)
	}
	unshaped := llama
	unshaped.Layers, unshaped.Hidden, unshaped.Heads, unshaped.KVHeads = 0, 0, 0, 0
	if other := need(t, unshaped); other.Total != got.Total || other.Assumed == "" {
		t.Errorf("a model of the same size without its shape: %s, assumed %q", other, other.Assumed)
	}
	for precision, want := range map[sizing.Precision]float64{sizing.BF16: 350, sizing.FP8: 175, sizing.INT4: 96} {
		got := need(t, sizing.Model{Parameters: 175e9, Method: sizing.Infer, Precision: precision})
		if w := float64(got.Parts[0].Bytes) / gb; math.Abs(w-want) > 1 {
			t.Errorf("weights of 175 B in %s: %g GB, want %g", precision, w, want)
		}
	}
}

func TestNeedsThatCannotBeTold(t *testing.T) {
	for _, m := range []sizing.Model{
		{Method: sizing.Full},
		{Parameters: math.NaN(), Method: sizing.Full},
		{Parameters: 7e9},
		{Parameters: 7e9, Method: "magic"},
		{Parameters: 7e9, Method: sizing.Infer, Precision: sizing.FP64},
	} {
		if got, err := m.Memory(); err == nil {
			t.Errorf("%+v: %s", m, got)
		}
	}
}

// More of anything never needs less; more GPUs never hold more each.
func TestNeedsGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := sizing.Model{
			Parameters: rapid.Float64Range(1e8, 2e12).Draw(t, "parameters"),
			Method:     rapid.SampledFrom(sizing.Methods()).Draw(t, "method"),
			Context:    rapid.SampledFrom([]int{0, 1024, 8192}).Draw(t, "context"),
			Batch:      rapid.IntRange(0, 64).Draw(t, "batch"),
		}
		if rapid.Bool().Draw(t, "shaped") {
			m.Layers, m.Hidden, m.Heads, m.KVHeads = 32, 4096, 32, 8
		}
		small, err := m.Memory()
		if err != nil {
			t.Fatal(err)
		}
		more := m
		more.Parameters *= rapid.Float64Range(1, 3).Draw(t, "factor")
		if m.Layers > 0 || m.Context == 0 {
			large, err := more.Memory()
			if err != nil {
				t.Fatal(err)
			}
			if large.Total < small.Total {
				t.Errorf("%s for %g parameters, %s for %g", small, m.Parameters, large, more.Parameters)
			}
		}
		for n := 1; n < 16; n++ {
			if n > 1 && small.On(n+1) > small.On(n) {
				t.Errorf("%d GPUs hold %d each, %d hold %d", n, small.On(n), n+1, small.On(n+1))
			}
		}
	})
}

func fact(t *testing.T, id string) gpu.Fact {
	t.Helper()
	f, ok := gpu.Builtin().Lookup(id)
	if !ok {
		t.Fatalf("no GPU %s", id)
	}
	return f
}

// A 48 GB card has no headroom for 48 GB, a 16 GB card none for 16.
func TestUsableMemoryDecides(t *testing.T) {
	qlora := need(t, sizing.Model{Parameters: 70e9, Method: sizing.QLoRA4})
	for id, fits := range map[string]bool{"l40s": false, "rtx-a6000": false, "a100-sxm-80gb": true} {
		usable, _ := fact(t, id).UsableMemory().Get()
		if (usable >= qlora.On(1)) != fits {
			t.Errorf("%s with %d usable bytes for %s: want %t", id, usable, qlora, fits)
		}
	}
	if usable, _ := fact(t, "l40s").UsableMemory().Get(); usable < qlora.On(2) {
		t.Errorf("two 48 GB cards do not hold %s", qlora)
	}
}

// Streams of H.264 at 1080p30, as derived from the published engine rates.
func TestStreams(t *testing.T) {
	v := sizing.Video{Codec: "h264", Width: 1920, Height: 1080, FPS: 30}
	for _, c := range []struct {
		id, preset string
		want       int
	}{
		{"t4", "p5", 9},
		{"t4", "p3", 20},
		{"l4", "p5", 19},
		{"l4", "p3", 43},
		{"l40s", "p5", 29},
		{"rtx-pro-6000-se", "p5", 43},
		{"a100-sxm-80gb", "p5", 0},
		{"h100-sxm-80gb", "p5", 0},
	} {
		v.Preset = c.preset
		got, ok := v.Streams(gpu.Builtin(), fact(t, c.id)).Get()
		if !ok || int(got) != c.want {
			t.Errorf("%s at %s: %g streams (known %t), want %d", c.id, c.preset, got, ok, c.want)
		}
	}
	v.Preset = "p5"
	if n, short := (sizing.Demand{Video: v, Streams: 40}).On(gpu.Builtin(), fact(t, "l4")); short.Code != "" || n != 3 {
		t.Errorf("40 streams on L4: %d GPUs (%+v), want 3", n, short)
	}
	v.Codec = "av1"
	if got, ok := v.Streams(gpu.Builtin(), fact(t, "t4")).Get(); !ok || got != 0 {
		t.Errorf("AV1 on a T4: %g (known %t)", got, ok)
	}
	if _, ok := v.Streams(gpu.Builtin(), fact(t, "l4")).Get(); ok {
		t.Error("no rate of AV1 is published for the L4, and one was given")
	}
}

// NVIDIA's profile list, seats per GPU.
func TestSeats(t *testing.T) {
	for _, c := range []struct {
		id   string
		gib  int64
		want int
	}{
		{"t4", 4, 4},
		{"t4", 8, 2},
		{"t4", 16, 1},
		{"t4", 24, 0},
		{"l4", 4, 6},
		{"l4", 8, 3},
		{"l4", 12, 2},
		{"l4", 24, 1},
		{"l40s", 4, 12},
		{"l40s", 8, 6},
		{"l40s", 16, 3},
		{"rtx-pro-6000-se", 4, 24},
		{"rtx-pro-6000-se", 24, 4},
		{"h100-sxm-80gb", 8, 0},
		{"rtx-4090", 8, 0},
	} {
		if got, ok := sizing.Seats(fact(t, c.id), c.gib<<30).Get(); !ok || got != c.want {
			t.Errorf("%s with %d GiB each: %d seats (known %t), want %d", c.id, c.gib, got, ok, c.want)
		}
	}
}

func TestParseResolution(t *testing.T) {
	for s, want := range map[string][2]int{"1080p": {1920, 1080}, "4K": {3840, 2160}, "1920x800": {1920, 800}} {
		if w, h, err := sizing.ParseResolution(s); err != nil || w != want[0] || h != want[1] {
			t.Errorf("%s: %dx%d, %v", s, w, h, err)
		}
	}
	for _, s := range []string{"", "1080", "x", "0x0", "-1x5", "99999999x5"} {
		if w, h, err := sizing.ParseResolution(s); err == nil {
			t.Errorf("%q: %dx%d", s, w, h)
		}
	}
}
