package vast_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/dialects/vast"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	adapter "gpubroker/providers/vast"
)

var market = providers.Market{Provider: "vast-test", Region: "SE", Type: "RTX_4090-24G-x1-c16-m64", Kind: providers.Spot}

// place is the same in the world's words.
var place = simapi.Place{Region: "SE", Type: "1x RTX 4090", Kind: providers.Spot}

func request(id string) providers.LaunchRequest {
	return providers.LaunchRequest{
		Request: id, Market: market, UserData: "#!/bin/sh\ntrue\n",
		Tags: providers.Tags{Owner: "broker", Generation: "g1", Request: id, Project: "media", DeleteAt: time.Now().UTC().Add(time.Hour).Truncate(time.Second)},
	}
}

func in(t *testing.T, front func(http.Handler) http.Handler, f func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, open(t, vast.Default(1), front)) })
}

// counting counts the calls by method and path.
func counting(calls map[string]int) func(http.Handler) http.Handler {
	var mu sync.Mutex
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			mu.Lock()
			calls[r.Method+" "+r.URL.Path]++
			mu.Unlock()
			next.ServeHTTP(rw, r)
		})
	}
}

func (s *site) fault(f simapi.Fault) {
	s.t.Helper()
	if err := s.world.AddFault(f); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) act(a simapi.Action) {
	s.t.Helper()
	if _, err := s.world.Do(a); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) launch(id string) providers.Instance {
	s.t.Helper()
	i, err := s.a.Launch(s.t.Context(), request(id))
	if err != nil {
		s.t.Fatal(err)
	}
	return i
}

func (s *site) list() []providers.Instance {
	s.t.Helper()
	all, err := s.a.List(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

func rate(text string) money.Rate {
	r, err := money.RateOf(text)
	if err != nil {
		panic(err)
	}
	return r
}

// TestOffersAreTheWorlds: with pages of eight. A later page that is throttled is
// asked for again, the first is not.
func TestOffersAreTheWorlds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, calls := vast.Default(1), map[string]int{}
		cfg.PageSize = 8
		s := open(t, cfg, counting(calls))
		one, none := 1, 0
		s.act(simapi.Action{Capacity: &simapi.Capacity{Match: place, Machines: &one}})
		s.act(simapi.Action{Capacity: &simapi.Capacity{Match: simapi.Place{Region: "JP", Type: place.Type}, Machines: &none}})
		s.fault(simapi.Fault{Op: "offers", Effect: simapi.Throttle, Nth: 3})
		got, err := s.a.Offers(t.Context(), providers.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		if n := calls["POST /api/v0/bundles/"]; n < 12 {
			t.Errorf("%d pages", n)
		}
		byPlace := map[string]providers.Offer{}
		key := func(region, gpu string, gpus float64, kind providers.Kind) string {
			return fmt.Sprint(region, gpu, gpus, kind)
		}
		for _, o := range got {
			byPlace[key(o.Region, o.GPU, o.GPUs, o.Kind)] = o
		}
		want := s.world.Offers("", 0)
		if len(want)-2 != len(got) || len(want) != 42 {
			t.Errorf("%d offers of %d, want all but the two that are full", len(got), len(want))
		}
		for _, w := range want {
			o, ok := byPlace[key(w.Region, w.GPU, w.GPUs, w.Kind)]
			if full := w.Region == "JP" && w.Type == place.Type; full != !ok {
				t.Errorf("%s is there: %t", w.Place, ok)
			}
			if ok && (o.Price != w.Price || o.Available != providers.Open || o.GPUMemory != w.GPUMemory || o.VCPU != w.VCPU || o.Memory != w.Memory || o.Disk != w.Disk || o.Currency != w.Currency || o.Capacity < 1) {
				t.Errorf("%s: %+v, want %+v", w.Place, o, w)
			}
		}
		if o := byPlace[key("SE", "rtx-4090", 1, providers.Spot)]; o.Capacity != 1 || o.Market != market {
			t.Errorf("%+v", o)
		}
		s.fault(simapi.Fault{Op: "offers", Effect: simapi.Throttle})
		if _, err := s.a.Offers(t.Context(), providers.Scope{}); providers.CodeOf(err) != providers.RateLimited {
			t.Errorf("throttled at the first page: %v", err)
		}
		se, err := s.a.Offers(t.Context(), providers.Scope{Region: "SE"})
		if err != nil || len(se) != 14 {
			t.Errorf("%d offers in Sweden, %v", len(se), err)
		}
		s.set.Regions = []string{"US"}
		us := s.adapter(s.set, secret)
		all, err := us.Offers(t.Context(), providers.Scope{})
		elsewhere, err2 := us.Offers(t.Context(), providers.Scope{Region: "SE"})
		if err != nil || err2 != nil || len(all) != 14 || len(elsewhere) != 0 {
			t.Errorf("%d offers where the account is used, %d elsewhere, %v, %v", len(all), len(elsewhere), err, err2)
		}
	})
}

