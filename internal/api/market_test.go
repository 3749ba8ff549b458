package api_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/scheduler"
)

func TestOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, true)
		c := s.client(s.token(api.View))
		waitForOffers(t, c)
		all, err := c.Offers(t.Context(), market.Query{}, true)
		must(t, err)
		if all.Total != len(all.Offers) || len(all.Quarantine) != all.Quarantined || all.Snapshot != "" || all.Quarantined > 0 {
			t.Errorf("%d of %d offers, %d of %d quarantined", len(all.Offers), all.Total, len(all.Quarantine), all.Quarantined)
		}
		some, err := c.Offers(t.Context(), market.Query{Memory: 20, MaxPrice: money.Rate(5 * money.Unit), Sort: "-per-gpu", Limit: 3}, false)
		must(t, err)
		if len(some.Offers) != 3 || some.Total <= 3 || some.Total >= all.Total {
			t.Errorf("%d of %d offers", len(some.Offers), some.Total)
		}
		for i, o := range some.Offers {
			if o.PerGPU <= 0 || o.Price > money.Rate(5*money.Unit) || i > 0 && o.PerGPU > some.Offers[i-1].PerGPU {
				t.Errorf("%+v", o)
			}
		}
		nowhere, err := c.Offers(t.Context(), market.Query{Near: scheduler.Near{From: []string{"london", "se"}, RTT: time.Second}}, false)
		must(t, err)
		if nowhere.Total != 0 {
			t.Errorf("%d offers of regions that nobody knows are near to users", nowhere.Total)
		}
		for _, q := range []market.Query{{GPU: "RTX 5900"}, {Sort: "speed"}, {Scenario: "quantum"}, {Near: scheduler.Near{From: []string{"atlantis"}, RTT: time.Second}}} {
			if _, err := c.Offers(t.Context(), q, false); !client.Is(err, http.StatusUnprocessableEntity) {
				t.Errorf("%+v: %v", q, err)
			}
		}
		gpus, err := c.GPUs(t.Context())
		must(t, err)
		priced := 0
		for _, m := range gpus.GPUs {
			if m.Spot != nil && m.OnDemand != nil && m.Spot.PerGPU < m.OnDemand.PerGPU {
				priced++
			}
		}
		if priced == 0 {
			t.Error("no GPU has a price")
		}
		time.Sleep(time.Hour)
		past, err := c.OfferHistory(t.Context(), market.Query{GPU: "l4", Kind: "spot"}, 1)
		must(t, err)
		if len(past.Series) == 0 {
			t.Fatal("no prices are on record")
		}
		for _, p := range past.Series {
			if p.GPU != "l4" || p.Min <= 0 || p.Min > p.Median || p.Median > p.Max || p.Known < 30*time.Minute || !p.Offered {
				t.Errorf("%+v", p)
			}
		}
	})
}
