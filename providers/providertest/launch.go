package providertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"gpubroker/providers"
)

func launchChecks() []Check {
	checks := []Check{
		{"launch-tags", "Launch tags the machine, and Describe and List return the tags", checkTags},
		{"launch-returns-early", "Launch returns once the cloud has accepted it and does not wait for the boot", func(t testing.TB, s *subject) {
			start := time.Now()
			_, inst := s.rent(t)
			if took := time.Since(start); s.caps.BootTime > 2*time.Second && took >= s.caps.BootTime {
				t.Errorf("took %v, a boot takes %v", took, s.caps.BootTime)
			}
			if inst.State != providers.Pending && inst.State != providers.Running {
				t.Errorf("a new machine is %s", inst.State)
			}
		}},
		{"launch-idempotent", "Launch rents at most one machine per request id, however often it is called", checkIdempotent},
		{"launch-idempotent-concurrent", "Launch rents at most one machine per request id, also when the calls overlap", checkIdempotentConcurrent},
		{"launch-after-timeout", "A launch whose answer never came has an unknown outcome, and the same request finds its machine", func(t testing.TB, s *subject) {
			req := s.request(s.offers(t)[0])
			s.inject(t, Fault{Op: "launch", After: true, Hang: true})
			ctx, cancel := context.WithTimeout(t.Context(), s.patience())
			defer cancel()
			_, err := s.Launch(ctx, req)
			if !code(err, providers.DeadlineExceed) || providers.OutcomeOf(err) != providers.OutcomeUnknown {
				t.Fatalf("launch: %v (%s), want deadline_exceeded, unknown", err, providers.OutcomeOf(err))
			}
			s.oneMachine(t, req)
		}},
		{"launch-unavailable-after", "A launch that failed after its effect says that the outcome is unknown, and the same request finds its machine", func(t testing.TB, s *subject) {
			req := s.request(s.offers(t)[0])
			s.inject(t, Fault{Op: "launch", Code: providers.Unavailable, After: true})
			_, err := s.Launch(t.Context(), req)
			if !code(err, providers.Unavailable) || providers.OutcomeOf(err) != providers.OutcomeUnknown {
				t.Fatalf("launch: %v (%s), want unavailable, unknown", err, providers.OutcomeOf(err))
			}
			s.oneMachine(t, req)
		}},
		{"launch-unavailable-before", "A launch that failed before its effect leaves nothing behind, and is not retried by the adapter", func(t testing.TB, s *subject) {
			req := s.request(s.offers(t)[0])
			s.inject(t, Fault{Op: "launch", Code: providers.Unavailable})
			if _, err := s.Launch(t.Context(), req); !code(err, providers.Unavailable) {
				t.Fatalf("launch: %v, want unavailable", err)
			}
			s.nothing(t, req.Request)
		}},
		{"launch-other-market", "The same request id in another market rents no second machine", checkOtherMarket},
		{"launch-price-bound", "A launch whose price bound is below the price is refused with price_too_low", func(t testing.TB, s *subject) {
			if !s.caps.PriceBound {
				t.Skip("the provider keeps no price bound")
			}
			req := s.request(s.offers(t)[0])
			req.PriceMax = 1
			_, err := s.Launch(t.Context(), req)
			s.refused(t, req, err, providers.PriceTooLow)
		}},
		{"launch-invalid", "A launch that can never work is refused with invalid_request or unsupported", func(t testing.TB, s *subject) {
			o := s.offers(t)[0]
			o.Type = "no-such-type"
			req := s.request(o)
			_, err := s.Launch(t.Context(), req)
			s.refused(t, req, err, providers.InvalidRequest, providers.Unsupported)
		}},
	}
	for _, refusal := range []struct {
		name string
		code providers.Code
	}{
		{"launch-no-capacity", providers.NoCapacity},
		{"launch-quota", providers.QuotaExceeded},
		{"launch-unauthorized", providers.Unauthorized},
		{"launch-throttled", providers.RateLimited},
	} {
		c := refusal.code
		checks = append(checks, Check{refusal.name, "A refused launch has the code " + string(c) + ", leaves nothing behind and is not retried by the adapter", func(t testing.TB, s *subject) {
			req := s.request(s.offers(t)[0])
			s.inject(t, Fault{Op: "launch", Code: c})
			_, err := s.Launch(t.Context(), req)
			s.refused(t, req, err, c)
		}})
	}
	return checks
}

