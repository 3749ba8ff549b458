package scenario

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"gpubroker/internal/gpu"
)

func profile(t *testing.T, name string) Profile {
	t.Helper()
	p, ok := Builtin().Find(name)
	if !ok {
		t.Fatalf("no profile %s", name)
	}
	return p
}

func facts(t *testing.T, names ...string) []gpu.Fact {
	t.Helper()
	var all []gpu.Fact
	for _, n := range names {
		ids, err := gpu.Builtin().Resolve(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			f, _ := gpu.Builtin().Lookup(id)
			all = append(all, f)
		}
	}
	return all
}

// Facts, not preferences: whatever the price, these never do this work.
func TestNeverMatches(t *testing.T) {
	compute := []string{"a100", "a30", "h100", "h200", "gh200", "b200", "b300", "gb200", "gb300", "mi100", "mi210", "mi250x", "mi300x", "mi325x", "mi355x"}
	slowFP64 := []string{"t4", "l4", "a10", "a40", "l40s", "rtx-2080-ti", "rtx-3090", "rtx-4090", "rtx-5090", "b300", "gb300", "k80"}
	for name, gpus := range map[string][]string{
		"transcode": compute, "gaming": append(compute, "p4"), "vdi": append(compute, "rtx-4090", "rtx-5090"), "render": compute,
		"fp64": slowFP64, "cfd": slowFP64,
		"llm-train": {"p4", "p100", "v100", "t4", "mi300x"},
		"upscale":   {"v100", "t4"},
	} {
		p := profile(t, name)
		for _, f := range facts(t, gpus...) {
			failures := p.Check(f)
			if len(failures) == 0 {
				t.Errorf("%s takes %s", name, f.ID)
			}
			for _, x := range failures {
				if x.Code == "" || x.Want == "" || x.Have == "" {
					t.Errorf("%s on %s: %+v does not say why", name, f.ID, x)
				}
			}
		}
	}
}

func TestMatches(t *testing.T) {
	for name, gpus := range map[string][]string{
		"transcode": {"t4", "l4", "a10", "l40s", "rtx-4090", "rtx-pro-6000"},
		"gaming":    {"l4", "a10", "rtx-5090", "radeon-pro-v620"},
		"vdi":       {"t4", "a10", "l40s", "radeon-pro-v520", "rtx-pro-6000-se"},
		"fp64":      {"a100", "h100", "h200", "a30", "v100", "b200"},
		"md":        {"l40s", "l4", "a100", "h100"},
		"llm-train": {"a100", "h100", "h200", "b200"},
		"lora":      {"l4", "a10", "a100"},
		"llm-serve": {"t4", "l4", "h100"},
		"general":   {"t4", "mi300x", "k80", "gaudi3"},
	} {
		for _, f := range facts(t, gpus...) {
			if failures := profile(t, name).Check(f); len(failures) > 0 {
				t.Errorf("%s refuses %s: %v", name, f.ID, failures)
			}
		}
	}
}

// The reason names what is missing, in the words of the facts.
func TestReasons(t *testing.T) {
	got := profile(t, "transcode").Check(facts(t, "h100-sxm")[0])
	if len(got) != 1 || got[0].Code != "gpu.encoders" || got[0].Have != "0" {
		t.Errorf("%+v", got)
	}
	got = profile(t, "transcode").Check(facts(t, "b200")[0])
	if len(got) == 0 || got[0].Have != "unknown" {
		t.Errorf("the encoders of a B200 are unknown: %+v", got)
	}
}

