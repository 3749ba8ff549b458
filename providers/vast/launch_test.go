package vast_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/simcloud/dialects/vast"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// TestLaunchFaults is what each fault of the cloud looks like to the broker, what
// it leaves, and that asking again makes one machine.
func TestLaunchFaults(t *testing.T) {
	const provider, family, offer = providers.ScopeProvider, providers.ScopeFamily, providers.ScopeOffer
	seven := simapi.Duration(7 * time.Second)
	for _, c := range []struct {
		fault   simapi.Fault
		code    providers.Code
		scope   providers.ErrScope
		outcome providers.Outcome
		after   time.Duration
		created bool
	}{
		{simapi.Fault{Effect: simapi.NoCapacity}, providers.NoCapacity, offer, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.Quota}, providers.QuotaExceeded, family, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.PriceTooLow}, providers.PriceTooLow, offer, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.Throttle, RetryAfter: seven}, providers.RateLimited, provider, providers.NotCreated, 7 * time.Second, false},
		{simapi.Fault{Effect: simapi.Throttle}, providers.RateLimited, provider, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.Denied}, providers.Unauthorized, provider, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.NoFunds}, providers.NoFunds, provider, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.Invalid}, providers.InvalidRequest, family, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.Unavailable}, providers.Unavailable, provider, providers.OutcomeUnknown, 0, false},
		{simapi.Fault{Effect: simapi.Internal}, providers.Unavailable, provider, providers.OutcomeUnknown, 0, false},
		{simapi.Fault{Effect: simapi.Proxy}, providers.Unavailable, provider, providers.OutcomeUnknown, 0, false},
		{simapi.Fault{Effect: simapi.ErrorIn200}, providers.Unavailable, provider, providers.OutcomeUnknown, 0, false},
		{simapi.Fault{Effect: simapi.Drop}, providers.Unavailable, provider, providers.OutcomeUnknown, 0, false},
		{simapi.Fault{Effect: simapi.InternalAfter}, providers.Unavailable, provider, providers.OutcomeUnknown, 0, true},
		{simapi.Fault{Effect: simapi.UnavailableAfter}, providers.Unavailable, provider, providers.OutcomeUnknown, 0, true},
		{simapi.Fault{Effect: simapi.DropAfter}, providers.Unavailable, provider, providers.OutcomeUnknown, 0, true},
		{simapi.Fault{Effect: simapi.Truncate}, providers.Unavailable, provider, providers.OutcomeUnknown, 0, true},
		{simapi.Fault{Effect: simapi.Slow, Delay: simapi.Duration(time.Minute)}, providers.DeadlineExceed, provider, providers.OutcomeUnknown, 0, true},
	} {
		t.Run(c.fault.Effect, func(t *testing.T) {
			calls := map[string]int{}
			in(t, counting(calls), func(t *testing.T, s *site) {
				c.fault.Op = "launch"
				s.fault(c.fault)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				_, err := s.a.Launch(ctx, request("r1"))
				e, ok := errors.AsType[*providers.Error](err)
				if !ok || e.Code != c.code || e.Scope != c.scope || e.Outcome != c.outcome || e.RetryAfter != c.after || e.Op != "launch" || e.Target != market.String() {
					t.Errorf("%+v", err)
				}
				if got := len(s.world.Truth()) == 1; got != c.created {
					t.Errorf("a machine was made: %t", got)
				}
				if c.outcome == providers.OutcomeUnknown {
					// Its machine may not be listed yet: nothing more is created.
					if _, err := s.a.Launch(t.Context(), request("r1")); err != nil && (providers.CodeOf(err) != providers.Conflict || providers.OutcomeOf(err) != providers.OutcomeUnknown) {
						t.Errorf("at once: %v", err)
					}
				}
				time.Sleep(2 * time.Minute)
				i, err := s.a.Launch(t.Context(), request("r1"))
				if err != nil || i.Market != market || i.Tags != request("r1").Tags && !c.created {
					t.Errorf("once more: %+v, %v", i, err)
				}
				if n := len(s.world.Truth()); n != 1 {
					t.Errorf("%d machines", n)
				}
			})
		})
	}
}

func TestAQuotaOfTheAccountRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := vast.Default(1)
		cfg.Quotas[0].Limit = 2
		s := open(t, cfg, nil)
		for n, want := range []providers.Code{"", "", providers.QuotaExceeded} {
			if _, err := s.a.Launch(t.Context(), request(fmt.Sprint("r", n))); providers.CodeOf(err) != want {
				t.Errorf("machine %d: %v", n+1, err)
			}
		}
	})
}

