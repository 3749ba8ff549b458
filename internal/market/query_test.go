package market_test

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

func shelf() *market.Market {
	m := market.With(market.Options{
		Types: map[string]string{"aws-lab": "aws"},
		Stale: scheduler.Stale{Spot: time.Hour, OnDemand: 6 * time.Hour},
		Commitments: []scheduler.Commitment{
			{Provider: "aws-lab", Region: "us", Type: "p4d.24xlarge", Kind: providers.OnDemand, Machines: 2},
		},
	})
	old := offer("aws-lab", "us/b/g6.xlarge/spot", 1, "l4", "0.28")
	old.Seen = noon.Add(-2 * time.Hour)
	strange := offer("vast", "//box/on-demand", 1, "", "0.20")
	strange.GPUName = "Moore Threads S80"
	m.Replace("aws-lab", []providers.Offer{
		offer("aws-lab", "us/a/g6.xlarge/on-demand", 1, "l4", "0.80"),
		offer("aws-lab", "us/a/g6.xlarge/spot", 1, "l4", "0.30"), old,
		offer("aws-lab", "us/a/p4d.24xlarge/on-demand", 8, "a100-sxm-40gb", "22"),
		offer("aws-lab", "us/a/g5.12xlarge/on-demand", 4, "a10g", "5.6"),
		offer("aws-lab", "us/a/c7i.large/on-demand", 0, "", "0.09"),
	}, noon)
	m.Replace("vast", []providers.Offer{
		strange, offer("vast", "//open/on-demand", 1, "a100-any", "0.90"), offer("vast", "//half/on-demand", 0.5, "a10", "0.20"),
	}, noon.Add(-time.Minute))
	return m
}

func TestQueries(t *testing.T) {
	v := shelf().View()
	for _, c := range []struct {
		name string
		q    market.Query
		want string
	}{
		{"all by price", market.Query{}, "c7i.large box half g6.xlarge/b g6.xlarge/a g6.xlarge/a open g5.12xlarge p4d.24xlarge"},
		{"a GPU", market.Query{GPU: "L4"}, "g6.xlarge/b g6.xlarge/a g6.xlarge/a"},
		{"a family takes what leaves its variant open", market.Query{GPU: "a100"}, "open p4d.24xlarge"},
		{"a variant does not", market.Query{GPU: "a100-sxm-40gb"}, "p4d.24xlarge"},
		{"unknown GPUs stay to be seen", market.Query{GPU: market.UnknownGPU}, "box"},
		{"memory", market.Query{Memory: 24}, "g6.xlarge/b g6.xlarge/a g6.xlarge/a open g5.12xlarge p4d.24xlarge"},
		{"a share of a GPU has a share of its memory", market.Query{Memory: 12, MaxPrice: rate("0.25")}, "half"},
		{"spot", market.Query{Kind: providers.Spot}, "g6.xlarge/b g6.xlarge/a"},
		{"provider", market.Query{Provider: "vast"}, "box half open"},
		{"region", market.Query{Region: "us", MaxPrice: rate("0.5")}, "c7i.large g6.xlarge/b g6.xlarge/a"},
		{"regions", market.Query{Region: "u*, mars", MaxPrice: rate("0.5")}, "c7i.large g6.xlarge/b g6.xlarge/a"},
		{"no region is called so", market.Query{Region: "u,mars*,["}, ""},
		{"near to users, where the place is known", market.Query{Near: near("chicago,us-east", "90ms"), MaxPrice: rate("0.5")}, "c7i.large g6.xlarge/b g6.xlarge/a"},
		{"too far from some", market.Query{Near: near("chicago,london", "90ms")}, ""},
		{"link", market.Query{Link: "nvlink"}, "p4d.24xlarge"},
		{"full fabric", market.Query{Link: "fabric", Memory: 40}, "open p4d.24xlarge"},
		{"rdma", market.Query{RDMA: true}, "g5.12xlarge p4d.24xlarge"},
		{"for encoding", market.Query{Scenario: "transcode"}, "half g6.xlarge/b g6.xlarge/a g6.xlarge/a"}, // the decoders of an A10G are not known
		{"by GPU-hour", market.Query{Sort: "per-gpu", Limit: 3}, "box g6.xlarge/b g6.xlarge/a"},
		{"dearest first", market.Query{Sort: "-price", Limit: 2}, "p4d.24xlarge g5.12xlarge"},
		{"most memory", market.Query{Sort: "memory", Limit: 2, Region: "us"}, "p4d.24xlarge g6.xlarge/b"},
		{"youngest", market.Query{Sort: "age", Limit: 1}, "c7i.large"},
		{"oldest", market.Query{Sort: "-age", Limit: 1}, "g6.xlarge/b"},
		{"by GPU", market.Query{Sort: "gpu", Provider: "vast"}, "half open box"},
		{"by provider", market.Query{Sort: "-provider", Limit: 1}, "box"},
		{"by region", market.Query{Sort: "region", Limit: 3}, "box half open"},
	} {
		quotes, total, err := v.Find(c.q, noon)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, q := range quotes {
			name := q.Type
			if q.Type == "g6.xlarge" {
				name += "/" + q.Zone
			}
			got = append(got, name)
		}
		if diff := gocmp.Diff(c.want, strings.Join(got, " ")); diff != "" || total < len(quotes) {
			t.Errorf("%s (%d in all): %s", c.name, total, diff)
		}
	}
}

