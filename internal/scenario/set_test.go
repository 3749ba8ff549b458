package scenario

import (
	"fmt"
	"strings"
	"testing"

	"gpubroker/internal/gpu"
)

// with adds profiles and returns what was found wrong with them.
func with(own ...Profile) (*Set, []string) {
	var faults []string
	s := Builtin().With(own, func(i int, key, hint, format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%d.%s: %s; %s", i, key, fmt.Sprintf(format, args...), hint))
	})
	return s, faults
}

// A profile of one's own has what it says, and what it extends for the rest.
func TestOwnProfiles(t *testing.T) {
	s, faults := with(
		Profile{
			Name: "acme-lora", Aliases: []string{"acme"}, Extends: "finetune-lora", Title: "Acme's adapters",
			Require: Requirements{"memory": gpu.AtLeast(40), "compute_capability": gpu.AtLeast(7.5)}, Assume: Requirements{"bf16_support": gpu.HasIt(false)}, Slots: 2,
		},
		Profile{Name: "acme-train", Extends: "llm-train", Interruptible: Never},
		Profile{Name: "acme-small", Extends: "acme", FigureName: "memory_bandwidth"},
		Profile{Name: "from-nothing", Title: "All its own", FigureName: "fp32", Interruptible: Auto},
	)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	lora, _ := Builtin().Find("lora")
	p, ok := s.Find("acme")
	if !ok || p.Name != "acme-lora" || p.Title != "Acme's adapters" || p.FigureName != lora.FigureName || p.Slots != 2 || p.Checkpoint != lora.Checkpoint || p.Interruptible != WithCheckpoint {
		t.Errorf("%+v", p)
	}
	l4, a100, t4 := facts(t, "l4")[0], facts(t, "a100-sxm-80gb")[0], facts(t, "t4")[0]
	if len(p.Check(l4)) == 0 || len(p.Check(a100)) > 0 {
		t.Error("40 GB are not asked for beside what lora asks")
	}
	if got := gpu.Builtin().Check(t4, gpu.Requirements(p.Require)); len(got) != 1 || got[0].Attribute != "memory" {
		t.Errorf("a requirement was not tightened: %v", got)
	}
	if w := p.Require["compute_capability"]; w.Number != 7.5 {
		t.Errorf("a requirement is %v", w)
	}
	if p.Assume["bf16_support"].Flag {
		t.Error("an assumption could not be waived")
	}
	if p, _ := s.Find("acme-train"); !p.Fabric || !p.RDMA || p.Interruptible != Never || p.Share != WholeMachine {
		t.Errorf("%+v", p)
	}
	if p, _ := s.Find("acme-small"); p.Slots != 2 || p.FigureName != "memory_bandwidth" || p.Metric != "" {
		t.Errorf("%+v", p)
	}
	if _, ok := Builtin().Find("acme"); ok {
		t.Error("the built-in set changed")
	}
	if b, _ := Builtin().Find("lora"); b.Require["memory"].Number != 0 || !b.Assume["bf16_support"].Flag {
		t.Error("the extended profile changed")
	}
}

func TestFaultsOfOwnProfiles(t *testing.T) {
	for want, p := range map[string]Profile{
		`0.name: there is a scenario "lora" already; take another name, with extends: lora`: {Name: "lora", Extends: "lora"},
		`0.name: "peft" is another name of the scenario "lora"`:                             {Name: "peft", Extends: "lora"},
		`0.aliases[0]: there is a scenario "vdi" already`:                                   {Name: "desk", Aliases: []string{"vdi"}, Extends: "vdi"},
		`0.name: expected a name, found "A b"`:                                              {Name: "A b", Extends: "lora"},
		`0.extends: there is no scenario "lorra" above it; did you mean "lora"?`:            {Name: "x", Extends: "lorra"},
		`0.extends: "inference" is said of several scenarios above it; write "llm-batch"`:   {Name: "x", Extends: "inference"},
		`0.title: is missing`:                            {Name: "x", FigureName: "fp32", Interruptible: Auto},
		`0.figure: is missing`:                           {Name: "x", Title: "X", Interruptible: Auto},
		`0.interruptible: is missing`:                    {Name: "x", Title: "X", FigureName: "fp32"},
		`0.figure: "fp23" is no attribute with a number`: {Name: "x", Extends: "lora", FigureName: "fp23"},
		`0.figure: "ecc" is no attribute with a number`:  {Name: "x", Extends: "lora", FigureName: "ecc"},
		`0.why.fabrik: GPUs have no attribute`:           {Name: "x", Extends: "lora", Why: map[string]string{"fabrik": "y"}},
		`0.require.compute_capability: asks for less than lora requires, which is 7.5; leave it out`: {Name: "x", Extends: "lora", Require: Requirements{"compute_capability": gpu.AtLeast(6)}},
		`0.require.bf16_support: asks for less than llm-train requires, which is true`:               {Name: "x", Extends: "llm-train", Require: Requirements{"bf16_support": gpu.HasIt(false)}},
		`0.require.class: asks for less than vdi requires, which is datacenter|workstation`:          {Name: "x", Extends: "vdi", Require: Requirements{"class": gpu.OneOf("consumer", "datacenter", "workstation")}},
		`0.describe[0]: no key "modle" of a spec describes the work; did you mean "model"?`:          {Name: "x", Extends: "lora", Describe: []string{"modle"}},
		`0.require: no GPU known meets all of this`:                                                  {Name: "x", Extends: "transcode", Require: Requirements{"fp64": gpu.AtLeast(30)}},
	} {
		s, faults := with(p)
		if len(faults) != 1 || !strings.HasPrefix(faults[0], want) {
			t.Errorf("%+v: %q, want %q", p, faults, want)
		}
		if len(s.Names()) != len(Builtin().Names()) {
			t.Errorf("%s: a faulty profile is taken", want)
		}
	}
	if _, faults := with(Profile{Name: "x", Extends: "lora"}, Profile{Name: "x", Extends: "md"}); len(faults) != 1 || !strings.HasPrefix(faults[0], "1.name: there is a scenario \"x\"") {
		t.Errorf("%q", faults)
	}
}

// The built-in profiles say all that the page about them shows.
func TestBuiltinProfilesAreWhole(t *testing.T) {
	for _, p := range Builtin().All() {
		if p.Doc == "" || p.Metric == "" || p.Example == "" {
			t.Errorf("%s: doc, metric or example is missing", p.Name)
		}
		for _, asked := range []Requirements{p.Require, p.Assume} {
			for name := range asked {
				if p.Why[name] == "" {
					t.Errorf("%s does not say why it asks for %s", p.Name, name)
				}
			}
		}
		if p.Fabric != (p.Why["fabric"] != "") || p.RDMA != (p.Why["rdma"] != "") {
			t.Errorf("%s: fabric and rdma go with a reason", p.Name)
		}
		for name := range p.Why {
			_, required := p.Require[name]
			_, assumed := p.Assume[name]
			if !required && !assumed && name != "fabric" && name != "rdma" {
				t.Errorf("%s says why it asks for %s, and does not ask", p.Name, name)
			}
		}
		if (p.Interruptible == WithCheckpoint) != (p.Checkpoint > 0) {
			t.Errorf("%s: an interval of saves goes with interruptible: with-checkpoint", p.Name)
		}
		for _, alias := range p.Aliases {
			if m := Builtin().Meanings(alias); len(m) == 1 && m[0].Name == alias {
				t.Errorf("%s: %s is a name of its own", p.Name, alias)
			}
		}
	}
}
