package gpu

import (
	"encoding/csv"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResolve(t *testing.T) {
	a100 := []string{"a100-pcie-40gb", "a100-sxm-40gb", "a100-pcie-80gb", "a100-sxm-80gb"}
	for _, c := range []struct {
		name string
		want []string
	}{
		{"l4", []string{"l4"}},
		{"L4", []string{"l4"}},
		{"NVIDIA L4 24GB", []string{"l4"}},
		{"Tesla T4", []string{"t4"}},
		{"T4G", []string{"t4g"}},
		{"h100_sxm 80GB", []string{"h100-sxm-80gb"}},
		{"A100", a100},
		{"a100 80 GB", a100[2:]},
		{"A100 80GB any form", a100[2:]},
		{"A100-SXM4-80GB", a100[3:]},
		{"a100-sxm", []string{"a100-sxm-40gb", "a100-sxm-80gb"}},
		{"h100", []string{"h100-pcie-80gb", "h100-sxm-80gb", "h100-nvl-94gb"}},
		{"H100NVL", []string{"h100-nvl-94gb"}},
		{"RTX4090", []string{"rtx-4090"}},
		{"GeForce RTX 4090", []string{"rtx-4090"}},
		{"rtx6000ada", []string{"rtx-6000-ada"}},
		{"RTX PRO 6000", []string{"rtx-pro-6000-se", "rtx-pro-6000-ws"}},
		{"rtx-pro-6000 server", []string{"rtx-pro-6000-se"}},
		{"rtx-pro-4500", []string{"rtx-pro-4500"}},
		{"A6000", []string{"rtx-a6000"}},
		{"K80", []string{"k80"}}, // known by name, not by facts
		{"AMD Instinct MI300X", []string{"mi300x"}},
	} {
		got, err := Builtin().Resolve(c.name)
		if err != nil {
			t.Errorf("Resolve(%q): %v", c.name, err)
		} else if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("Resolve(%q): %s", c.name, diff)
		}
	}
}

// A name that is nearly right is never taken for its neighbour.
func TestResolveRejectsNearMisses(t *testing.T) {
	for _, c := range []struct {
		name    string
		problem NameProblem
		suggest []string
	}{
		{"A100-8", Unknown, []string{"a100-40gb", "a100-80gb"}},
		{"RTX 5900", Unknown, []string{"rtx-5090"}},
		{"MI300X 80GB", Mismatch, []string{"mi300x"}},
		{"a100-16gb", Mismatch, []string{"a100-40gb", "a100-80gb"}},
		{"RTX 6000", Ambiguous, []string{"quadro-rtx-6000", "rtx-6000-ada", "rtx-pro-6000"}},
		{"a10-0", Unknown, []string{"a10"}},
		{"Inferentia", NotGPU, nil},
		{"1g.10gb", Unknown, nil},
		{"", Unknown, nil},
		{"quantum", Unknown, nil},
	} {
		got, err := Builtin().Resolve(c.name)
		e, ok := errors.AsType[*NameError](err)
		if !ok {
			t.Errorf("Resolve(%q) = %v, %v; want a NameError", c.name, got, err)
			continue
		}
		if e.Problem != c.problem {
			t.Errorf("Resolve(%q): %s, want %s", c.name, e.Problem, c.problem)
		}
		for _, s := range c.suggest {
			if !slices.Contains(e.Suggestions, s) || !strings.Contains(e.Error(), s) {
				t.Errorf("Resolve(%q) does not suggest %s: %v", c.name, s, e)
			}
		}
		for _, s := range e.Suggestions {
			if _, err := Builtin().Resolve(s); err != nil {
				t.Errorf("Resolve(%q) suggests %q, which is refused: %v", c.name, s, err)
			}
		}
	}
}

// What people read when they mistype.
func TestNamesThatAreNone(t *testing.T) {
	for name, want := range map[string]string{
		"RTX 5900":    `no GPU is named "RTX 5900"; did you mean "rtx-5090", "rtx-3090" or "rtx-4090"?`,
		"MI300X 80GB": `there is no "MI300X 80GB": mi300x has 192 GB only; did you mean "mi300x"?`,
		"RTX 6000":    `"RTX 6000" means different GPUs to different providers; which one, "quadro-rtx-6000", "rtx-6000-ada" or "rtx-pro-6000"?`,
		"Inferentia":  `"Inferentia" is no GPU`,
	} {
		if _, err := Builtin().Resolve(name); err == nil || err.Error() != want {
			t.Errorf("%q:\n%v, want\n%s", name, err, want)
		}
	}
}

