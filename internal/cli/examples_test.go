package cli

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gpubroker/examples"
	"gpubroker/internal/api"
	"gpubroker/internal/control"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/internal/scenario"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

// planned is one example, or a variant of it, as it would run.
type planned struct {
	file string
	sets []string
	// never are GPUs, by the beginning of their ids, that no plan of it may name
	// whatever they cost; facts of the work, not preferences.
	never []string
	spot  bool // it may run on machines that can be taken away
}

var (
	compute  = []string{"a100", "a30", "h100", "h200", "gh200", "b200", "b300", "gb200", "gb300", "mi100", "mi210", "mi250", "mi300", "mi325", "mi350", "mi355"} // no encoders, no graphics
	slowFP64 = []string{"t4", "l4", "a10", "a40", "l40", "rtx", "gtx", "b300", "gb300", "a2"}
)

// Each row of the table of requirements has an example here, and what it must never
// be given.
var plans = []planned{
	{file: "train.yaml", spot: true, never: []string{"t4", "v100", "p100", "l4", "l40", "a10", "rtx-4090", "rtx-5090", "mi"}},
	{file: "train.yaml", sets: []string{"model.parameters=70B", "resources.memory=512GiB"}, spot: true, never: []string{"t4", "l4", "l40", "a10", "rtx", "mi"}},
	{file: "multi-node.yaml", spot: true, never: []string{"a100", "h100-pcie", "h100-nvl", "b200", "mi"}},
	{file: "finetune-lora.yaml", spot: true, never: []string{"t4", "v100", "l4", "mi"}},
	{file: "finetune-qlora.yaml", spot: true, never: []string{"t4", "v100", "p100", "mi"}},
	{file: "finetune-qlora.yaml", sets: []string{"resources.gpu_count=1"}, spot: true, never: []string{"t4", "l4", "l40", "a40", "rtx-4090", "rtx-5090", "rtx-a6000", "rtx-6000-ada", "a100-sxm-40gb", "a100-pcie-40gb"}},
	{file: "finetune-qlora.yaml", sets: []string{"model.parameters=14B", "resources.gpu_count=1"}, spot: true, never: []string{"t4", "v100", "p100"}},
	{file: "serve.yaml", never: []string{"t4", "v100", "a100", "a10", "a30", "a40", "rtx-3090", "mi"}},
	{file: "batch-inference.yaml", spot: true, never: []string{"v100", "p100", "mi"}},
	{file: "fp64.yaml", spot: true, never: slowFP64},
	{file: "cfd.yaml", spot: true, never: slices.Concat(slowFP64, []string{"mi"})},
	{file: "mpi.yaml", spot: true, never: slowFP64},
	{file: "md.yaml", spot: true, never: []string{"mi", "radeon"}},
	{file: "md.yaml", sets: []string{"resources.require={}"}, spot: true, never: []string{"rtx-3080", "rtx-4090", "mi"}},
	{file: "md.yaml", sets: []string{"resources.require={}", "resources.providers=aws"}, spot: true, never: []string{"rtx-3080", "rtx-4090", "mi"}},
	{file: "gaming.yaml", never: compute},
	{file: "render.yaml", spot: true, never: compute},
	{file: "transcode.yaml", spot: true, never: compute},
	{file: "transcode.yaml", sets: []string{"resources.gpu=[]", "encode.codec=hevc"}, spot: true, never: compute},
	{file: "transcode.yaml", sets: []string{"resources.gpu=[]", "encode.codec=hevc", "resources.providers=aws"}, spot: true, never: compute},
	{file: "transcode.yaml", sets: []string{"resources.gpu=[]", "encode.codec=av1"}, spot: true, never: slices.Concat(compute, []string{"t4", "a10", "a16", "a40", "rtx-3", "rtx-a", "rtx-2"})},
	{file: "upscale.yaml", spot: true, never: []string{"t4", "v100", "p100", "mi"}},
	{file: "vdi.yaml", never: slices.Concat(compute, []string{"rtx-3", "rtx-4090", "rtx-5090", "gtx"})},
	{file: "command.yaml", never: []string{"t4", "a100"}},
}

const plansGolden = "testdata/examples.golden"

// What each example's plan is against the offers that are built in: reviewed, and
// never what the work cannot be done on.
func TestExamplesArePlanned(t *testing.T) {
	m, newest := market.Snapshot()
	now := newest.Add(12 * time.Hour)
	a := &app{Wiring: Wiring{Now: func() time.Time { return now }}}
	offers := m.Offers()
	var out bytes.Buffer
	fmt.Fprintf(&out, "Plans of the examples against the snapshot of %s.\ngo test ./internal/cli -run Examples -update writes this anew; look at what changed.\n", newest.Format(time.DateOnly))
	for _, x := range plans {
		text, err := examples.Spec(x.file)
		if err != nil {
			t.Fatal(err)
		}
		read := func() *spec.Job {
			j, err := spec.Parse(x.file, text, x.sets...)
			if err != nil {
				t.Fatal(err)
			}
			return j
		}
		name := strings.Join(append([]string{x.file}, x.sets...), " ")
		j := read()
		p, _, err := a.planAlone(t.Context(), read(), ".", offers, 10)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if p.Decision.Placed == 0 || len(p.Options) == 0 {
			t.Errorf("%s is not placed: %s", name, p.Decision.Why)
		}
		fmt.Fprintf(&out, "\n%s\n", name)
		fmt.Fprintf(&out, "  %-10s %s\n", "scenario", orDash(j.Scenario))
		for _, o := range p.Options {
			if !x.spot && o.Market.Kind == providers.Spot {
				t.Errorf("%s may not run on spot, and is offered %s", name, o.Market)
			}
		}
		may := usableGPUs(t, read(), offers, now)
		out.WriteString(told(p, may))
		for _, id := range may {
			if i := slices.IndexFunc(x.never, func(n string) bool { return begins(id, n) }); i >= 0 {
				t.Errorf("%s may be given %s", name, id)
			}
		}
	}
	golden(t, plansGolden, out.String())
}

