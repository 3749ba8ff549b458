package market_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/managed"
)

var noon = time.Date(2026, 11, 5, 12, 0, 0, 0, time.UTC)

// offer reads "region/zone/type/kind", GPUs and a price in dollars.
func offer(provider, place string, gpus float64, gpu, price string) providers.Offer {
	rate, err := money.RateOf(price)
	if err != nil {
		panic(err)
	}
	o := providers.Offer{Shape: providers.Shape{GPU: gpu, GPUs: gpus}, Price: rate, Currency: money.USD, Seen: noon, Source: "test"}
	o.Provider = provider
	parts := [4]string{}
	n := 0
	for _, r := range place {
		if r == '/' {
			n++
			continue
		}
		parts[n] += string(r)
	}
	o.Region, o.Zone, o.Type, o.Kind = parts[0], parts[1], parts[2], providers.Kind(parts[3])
	return o
}

func quarantined(m *market.Market) []string {
	var out []string
	for _, q := range m.View().Quarantined() {
		out = append(out, fmt.Sprintf("%s %s: %s", q.Offer.Market, q.Offer.Price, q.Why))
	}
	return out
}

func TestPricesThatCannotBeBelievedAreQuarantined(t *testing.T) {
	m := market.New()
	unknown := offer("aws", "r/a/new/on-demand", 1, "", "251")
	unknown.GPUName = "Rubin"
	m.Replace("aws", []providers.Offer{
		offer("aws", "r/a/good/on-demand", 1, "l4", "0.80"),
		offer("aws", "r/a/good/spot", 1, "l4", "0.30"),
		offer("aws", "r/b/good/spot", 1, "l4", "0.81"),                  // no price of its zone: that of its region holds
		offer("aws", "r/a/cheap/on-demand", 8, "h100-sxm-80gb", "0.55"), // cents for dollars
		offer("aws", "r/a/dear/on-demand", 1, "l4", "805"),
		offer("aws", "r/a/open/on-demand", 8, "h100-any-80gb", "32"),
		offer("aws", "r/a/part/on-demand", 0.125, "l4", "0.10"),
		unknown,
		offer("aws", "r/a/cpu/on-demand", 0, "", "0.20"),
		offer("aws", "r/a/gold/on-demand", 0, "", "9000"),
	}, noon)
	want := []string{
		"aws/r/a/cheap/on-demand 0.55: 0.0688 per GPU-hour is outside what is believed of h100-sxm-80gb, 0.198 to 93.30",
		"aws/r/a/dear/on-demand 805.00: 805.00 per GPU-hour is outside what is believed of l4, 0.0325 to 17.10",
		"aws/r/a/gold/on-demand 9000.00: a price of 9000.00/h for a machine without a GPU is above 250.00/h",
		"aws/r/a/new/on-demand 251.00: 251.00 per GPU-hour is outside what is believed of a GPU that is not known, 0.002 to 250.00",
		"aws/r/b/good/spot 0.81: its spot price of 0.81/h is above the 0.80/h of the same machine on demand",
	}
	if diff := cmp.Diff(want, quarantined(m)); diff != "" {
		t.Error(diff)
	}
	if n := len(m.Offers()); n != 5 || m.Catalog().Offers != n {
		t.Errorf("%d offers are left, %d of them for plans", n, m.Catalog().Offers)
	}
}

// A band judges what the provider says, not what a discount leaves of it, and not
// what the owner says of his own machines.
func TestBandsJudgeTheProvidersWord(t *testing.T) {
	m := market.With(market.Options{Stated: map[string]bool{"lab": true}})
	low := offer("aws", "r/a/t/on-demand", 1, "l4", "0.02")
	low.Parts = []providers.PricePart{{Name: "compute", Price: low.Price * 10}, {Name: managed.DiscountPart, Price: -9 * low.Price}}
	m.Replace("aws", []providers.Offer{low}, noon)
	m.Replace("lab", []providers.Offer{offer("lab", "//t/on-demand", 1, "l4", "0.001")}, noon)
	if q := quarantined(m); len(q) > 0 {
		t.Error(q)
	}
	quotes, _, err := m.View().Find(market.Query{Provider: "aws"}, noon)
	if err != nil || len(quotes) != 1 || quotes[0].ListPrice != low.Price*10 {
		t.Errorf("%+v, %v", quotes, err)
	}
}

// What breaks the contract is shown with the rest; each breach has a sentence.
func TestBreachesAreShown(t *testing.T) {
	bad := offer("aws", "r/a/t/on-demand", 1, "l4", "1")
	m := market.New()
	var all []managed.Quarantined
	for _, why := range []managed.Reason{
		managed.WrongProvider, managed.NoType, managed.StrangeKind, managed.NoPrice, managed.PartsDiffer,
		managed.NoCurrency, managed.NotSeen, managed.SeenInFuture, managed.BadShape, managed.KeyTwice,
	} {
		all = append(all, managed.Quarantined{Offer: bad, Reason: why})
	}
	m.Replace("aws", nil, noon, market.Broken(managed.Catalog{Quarantined: all})...)
	got := m.View().Quarantined()
	if len(got) != len(all) {
		t.Fatalf("%d of %d are shown", len(got), len(all))
	}
	for i, q := range got {
		if text := q.Why.String(); len(text) < 15 || text == string(all[i].Reason) {
			t.Errorf("%s has no sentence: %q", all[i].Reason, text)
		}
	}
}

// The offers that are built in are believed, and each says of when it is.
func TestTheSnapshotIsWhole(t *testing.T) {
	m, newest := market.Snapshot()
	if q := quarantined(m); len(q) > 0 {
		t.Errorf("quarantined: %v", q)
	}
	offers := m.Offers()
	if len(offers) < 2500 || newest.Year() != 2026 {
		t.Errorf("%d offers, the newest of %s", len(offers), newest)
	}
	for _, o := range offers {
		if o.Seen.IsZero() || o.Source == "" || o.Currency == "" {
			t.Fatalf("%+v", o)
		}
	}
}