func TestResolveForKnowsTheProvidersWords(t *testing.T) {
	for _, c := range []struct {
		provider, name string
		want           []string
	}{
		{"gcp", "rtx6000", []string{"rtx-pro-6000-se"}},
		{"skypilot-catalog", "RTX6000", []string{"quadro-rtx-6000"}},
		{"gcp", "nvidia-tesla-a100", []string{"a100-sxm-40gb"}},
		{"aws", "a100", []string{"a100-sxm-40gb", "a100-sxm-80gb"}},
		{"azure", "Standard_NC6s_v3", []string{"v100-pcie-16gb"}},
		{"nobody", "L4", []string{"l4"}},
	} {
		got, err := Builtin().ResolveFor(c.provider, c.name)
		if err != nil {
			t.Errorf("ResolveFor(%s, %q): %v", c.provider, c.name, err)
		} else if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("ResolveFor(%s, %q): %s", c.provider, c.name, diff)
		}
	}
	if _, err := Builtin().ResolveFor("aws", "Inferentia"); err == nil {
		t.Error("Inferentia was taken for a GPU")
	}
}

func TestIdentify(t *testing.T) {
	for _, c := range []struct {
		provider, instance, name string
		mib                      int
		want                     string
		bad                      bool
	}{
		{"aws", "p5en.48xlarge", "NVIDIA", 144384, "h200-sxm-141gb", false},
		{"aws", "", "NVIDIA", 144384, "", true}, // unknown stays unknown
		{"aws", "", "a100", 81920, "a100-sxm-80gb", false},
		{"aws", "", "a100", 0, "a100-sxm-any", false},
		{"gcp", "", "nvidia-l4", 22888, "l4", false},
		{"aws", "", "l4", 49152, "", true},
		{"gpuhunt", "", "A100", 40960, "a100-any", false},
		{"skypilot-catalog", "", "H100", 0, "h100-any-80gb", false},
		// One name for two cards: their memory tells them apart.
		{"jarvis-labs", "", "NVIDIA A100", 81920, "a100-any-80gb", false},
		{"jarvis-labs", "", "NVIDIA A100", 40960, "a100-any-40gb", false},
		{"jarvis-labs", "", "NVIDIA A100", 0, "a100-any", false},
		{"dataoorts", "", "NVIDIA A100 SXM4", 40960, "a100-sxm-40gb", false},
		{"dataoorts", "", "NVIDIA H200", 0, "h200-any-141gb", false},
	} {
		got, err := Builtin().Identify(c.provider, c.instance, c.name, c.mib)
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("Identify(%s, %q, %q, %d) = %q, %v; want %q", c.provider, c.instance, c.name, c.mib, got, err, c.want)
		}
	}
}

// Both ways: every id and every alias leads to what the files say.
func TestEveryNameLeadsBack(t *testing.T) {
	table := Builtin()
	for _, f := range table.All() {
		for _, name := range []string{f.ID, strings.ToUpper(f.ID), strings.ReplaceAll(f.ID, "-", " "), strings.ReplaceAll(f.ID, "-", "_")} {
			if ids, err := table.Resolve(name); err != nil || len(ids) != 1 || ids[0] != f.ID {
				t.Errorf("Resolve(%q) = %v, %v; want %s", name, ids, err, f.ID)
			}
		}
	}
	for k, a := range table.aliases {
		ids, err := table.ResolveFor(k.provider, k.name)
		if a.canonical == notGPU {
			if err == nil {
				t.Errorf("%v is no GPU but resolves to %v", k, ids)
			}
		} else if err != nil || strings.Join(ids, "|") != a.canonical {
			t.Errorf("%v = %v, %v; want %s", k, ids, err, a.canonical)
		}
	}
}

// Every row of the alias file, as its provider writes it, leads to what it says.
func TestEveryAlias(t *testing.T) {
	f, err := os.Open("data/gpu-aliases.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) < 460 {
		t.Errorf("only %d rows", len(rows))
	}
	for _, r := range rows[1:] {
		alias, provider, want := r[0], r[1], r[2]
		got, err := Builtin().ResolveFor(provider, alias)
		switch {
		case want == notGPU:
			if e, ok := errors.AsType[*NameError](err); !ok || e.Problem != NotGPU {
				t.Errorf("%s at %s is no GPU: %v, %v", alias, provider, got, err)
			}
		default:
			for id := range strings.SplitSeq(want, "|") {
				if err != nil || !slices.ContainsFunc(got, func(g string) bool { return g == id || slices.Contains(Builtin().Variants(g), id) }) {
					t.Errorf("%s at %s: %v, %v; want %s", alias, provider, got, err, want)
				}
			}
		}
	}
}

func FuzzResolve(f *testing.F) {
	for _, s := range []string{"a100-8", "RTX PRO 6000", "h100_nvl", "80gb", "---", "any"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ids, err := Builtin().Resolve(s)
		if (err == nil) != (len(ids) > 0) {
			t.Fatalf("%q: %v, %v", s, ids, err)
		}
	})
}