// told is a plan in short, for golden files: what it needs, where it goes and why,
// what else would do, and what not. may are the GPUs that it may be given.
func told(p api.Plan, may []string) string {
	var out strings.Builder
	line := func(key, value string) { fmt.Fprintf(&out, "  %-10s %s\n", key, wrap(value, 13)) }
	for _, n := range p.Notes {
		line("needs", n.String())
	}
	if len(p.Launches) > 0 {
		line("goes to", launches(p.Launches))
	}
	line("why", p.Decision.Why.String())
	for i, o := range p.Options {
		key := map[bool]string{true: "at best", false: ""}[i == 0]
		line(key, fmt.Sprintf("%s, %s, %s %s/h: %s in %s", gpus(o.Shape), o.Market.Kind, where(o.Market), part(money.Amount(o.Price)), part(o.Cost.Total), span(o.Time)))
	}
	if len(may) > 0 {
		line("may be", strings.Join(may, ", "))
	}
	line("ruled out", fmt.Sprintf("%d of %d offers", p.Considered-p.Usable, p.Considered))
	for _, r := range p.Reasons {
		line("", fmt.Sprintf("%d: %s", r.Offers, r.Sample))
	}
	return out.String()
}

// golden compares a text with what people reviewed.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if slices.Contains(os.Args, "-update") {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, kept := strings.Split(text, "\n"), strings.Split(string(want), "\n")
	for i := range got {
		if i >= len(kept) || got[i] != kept[i] {
			t.Fatalf("%s:%d: a plan changed; go test ./internal/cli -run 'Examples|Decisions' -update, and look at what changed:\n%s", file, i+1, got[i])
		}
	}
	if len(got) != len(kept) {
		t.Errorf("%s has %d lines more", file, len(kept)-len(got))
	}
}

// begins says that a GPU is one of those whose ids begin so, up to a hyphen or,
// for families such as mi and rtx-3, a digit: l4 is not l40s.
func begins(id, family string) bool {
	rest, ok := strings.CutPrefix(id, family)
	return ok && (rest == "" || rest[0] == '-' || rest[0] > '9' || strings.Contains(" mi rtx-3 rtx-2 rtx-a ", " "+family+" "))
}

// usableGPUs are all models that a job may be placed on, by any offer.
func usableGPUs(t *testing.T, j *spec.Job, offers []providers.Offer, now time.Time) []string {
	t.Helper()
	accounts := map[string]scheduler.Provider{}
	for _, o := range offers {
		accounts[o.Provider] = scheduler.Provider{Capabilities: assumed(), Cloud: o.Provider}
	}
	if j.Tasks != nil {
		j.Tasks = &spec.Tasks{List: []string{"unknown"}}
	}
	snap, err := control.Alone(t.Context(), j, spec.Local{Dir: "."}, scheduler.NewCatalog(1, offers), accounts, scheduler.Settings{Lease: time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	g := &snap.Groups[0]
	g.Opens = time.Time{}
	for _, kind := range []providers.Kind{providers.Spot, providers.OnDemand} {
		for _, u := range scheduler.UsableOffers(snap, nil, g, kind) {
			if !slices.Contains(ids, u.Shape.GPU) {
				ids = append(ids, u.Shape.GPU)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// Every example is planned here, and every scenario has one that is of its kind.
func TestEveryScenarioHasAnExample(t *testing.T) {
	readme, err := os.ReadFile("../../examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range examples.Names() {
		if !slices.ContainsFunc(plans, func(p planned) bool { return p.file == name }) {
			t.Errorf("examples/%s is not planned in this test", name)
		}
		if !bytes.Contains(readme, []byte("["+name+"]("+name+")")) {
			t.Errorf("examples/README.md does not list %s", name)
		}
		text, err := examples.Spec(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if len(line) > width-4 {
				t.Errorf("examples/%s:%d is too wide for the page of its scenario", name, i+1)
			}
			if i < 2 && !strings.HasPrefix(line, "#") && name != "command.yaml" {
				t.Errorf("examples/%s says in two lines what it is", name)
			}
		}
	}
	for _, p := range scenario.Builtin().All() {
		text, err := examples.Spec(p.Example)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		j, err := spec.Parse(p.Example, text)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
		} else if j.Profile().Name != p.Name {
			t.Errorf("%s has the example %s, which is of %s", p.Name, p.Example, j.Profile().Name)
		}
	}
}