func TestAJobMayOverrideAnAssumptionAndNeverAFact(t *testing.T) {
	mi300x, rtx4090, h100, t4 := facts(t, "mi300x")[0], facts(t, "rtx-4090")[0], facts(t, "h100-sxm")[0], facts(t, "t4")[0]
	amd := Requirements{"vendor": gpu.OneOf("amd")}
	for _, c := range []struct {
		profile string
		fact    gpu.Fact
		own     Requirements
		ok      bool
	}{
		{"fp64", mi300x, nil, false},
		{"fp64", mi300x, amd, true}, // ROCm declared
		{"lora", mi300x, amd, true},
		{"md", rtx4090, nil, false},
		{"md", rtx4090, Requirements{"ecc": gpu.HasIt(false)}, true}, // ECC waived
		{"fp64", rtx4090, Requirements{"ecc": gpu.HasIt(false), "fp64": gpu.AtLeast(0)}, false},
		{"lora", t4, nil, false},
		{"lora", t4, Requirements{"bf16_support": gpu.HasIt(false)}, true}, // cc 7.5 accepted
		{"transcode", h100, Requirements{"encoders": gpu.AtLeast(0)}, false},
		{"transcode", rtx4090, Requirements{"encode_av1": gpu.HasIt(true)}, true},
		{"transcode", t4, Requirements{"encode_av1": gpu.HasIt(true)}, false},
		{"vdi", rtx4090, Requirements{"class": gpu.OneOf("consumer")}, false},
	} {
		if got := profile(t, c.profile).CheckJob(c.fact, c.own); (len(got) == 0) != c.ok {
			t.Errorf("%s on %s with %v: %v", c.profile, c.fact.ID, c.own, got)
		}
	}
}

func TestPlacement(t *testing.T) {
	train, fp64, general := profile(t, "llm-train"), profile(t, "fp64"), profile(t, "general")
	yes, no, unknown := gpu.Of(true), gpu.Of(false), gpu.Known[bool]{}
	for _, c := range []struct {
		p              Profile
		gpus, machines int
		fabric, rdma   gpu.Known[bool]
		want           string
	}{
		{train, 8, 1, yes, no, ""},
		{train, 8, 1, no, yes, "machine.fabric"},
		{train, 8, 1, unknown, yes, "machine.fabric"},
		{train, 1, 1, no, no, ""},
		{train, 8, 8, yes, no, "machine.rdma"},
		{fp64, 4, 2, no, yes, ""},
		{general, 8, 8, no, no, ""},
	} {
		var codes []string
		for _, f := range c.p.CheckPlacement(c.gpus, c.machines, c.fabric, c.rdma) {
			codes = append(codes, f.Code)
		}
		if got := strings.Join(codes, " "); got != c.want {
			t.Errorf("%s, %d×%d: %q, want %q", c.p.Name, c.machines, c.gpus, got, c.want)
		}
	}
}

// Golden decisions, by figure per US dollar at list prices of 2026.
func TestFiguresRankAsKnown(t *testing.T) {
	for name, prices := range map[string][]struct {
		gpu   string
		price float64
	}{
		"transcode": {{"l4", 0.805}, {"t4", 0.526}, {"l40s", 1.861}, {"rtx-pro-6000-se", 3.363}},
		"md":        {{"l40s", 1.861}, {"l4", 0.705}, {"h100-sxm-80gb", 6.88}, {"a100-sxm-40gb", 2.75}},
		"fp64":      {{"h100-sxm-80gb", 6.88}, {"h200-sxm-141gb", 7.91}, {"a100-sxm-80gb", 3.43}, {"b200", 14.24}},
		"llm-train": {{"h100-sxm-80gb", 6.88}, {"a100-sxm-80gb", 3.43}},
	} {
		p := profile(t, name)
		var worth []float64
		for _, x := range prices {
			v, unit, ok := p.Figure(facts(t, x.gpu)[0])
			if !ok || unit == "" {
				t.Fatalf("%s of %s is unknown", p.FigureName, x.gpu)
			}
			worth = append(worth, v/x.price)
		}
		if !slices.IsSortedFunc(worth, func(a, b float64) int { return cmp.Compare(b, a) }) {
			t.Errorf("%s: %v per USD is not the known order of %v", name, worth, prices)
		}
	}
	if v, _, ok := profile(t, "md").Figure(facts(t, "k80")[0]); ok {
		t.Errorf("an unknown figure reads %v", v)
	}
}
