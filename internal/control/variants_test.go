package control_test

import (
	"strings"
	"testing"
	"time"

	"gpubroker/internal/control"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

// explained is the explanation of a job that is alone in a market of four spot
// machines with one GPU each, at prices in cents.
func explained(t *testing.T, text string, held reason.Reason) scheduler.Explanation {
	t.Helper()
	job, err := spec.Parse("job.yaml", []byte("name: x\nrun: {command: [x]}\ncheckpoint: {interval: 5m}\nmax_duration: 100h\n"+text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	now := time.Date(2026, 11, 6, 22, 0, 0, 0, time.UTC)
	var offers []providers.Offer
	for _, o := range []struct {
		gpu   string
		gib   int64
		cents int64
	}{{"t4", 16, 20}, {"l4", 24, 30}, {"a100-pcie-80gb", 80, 300}, {"h100-sxm-80gb", 80, 900}} {
		offers = append(offers, providers.Offer{
			Market: providers.Market{Provider: "sim", Region: "eu", Zone: "eu-1", Type: o.gpu, Kind: providers.Spot},
			Shape:  providers.Shape{GPU: o.gpu, GPUs: 1, GPUMemory: o.gib * gpu.GiB, VCPU: 16, Memory: 256 * gpu.GiB, Disk: 1000 * gpu.GiB},
			Price:  money.Rate(o.cents * 1e7), Seen: now, Currency: money.USD,
		})
	}
	s, err := control.Alone(t.Context(), job, spec.Local{Dir: t.TempDir()}, scheduler.NewCatalog(1, offers), map[string]scheduler.Provider{"sim": {}}, scheduler.Settings{Lease: 20 * time.Minute, Idle: 2 * time.Minute}, now)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	s.Groups[0].Held = held
	e, ok := scheduler.Explain(s, nil, s.Groups[0].ID)
	if !ok {
		t.Fatalf("%s: nothing is explained", text)
	}
	return e
}

// What another precision or another method would bring is what the same job costs
// when it names it, and the difference is what that saves.
func TestOtherWaysToDoTheWork(t *testing.T) {
	const inference = "scenario: llm-batch\nmodel: {parameters: 7B, context: 2k}\nwork: {time: 1h, on: h100-sxm-80gb}\n"
	const tuning = "scenario: lora\nwork: {time: 5h, on: h100-sxm-80gb}\n"
	for _, c := range []struct {
		name, job string
		relax     scheduler.Relax
		other     string // the same job with what is suggested; "" where nothing is
		says      string
		on        string // the GPU that it would run on
	}{
		{
			"8-bit integers need no new card", inference + "precision: fp8\n", scheduler.RelaxPrecision,
			inference + "precision: int8\n", "in int8 instead of fp8", "t4",
		},
		{"the cheapest is there already", inference + "precision: int8\n", scheduler.RelaxPrecision, "", "", ""},
		{"no precision is named", inference, scheduler.RelaxPrecision, "", "", ""},
		{
			"training in 8 bits is quicker", tuning + "model: {parameters: 7B}\nprecision: bf16\n", scheduler.RelaxPrecision,
			tuning + "model: {parameters: 7B}\nprecision: fp8\n", "in fp8 instead of bf16", "l4",
		},
		{
			"a smaller base fits a smaller card", tuning + "model: {parameters: 30B, method: lora}\n", scheduler.RelaxMethod,
			tuning + "model: {parameters: 30B, method: qlora-2bit}\n", "by qlora-2bit instead of lora", "l4",
		},
		{
			"nothing holds it as it is", tuning + "model: {parameters: 7B, method: full}\n", scheduler.RelaxMethod,
			tuning + "model: {parameters: 7B, method: lora}\n", "instead of full", "l4",
		},
		{"the scenario says the method", tuning + "model: {parameters: 30B}\n", scheduler.RelaxMethod, "", "", ""},
		{"what serves is not trained", inference[:len("scenario: llm-batch\n")] + "model: {parameters: 30B, method: inference}\n", scheduler.RelaxMethod, "", "", ""},
	} {
		e := explained(t, c.job, reason.Reason{})
		var found []scheduler.Counterfactual
		for _, o := range e.Otherwise {
			if o.Relax == c.relax {
				found = append(found, o)
			}
		}
		if c.other == "" {
			if len(found) > 0 {
				t.Errorf("%s: %s", c.name, found[0].Why)
			}
			continue
		}
		if len(found) != 1 {
			t.Errorf("%s: said %d times: %v", c.name, len(found), e.Otherwise)
			continue
		}
		got := found[0]
		if !strings.Contains(got.Why.String(), c.says) || got.Option.Market.Type != c.on {
			t.Errorf("%s: %q on %s, want %q on %s", c.name, got.Why, got.Option.Market.Type, c.says, c.on)
		}
		then := explained(t, c.other, reason.Reason{})
		if len(then.Options) == 0 || then.Options[0].Cost.Total != got.Option.Cost.Total || then.Options[0].Market != got.Option.Market {
			t.Errorf("%s: said to cost %s on %s, and costs %+v", c.name, got.Option.Cost.Total, got.Option.Market, then.Options)
		}
		switch {
		case len(e.Options) == 0 && (got.Saves != 0 || got.Costs != got.Option.Cost.Total):
			t.Errorf("%s: nothing is usable, and it saves %s and costs %s", c.name, got.Saves, got.Costs)
		case len(e.Options) > 0 && (got.Costs != 0 || got.Saves != e.Options[0].Cost.Total-got.Option.Cost.Total || got.Saves <= 0):
			t.Errorf("%s: saves %s and costs %s, of %s", c.name, got.Saves, got.Costs, e.Options[0].Cost.Total)
		}
	}
}

// What is held would be held whatever it asked for: nothing is suggested.
func TestNothingElseHelpsWhatIsHeld(t *testing.T) {
	const job = "resources: {gpu: l4, max_price: 0.10 USD}\n"
	if e := explained(t, job, reason.Reason{}); len(e.Otherwise) == 0 {
		t.Fatal("nothing is suggested to a job that fits nowhere")
	}
	for _, held := range []reason.Reason{reason.New("held", "by", "maria"), reason.New("scenario_unknown", "scenario", "house-lora")} {
		if e := explained(t, job, held); len(e.Otherwise) > 0 || e.Decision.Why.Code != held.Code || e.Change == "" {
			t.Errorf("%s: waits for %q, and suggested is %v", e.Decision.Why, e.Change, e.Otherwise)
		}
	}
}