func near(places, rtt string) scheduler.Near {
	n, err := market.ParseNear(places, rtt)
	if err != nil {
		panic(err)
	}
	return n
}

func TestNearThatMeansNothing(t *testing.T) {
	for _, c := range []struct{ places, rtt, field string }{
		{"eu-wst", "30ms", "near"}, {"", "30ms", "near"}, {"eu-west", "", "near"}, {"eu-west", "30", "max_rtt"}, {"eu-west", "-1ms", "max_rtt"},
	} {
		_, err := market.ParseNear(c.places, c.rtt)
		if e, ok := errors.AsType[*market.QueryError](err); !ok || e.Field != c.field {
			t.Errorf("%q within %q: %v", c.places, c.rtt, err)
		}
	}
}

func rate(s string) money.Rate {
	r, err := money.RateOf(s)
	if err != nil {
		panic(err)
	}
	return r
}

func TestQuotesSayWhatTheyAre(t *testing.T) {
	quotes, _, err := shelf().View().Find(market.Query{Region: "us"}, noon)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]market.Quote{}
	for _, q := range quotes {
		by[q.Zone+q.Type+string(q.Kind)] = q
	}
	if q := by["bg6.xlargespot"]; !q.Stale {
		t.Errorf("a spot price of two hours ago is not stale: %+v", q)
	}
	if q := by["ag6.xlargeon-demand"]; q.Stale || q.PerGPU != q.Price {
		t.Errorf("%+v", q)
	}
	if q := by["ap4d.24xlargeon-demand"]; q.PerGPU != rate("2.75") || q.Committed == nil || q.Committed.Machines != 2 {
		t.Errorf("%+v", q)
	}
	if q := by["ac7i.largeon-demand"]; q.PerGPU != 0 {
		t.Errorf("a machine without a GPU has a price per GPU: %+v", q)
	}
}

func TestQueriesThatMeanNothing(t *testing.T) {
	v := shelf().View()
	for field, q := range map[string]market.Query{"gpu": {GPU: "RTX 5900"}, "scenario": {Scenario: "quantum"}, "sort": {Sort: "speed"}, "near": {Near: scheduler.Near{From: []string{"atlantis"}, RTT: time.Second}}} {
		_, _, err := v.Find(q, noon)
		if e, ok := errors.AsType[*market.QueryError](err); !ok || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A limit gives the first of what no limit gives.
func TestALimitTakesTheFirst(t *testing.T) {
	at := noon
	m, _ := stocked(2000, at)
	v := m.View()
	rapid.Check(t, func(t *rapid.T) {
		q := market.Query{
			Sort: rapid.SampledFrom([]string{"", "-"}).Draw(t, "way") + rapid.SampledFrom(market.Sorts).Draw(t, "sort"),
			Kind: rapid.SampledFrom([]providers.Kind{"", providers.Spot}).Draw(t, "kind"),
		}
		all, n, err := v.Find(q, at)
		if err != nil || n != len(all) {
			t.Fatalf("%d of %d, %v", len(all), n, err)
		}
		q.Limit = rapid.IntRange(1, n+5).Draw(t, "limit")
		some, total, err := v.Find(q, at)
		if err != nil || total != n || len(some) != min(q.Limit, n) {
			t.Fatalf("%d of %d, want %d, %v", len(some), total, min(q.Limit, n), err)
		}
		for i := range some {
			if some[i].Market != all[i].Market {
				t.Fatalf("row %d is %s, without a limit %s", i, some[i].Market, all[i].Market)
			}
		}
	})
}

// Whoever reads is not held up by a list that is taken over.
func TestARefreshHoldsUpNobody(t *testing.T) {
	m, lists := stocked(20_000, noon)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 3 {
			m.Replace("aws", lists["aws"], noon)
		}
	}()
	var looks []time.Duration
	for done := false; !done; {
		select {
		case <-ended:
			done = true
		default:
		}
		begun := time.Now()
		if m.Catalog().Offers != 20_000 {
			t.Fatal("a half-made market was shown")
		}
		looks = append(looks, time.Since(begun))
	}
	slices.SortFunc(looks, cmp.Compare)
	if median := looks[len(looks)/2]; median > time.Millisecond {
		t.Errorf("half of %d looks took more than %s", len(looks), median)
	}
}
