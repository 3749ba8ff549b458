package azure

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/simcloud"
	fake "gpubroker/internal/simcloud/dialects/azure"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
)

// TestRowsToTellApart: of all rows that bear a size, two are the price of a Linux VM.
func TestRowsToTellApart(t *testing.T) {
	plain := row{Currency: "USD", Minimum: "0.0", Price: "0.526", Region: "eastus", Meter: "NC4as T4 v3", Product: "Virtual Machines NCasT4_v3 Series", SKU: "NC4as T4 v3", Unit: "1 Hour", Type: "Consumption", Size: "Standard_NC4as_T4_v3"}
	for name, test := range map[string]struct {
		edit func(*row)
		kind providers.Kind
	}{
		"on demand":              {func(*row) {}, providers.OnDemand},
		"spot":                   {func(r *row) { r.SKU, r.Meter = "NC4as T4 v3 Spot", "NC4as T4 v3 Spot" }, providers.Spot},
		"spot in the meter":      {func(r *row) { r.Meter = "NC4as T4 v3 Spot" }, providers.Spot},
		"low priority":           {func(r *row) { r.SKU, r.Meter = "NC4as T4 v3 Low Priority", "NC4as T4 v3 Low Priority" }, ""},
		"windows":                {func(r *row) { r.Product += " Windows" }, ""},
		"cloud services":         {func(r *row) { r.Product += " Cloud Services" }, ""},
		"development and test":   {func(r *row) { r.Type = "DevTestConsumption" }, ""},
		"reservation":            {func(r *row) { r.Type, r.Price = "Reservation", "2377.0" }, ""},
		"another unit":           {func(r *row) { r.Unit = "1/Month" }, ""},
		"another currency":       {func(r *row) { r.Currency = "EUR" }, ""},
		"from a number of hours": {func(r *row) { r.Minimum = "100.0" }, ""},
		"no size":                {func(r *row) { r.Size = "" }, ""},
	} {
		r := plain
		test.edit(&r)
		kind, ok := r.kindOf()
		if kind != test.kind || ok != (test.kind != "") {
			t.Errorf("%s: %q, %t", name, kind, ok)
		}
	}
	// Two prices for one thing are none, the same twice is one.
	other := plain
	other.Price = "0.6"
	got, err := machines([]row{plain, plain})
	if err != nil || got[place{"eastus", "standard_nc4as_t4_v3", providers.OnDemand}] != 526_000_000 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = machines([]row{plain, other, plain}); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestPublishedSample reads rows that Microsoft and others have published.
func TestPublishedSample(t *testing.T) {
	data, err := os.ReadFile("../../../shared/api-samples/azure/retail-prices-page.json")
	if err != nil {
		t.Skip("the shared samples are not here")
	}
	var page struct{ Items []row }
	if err := json.Unmarshal(data, &page); err != nil {
		t.Fatal(err)
	}
	got, err := machines(page.Items)
	if err != nil {
		t.Fatal(err)
	}
	want := map[place]money.Rate{
		{"westeurope", "standard_d8_v4", providers.OnDemand}:   460_000_000,
		{"westeurope", "standard_e4ds_v4", providers.OnDemand}: 346_000_000,
		{"eastus", "standard_b1s", providers.OnDemand}:         10_400_000,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(place{})); diff != "" {
		t.Error(diff)
	}
}

func TestRateOf(t *testing.T) {
	for _, test := range []struct {
		price string
		hours int64
		want  money.Rate
	}{
		{"0.526", 1, 526_000_000},
		{"19.71", 730, 27_000_000},
		{"5.28", 730, 7_232_877},
		{"1E-05", 1, 10_000},
		{"0", 1, 0},
		{"98.320000", 1, 98_320_000_000},
		{"0.0000000001", 1, 1}, // rounded up, never away
	} {
		if got, err := rateOf(json.Number(test.price), test.hours); err != nil || got != test.want {
			t.Errorf("%s for %d h: %d, %v", test.price, test.hours, got, err)
		}
	}
	for _, bad := range []string{"", "-1", "free", "1e99", "1e999999999"} {
		if got, err := rateOf(json.Number(bad), 1); err == nil {
			t.Errorf("%q is %d", bad, got)
		}
	}
}

// TestRatesAreExact: what has nine decimals or fewer is kept to the last of them.
func TestRatesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := money.Rate(rapid.Int64Range(0, 1e15).Draw(t, "rate"))
		if got, err := rateOf(json.Number(want.String()), 1); err != nil || got != want {
			t.Errorf("%s: %d, %v", want, got, err)
		}
	})
}

func TestTiers(t *testing.T) {
	for gib, want := range map[int64]string{1: "4", 32: "4", 33: "6", 100: "10", 128: "10", 129: "15", 32767: "80", 32768: ""} {
		got, ok := tierFor(gib << 30)
		if got.name != want || ok != (want != "") {
			t.Errorf("%d GiB: %q", gib, got.name)
		}
	}
	for n, tier := range tiers {
		rate, err := rateOf(json.Number(tier.most), hoursAMonth)
		if err != nil || rate <= 0 || n > 0 && tier.gib <= tiers[n-1].gib {
			t.Errorf("%+v: %v", tier, err)
		}
	}
}

// TestPublicPrices: without an account, the GPU sizes that are known, of one region
// and of all, at the prices that the account's own list has.
func TestPublicPrices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := simcloud.New(fake.Default(1), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		net := simtest.NewNet(t)
		net.ServeTLS("prices.azure.test", simcloud.Dialected(w))
		p, err := newPrices("azure", "https://prices.azure.test", net.Client())
		if err != nil {
			t.Fatal(err)
		}
		f := &feed{prices: p, table: gpu.Builtin()}
		for _, region := range []string{"", "eastus"} {
			offers, err := f.Offers(t.Context(), providers.Scope{Region: region})
			if err != nil {
				t.Fatal(err)
			}
			want := map[providers.Market]money.Rate{}
			for _, o := range w.Offers(region, 0) {
				if o.GPUs > 0 {
					want[providers.Market{Provider: "azure", Region: o.Region, Type: o.Type, Kind: o.Kind}] = o.Price
				}
			}
			got := map[providers.Market]money.Rate{}
			for _, o := range offers {
				if o.Type == "Standard_NC96ads_A100_v4" {
					continue // no market of the world: it is restricted
				}
				got[o.Market] = o.Price
				if o.GPU == "" || o.GPUs <= 0 || o.GPUMemory <= 0 || o.VCPU <= 0 || o.Memory <= 0 || len(o.Parts) != 3 {
					t.Errorf("%+v", o)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("region %q: %s", region, diff)
			}
		}
	})
	if d := Descriptor(); d.Public == nil {
		t.Error("there is no public list")
	} else if _, err := d.Public(providers.Env{}); err != nil {
		t.Error(err)
	}
}

// TestNames: names are ones that Azure takes, and requests are told apart.
func TestNames(t *testing.T) {
	if got := nameOf("i01k2abc"); got != "gpubroker-i01k2abc" {
		t.Error(got)
	}
	seen := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		request := rapid.StringMatching(`[ -~]{1,90}|[a-z0-9-]{1,80}`).Draw(t, "request")
		name := nameOf(request)
		if len(name) > maxName || !plainName.MatchString(name) {
			t.Fatalf("%q is named %q", request, name)
		}
		if other, ok := seen[strings.ToLower(name)]; ok && other != request {
			t.Fatalf("%q and %q are both named %q", request, other, name)
		}
		seen[strings.ToLower(name)] = request
	})
}