// refused expects a launch that certainly made nothing.
func (s *subject) refused(t testing.TB, req providers.LaunchRequest, err error, codes ...providers.Code) {
	t.Helper()
	if !code(err, codes...) {
		t.Errorf("launch: %v, want %v", err, codes)
	}
	if providers.OutcomeOf(err) != providers.NotCreated {
		t.Errorf("launch: the outcome is %s, want not_created", providers.OutcomeOf(err))
	}
	s.nothing(t, req.Request)
}

// patience is how long a call without an answer is waited for.
func (s *subject) patience() time.Duration {
	if s.real {
		return 5 * time.Second
	}
	return 500 * time.Millisecond
}

// oneMachine launches a request again and expects the one machine it has.
func (s *subject) oneMachine(t testing.TB, req providers.LaunchRequest) providers.Instance {
	t.Helper()
	again, err := s.Launch(t.Context(), req)
	if err != nil && !code(err, providers.Conflict) {
		t.Fatalf("the second launch: %v, want the machine or conflict", err)
	}
	live := s.live(t, req.Request)
	if len(live) != 1 {
		t.Fatalf("%d machines for one request", len(live))
	}
	if err == nil && again.Ref.ID != live[0].Ref.ID {
		t.Errorf("the second launch returned %s, the machine is %s", again.Ref.ID, live[0].Ref.ID)
	}
	found, err := s.Describe(t.Context(), providers.Ref{Request: req.Request})
	if err != nil || found.Ref.ID != live[0].Ref.ID {
		t.Errorf("describe by request: %s, %v; want %s", found.Ref.ID, err, live[0].Ref.ID)
	}
	return live[0]
}

func checkTags(t testing.TB, s *subject) {
	req, inst := s.rent(t)
	described, err := s.Describe(t.Context(), inst.Ref)
	if err != nil {
		t.Fatalf("describe: %v", err)
	}
	live := s.live(t, req.Request)
	if len(live) != 1 {
		t.Fatalf("list shows %d machines of the request", len(live))
	}
	for what, i := range map[string]providers.Instance{"launch": inst, "describe": described, "list": live[0]} {
		if i.Tags != req.Tags {
			t.Errorf("%s returns the tags %+v, want %+v", what, i.Tags, req.Tags)
		}
		if i.Market != req.Market {
			t.Errorf("%s returns the market %s, want %s", what, i.Market, req.Market)
		}
		if i.Ref.ID != inst.Ref.ID || i.Ref.Request != req.Request {
			t.Errorf("%s returns %+v, launch %+v", what, i.Ref, inst.Ref)
		}
	}
}

func checkIdempotent(t testing.TB, s *subject) {
	req, first := s.rent(t)
	if one := s.oneMachine(t, req); one.Ref.ID != first.Ref.ID {
		t.Errorf("the machine is %s, launched was %s", one.Ref.ID, first.Ref.ID)
	}
	if !s.caps.LaunchToken {
		return
	}
	again, err := s.Launch(t.Context(), req)
	if err != nil || again.Ref.ID != first.Ref.ID {
		t.Errorf("launch tokens are promised, and the repeated launch gives %s, %v", again.Ref.ID, err)
	}
}

func checkIdempotentConcurrent(t testing.TB, s *subject) {
	req := s.request(s.offers(t)[0])
	var mu sync.Mutex
	ids := map[string]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			inst, err := s.Launch(t.Context(), req)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				ids[inst.Ref.ID] = true
			case !code(err, providers.Conflict):
				t.Errorf("launch: %v, want the machine or conflict", err)
			}
		})
	}
	wg.Wait()
	if len(ids) != 1 {
		t.Errorf("the launches returned %d machines", len(ids))
	}
	s.oneMachine(t, req)
}

func checkOtherMarket(t testing.TB, s *subject) {
	offers := s.offers(t)
	if len(offers) < 2 {
		t.Skip("there is one market only")
	}
	req := s.request(offers[0])
	first, err := s.Launch(t.Context(), req)
	if err != nil {
		t.Fatalf("launch: %v", err)
	}
	other := req
	other.Market = offers[1].Market
	if s.caps.PriceBound {
		other.PriceMax = 2 * offers[1].Price
	}
	second, err := s.Launch(t.Context(), other)
	if err != nil && !code(err, providers.Conflict) {
		t.Errorf("launch: %v, want conflict or the first machine", err)
	}
	if err == nil && second.Ref.ID != first.Ref.ID {
		t.Errorf("two machines for one request: %s and %s", first.Ref.ID, second.Ref.ID)
	}
	if live := s.live(t, req.Request); len(live) != 1 {
		t.Errorf("%d machines for one request", len(live))
	}
}
