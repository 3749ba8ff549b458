package scheduler_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/market"
	"gpubroker/scheduler"
	"gpubroker/scheduler/schedtest"
)

// listed is a world of the reference offers; the test is skipped without them.
func listed(t *testing.T) *schedtest.World {
	t.Helper()
	const name = "../../shared/offers/offers.csv.gz"
	if _, err := os.Stat(name); err != nil {
		t.Skipf("the reference offers are not here: %v", err)
	}
	offers, _, err := market.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	w := schedtest.New()
	w.Settings.Stale = scheduler.Stale{} // a dated table
	for _, o := range offers {
		if o.Seen.Year() < 2026 {
			continue // good for shapes, says its source, and not for prices
		}
		w.Offers = append(w.Offers, o)
		w.Providers[o.Provider] = w.Providers["sim"]
	}
	return w
}

// TestListedOffers plans over 2,448 rows of 35 providers what the scenario
// reference calls golden decisions, as far as fit, modelled rate and price
// decide them.
func TestListedOffers(t *testing.T) {
	const large = " providers=aws|azure|gcp"
	tests := map[string]struct {
		job   string
		first []string // GPUs that may come first
		never string   // GPUs that are in no option
		why   string   // a counted reason
	}{
		"hevc farm": {
			job: "scenario=transcode require=encode_hevc:1 slots=1" + large, first: []string{"l4"}, never: "a100 h100 h200", why: "gpu.encoders",
		},
		"fp64 with ecc": {
			job: "scenario=fp64" + large, first: []string{"h100-sxm-80gb", "h200-sxm-141gb", "a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-80gb"}, never: "b300 l4 t4 rtx mi300x", why: "gpu.fp64",
		},
		"fp64 where rocm is allowed": {
			job: "scenario=fp64 require=vendor:amd,nvidia waiting=8 kinds=on-demand" + large, first: []string{"mi300x"}, never: "b300 l4 t4 rtx", why: "gpu.fp64",
		},
		"gromacs": {
			job: "scenario=md kinds=on-demand" + large, first: []string{"l40s", "l4"}, never: "a100 h100", why: "gpu.vendor",
		},
		"gromacs on any card": {
			job: "scenario=md require=ecc:false kinds=on-demand", first: []string{"rtx-4090", "rtx-3090", "rtx-5090", "rtx-4070-ti", "rtx-3080", "rtx-4080", "rtx-3070", "rtx-3060-ti", "rtx-5080", "rtx-5070-ti", "rtx-3080-ti"}, never: "a100 h100",
		},
		"qlora 70b has no headroom in 48 GB": {
			job: "scenario=lora require=memory:60" + large, never: "l40 a40 a6000 l4 t4", why: "gpu.memory",
		},
		"qlora 14b wants bf16": {
			job: "scenario=lora require=memory:12" + large, never: "t4 v100 p100", why: "gpu.bf16",
		},
		"full tuning of 7b on one GPU": {
			job: "scenario=llm-train require=memory:126|vendor:amd,nvidia" + large, never: "a100 h100", why: "gpu.memory",
		},
		"fp8 inference": {
			job: "scenario=llm-batch require=fp8:1" + large, never: "a100 a10g t4 v100", why: "gpu.fp8",
		},
		"resident inference is not on spot": {
			job: "scenario=llm-serve steady gcp" + large, why: "not_interruptible",
		},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		test := tests[name]
		t.Run(name, func(t *testing.T) {
			w := listed(t)
			if _, err := w.Command("jobs", "job "+strings.ReplaceAll(test.job, " gcp ", " ")); err != nil {
				t.Fatal(err)
			}
			s := w.Snap()
			r := scheduler.Plan(s, &w.Memo)
			if err := schedtest.Check(s, &r); err != nil {
				t.Fatal(err)
			}
			e, _ := scheduler.Explain(s, &w.Memo, "job")
			if !e.Chosen {
				t.Fatalf("nothing is chosen:\n%s", schedtest.Explained(&e))
			}
			if len(test.first) > 0 && !slices.Contains(test.first, e.Options[0].Shape.GPU) {
				t.Errorf("%s comes first, expected one of %v:\n%s", e.Options[0].Shape.GPU, test.first, schedtest.Explained(&e))
			}
			for _, o := range e.Options {
				for word := range strings.FieldsSeq(test.never) {
					if o.Shape.GPU == word || strings.HasPrefix(o.Shape.GPU, word+"-") {
						t.Errorf("%s is an option:\n%s", o.Shape.GPU, schedtest.Explained(&e))
					}
				}
				if test.why == "not_interruptible" && o.Market.Kind == "spot" {
					t.Errorf("spot is an option:\n%s", schedtest.Explained(&e))
				}
			}
			counted := func(c scheduler.Count) bool { return string(c.Code) == test.why }
			if test.why != "" && !slices.ContainsFunc(e.Reasons, counted) {
				t.Errorf("%s is no reason:\n%s", test.why, schedtest.Explained(&e))
			}
			for line := range strings.Lines(schedtest.Explained(&e)) {
				if n := len([]rune(strings.TrimRight(line, "\n"))); n > 100 {
					t.Errorf("a line of %d columns: %s", n, line)
				}
			}
		})
	}
}

// A price history is dated: a broker that wants fresh offers uses none of it, and
// says so for every one.
func TestOldOffersAreNotUsed(t *testing.T) {
	w := listed(t)
	w.Settings.Stale = scheduler.Stale{Spot: time.Hour, OnDemand: time.Hour}
	if _, err := w.Command("jobs", "job anything"); err != nil {
		t.Fatal(err)
	}
	r := scheduler.Plan(w.Snap(), nil)
	d := &r.Decisions[0]
	if d.Usable > 0 || d.Placed > 0 || d.Why.Code != "no_offer_fits" {
		t.Errorf("placed on old offers: %+v", d)
	}
}