// TestPriceBound: the bound is kept by bidding no more than asked, and by renting
// nothing dearer.
func TestPriceBound(t *testing.T) {
	for kind, least := range map[providers.Kind]string{providers.Spot: "0.30", providers.OnDemand: "0.32"} { // 0.01 of it for the disk
		in(t, nil, func(t *testing.T, s *site) {
			req := request("r1")
			req.Market.Kind = kind
			req.PriceMax = rate(least) - 1
			_, err := s.a.Launch(t.Context(), req)
			if providers.CodeOf(err) != providers.PriceTooLow || providers.OutcomeOf(err) != providers.NotCreated {
				t.Errorf("%s, a nano-unit too low: %v", kind, err)
			}
			req.PriceMax++
			i, err := s.a.Launch(t.Context(), req)
			if err != nil || i.Price != rate(least) {
				t.Errorf("%s at the price: %+v, %v", kind, i, err)
			}
			// Prices double for those who come later, and for bids.
			time.Sleep(10 * time.Second)
			s.act(simapi.Action{Price: &simapi.Price{Match: simapi.Place{Region: "SE"}, Percent: 200}})
			time.Sleep(time.Minute)
			all := s.list()
			if kind == providers.OnDemand && (len(all) != 1 || all[0].Price != rate(least) || all[0].State != providers.Running) {
				t.Errorf("a price that was agreed on: %+v", all)
			}
			if kind == providers.Spot && (len(all) != 1 || all[0].State != providers.Stopping || all[0].Cause != providers.CausePreempted) {
				t.Errorf("a bid that is too low now: %+v", all)
			}
			req.PriceMax, req.Request, req.Tags.Request, req.Disk = rate(least), "r2", "r2", 500e9
			if _, err := s.a.Launch(t.Context(), req); providers.CodeOf(err) != providers.PriceTooLow {
				t.Errorf("%s, dearer: %v", kind, err)
			}
		})
	}
}

// TestABidThatIsTooLow: the price rises between search and create. Vast answers an
// error and leaves a stopped instance whose disk is paid for.
func TestABidThatIsTooLow(t *testing.T) {
	for _, broken := range []bool{false, true} {
		var s *site
		stuck := broken
		front := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method == http.MethodPut:
					body, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					r.Body = io.NopCloser(bytes.NewReader(bytes.Replace(body, []byte(`"price":0.29`), []byte(`"price":0.28`), 1)))
				case r.Method == http.MethodDelete && stuck:
					rw.WriteHeader(http.StatusTooManyRequests)
					_, _ = io.WriteString(rw, "API requests too frequent")
					return
				}
				next.ServeHTTP(rw, r)
			})
		}
		in(t, front, func(t *testing.T, site *site) {
			s = site
			_, err := s.a.Launch(t.Context(), request("r1"))
			if len(s.world.Truth()) != 0 {
				t.Error("a machine runs")
			}
			if !broken {
				if providers.CodeOf(err) != providers.PriceTooLow || providers.OutcomeOf(err) != providers.NotCreated || len(s.list()) != 0 {
					t.Errorf("%v; left: %+v", err, s.list())
				}
				return
			}
			if providers.CodeOf(err) != providers.Unavailable || providers.OutcomeOf(err) != providers.OutcomeUnknown || !strings.Contains(err.Error(), "8000001") {
				t.Errorf("%v", err)
			}
			// What could not be destroyed is found as the request's machine.
			stuck = false
			i, err := s.a.Describe(t.Context(), providers.Ref{Request: "r1"})
			if err != nil || !i.Live() || i.Cause != providers.CausePreempted || i.Tags.Request != "r1" || len(s.list()) != 1 {
				t.Errorf("%+v, %v", i, err)
			}
			if err := s.a.Terminate(t.Context(), i.Ref); err != nil || len(s.list()) != 0 {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestLaunchesAtOnce take different machines, of one search and one list: the API
// takes few of either.
func TestLaunchesAtOnce(t *testing.T) {
	calls := map[string]int{}
	in(t, counting(calls), func(t *testing.T, s *site) {
		three := 3
		s.act(simapi.Action{Capacity: &simapi.Capacity{Match: place, Machines: &three}})
		var mu sync.Mutex
		codes := map[providers.Code]int{}
		var g sync.WaitGroup
		for n := range 4 {
			g.Go(func() {
				_, err := s.a.Launch(t.Context(), request(fmt.Sprint("r", n)))
				mu.Lock()
				codes[providers.CodeOf(err)]++
				mu.Unlock()
			})
		}
		g.Wait()
		if codes[""] != 3 || codes[providers.NoCapacity] != 1 || len(s.world.Truth()) != 3 {
			t.Errorf("%v", codes)
		}
		// Who found nothing left looked once more.
		if lists, searches := calls["GET /api/v1/instances/"], calls["POST /api/v0/bundles/"]; lists != 1 || searches != 2 {
			t.Errorf("%d lists and %d searches for four launches", lists, searches)
		}
	})
}

// TestAnAskThatFailed can be rented again at once, unless it is gone.
func TestAnAskThatFailed(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		one := 1
		s.act(simapi.Action{Capacity: &simapi.Capacity{Match: place, Machines: &one}})
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.NoFunds})
		if _, err := s.a.Launch(t.Context(), request("r1")); providers.CodeOf(err) != providers.NoFunds {
			t.Error(err)
		}
		s.launch("r1")
		if _, err := s.a.Launch(t.Context(), request("r2")); providers.CodeOf(err) != providers.NoCapacity || providers.OutcomeOf(err) != providers.NotCreated {
			t.Errorf("a market without machines: %v", err)
		}
		for _, typ := range []string{"RTX_4090", "RTX_4090-24G-x1-c16-m128", "1x RTX 4090"} {
			req := request("r3")
			req.Market.Type = typ
			want := providers.Unsupported
			if strings.HasSuffix(typ, "m128") {
				want = providers.NoCapacity
			}
			if _, err := s.a.Launch(t.Context(), req); providers.CodeOf(err) != want {
				t.Errorf("%s: %v", typ, err)
			}
		}
	})
}