// TestMoreOfOnePriceThanAPage: three machines of one price on pages of two. None
// of the markets is lost.
func TestMoreOfOnePriceThanAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := vast.Default(1)
		cfg.PageSize = 2
		got, err := open(t, cfg, nil).a.Offers(t.Context(), providers.Scope{})
		if err != nil || len(got) != 42 {
			t.Errorf("%d markets, %v", len(got), err)
		}
	})
}

func TestTheSearchIsForEverybody(t *testing.T) {
	front := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				t.Error("a public search carries a credential")
			}
			next.ServeHTTP(rw, r)
		})
	}
	in(t, front, func(t *testing.T, s *site) {
		got, err := s.adapter(s.set, "").Offers(t.Context(), providers.Scope{})
		if err != nil || len(got) != 42 {
			t.Errorf("%d offers, %v", len(got), err)
		}
	})
	feed, err := adapter.Descriptor().Public(providers.Env{})
	if err != nil || feed == nil {
		t.Errorf("%v, %v", feed, err)
	}
}

// TestBeingOutbid: the machine is stopped, not ended, and its disk is paid for. The
// broker is told, once for each, also when it was away.
func TestBeingOutbid(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		ctx, cancel := context.WithCancel(t.Context())
		first, second, steady := s.launch("r1"), s.launch("r2"), s.launch("r3")
		time.Sleep(time.Minute)
		if err := s.account().Preempt(first.Ref); err != nil { // before anybody listens
			t.Fatal(err)
		}
		notices, err := s.a.Interruptions(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		go func() {
			for n := range notices {
				told = append(told, fmt.Sprint(n.Ref.Request, n.Kind, time.Since(n.At) < time.Second))
			}
			told = append(told, "closed")
		}()
		time.Sleep(time.Minute)
		if err := s.account().Preempt(second.Ref); err != nil {
			t.Fatal(err)
		}
		s.fault(simapi.Fault{Op: "list", Effect: simapi.Unavailable, Times: 3})
		time.Sleep(time.Minute)
		if err := s.a.Terminate(ctx, steady.Ref); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		all := s.list()
		if len(all) != 2 {
			t.Fatalf("%+v", all)
		}
		for _, i := range all {
			one, err := s.a.Describe(ctx, i.Ref)
			if err != nil || i.State != providers.Stopping || i.Cause != providers.CausePreempted || one.State != i.State || one.Cause != i.Cause || i.Market != market {
				t.Errorf("%+v, described %+v, %v", i, one, err)
			}
			if first, second := s.a.Terminate(ctx, i.Ref), s.a.Terminate(ctx, i.Ref); first != nil || providers.CodeOf(second) != providers.NotFound {
				t.Errorf("its end says %v, then %v", first, second)
			}
		}
		cancel()
		synctest.Wait()
		if got := strings.Join(told, " "); got != "r1preempttrue r2preempttrue closed" || len(s.list()) != 0 {
			t.Errorf("told: %s", got)
		}
	})
}

func TestListPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, calls := vast.Default(1), map[string]int{}
		cfg.PageSize, cfg.Quotas = 4, nil
		s := open(t, cfg, counting(calls))
		for n := range 11 {
			s.launch(fmt.Sprint("r", n))
		}
		if all := s.list(); len(all) != 0 {
			t.Errorf("%d machines are listed at once", len(all))
		}
		time.Sleep(10 * time.Second)
		clear(calls)
		s.fault(simapi.Fault{Op: "list", Effect: simapi.Throttle, Nth: 2})
		if all := s.list(); len(all) != 11 || calls["GET /api/v1/instances/"] != 4 {
			t.Errorf("%d machines, %v", len(all), calls)
		}
		for _, i := range s.list() {
			if i.State != providers.Running || i.Address == "" || i.Market != market || i.Tags.Project != "media" || i.Tags.DeleteAt.IsZero() || time.Since(i.Launched) > time.Minute {
				t.Errorf("%+v", i)
			}
		}
	})
}

