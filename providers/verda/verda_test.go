package verda_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/dialects/verda"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

var market = providers.Market{Provider: "verda-test", Region: "FIN-01", Type: "1H100.80S.30V", Kind: providers.Spot}

func request(id string) providers.LaunchRequest {
	return providers.LaunchRequest{
		Request: id, Market: market, UserData: "#!/bin/sh\ntrue\n",
		Tags: providers.Tags{Owner: "broker", Generation: "g1", Request: id, Project: "media", DeleteAt: time.Now().UTC().Add(time.Hour).Truncate(time.Second)},
	}
}

func in(t *testing.T, front func(http.Handler) http.Handler, f func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, open(t, verda.Default(1), front)) })
}

func (s *site) fault(f simapi.Fault) {
	s.t.Helper()
	if err := s.world.AddFault(f); err != nil {
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

// read asks the API itself, as a bystander.
func (s *site) read(path string, into any) {
	s.t.Helper()
	res, err := s.net.Client().Post("https://"+host+"/v1/oauth2/token", "application/json", strings.NewReader(`{"grant_type":"client_credentials","client_id":"x","client_secret":"`+secret+`"}`))
	if err != nil {
		s.t.Fatal(err)
	}
	var token struct {
		Access string `json:"access_token"`
	}
	if err := json.NewDecoder(res.Body).Decode(&token); err != nil {
		s.t.Fatal(err)
	}
	_ = res.Body.Close()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "https://"+host+"/v1"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token.Access)
	if res, err = s.net.Client().Do(req); err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) count(path string) int {
	s.t.Helper()
	var all []json.RawMessage
	s.read(path, &all)
	return len(all)
}

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
			in(t, nil, func(t *testing.T, s *site) {
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
				if kept := s.count("/scripts"); kept > 0 && c.outcome == providers.NotCreated {
					t.Errorf("%d scripts are left", kept)
				}
				time.Sleep(15 * time.Second)
				if _, err := s.a.Launch(t.Context(), request("r1")); err != nil {
					t.Errorf("once more: %v", err)
				}
				if n := len(s.world.Truth()); n != 1 {
					t.Errorf("%d machines", n)
				}
			})
		})
	}
}

func TestAQuotaOfTheAccountRefuses(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		req := request("big")
		req.Market.Type, req.Market.Kind = "8H100.80S.176V", providers.OnDemand
		for n := range 9 {
			req.Request, req.Tags.Request = "big"+string(rune('a'+n)), "big"+string(rune('a'+n))
			_, err := s.a.Launch(t.Context(), req)
			if want := map[bool]providers.Code{true: "", false: providers.QuotaExceeded}[n < 8]; providers.CodeOf(err) != want {
				t.Errorf("machine %d: %v", n+1, err)
			}
		}
	})
}

// TestPriceBound: none can be given to the cloud, so the price is read before.
func TestPriceBound(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		req := request("r1")
		for bound, want := range map[money.Rate]providers.Code{827_300_000: providers.PriceTooLow, 827_400_000: ""} { // 0.80 and 0.0274 of disk
			req.PriceMax = bound
			if _, err := s.a.Launch(t.Context(), req); providers.CodeOf(err) != want || err != nil && providers.OutcomeOf(err) != providers.NotCreated {
				t.Errorf("bound %s: %v", bound, err)
			}
			req.Request, req.Tags.Request = "r2", "r2"
		}
	})
}

