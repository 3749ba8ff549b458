package market_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// many makes offers as a company with accounts at several clouds sees them: a GPU,
// a size, a region and zone, spot and on demand.
func many(n int, at time.Time) map[string][]providers.Offer {
	rng := rand.New(rand.NewPCG(1, 2))
	facts := gpu.Builtin().All()
	lists := map[string][]providers.Offer{}
	for i := range n {
		f := facts[rng.IntN(len(facts))]
		cloud := [...]string{"aws", "azure", "gcp", "vast", "runpod"}[i%5]
		gpus := float64(int(1) << rng.IntN(4))
		region := fmt.Sprintf("region-%d", i/5%40)
		o := providers.Offer{
			Market: providers.Market{Provider: cloud, Region: region, Zone: region + string(rune('a'+i/200%3)), Type: fmt.Sprintf("%s.x%g.%d", f.ID, gpus, i), Kind: providers.OnDemand},
			Shape:  providers.Shape{GPU: f.ID, GPUs: gpus, VCPU: 8 * gpus, Memory: 64 << 30},
			Price:  money.Rate(gpus * float64(money.Unit) * (0.5 + rng.Float64()*3)), Currency: money.USD, Seen: at.Add(-time.Duration(rng.IntN(3600)) * time.Second), Source: "api",
		}
		if i%3 == 0 {
			o.Kind = providers.Spot
			o.Price /= 3
		}
		lists[cloud] = append(lists[cloud], o)
	}
	return lists
}

// stocked is a market of many offers, whose prices are nobody's and are believed.
func stocked(n int, at time.Time) (*market.Market, map[string][]providers.Offer) {
	lists := many(n, at)
	o := market.Options{Stated: map[string]bool{}}
	for name := range lists {
		o.Stated[name] = true
	}
	m := market.With(o)
	for name, list := range lists {
		m.Replace(name, list, at)
	}
	return m, lists
}

// BenchmarkQuery filters and sorts 50,000 offers.
func BenchmarkQuery(b *testing.B) {
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	m, _ := stocked(50_000, at)
	v := m.View()
	for _, c := range []struct {
		name string
		q    market.Query
	}{
		{"filtered", market.Query{Memory: 40, Kind: providers.Spot, MaxPrice: 20 * money.Rate(money.Unit), Sort: "per-gpu", Limit: 50}},
		{"scenario", market.Query{Scenario: "transcode", Sort: "-age", Limit: 50}},
		{"price", market.Query{Limit: 50}},
		{"all", market.Query{Sort: "per-gpu", Limit: 50}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				quotes, total, err := v.Find(c.q, at)
				if err != nil || len(quotes) == 0 || total < len(quotes) {
					b.Fatalf("%d of %d: %v", len(quotes), total, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/op")
		})
	}
}

// BenchmarkReplace takes over the list of one of five providers, which makes the
// next view of 50,000 offers. It holds up nobody who reads.
func BenchmarkReplace(b *testing.B) {
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	m, lists := stocked(50_000, at)
	for b.Loop() {
		m.Replace("aws", lists["aws"], at)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/op")
}

// BenchmarkHistory records two days of 50,000 offers: half of them never change, a
// third four times a day, as spot prices of the big clouds do, and a sixth every
// tenth minute, as a marketplace's. It reports what an offer takes a day once its
// day is packed, and what 90 days of 50,000 would.
func BenchmarkHistory(b *testing.B) {
	const offers, days = 50_000, 2
	for b.Loop() {
		perDay := recordDays(b, b.TempDir(), offers, days)
		b.ReportMetric(perDay/offers, "B/offer-day")
		b.ReportMetric(perDay*90/1e9, "GB/90-days")
	}
}

// recordDays records days of a moving market and returns the bytes of one that is
// packed.
func recordDays(t testing.TB, dir string, offers, days int) float64 {
	t.Helper()
	start := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	h, err := market.OpenHistory(dir, start)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	lists := many(offers, start)
	rng := rand.New(rand.NewPCG(3, 4))
	const look = 10 * time.Minute
	for at := start; !at.After(start.AddDate(0, 0, days)); at = at.Add(look) {
		for name, list := range lists {
			for i := range list {
				moves := i%6 == 5 || i%6 >= 3 && rng.IntN(36) == 0
				if moves { // by up to 5 %, to a hundredth of a cent
					p := float64(list[i].Price) * (0.95 + rng.Float64()*0.1)
					list[i].Price = money.Rate(p/1e5) * 1e5
				}
			}
			if err := h.Record(name, list, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	var packed float64
	for d := range days {
		info, err := os.Stat(filepath.Join(dir, start.AddDate(0, 0, d).Format(time.DateOnly)+".log.gz"))
		if err != nil {
			t.Fatal(err)
		}
		packed += float64(info.Size())
	}
	return packed / float64(days)
}
