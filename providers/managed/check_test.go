package managed_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/managed"
)

func TestOffersThatBreakTheContractAreQuarantined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		offer := func(zone string, change func(*providers.Offer)) providers.Offer {
			o := providers.Offer{
				Market: providers.Market{Provider: "acme", Zone: zone, Type: "g1", Kind: providers.Spot},
				Price:  money.Rate(money.Unit), Currency: money.USD, Seen: time.Now(),
			}
			change(&o)
			return o
		}
		parts := func(a, b money.Rate) []providers.PricePart {
			return []providers.PricePart{{Name: "compute", Price: a}, {Name: "disk", Price: b}}
		}
		zero := func() float64 { return 0 }
		all := []providers.Offer{
			offer("good", func(o *providers.Offer) { o.Parts = parts(900_000_000, 100_000_000) }),
			offer("twice-same", func(*providers.Offer) {}),
			offer("twice-same", func(*providers.Offer) {}),
			offer("twice-other", func(*providers.Offer) {}),
			offer("twice-other", func(o *providers.Offer) { o.Price = 2 }),
			offer("free", func(o *providers.Offer) { o.Price = 0 }),
			offer("negative", func(o *providers.Offer) { o.Price = -1 }),
			offer("parts", func(o *providers.Offer) { o.Parts = parts(1, 2) }),
			offer("currency", func(o *providers.Offer) { o.Currency = "usd" }),
			offer("unseen", func(o *providers.Offer) { o.Seen = time.Time{} }),
			offer("future", func(o *providers.Offer) { o.Seen = time.Now().Add(time.Hour) }),
			offer("kind", func(o *providers.Offer) { o.Kind = "free" }),
			offer("type", func(o *providers.Offer) { o.Type = "" }),
			offer("account", func(o *providers.Offer) { o.Provider = "other" }),
			offer("shape", func(o *providers.Offer) { o.GPUs = zero() / zero() }),
			offer("local", func(o *providers.Offer) { o.Seen = time.Now().In(time.FixedZone("x", 3600)) }),
		}
		m := managed.NewMetrics()
		p := managed.New(&script{offers: func(context.Context) ([]providers.Offer, error) { return all, nil }}, managed.Options{Metrics: m})
		c, err := p.Catalog(t.Context(), providers.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		var kept []string
		for _, o := range c.Offers {
			kept = append(kept, o.Zone)
			if o.Seen.Location() != time.UTC {
				t.Errorf("%s is dated in %v", o.Zone, o.Seen.Location())
			}
		}
		if diff := cmp.Diff([]string{"good", "twice-same", "local"}, kept); diff != "" {
			t.Error(diff)
		}
		why := map[string]managed.Reason{}
		for _, q := range c.Quarantined {
			why[q.Offer.Zone] = q.Reason
		}
		if diff := cmp.Diff(map[string]managed.Reason{
			"twice-same": managed.KeyTwice, "twice-other": managed.KeyTwice, "free": managed.NoPrice, "negative": managed.NoPrice,
			"parts": managed.PartsDiffer, "currency": managed.NoCurrency, "unseen": managed.NotSeen, "future": managed.SeenInFuture,
			"kind": managed.StrangeKind, "type": managed.NoType, "account": managed.WrongProvider, "shape": managed.BadShape,
		}, why); diff != "" {
			t.Error(diff)
		}
		if len(c.Offers)+len(c.Quarantined) != len(all) {
			t.Errorf("%d + %d offers of %d", len(c.Offers), len(c.Quarantined), len(all))
		}
		if got := value(t, m, "gpubroker_provider_breaches_total", "no_price"); got != 2 {
			t.Errorf("counted %v offers without a price, want 2", got)
		}
	})
}

func TestOnlyOurMachinesReachTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tag := func(id, owner, request string) providers.Instance {
			return providers.Instance{Ref: providers.Ref{ID: id, Request: request}, State: "melting", Tags: providers.Tags{Owner: owner, Request: request}}
		}
		mixed := tag("c", "broker", "r3")
		mixed.Ref.Request = "other"
		bare := tag("d", "broker", "r4")
		bare.Ref.Request = ""
		p := managed.New(&script{list: func(context.Context) ([]providers.Instance, error) {
			return []providers.Instance{tag("a", "broker", "r1"), tag("b", "somebody", "r2"), tag("e", "", ""), mixed, bare}, nil
		}}, managed.Options{Owner: "broker"})
		got, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var refs []providers.Ref
		for _, i := range got {
			refs = append(refs, i.Ref)
			if i.State != providers.StateStrange || !i.Live() {
				t.Errorf("an unknown state became %q", i.State)
			}
		}
		want := []providers.Ref{{ID: "a", Request: "r1"}, {ID: "c", Request: "r3"}, {ID: "d", Request: "r4"}}
		if diff := cmp.Diff(want, refs); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAnAnswerAboutAnotherMachineIsAnError(t *testing.T) {
	for name, change := range map[string]func(*providers.Instance){
		"request": func(i *providers.Instance) { i.Ref.Request = "other" },
		"tag":     func(i *providers.Instance) { i.Tags.Request = "other" },
		"owner":   func(i *providers.Instance) { i.Tags.Owner = "other" },
		"market":  func(i *providers.Instance) { i.Market.Type = "g8" },
		"id":      func(i *providers.Instance) { i.Ref.ID = "" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := managed.New(&script{
					launch: func(_ context.Context, req providers.LaunchRequest) (providers.Instance, error) {
						i := machine(req)
						change(&i)
						return i, nil
					},
					describe: func(context.Context, providers.Ref) (providers.Instance, error) {
						i := machine(request())
						change(&i)
						return i, nil
					},
				}, managed.Options{Owner: "broker"})
				if _, err := p.Launch(t.Context(), request()); providers.OutcomeOf(err) != providers.OutcomeUnknown || err == nil {
					t.Errorf("launch: %v, want an error with unknown outcome", err)
				}
				_, err := p.Describe(t.Context(), providers.Ref{ID: "i-1", Request: "req-1"})
				if (err == nil) != (name == "market") {
					t.Errorf("describe: %v", err)
				}
			})
		})
	}
}

func TestALaunchThatCannotBeRightIsNotSent(t *testing.T) {
	for name, change := range map[string]func(*providers.LaunchRequest){
		"no id":         func(r *providers.LaunchRequest) { r.Request, r.Tags.Request = "", "" },
		"tags differ":   func(r *providers.LaunchRequest) { r.Tags.Request = "other" },
		"no owner":      func(r *providers.LaunchRequest) { r.Tags.Owner = "" },
		"other account": func(r *providers.LaunchRequest) { r.Market.Provider = "other" },
		"long script":   func(r *providers.LaunchRequest) { r.UserData = strings.Repeat("x", 17) },
		"bound":         func(r *providers.LaunchRequest) { r.PriceMax = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			p := managed.New(&script{caps: providers.Capabilities{UserDataLimit: 16}, launch: func(context.Context, providers.LaunchRequest) (providers.Instance, error) {
				t.Error("sent")
				return providers.Instance{}, nil
			}}, managed.Options{})
			req := request()
			change(&req)
			if _, err := p.Launch(t.Context(), req); providers.CodeOf(err) != providers.InvalidRequest || providers.OutcomeOf(err) != providers.NotCreated {
				t.Errorf("got %v, want invalid_request, not created", err)
			}
		})
	}
}