// TestWhatIsSent: a create as the reference has it.
func TestWhatIsSent(t *testing.T) {
	var sent map[string]any
	front := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				body, err := io.ReadAll(r.Body)
				if err != nil || json.Unmarshal(body, &sent) != nil {
					t.Errorf("%s, %v", body, err)
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			next.ServeHTTP(rw, r)
		})
	}
	in(t, front, func(t *testing.T, s *site) {
		s.set.Network.Proxy = "http://proxy:3128"
		s.a = s.adapter(s.set, secret)
		s.launch("r1")
		onstart, ok := sent["onstart"].(string)
		if sent["price"] != 0.29 || sent["runtype"] != "ssh" || sent["cancel_unavail"] != true || sent["disk"] != 50.0 || sent["client_id"] != "me" || sent["image"] == "" ||
			!ok || !strings.HasPrefix(onstart, "#!/bin/sh\nfor v in http_proxy") || !strings.HasSuffix(onstart, "\ntrue\n") {
			t.Errorf("%v", sent)
		}
		req := request("r2")
		req.Market.Kind, req.Disk = providers.OnDemand, 70_000_000_001
		if _, err := s.a.Launch(t.Context(), req); err != nil || sent["price"] != 0.29 && sent["price"] != nil || sent["disk"] != 71.0 {
			t.Errorf("%v, %v", sent, err)
		}
		req = request("r3")
		req.UserData = strings.Repeat("x", 100) + secret
		for n := range 6000 {
			req.UserData += fmt.Sprint(n * 7919 % 99991)
		}
		before := len(s.world.Truth())
		if _, err := s.a.Launch(t.Context(), req); providers.CodeOf(err) != providers.InvalidRequest || len(s.world.Truth()) != before {
			t.Errorf("a script that does not fit: %v", err)
		}
		req = request("r4")
		req.Tags.Project = strings.Repeat("p", 300)
		if _, err := s.a.Launch(t.Context(), req); providers.CodeOf(err) != providers.InvalidRequest || len(s.world.Truth()) != before {
			t.Errorf("a label that does not fit: %v", err)
		}
	})
}

// TestADayOfSearches: once they are used up no more is sent until the time that was
// told, and machines are listed and ended all the same.
func TestADayOfSearches(t *testing.T) {
	spent, calls := false, map[string]int{}
	front := func(next http.Handler) http.Handler {
		next = counting(calls)(next)
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if spent && strings.HasSuffix(r.URL.Path, "/bundles/") {
				calls["refused"]++
				rw.Header().Set("Retry-After", "1800")
				rw.WriteHeader(http.StatusTooManyRequests)
				_, _ = io.WriteString(rw, `{"error": "search_quota_exceeded", "msg": "Daily search row quota exhausted"}`)
				return
			}
			next.ServeHTTP(rw, r)
		})
	}
	in(t, front, func(t *testing.T, s *site) {
		i := s.launch("r1")
		time.Sleep(time.Minute)
		spent = true
		for range 3 {
			_, offers := s.a.Offers(t.Context(), providers.Scope{})
			e, ok := errors.AsType[*providers.Error](offers)
			if !ok || e.Code != providers.Unavailable || e.RetryAfter != 0 {
				t.Errorf("offers: %v", offers)
			}
			_, launch := s.a.Launch(t.Context(), request("r2"))
			e, ok = errors.AsType[*providers.Error](launch)
			if !ok || e.Code != providers.QuotaExceeded || e.Scope != providers.ScopeProvider || e.Outcome != providers.NotCreated {
				t.Errorf("launch: %v", launch)
			}
		}
		if calls["refused"] != 1 || len(s.list()) != 1 {
			t.Errorf("%d searches", calls["refused"])
		}
		if err := s.a.Terminate(t.Context(), i.Ref); err != nil {
			t.Error(err)
		}
		spent = false
		time.Sleep(30 * time.Minute)
		s.launch("r3")
	})
}
