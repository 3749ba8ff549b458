package spec

import (
	"fmt"
	"strings"
	"testing"

	"gpubroker/internal/gpu"
	"gpubroker/internal/scenario"
)

func ours(t *testing.T, p scenario.Profile) *scenario.Set {
	t.Helper()
	return scenario.Builtin().With([]scenario.Profile{p}, func(_ int, key, hint, format string, args ...any) {
		t.Errorf("%s: %s (%s)", key, fmt.Sprintf(format, args...), hint)
	})
}

func job(scenario string, more ...string) []byte {
	return []byte("name: a\nscenario: " + scenario + "\n" + strings.Join(more, "\n") + "\nrun: {command: [x]}\n")
}

// Names that people look for lead to a profile, or to a question that names the
// right ones.
func TestOtherNamesOfScenarios(t *testing.T) {
	for name, want := range map[string]string{
		"llm-training": "llm-train", "finetune-full": "llm-train", "finetune-qlora": "qlora", "finetune-lora": "lora",
		"inference-resident": "llm-serve", "inference-batch": "llm-batch", "batch-inference": "llm-batch",
		"scientific-fp64": "fp64", "scientific-mixed": "md", "gromacs": "md", "openfoam": "cfd", "rendering": "render",
		"cloud-gaming": "gaming", "transcoding": "transcode", "super-resolution": "upscale", "denoise": "upscale",
		"virtual-desktop": "vdi", "lora": "lora",
	} {
		j, err := Parse("a.yaml", job(name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		plain, err := Parse("a.yaml", job(want))
		if err != nil {
			t.Fatal(err)
		}
		if j.Scenario != want || j.Digest() != plain.Digest() || j.Profile().Name != want {
			t.Errorf("%s is read as %s", name, j.Scenario)
		}
	}
	for name, want := range map[string][]string{
		"finetune":   {"said of several", `"llm-train" (LLM pre-training and full fine-tuning)`, `"lora" (`, `"qlora" (QLoRA fine-tuning)`},
		"inference":  {"said of several", `"llm-serve" (`, `"llm-batch" (`},
		"scientific": {"said of several", `"fp64" (`, `"cfd" (`, `"md" (`},
		"transcod":   {`there is no scenario "transcod"`, `did you mean "transcode"?`},
		"qlorra":     {`there is no scenario "qlorra"`, `did you mean "qlora"`},
		"payroll":    {`there is no scenario "payroll"`, "known: cfd, "},
	} {
		_, err := Parse("a.yaml", job(name))
		for _, part := range append(want, "a.yaml:2:11: scenario: ") {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: no %q in %v", name, part, err)
			}
		}
	}
}

// A client does not refuse what only a broker knows; a broker does.
func TestAnOpenReaderLeavesUnknownScenarios(t *testing.T) {
	text := job("acme-nights", "resources: {gpu: h100-sxm-80gb}", "work: {time: 1h}")
	open, err := Reader{Open: true}.Parse("a.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	if !open.Unresolved() || open.Scenario != "acme-nights" {
		t.Errorf("%v %s", open.Unresolved(), open.Canonical())
	}
	if _, err := Decode(open.Canonical()); err == nil || !strings.Contains(err.Error(), `there is no scenario "acme-nights"`) {
		t.Errorf("%v", err)
	}
	set := ours(t, scenario.Profile{Name: "acme-nights", Extends: "transcode", Slots: 4})
	_, err = Reader{Scenarios: set}.Decode(open.Canonical())
	if err == nil || !strings.Contains(err.Error(), "no GPU named here fits acme-nights: h100") {
		t.Errorf("the broker asks what the scenario must have: %v", err)
	}
	// A name of several is asked back by the client itself.
	if _, err := (Reader{Open: true}).Parse("a.yaml", job("finetune")); err == nil {
		t.Error("finetune is taken for the name of one scenario")
	}
}

// A job that was accepted stays readable, whatever became of its scenario.
func TestAcceptedJobsAreNotJudgedAnew(t *testing.T) {
	set := ours(t, scenario.Profile{Name: "acme", Extends: "general", Slots: 4})
	j, err := Reader{Scenarios: set}.Parse("a.yaml", job("acme", "resources: {gpu: h100-sxm-80gb}", "work: {time: 1h}"))
	if err != nil {
		t.Fatal(err)
	}
	if got := j.WithDefaults().Resources.Slots; got != 4 {
		t.Errorf("slots %d", got)
	}
	narrower := ours(t, scenario.Profile{
		Name: "acme", Extends: "general", Require: scenario.Requirements{"encoders": gpu.AtLeast(1)}, FigureName: "encode_h264",
	})
	if _, err := (Reader{Scenarios: narrower}).Decode(j.Canonical()); err == nil {
		t.Error("a new job for an h100 is accepted although it has no encoder")
	}
	again, err := Reader{Scenarios: narrower, Accepted: true}.Decode(j.Canonical())
	if err != nil || again.Profile().FigureName != "encode_h264" || again.Unresolved() {
		t.Errorf("%v", err)
	}
	gone, err := Reader{Accepted: true}.Decode(j.Canonical())
	if err != nil || !gone.Unresolved() || gone.Profile().Name != scenario.General || gone.Scenario != "acme" {
		t.Errorf("%v", err)
	}
	if again.Digest() != j.Digest() || gone.Digest() != j.Digest() {
		t.Error("reading it again changed the job")
	}
}