func TestOffersAreTheWorlds(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		zero := 0
		if _, err := s.world.Do(simapi.Action{Capacity: &simapi.Capacity{Match: simapi.Place{Region: "ICE-01", Type: market.Type, Kind: providers.Spot}, Machines: &zero}}); err != nil {
			t.Fatal(err)
		}
		got, err := s.a.Offers(t.Context(), providers.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		byPlace := map[simapi.Place]providers.Offer{}
		for _, o := range got {
			byPlace[simapi.Place{Region: o.Region, Zone: o.Zone, Type: o.Type, Kind: o.Kind}] = o
		}
		want := s.world.Offers("", 0)
		if len(want) != len(got) || len(want) < 30 {
			t.Errorf("%d offers of %d", len(got), len(want))
		}
		for _, w := range want {
			o := byPlace[w.Place]
			if o.Price != w.Price || o.Available != w.Available || o.GPU != w.GPU || o.GPUs != w.GPUs || o.GPUMemory != w.GPUMemory || o.VCPU != w.VCPU || o.Memory != w.Memory || o.Currency != w.Currency {
				t.Errorf("%s: %+v, want %+v", w.Place, o, w)
			}
		}
		if o := byPlace[simapi.Place{Region: "ICE-01", Type: market.Type, Kind: providers.Spot}]; o.Available != providers.Full {
			t.Errorf("a full market is %q", o.Available)
		}
	})
}

// TestCauses: what was deleted and what was taken look alike at Verda.
func TestCauses(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		ours, taken := s.launch("ours"), s.launch("taken")
		req := request("steady")
		req.Market.Kind = providers.OnDemand
		steady, err := s.a.Launch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := s.a.Terminate(t.Context(), ours.Ref); err != nil {
			t.Fatal(err)
		}
		if err := s.account().Preempt(taken.Ref); err != nil {
			t.Fatal(err)
		}
		if err := s.world.Terminate(verda.WorldID(steady.Ref.ID)); err != nil { // by somebody in the console
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		all, err := s.a.List(t.Context())
		if err != nil || len(all) != 3 {
			t.Fatalf("%d machines, %v", len(all), err)
		}
		want := map[string]providers.Cause{"ours": providers.CauseUser, "taken": providers.CausePreempted, "steady": providers.CauseUnknown}
		for _, i := range all {
			one, err := s.a.Describe(t.Context(), i.Ref)
			if err != nil || one.State != providers.Terminated || i.State != providers.Terminated || i.Cause != want[i.Ref.Request] || one.Cause != i.Cause || !i.Ended.IsZero() {
				t.Errorf("%s: %s by %q, described %s by %q, %v", i.Ref.Request, i.State, i.Cause, one.State, one.Cause, err)
			}
		}
	})
}

// TestNothingIsLeft: an end takes the OS volume along, and the script once the
// machine is gone.
func TestNothingIsLeft(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		i := s.launch("r1")
		time.Sleep(time.Minute)
		if v, sc := s.count("/volumes"), s.count("/scripts"); v != 1 || sc != 1 {
			t.Fatalf("%d volumes and %d scripts beside the machine", v, sc)
		}
		list, err := s.a.List(t.Context())
		if err != nil || len(list) != 1 || list[0].Price.String() != "0.8274" {
			t.Errorf("%+v, %v", list, err)
		}
		var said []providers.Code
		for range 4 {
			said = append(said, providers.CodeOf(s.a.Terminate(t.Context(), i.Ref)))
			time.Sleep(time.Second)
		}
		if got := said; got[0] != "" || got[1] != "" || got[2] != providers.NotFound || got[3] != providers.NotFound {
			t.Errorf("the ends said %q, want accepted, the script removed, gone", got)
		}
		if v, sc := s.count("/volumes"), s.count("/scripts"); v != 0 || sc != 0 {
			t.Errorf("%d volumes and %d scripts are left", v, sc)
		}
	})
}

