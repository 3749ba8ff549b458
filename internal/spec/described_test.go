package spec

import (
	"strings"
	"testing"

	"gpubroker/internal/gpu"
)

func described(t *testing.T, text string) *Job {
	t.Helper()
	if !strings.Contains(text, "run:") {
		text += "\nrun: {command: [x]}"
	}
	j, err := Parse("job.yaml", []byte("name: x\n"+text+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode(j.Canonical())
	if err != nil || again.Digest() != j.Digest() {
		t.Fatalf("%s reads back as %v, %v", j.Canonical(), again, err)
	}
	return j
}

// How many GPUs a task takes by what it does: 0 where they do not do.
func TestGPUsFollowFromTheWork(t *testing.T) {
	for _, c := range []struct {
		text string
		want map[string]int
	}{
		{"scenario: lora\nmodel: {parameters: 70B, method: qlora-4bit}", map[string]int{"l40s": 2, "a100-sxm-80gb": 1, "l4": 4, "h100-sxm-80gb": 1}},
		{"scenario: lora\nmodel: {parameters: 14B, method: qlora-4bit}", map[string]int{"t4": 1, "l4": 1}},
		{"scenario: llm-train\nmodel: {parameters: 7B}", map[string]int{"a100-sxm-80gb": 2, "mi300x": 1, "h200-sxm-141gb": 1}},
		{"scenario: llm-train\nmodel: {parameters: 7B, context: 8k, batch: 4, layers: 32, hidden: 4096}", map[string]int{"a100-sxm-80gb": 2, "h200-sxm-141gb": 1, "mi300x": 1}},
		{"scenario: llm-train\nmodel: {parameters: 175B}", map[string]int{"h100-sxm-80gb": 0, "mi300x": 0, "b300": 16}},
		{"scenario: llm-serve\nmodel: {parameters: 70B, context: 8k, batch: 16}\nprecision: fp8", map[string]int{"h100-sxm-80gb": 2, "l40s": 4}},
		{"scenario: llm-serve\nresources: {gpu_count: 1}\nmodel: {parameters: 70B}", map[string]int{"h100-sxm-80gb": 0, "b200": 1}},
		{"scenario: transcode\nencode: {codec: hevc, preset: p5, resolution: 1080p, fps: 30, streams: 40}", map[string]int{"l4": 2, "t4": 4, "a100-sxm-80gb": 0, "a10g": 4}},
	} {
		d, notes := described(t, c.text).Demand()
		if len(notes) == 0 || strings.Contains(notes[0].String(), "{") {
			t.Errorf("%s: %v", c.text, notes)
		}
		for id, want := range c.want {
			f, ok := gpu.Builtin().Lookup(id)
			if !ok {
				t.Fatalf("no GPU %s", id)
			}
			if got, short := d.On(gpu.Builtin(), f); got != want || (short.Code == "") != (want > 0) {
				t.Errorf("%s on %s: %d GPUs, %+v; want %d", c.text, id, got, short, want)
			}
		}
	}
}

func TestFigureFollowsFromTheWork(t *testing.T) {
	for text, want := range map[string]string{
		"scenario: md":                        "fp32",
		"precision: fp64":                     "fp64",
		"precision: fp8":                      "fp8",
		"scenario: llm-train\nprecision: fp8": "fp8",
		"scenario: qlora\nprecision: fp16":    "fp16_fp32",
		"scenario: llm-serve\nprecision: fp8": "memory_bandwidth",

		"scenario: transcode\nencode: {codec: hevc, preset: p3}":     "encode_hevc_p3",
		"scenario: transcode\nencode: {codec: h264, preset: p4}":     "encode_h264",
		"scenario: transcode\nencode: {codec: av1}":                  "encoders",
		"scenario: transcode\nencode: {codec: hevc, streams: 10}":    "",
		"scenario: vdi\nusers: {count: 4, memory: 8GiB}":             "",
		"scenario: transcode\ndecode: {codec: hevc, resolution: 4k}": "encode_h264",
	} {
		if got := described(t, text).Figure(); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// A GPU that does not know a precision, a codec or a runtime does not fit.
func TestEngineFactsBoundPrecisions(t *testing.T) {
	for _, c := range []struct {
		text     string
		fit, not []string
	}{
		{"precision: fp8", []string{"h100-sxm-80gb", "l4", "mi300x", "b200"}, []string{"a100-sxm-80gb", "a10", "t4", "v100-sxm-32gb", "mi210"}},
		{"precision: fp4", []string{"b200", "rtx-pro-6000-se", "mi355x"}, []string{"h100-sxm-80gb", "mi300x", "l40s"}},
		{"precision: bf16", []string{"a100-sxm-80gb", "l4"}, []string{"t4", "v100-sxm-32gb"}},
		{"precision: fp64", []string{"mi300x", "h100-sxm-80gb", "v100-sxm-32gb"}, []string{"t4", "l4", "l40s", "b300", "rtx-4090", "rtx-5090"}},
		{"precision: int4", []string{"h100-sxm-80gb", "t4"}, nil},
		{"encode: {codec: av1}", []string{"l4", "rtx-5090"}, []string{"t4", "a10", "a100-sxm-80gb"}},
		{"runtime: {rocm: \">=6.2\"}", []string{"mi300x"}, []string{"h100-sxm-80gb"}},
		{"runtime: {cuda: \"<=12.4\"}", []string{"h100-sxm-80gb"}, []string{"b200", "mi300x"}},
	} {
		j := described(t, c.text)
		fits := func(id string) bool {
			f, _ := gpu.Builtin().Lookup(id)
			return len(j.Profile().CheckJob(f, j.Requirements())) == 0 && j.lacks(f) == ""
		}
		for _, id := range c.fit {
			if !fits(id) {
				t.Errorf("%s: %s does not fit", c.text, id)
			}
		}
		for _, id := range c.not {
			if fits(id) {
				t.Errorf("%s: %s fits", c.text, id)
			}
		}
	}
}

func TestDescriptionsThatMeanNothing(t *testing.T) {
	for text, want := range map[string]string{
		"model: {parameters: 7B}": "model.method: what is done with the model is missing",
		"scenario: lora\nmodel: {parameters: 7}\nresources: {slots: 2, gpu_count: 1}":      "resources.slots: a model has its GPUs for itself",
		"scenario: lora\nmodel: {parameters: 7B, layers: 32}":                              "layers and hidden go together",
		"scenario: lora\nmodel: {parameters: 70 B}":                                        `found "70 B"; did you mean "70B"?`,
		"scenario: llm-train\nmodel: {parameters: 2000B}":                                  "no GPU known does the work described, on one machine",
		"scenario: llm-train\nresources: {gpu: l4, gpu_count: 1}\nmodel: {parameters: 7B}": "no GPU named here fits llm-train: l4 (the model needs",
		"scenario: llm-serve\nprecision: fp64\nmodel: {parameters: 7B}":                    `precision "fp64" has no size for weights`,
		"precision: fp9": "precision: expected",
		"precision: fp8\nresources: {gpu: a100-80gb}":              "no GPU named here fits",
		"encode: {resolution: huge}":                               `encode.resolution: expected 1080p, 4k or 1920x1080, found "huge"`,
		"encode: {resolution: 1080}":                               `found "1080"; did you mean "1080p"?`,
		"encode: {codec: h265}":                                    `did you mean "hevc"?`,
		"encode: {fps: 0}":                                         "encode.fps: expected at least 1, found 0",
		"encode: {codec: av1, streams: 4}":                         "encode.streams: how many streams of av1 an encoder keeps up with is not published",
		"precision: FP8":                                           `found "FP8"; did you mean "fp8"?`,
		"precision: bfloat16":                                      `did you mean "bf16"?`,
		"scenario: lora\nmodel: {parameters: 70}":                  `model.parameters: no model has only 70 parameters; did you mean "70B"?`,
		"scenario: lora\nmodel: {parameters: 7e9}":                 `did you mean "7B"?`,
		"scenario: lora\nmodel: {parameters: 7B, kv_heads: 8}":     "model.kv_heads: of how many heads is missing",
		"scenario: lora\nprecision: int4\nmodel: {parameters: 7B}": "precision: nothing is trained in 4-bit integers, and model.method is lora",
		"scenario: vdi\nusers: {count: 3}\nnodes: 4":               "nodes: each of the users is a seat",
		"scenario: vdi\nusers: {count: 3, memory: 0GiB}":           "users.memory: expected more than zero, found 0GiB",
		"outputs: {to: /out/x, size: 0GB}":                         "outputs.size: expected more than zero",
		"scenario: transcode\nresources: {require: {encoders: 0}}": "resources.require.encoders: asks for less than transcode requires, which is 1",
		"scenario: cfd\nresources: {require: {ecc: false}}":        "resources.require.ecc: asks for less than cfd requires, which is true",
		"max_duration: 0s":                                         "max_duration: expected more than zero",

		"resources: {gpu: none}\nprecision: fp32":                          "precision: the job asks for no GPU",
		"scenario: transcode\nencode: {streams: 4}\nresources: {slots: 2}": "encode.streams says how much",
		"decode: {streams: 4}":                                             "preset and streams mean nothing for decoding",
		"scenario: vdi\nusers: {count: 3, max_rtt: 20ms}":                  "from where is missing",
		"scenario: vdi\nusers: {count: 3, from: eu-wset, max_rtt: 20ms}":   `there is no place "eu-wset"; did you mean "eu-west"`,
		"scenario: vdi\nusers: {count: 3, from: eu-west}":                  "how far is missing",
		"scenario: vdi\nusers: {count: 3}\ntasks: {count: 3}":              "each of the users is a seat",
		"scenario: vdi\nusers: {count: 3}\nresources: {gpu: a100-80gb}":    "no GPU named here fits vdi",
		"runtime: {}":          `expected "cuda" or "rocm"`,
		"runtime: {cuda: new}": `"new" names no releases`,
		"runtime: {rocm: \">=6\"}\nresources: {gpu: h100}": "no GPU named here fits",
	} {
		_, err := Parse("job.yaml", []byte("name: x\nrun: {command: [x]}\n"+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "({") {
			t.Errorf("%s: a slot is not filled: %v", text, err)
		}
	}
	open := Reader{Open: true}
	if _, err := open.Parse("job.yaml", []byte("name: x\nrun: {command: [x]}\nscenario: house-lora\nmodel: {parameters: 7B}\n")); err != nil {
		t.Errorf("a method that only the broker's scenario says: %v", err)
	}
	if _, err := Parse("job.yaml", []byte("name: x\nscenario: lora\n")); err == nil || !strings.Contains(err.Error(), "expected command or shell") {
		t.Errorf("a job without a command: %v", err)
	}
	if _, err := Parse("job.yaml", []byte("name: x\nscenario: vdi\nusers: {count: 3}\n")); err != nil {
		t.Errorf("seats without a command: %v", err)
	}
}
