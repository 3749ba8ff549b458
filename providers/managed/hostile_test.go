package managed_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/managed"
)

// The bound is the caller's: however often a launch is tried, no try is allowed
// more than the first.
func TestARepeatedLaunchHasTheSameBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bounds []money.Rate
		p := managed.New(&script{launch: func(_ context.Context, r providers.LaunchRequest) (providers.Instance, error) {
			bounds = append(bounds, r.PriceMax)
			return providers.Instance{}, &providers.Error{Code: providers.Unavailable, Outcome: providers.NotCreated}
		}}, managed.Options{Discounts: []managed.Discount{{Millionths: 500_000}}})
		req := request()
		req.PriceMax = money.Rate(money.Unit)
		if _, err := p.Launch(t.Context(), req); err == nil || len(bounds) != 4 {
			t.Fatalf("%d tries, %v", len(bounds), err)
		}
		for n, b := range bounds {
			if n > 0 && b != bounds[0] || b < 2*req.PriceMax || b > 2*req.PriceMax+1 {
				t.Errorf("try %d has the bound %s", n+1, b)
			}
		}
	})
}

// A machine whose label somebody took away is known by its id: it is described,
// and must not look like another one for ever.
func TestAMachineWithoutItsTagsIsDescribedByItsID(t *testing.T) {
	bare := providers.Instance{Ref: providers.Ref{ID: "i-1"}, State: providers.Running}
	for name, c := range map[string]struct {
		ref  providers.Ref
		edit func(*providers.Instance)
		code providers.Code
	}{
		"no tags":         {providers.Ref{ID: "i-1", Request: "req-1"}, func(*providers.Instance) {}, ""},
		"another's tags":  {providers.Ref{ID: "i-1", Request: "req-1"}, func(i *providers.Instance) { i.Tags.Request = "req-2" }, providers.Unknown},
		"another's owner": {providers.Ref{ID: "i-1", Request: "req-1"}, func(i *providers.Instance) { i.Tags.Owner = "them" }, providers.Unknown},
		"another's id":    {providers.Ref{ID: "i-2", Request: "req-1"}, func(*providers.Instance) {}, providers.Unknown},
		"no id was given": {providers.Ref{Request: "req-1"}, func(*providers.Instance) {}, providers.Unknown},
	} {
		p := managed.New(&script{describe: func(context.Context, providers.Ref) (providers.Instance, error) {
			i := bare
			c.edit(&i)
			return i, nil
		}}, managed.Options{Owner: "broker"})
		i, err := p.Describe(t.Context(), c.ref)
		if providers.CodeOf(err) != c.code || err == nil && i.Ref.Request != "req-1" {
			t.Errorf("%s: %+v, %v", name, i.Ref, err)
		}
	}
}

// Moments that no store and no JSON can hold are unknown: one machine with such a
// label must not spoil a whole list, nor look as if its end had long passed.
func TestImpossibleMomentsAreUnknown(t *testing.T) {
	far := []int64{math.MaxInt64, math.MinInt64, 1 << 50, 99_999_999_999_999}
	for _, s := range far {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if tags := providers.TagsOf(map[string]string{providers.TagDeleteAt: string(b)}); !tags.DeleteAt.IsZero() {
			t.Errorf("a delete-at of %d is %v", s, tags.DeleteAt)
		}
		p := managed.New(&script{list: func(context.Context) ([]providers.Instance, error) {
			at := time.Unix(s, 0)
			return []providers.Instance{{Ref: providers.Ref{ID: "i-1"}, Launched: at, Ended: at, End: at, Tags: providers.Tags{Owner: "broker", Request: "r", DeleteAt: at}}}, nil
		}}, managed.Options{Owner: "broker"})
		list, err := p.List(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		if _, err := json.Marshal(list); err != nil {
			t.Errorf("%d: %v", s, err)
		}
	}
}

// A catalog that breaks the contract as a whole is a line in the log, and can be
// shown.
func TestABrokenCatalogIsOneLine(t *testing.T) {
	var log strings.Builder
	p := managed.New(&script{offers: func(context.Context) ([]providers.Offer, error) {
		out := make([]providers.Offer, 1000)
		for i := range out {
			out[i] = providers.Offer{Market: providers.Market{Provider: "acme", Type: fmt.Sprint(i), Kind: providers.Spot}, Price: 1, Currency: "USD", Seen: time.Now()}
			switch i % 3 {
			case 0:
				out[i].GPUs = math.NaN()
			case 1:
				out[i].VCPU = math.Inf(1)
			case 2:
				out[i].Seen = time.Unix(1<<50, 0)
			}
		}
		return out, nil
	}}, managed.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	c, err := p.Catalog(t.Context(), providers.Scope{})
	if err != nil || len(c.Quarantined) != 1000 {
		t.Fatalf("%d are quarantined, %v", len(c.Quarantined), err)
	}
	if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "offers=667") {
		t.Errorf("%d lines: %.500s", n, log.String())
	}
	if _, err := json.Marshal(c.Quarantined); err != nil {
		t.Error(err)
	}
}