// TestWhatAFailedCreateLeaves: the cloud had no room, and would not remove the
// script either.
func TestWhatAFailedCreateLeaves(t *testing.T) {
	broken := true
	front := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if broken && r.Method == http.MethodDelete {
				rw.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(rw, `{"code":"server_error","message":"Internal server error"}`)
				return
			}
			next.ServeHTTP(rw, r)
		})
	}
	in(t, front, func(t *testing.T, s *site) {
		s.fault(simapi.Fault{Op: "launch", Effect: simapi.NoCapacity})
		if _, err := s.a.Launch(t.Context(), request("r1")); providers.CodeOf(err) != providers.NoCapacity || providers.OutcomeOf(err) != providers.NotCreated {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if all, err := s.a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("a script may be that of a launch under way: %+v, %v", all, err)
		}
		time.Sleep(10 * time.Minute)
		all, err := s.a.List(t.Context())
		if err != nil || len(all) != 1 || all[0].Ref.Request != "r1" || !all[0].Live() || all[0].Tags.Generation != "g1" {
			t.Fatalf("%+v, %v", all, err)
		}
		if i, err := s.a.Describe(t.Context(), all[0].Ref); err != nil || i.Ref != all[0].Ref {
			t.Errorf("%+v, %v", i, err)
		}
		if err := s.a.Terminate(t.Context(), all[0].Ref); providers.CodeOf(err) != providers.Unavailable {
			t.Errorf("while it cannot be removed: %v", err)
		}
		broken = false
		first, second := s.a.Terminate(t.Context(), all[0].Ref), s.a.Terminate(t.Context(), all[0].Ref)
		if first != nil || providers.CodeOf(second) != providers.NotFound || s.count("/scripts") != 0 {
			t.Errorf("%v, then %v", first, second)
		}
	})
}

// TestAVolumeThatOutlivesItsMachine is listed and removed, and one of somebody
// else is not.
func TestAVolumeThatOutlivesItsMachine(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		req := request("r1")
		req.Market.Kind, req.UserData = providers.OnDemand, ""
		i, err := s.a.Launch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := s.world.Terminate(verda.WorldID(i.Ref.ID)); err != nil { // past the API: the volume stays
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n := s.count("/volumes"); n != 1 {
			t.Fatalf("%d volumes", n)
		}
		all, err := s.a.List(t.Context())
		if err != nil || len(all) == 0 {
			t.Fatal(err)
		}
		left := all[len(all)-1]
		if !left.Live() || left.Price.String() != "0.0274" || left.Ref.Request != "r1" {
			t.Errorf("%+v", left)
		}
		if err := s.a.Terminate(t.Context(), left.Ref); err != nil || s.count("/volumes") != 0 {
			t.Errorf("%v, %d volumes are left", err, s.count("/volumes"))
		}
	})
}

func TestEnds(t *testing.T) {
	in(t, nil, func(t *testing.T, s *site) {
		ctx := t.Context()
		i := s.launch("r1")
		time.Sleep(500 * time.Millisecond)
		if err := s.a.Terminate(ctx, i.Ref); providers.CodeOf(err) != providers.Unavailable {
			t.Errorf("while it is provisioned: %v", err)
		}
		time.Sleep(5 * time.Second)
		for _, effect := range []string{simapi.Internal, simapi.ErrorIn200, simapi.Refuse, simapi.Proxy, simapi.Drop} {
			s.fault(simapi.Fault{Op: "terminate", Effect: effect})
			if err := s.a.Terminate(ctx, i.Ref); providers.CodeOf(err) != providers.Unavailable {
				t.Errorf("%s: %v", effect, err)
			}
		}
		if got, err := s.a.Describe(ctx, i.Ref); err != nil || got.State != providers.Running || got.Address == "" {
			t.Errorf("%+v, %v", got, err)
		}
		if err := s.a.Terminate(ctx, i.Ref); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Hour) // the cloud forgets it
		for _, ref := range []providers.Ref{i.Ref, {Request: "r1"}, {ID: "no-such", Request: "r9"}} {
			_ = s.a.Terminate(ctx, ref) // the script
			if err := s.a.Terminate(ctx, ref); providers.CodeOf(err) != providers.NotFound {
				t.Errorf("%+v: %v", ref, err)
			}
			if _, err := s.a.Describe(ctx, ref); providers.CodeOf(err) != providers.NotFound {
				t.Errorf("%+v: %v", ref, err)
			}
		}
	})
}

