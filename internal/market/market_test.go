package market_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/gpu"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

const header = "provider,instance_type,gpu,gpu_raw,gpu_count,gpu_mem_gb_each,vcpu,mem_gib,region,zone,tier,price_ondemand_usd_h,price_spot_usd_h,catalog_date,source\n"

func read(t *testing.T, rows ...string) ([]providers.Offer, []market.Skipped) {
	t.Helper()
	offers, skipped, err := market.ReadCSV(strings.NewReader(header + strings.Join(rows, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return offers, skipped
}

func TestARowGivesAnOfferForEachPrice(t *testing.T) {
	offers, skipped := read(t, "aws,g6.xlarge,l4,L4,1,24,4,16,us-east-1,us-east-1a,on-demand,0.805,0.30,2026-07-20,list")
	if len(skipped) > 0 || len(offers) != 2 {
		t.Fatalf("%d offers, skipped %v", len(offers), skipped)
	}
	want := providers.Offer{
		Market: providers.Market{Provider: "aws", Region: "us-east-1", Zone: "us-east-1a", Type: "g6.xlarge", Kind: providers.Spot},
		Shape:  providers.Shape{GPU: "l4", GPUName: "L4", GPUs: 1, GPUMemory: 24e9, VCPU: 4, Memory: 16 << 30, Fabric: gpu.Of(true), RDMA: gpu.Of(false)},
		Price:  300_000_000, Currency: money.USD, Seen: time.Date(2026, 7, 20, 0, 0, 0, 0, time.UTC), Source: "list",
	}
	if d := cmp.Diff(want, offers[1]); d != "" {
		t.Error(d)
	}
}

func TestRowsThatCannotBeUsedAreSkippedWithTheirLine(t *testing.T) {
	offers, skipped := read(t,
		"a,t,l4,L4,1,24,4,16,r,z,,0,,2026-07-20,s",
		"a,t,l4,L4,1,24,4,16,r,z,,-1,,2026-07-20,s",
		"a,t,l4,L4,1,24,4,16,r,z,,,,2026-07-20,s",
		"a,t,l4,L4,NaN,24,4,16,r,z,,1,,2026-07-20,s",
		"a,t,l4,L4,many,24,4,16,r,z,,1,,2026-07-20,s",
		"a,t,l4,L4,,24,4,16,r,z,,1,,2026-07-20,s",
		"a,t,l4,L4,1,24,4,16,r,z,,1,,yesterday,s",
		",t,l4,L4,1,24,4,16,r,z,,1,,2026-07-20,s",
		"a,t,l4,L4,1,24,4,16,r,z,accelerator-only,1,,2026-07-20,s",
		"a,ok,l4,L4,1,24,4,16,r,z,,1,,2026-07-20,s",
		"a,ok,l4,L4,1,24,4,16,r,z,,2,,2026-07-20,s",
	)
	if len(offers) != 1 || offers[0].Type != "ok" || offers[0].Price != money.Rate(money.Unit) {
		t.Fatalf("offers: %v", offers)
	}
	want := []market.Skipped{
		{2, `price_ondemand_usd_h is "0", no price`},
		{3, `price_ondemand_usd_h is "-1", no price`},
		{4, "no price"},
		{5, `gpu_count is "NaN", no number`},
		{6, `gpu_count is "many", no number`},
		{7, "the number of GPUs is not known"},
		{8, `catalog_date is "yesterday", no date`},
		{9, "no provider"},
		{10, "a price of GPUs without their machine"},
		{12, "a/r/z/ok/on-demand stands in line 11 already"},
	}
	if d := cmp.Diff(want, skipped); d != "" {
		t.Error(d)
	}
}

// Providers without names of types list the same GPU in tiers and numbers.
func TestRowsWithoutATypeStayApart(t *testing.T) {
	offers, skipped := read(t,
		"runpod,,h100-sxm-80gb,H100 SXM,1,80,,,,,secure,2.69,,2026-05-24,s",
		"runpod,,h100-sxm-80gb,H100 SXM,1,80,,,,,community,1.99,,2026-05-24,s",
		"runpod,,h100-sxm-80gb,H100 SXM,8,80,,,,,secure,21,,2026-05-24,s",
	)
	var types []string
	for _, o := range offers {
		types = append(types, o.Type)
	}
	if d := cmp.Diff([]string{"h100-sxm-80gb-x1-secure", "h100-sxm-80gb-x1-community", "h100-sxm-80gb-x8-secure"}, types); d != "" || len(skipped) > 0 {
		t.Errorf("%s skipped %v", d, skipped)
	}
}

func TestNoTableIsAnError(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "another table": "a,b\n1,2\n", "a torn row": header + "aws,g6\n"} {
		if _, _, err := market.ReadCSV(strings.NewReader(text)); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	if _, _, err := market.ReadFile("no-such-file.csv"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestTheWholeFile reads the reference offers: no row may be lost in silence.
func TestTheWholeFile(t *testing.T) {
	const name = "../../../shared/offers/offers.csv.gz"
	if _, err := os.Stat(name); err != nil {
		t.Skipf("the reference offers are not here: %v", err)
	}
	offers, skipped, err := market.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	why := map[string]int{}
	for _, s := range skipped {
		text := s.Why
		if strings.Contains(text, "stands in line") || strings.Contains(text, "later date") {
			text = "twice"
		}
		why[text]++
	}
	t.Logf("%d offers, skipped %v", len(offers), why)
	if len(offers) < 2600 || why["twice"] > 40 {
		t.Errorf("%d offers of 2,448 rows, skipped %v", len(offers), why)
	}
}

// A refresh that fails keeps the old list at its age.
func TestAFailedRefreshAddsNoYouth(t *testing.T) {
	t0 := time.Date(2026, 11, 5, 22, 0, 0, 0, time.UTC)
	offer := providers.Offer{Market: providers.Market{Provider: "a", Type: "t", Kind: providers.Spot}, Price: 1, Seen: t0}
	m := market.New()
	if !m.Replace("a", []providers.Offer{offer}, t0) {
		t.Error("a first list is nothing new")
	}
	before := m.Catalog()
	m.Fail("a", errors.New("away"), t0.Add(time.Hour))
	if m.Catalog() != before {
		t.Error("a failed refresh made another catalog")
	}
	l := m.Lists()["a"]
	if !l.Seen.Equal(t0) || l.Err == nil || len(l.Offers) != 1 || !l.Tried.Equal(t0.Add(time.Hour)) {
		t.Errorf("after a failed refresh: %+v", l)
	}
	if m.Replace("a", []providers.Offer{offer}, t0.Add(2*time.Hour)) {
		t.Error("the same list counts as new")
	}
	if l := m.Lists()["a"]; l.Err != nil || !l.Seen.Equal(t0.Add(2*time.Hour)) {
		t.Errorf("after a good refresh: %+v", l)
	}
	dearer := offer
	dearer.Price = 2
	if !m.Replace("a", []providers.Offer{dearer}, t0) || m.Catalog().Revision <= before.Revision {
		t.Error("another price is nothing new")
	}
	if !m.Replace("a", nil, t0) || m.Catalog().Offers != 0 {
		t.Error("an empty list leaves offers")
	}
}

func FuzzReadCSV(f *testing.F) {
	f.Add(header + "aws,g6.xlarge,l4,L4,1,24,4,16,us-east-1,,on-demand,0.805,0.3,2026-07-20,list\n")
	f.Add(header + ",,,,,,,,,,,,,,\n")
	f.Add("provider\n\"")
	f.Fuzz(func(t *testing.T, text string) {
		offers, _, err := market.ReadCSV(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, o := range offers {
			if o.Price <= 0 || o.Provider == "" || o.Type == "" && o.GPUName != "" || !(o.GPUs >= 0) {
				t.Errorf("an offer that cannot be: %+v", o)
			}
		}
	})
}