func TestEnds(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		ctx := t.Context()
		i := s.launch("r1")
		time.Sleep(5 * time.Second)
		for effect, want := range map[string]providers.Code{
			simapi.Internal: providers.Unavailable, simapi.ErrorIn200: providers.Unavailable, simapi.Refuse: providers.Unavailable,
			simapi.Proxy: providers.Unavailable, simapi.Drop: providers.Unavailable, simapi.Throttle: providers.RateLimited, simapi.Denied: providers.Unauthorized,
		} {
			s.fault(simapi.Fault{Op: "terminate", Effect: effect})
			if err := s.a.Terminate(ctx, i.Ref); providers.CodeOf(err) != want {
				t.Errorf("%s: %v", effect, err)
			}
		}
		if got, err := s.a.Describe(ctx, i.Ref); err != nil || got.State != providers.Running {
			t.Errorf("%+v, %v", got, err)
		}
		if err := s.a.Terminate(ctx, providers.Ref{Request: "r1"}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		for _, ref := range []providers.Ref{i.Ref, {Request: "r1"}, {ID: "404", Request: "r9"}} {
			if err := s.a.Terminate(ctx, ref); providers.CodeOf(err) != providers.NotFound {
				t.Errorf("%+v: %v", ref, err)
			}
			if _, err := s.a.Describe(ctx, ref); providers.CodeOf(err) != providers.NotFound {
				t.Errorf("%+v: %v", ref, err)
			}
		}
	})
}

// TestAKeyThatExpired is said by every call that needs one.
func TestAKeyThatExpired(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		a := s.adapter(s.set, "an-old-key")
		_, launch := a.Launch(t.Context(), request("r1"))
		_, list := a.List(t.Context())
		_, describe := a.Describe(t.Context(), providers.Ref{ID: "1", Request: "r1"})
		_, balance := a.Balance(t.Context())
		for op, err := range map[string]error{
			"launch": launch, "list": list, "describe": describe, "balance": balance,
			"terminate": a.Terminate(t.Context(), providers.Ref{ID: "1", Request: "r1"}), "preflight": a.Preflight(t.Context()),
		} {
			if providers.CodeOf(err) != providers.Unauthorized || strings.Contains(err.Error(), "an-old-key") {
				t.Errorf("%s: %v", op, err)
			}
		}
	})
}

func TestAnswersNobodyHasHeardOf(t *testing.T) {
	answer := ""
	front := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if answer == "" || strings.HasSuffix(r.URL.Path, "/bundles/") || r.Method == http.MethodGet && strings.Contains(r.URL.Path, "v1") {
				next.ServeHTTP(rw, r)
				return
			}
			_, _ = io.WriteString(rw, answer)
		})
	}
	in(t, front, func(t *testing.T, s *site) {
		for n, text := range []string{`{"success": false, "error": "moon_eclipse", "msg": "x"}`, `{"success": true}`, `{"success": true, "new_contract": null}`} {
			answer = text
			_, err := s.a.Launch(t.Context(), request(fmt.Sprint("r", n)))
			if providers.CodeOf(err) != providers.Unknown || providers.OutcomeOf(err) != providers.OutcomeUnknown {
				t.Errorf("%s: %v", text, err)
			}
		}
		answer = `{"instances": {"id": 5}}`
		if _, err := s.a.Describe(t.Context(), providers.Ref{ID: "6", Request: "r"}); providers.CodeOf(err) != providers.Unknown {
			t.Errorf("an answer about another instance: %v", err)
		}
		answer = `{"credit": "much"}`
		if _, err := s.a.Balance(t.Context()); providers.CodeOf(err) != providers.Unknown {
			t.Errorf("a strange credit: %v", err)
		}
		for text, want := range map[string]string{`{"credit": -0.125}`: "-0.125", `{"credit": 12.340000000000002}`: "12.34", `{"credit": "7"}`: "7.00"} {
			answer = text
			if f, err := s.a.Balance(t.Context()); err != nil || f.Left.String() != want || f.Currency != money.USD {
				t.Errorf("%s: %+v, %v", text, f, err)
			}
		}
	})
}

func TestPreflightNamesWhatIsMissing(t *testing.T) {
	denied := map[string]bool{}
	front := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if denied[r.URL.Path] {
				rw.WriteHeader(http.StatusUnauthorized)
				_, _ = io.WriteString(rw, `{"success": false, "error": "auth_error", "msg": "This action requires more permissions."}`)
				return
			}
			next.ServeHTTP(rw, r)
		})
	}
	in(t, front, func(t *testing.T, s *site) {
		if err := s.a.Preflight(t.Context()); err != nil {
			t.Error(err)
		}
		denied["/api/v0/users/current/"], denied["/api/v0/bundles/"] = true, true
		err := s.a.Preflight(t.Context())
		if text := fmt.Sprint(err); providers.CodeOf(err) != providers.Unauthorized || !strings.Contains(text, "user_read") || !strings.Contains(text, "misc") || strings.Contains(text, "instance_read") {
			t.Error(err)
		}
		if f, err := s.a.Balance(t.Context()); err == nil {
			t.Errorf("%+v", f)
		}
	})
}