func TestTokens(t *testing.T) {
	fetched := 0
	front := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/oauth2/token") {
				fetched++
			}
			next.ServeHTTP(rw, r)
		})
	}
	in(t, front, func(t *testing.T, s *site) {
		list := func() error { _, err := s.a.List(t.Context()); return err }
		for range 3 {
			if err := list(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Minute)
		}
		if fetched != 1 {
			t.Errorf("%d tokens in half an hour", fetched)
		}
		time.Sleep(29*time.Minute + 31*time.Second)
		if err := list(); err != nil || fetched != 2 {
			t.Errorf("%v, %d tokens after 59:31", err, fetched)
		}
		// One that was revoked fails once, and is not used again.
		s.fault(simapi.Fault{Op: "list", Effect: simapi.Denied})
		if err := list(); providers.CodeOf(err) != providers.Unauthorized {
			t.Error(err)
		}
		if err := list(); err != nil || fetched != 3 {
			t.Errorf("%v, %d tokens", err, fetched)
		}
	})
	in(t, nil, func(t *testing.T, s *site) {
		s.set.Regions = []string{"FIN-01", "MARS-1"}
		s.set.SSHKeys = []string{"lost"}
		err := s.adapter().Preflight(t.Context())
		if providers.CodeOf(err) != providers.InvalidRequest || !strings.Contains(err.Error(), "MARS-1") || !strings.Contains(err.Error(), "lost") {
			t.Errorf("preflight: %v", err)
		}
		if f, err := s.a.Balance(t.Context()); err != nil || f.Left.String() != "1000.00" || f.Currency != "USD" {
			t.Errorf("%+v, %v", f, err)
		}
	})
}

// TestTheVendorsOwnAnswers: shapes of the SDK's test server. It tells no storage
// price, shows prices as floats and has no tags.
func TestTheVendorsOwnAnswers(t *testing.T) {
	files := map[string]string{
		"GET /v1/instance-types": "instance-types", "GET /v1/instance-availability": "instance-availability", "GET /v1/locations": "locations",
		"GET /v1/instances": "instances", "POST /v1/instances": "create-instance-response",
	}
	fixed := map[string]string{
		"POST /v1/oauth2/token": `{"access_token":"mock","token_type":"Bearer","expires_in":3600}`, "GET /v1/ssh-keys": `[{"id":"key_123"}]`,
		"GET /v1/volumes": `[]`, "GET /v1/scripts": `[{"id":"script_123","name":"Test Script","script":"x"}]`, "POST /v1/scripts": `script_new_123`,
		"PUT /v1/instances": `[{"action":"delete","instanceId":"inst_123","status":"success"}]`,
	}
	front := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			key := r.Method + " " + r.URL.Path
			switch name, ok := files[key]; {
			case ok:
				data, err := os.ReadFile("testdata/vendor/verda-" + name + ".json")
				if err != nil {
					t.Error(err)
				}
				_, _ = rw.Write(data)
			case fixed[key] != "":
				_, _ = io.WriteString(rw, fixed[key])
			default:
				http.NotFound(rw, r)
			}
		})
	}
	in(t, front, func(t *testing.T, s *site) {
		offers, err := s.a.Offers(t.Context(), providers.Scope{})
		if err != nil || len(offers) != 4 {
			t.Fatalf("%d offers, %v", len(offers), err)
		}
		for _, o := range offers {
			if o.Type == "1V100.6V" && o.Kind == providers.Spot && (o.Price.String() != "0.6974" || o.Available != providers.Open || o.GPU != "v100-any-16gb") {
				t.Errorf("%+v", o)
			}
			if o.Type == "1H100.80S.22V" && (o.GPU != "h100-sxm-80gb" || o.Available != providers.Full) {
				t.Errorf("%+v", o)
			}
		}
		if all, err := s.a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("somebody else's instance: %+v, %v", all, err)
		}
		if i, err := s.a.Launch(t.Context(), request("r1")); err != nil || i.Ref.ID != "inst_new_123" {
			t.Errorf("%+v, %v", i, err)
		}
	})
}
