package simcloud_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/money"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/simcloud"
)

const token = "s3cret-of-the-test"

// inCloud runs a test in virtual time against a world behind its HTTP API.
func inCloud(t *testing.T, cfg cloud.Config, f func(t *testing.T, w *cloud.World, a *simcloud.Adapter)) {
	t.Helper()
	cfg.Tokens.API = token
	synctest.Test(t, func(t *testing.T) {
		w, err := cloud.New(cfg, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		f(t, w, adapter(t, w, token))
	})
}

func adapter(t testing.TB, w *cloud.World, token string) *simcloud.Adapter {
	t.Helper()
	s := simcloud.SettingsFor(cloud.InProcessURL, w.Config().Capabilities())
	a, err := simcloud.New("sim", s, simcloud.Access{Token: token, Owner: "broker", Client: cloud.InProcess(w)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var market = providers.Market{Provider: "sim", Region: "sim-east", Zone: "sim-east-a", Type: "l4x1", Kind: providers.Spot}

func request(id string) providers.LaunchRequest {
	return providers.LaunchRequest{
		Request: id, Market: market, UserData: "true", End: time.Now().UTC().Add(20 * time.Minute),
		Tags: providers.Tags{Owner: "broker", Generation: "g1", Request: id, Project: "media", DeleteAt: time.Now().UTC().Add(time.Hour)},
	}
}

func addFault(t *testing.T, w *cloud.World, f simapi.Fault) {
	t.Helper()
	if err := w.AddFault(f); err != nil {
		t.Fatal(err)
	}
}

var (
	_ providers.Provider    = (*simcloud.Adapter)(nil)
	_ providers.Interrupter = (*simcloud.Adapter)(nil)
	_ providers.EndMover    = (*simcloud.Adapter)(nil)
	_ providers.Biller      = (*simcloud.Adapter)(nil)
	_ providers.Quotas      = (*simcloud.Adapter)(nil)
	_ providers.Preflight   = (*simcloud.Adapter)(nil)
	_ providers.Console     = (*simcloud.Adapter)(nil)
)

func TestLife(t *testing.T) {
	inCloud(t, cloud.Default(1), func(t *testing.T, w *cloud.World, a *simcloud.Adapter) {
		ctx := t.Context()
		if err := a.Preflight(ctx); err != nil {
			t.Error(err)
		}
		offers, err := a.Offers(ctx, providers.Scope{Region: "sim-east"})
		if err != nil || len(offers) != 20 {
			t.Fatalf("%d offers, %v; want 20", len(offers), err)
		}
		req := request("r1")
		i, err := a.Launch(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if i.Market != market || i.Tags != req.Tags || !i.End.Equal(req.End) || i.State != providers.Pending {
			t.Errorf("launched %+v", i)
		}
		again, err := a.Launch(ctx, req)
		if err != nil || again.Ref != i.Ref {
			t.Errorf("the same request again: %+v, %v", again.Ref, err)
		}
		time.Sleep(3 * time.Second)
		list, err := a.List(ctx)
		if err != nil || len(list) != 1 || list[0].State != providers.Running {
			t.Errorf("list %+v, %v", list, err)
		}
		byRequest := providers.Ref{Request: "r1"}
		if got, err := a.Describe(ctx, byRequest); err != nil || got.Ref != i.Ref {
			t.Errorf("describe by request: %+v, %v", got, err)
		}
		end := req.End.Add(time.Minute)
		if err := a.MoveEnd(ctx, byRequest, end); err != nil {
			t.Error(err)
		}
		if got, err := a.Describe(ctx, i.Ref); err != nil || !got.End.Equal(end) {
			t.Errorf("the end is %s, %v; want %s", got.End, err, end)
		}
		if err := a.Terminate(ctx, byRequest); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := a.Terminate(ctx, i.Ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("terminate of what is gone: %v", err)
		}
		bill, err := a.Bill(ctx, i.Ref)
		if err != nil || bill.Total == nil || *bill.Total != w.Invoice().Total || *bill.Total == 0 {
			t.Errorf("bill %+v, %v; invoice %s", bill, err, w.Invoice().Total)
		}
		if q, err := a.Quotas(ctx); err != nil || len(q) != 3 {
			t.Errorf("quotas %v, %v", q, err)
		}
		if _, err := a.Describe(ctx, providers.Ref{Request: "never"}); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("describe of nothing: %v", err)
		}
	})
}

func TestListFollowsPagesAndOwner(t *testing.T) {
	cfg := cloud.Default(1)
	cfg.PageSize, cfg.ListLag = 3, 0
	inCloud(t, cfg, func(t *testing.T, w *cloud.World, a *simcloud.Adapter) {
		for _, id := range []string{"1", "2", "3", "4", "5", "6", "7"} {
			if _, err := a.Launch(t.Context(), request(id)); err != nil {
				t.Fatal(err)
			}
		}
		foreign := simapi.Launch{Place: simapi.Place{Region: market.Region, Zone: market.Zone, Type: market.Type, Kind: market.Kind}, Request: "f", Tags: map[string]string{"gpubroker-owner": "somebody"}}
		if _, err := w.Launch(foreign); err != nil {
			t.Fatal(err)
		}
		list, err := a.List(t.Context())
		if err != nil || len(list) != 7 {
			t.Errorf("%d machines, %v; want 7", len(list), err)
		}
		// The third page fails: no part of the list may be returned.
		addFault(t, w, simapi.Fault{Op: "list", Effect: simapi.Internal, Nth: 3})
		if list, err := a.List(t.Context()); err == nil || list != nil {
			t.Errorf("a list with a lost page: %d machines, %v", len(list), err)
		}
	})
}

// TestFaults is what each fault of the cloud looks like to the broker.
func TestFaults(t *testing.T) {
	tests := []struct {
		fault   simapi.Fault
		code    providers.Code
		scope   providers.ErrScope
		outcome providers.Outcome
		after   time.Duration
		created bool // the machine exists a minute later
	}{
		{simapi.Fault{Effect: simapi.NoCapacity}, providers.NoCapacity, providers.ScopeOffer, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.Quota}, providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.PriceTooLow}, providers.PriceTooLow, providers.ScopeOffer, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.Throttle, RetryAfter: simapi.Duration(7 * time.Second)}, providers.RateLimited, providers.ScopeProvider, providers.NotCreated, 7 * time.Second, false},
		{simapi.Fault{Effect: simapi.Denied}, providers.Unauthorized, providers.ScopeProvider, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.NoFunds}, providers.NoFunds, providers.ScopeProvider, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.Invalid}, providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated, 0, false},
		{simapi.Fault{Effect: simapi.Unavailable, RetryAfter: simapi.Duration(1500 * time.Millisecond)}, providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown, 2 * time.Second, false},
		{simapi.Fault{Effect: simapi.Internal}, providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown, 0, false},
		{simapi.Fault{Effect: simapi.Proxy}, providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown, 0, false},
		{simapi.Fault{Effect: simapi.ErrorIn200}, providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown, 0, false},
		{simapi.Fault{Effect: simapi.Drop}, providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown, 0, false},
		{simapi.Fault{Effect: simapi.UnavailableAfter}, providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown, 0, true},
		{simapi.Fault{Effect: simapi.InternalAfter}, providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown, 0, true},
		{simapi.Fault{Effect: simapi.DropAfter}, providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown, 0, true},
		{simapi.Fault{Effect: simapi.Truncate}, providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown, 0, true},
		{simapi.Fault{Effect: simapi.Slow, Delay: simapi.Duration(time.Minute)}, providers.DeadlineExceed, providers.ScopeProvider, providers.OutcomeUnknown, 0, true},
		{simapi.Fault{Effect: simapi.Late, Delay: simapi.Duration(time.Minute)}, providers.DeadlineExceed, providers.ScopeProvider, providers.OutcomeUnknown, 0, true},
	}
	for _, test := range tests {
		t.Run(test.fault.Effect, func(t *testing.T) {
			inCloud(t, cloud.Default(1), func(t *testing.T, w *cloud.World, a *simcloud.Adapter) {
				test.fault.Op = "launch"
				addFault(t, w, test.fault)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				_, err := a.Launch(ctx, request("r1"))
				e, ok := errors.AsType[*providers.Error](err)
				if !ok {
					t.Fatalf("error %v", err)
				}
				if e.Code != test.code || e.Scope != test.scope || e.Outcome != test.outcome || e.RetryAfter != test.after {
					t.Errorf("got %s, %s, %s, retry after %s: %v", e.Code, e.Scope, e.Outcome, e.RetryAfter, err)
				}
				if e.Provider != "sim" || e.Op != "launch" || e.Target != market.String() {
					t.Errorf("the error is about %s %s %s", e.Provider, e.Op, e.Target)
				}
				time.Sleep(time.Minute)
				if got := len(w.Truth()) == 1; got != test.created {
					t.Errorf("machine created: %t, want %t", got, test.created)
				}
				// Whatever was known, asking again gives one machine.
				if _, err := a.Launch(t.Context(), request("r1")); err != nil {
					t.Errorf("second try: %v", err)
				}
				if n := len(w.Truth()); n != 1 {
					t.Errorf("%d machines after a second try", n)
				}
			})
		})
	}
}

func TestFaultsOfOtherCalls(t *testing.T) {
	inCloud(t, cloud.Default(1), func(t *testing.T, w *cloud.World, a *simcloud.Adapter) {
		ctx := t.Context()
		i, err := a.Launch(ctx, request("r1"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		addFault(t, w, simapi.Fault{Op: "terminate", Effect: simapi.Refuse, For: simapi.Duration(time.Hour)})
		for range 4 {
			if err := a.Terminate(ctx, i.Ref); providers.CodeOf(err) != providers.Unavailable {
				t.Errorf("a refused delete: %v", err)
			}
			time.Sleep(10 * time.Minute)
		}
		if got, _ := a.Describe(ctx, i.Ref); got.State == providers.Stopping {
			t.Error("a refused delete was done")
		}
		time.Sleep(20 * time.Minute)
		if err := a.Terminate(ctx, i.Ref); err != nil && providers.CodeOf(err) != providers.NotFound {
			t.Errorf("after an hour: %v", err)
		}

		for _, effect := range []string{simapi.Truncate, simapi.Drop, simapi.ErrorIn200, simapi.Proxy} {
			addFault(t, w, simapi.Fault{Op: "list", Effect: effect})
			if l, err := a.List(ctx); providers.CodeOf(err) != providers.Unavailable || l != nil {
				t.Errorf("list with %s: %v, %v", effect, l, err)
			}
			addFault(t, w, simapi.Fault{Op: "offers", Effect: effect})
			if l, err := a.Offers(ctx, providers.Scope{}); providers.CodeOf(err) != providers.Unavailable || l != nil {
				t.Errorf("offers with %s: %v, %v", effect, l, err)
			}
		}
		addFault(t, w, simapi.Fault{Op: "offers", Effect: simapi.Stale, Delay: simapi.Duration(time.Minute)})
		offers, err := a.Offers(ctx, providers.Scope{})
		if err != nil || time.Since(offers[0].Seen) != time.Minute {
			t.Errorf("stale offers were seen %s ago, %v", time.Since(offers[0].Seen), err)
		}
		if _, err := a.Launch(ctx, request("r2")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		addFault(t, w, simapi.Fault{Op: "list", Effect: simapi.Stale, Delay: simapi.Duration(time.Minute)})
		stale, err := a.List(ctx)
		fresh, err2 := a.List(ctx)
		if err != nil || err2 != nil || len(fresh) != len(stale)+1 {
			t.Errorf("stale list of %d, fresh of %d: %v, %v", len(stale), len(fresh), err, err2)
		}
		// A machine is denied while it is young, as EC2 does for a moment.
		addFault(t, w, simapi.Fault{Op: "describe", Effect: simapi.NotFound, Delay: simapi.Duration(2 * time.Second), Times: -1})
		if _, err := a.Launch(ctx, request("r3")); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Describe(ctx, providers.Ref{Request: "r3"}); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("a young machine: %v", err)
		}
		time.Sleep(2 * time.Second)
		if _, err := a.Describe(ctx, providers.Ref{Request: "r3"}); err != nil {
			t.Errorf("two seconds later: %v", err)
		}
	})
}

func TestInterruptions(t *testing.T) {
	inCloud(t, cloud.Default(1), func(t *testing.T, w *cloud.World, a *simcloud.Adapter) {
		i, err := a.Launch(t.Context(), request("r1"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		notices, err := a.Interruptions(ctx)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for _, act := range []simapi.Action{{Rebalance: &simapi.Pick{}}, {Preempt: &simapi.Preempt{}}} {
			if _, err := w.Do(act); err != nil {
				t.Fatal(err)
			}
		}
		at := time.Now().UTC()
		want := []providers.Notice{{Ref: i.Ref, Kind: providers.NoticeRebalance}, {Ref: i.Ref, Kind: providers.NoticePreempt, At: at.Add(5 * time.Second)}}
		got := []providers.Notice{<-notices, <-notices}
		if diff := cmp.Diff(want, got); diff != "" || time.Since(at) != 0 {
			t.Errorf("after %s: %s", time.Since(at), diff)
		}
		// Who comes late is told as well.
		ctx2, cancel2 := context.WithCancel(t.Context())
		second, err := a.Interruptions(ctx2)
		if err != nil {
			t.Fatal(err)
		}
		<-second
		if n := <-second; n.Kind != providers.NoticePreempt {
			t.Errorf("a second stream begins with %+v", n)
		}
		cancel2()
		if _, ok := <-second; ok {
			t.Error("the stream went on after its context")
		}
		// The stream ends when the cloud fails. The call that the second one left
		// behind must not meet the fault in its place.
		synctest.Wait()
		addFault(t, w, simapi.Fault{Op: "events", Effect: simapi.Drop})
		if _, ok := <-notices; ok {
			t.Error("a notice out of nothing")
		}
		cancel()
	})
}

func TestErrorTable(t *testing.T) {
	type row struct {
		Status  int
		Body    string
		Code    providers.Code
		Scope   providers.ErrScope
		Outcome providers.Outcome
	}
	body := func(code string) string { return `{"error":{"code":"` + code + `","message":"words"}}` }
	tests := []row{
		{500, body("InsufficientCapacity"), providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
		{400, body("QuotaExceeded"), providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated},
		{400, body("PriceTooLow"), providers.PriceTooLow, providers.ScopeOffer, providers.NotCreated},
		{429, body("Throttled"), providers.RateLimited, providers.ScopeProvider, providers.NotCreated},
		{401, body("Unauthorized"), providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
		{402, body("PaymentRequired"), providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
		{400, body("InvalidRequest"), providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
		{404, body("NoSuchOffer"), providers.Unsupported, providers.ScopeFamily, providers.NotCreated},
		{404, body("MachineNotFound"), providers.NotFound, providers.ScopeOffer, providers.NotCreated},
		{409, body("RequestMismatch"), providers.Conflict, providers.ScopeOffer, providers.OutcomeUnknown},
		{409, body("OperationRefused"), providers.Unavailable, providers.ScopeOffer, providers.NotCreated},
		{409, body("EndNotMovable"), providers.Unsupported, providers.ScopeProvider, providers.NotCreated},
		{503, body("Unavailable"), providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		{500, body("InternalError"), providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		{200, body("InsufficientCapacity"), providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
		{500, body("WordOfTomorrow"), providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		{200, body("WordOfTomorrow"), providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown},
		{403, "", providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
		{404, "<html>", providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown},
		{408, "", providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		{413, "", providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
		{429, "slow down", providers.RateLimited, providers.ScopeProvider, providers.NotCreated},
		{502, "<html>", providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		{200, "", providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		{200, "{", providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		{200, "{}", providers.Unknown, providers.ScopeOffer, providers.OutcomeUnknown},
		{302, "", providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown},
	}
	for _, test := range tests {
		a := answering(t, test.Status, test.Body)
		_, err := a.Launch(t.Context(), providers.LaunchRequest{Request: "r1", Market: market})
		e, ok := errors.AsType[*providers.Error](err)
		if !ok {
			t.Errorf("%d %s: %v", test.Status, test.Body, err)
			continue
		}
		if diff := cmp.Diff(test, row{test.Status, test.Body, e.Code, e.Scope, e.Outcome}); diff != "" {
			t.Errorf("%d %s: %s", test.Status, test.Body, diff)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("more than one line: %q", err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answering is an adapter whose cloud always says the same.
func answering(t *testing.T, status int, body string) *simcloud.Adapter {
	t.Helper()
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)),
			Request: r, ContentLength: -1, ProtoMajor: 1, ProtoMinor: 1,
		}, nil
	})}
	a, err := simcloud.New("sim", simcloud.Settings{Endpoint: "http://cloud.test"}, simcloud.Access{Token: token, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestCancelledBeforeItIsSent(t *testing.T) {
	inCloud(t, cloud.Default(1), func(t *testing.T, w *cloud.World, a *simcloud.Adapter) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := a.Launch(ctx, request("r1"))
		if providers.CodeOf(err) != providers.Canceled || providers.OutcomeOf(err) != providers.NotCreated {
			t.Errorf("%v", err)
		}
		if n := len(w.Truth()); n != 0 {
			t.Errorf("%d machines", n)
		}
	})
}

func TestNobodyListens(t *testing.T) {
	a, err := simcloud.New("sim", simcloud.Settings{Endpoint: "http://127.0.0.1:1"}, simcloud.Access{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.Launch(t.Context(), providers.LaunchRequest{Request: "r1", Market: market})
	if providers.CodeOf(err) != providers.Unavailable || providers.OutcomeOf(err) != providers.NotCreated {
		t.Errorf("%v: %s", err, providers.OutcomeOf(err))
	}
}

func TestTokenAndPreflight(t *testing.T) {
	inCloud(t, cloud.Default(1), func(t *testing.T, w *cloud.World, a *simcloud.Adapter) {
		wrong := adapter(t, w, "wrong-token-wrong")
		for name, call := range map[string]func() error{
			"preflight": func() error { return wrong.Preflight(t.Context()) },
			"list":      func() error { _, err := wrong.List(t.Context()); return err },
			"launch":    func() error { _, err := wrong.Launch(t.Context(), request("r")); return err },
		} {
			err := call()
			if providers.CodeOf(err) != providers.Unauthorized || strings.Contains(err.Error(), "wrong-token") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := w.Do(simapi.Action{SelfEnd: &simapi.SelfEnd{SelfEnd: providers.EndGuest}}); err != nil {
			t.Fatal(err)
		}
		err := a.Preflight(t.Context())
		if providers.CodeOf(err) != providers.InvalidRequest || !strings.Contains(err.Error(), "SelfEnd is rolling, the cloud says guest") {
			t.Errorf("settings that are wrong: %v", err)
		}
	})
}

func TestSettings(t *testing.T) {
	open := simcloud.Descriptor().Open
	secret := func(string) (string, error) { return token, nil }
	for settings, want := range map[string]string{
		`{"endpoint":"http://127.0.0.1:8700","token":"env:T"}`:         "",
		`{"endpoint":"http://127.0.0.1:8700","tokn":"env:T"}`:          "tokn",
		`{"endpoint":"127.0.0.1:8700"}`:                                "endpoint",
		`{"endpoint":"http://u:hunter2@127.0.0.1:8700"}`:               "no user",
		`{"endpoint":"http://127.0.0.1:8700","self_end":"never"}`:      "self_end",
		`{"endpoint":"http://127.0.0.1:8700","list_lag":"-1s"}`:        "duration",
		`{"endpoint":"http://127.0.0.1:8700","billing_minimum":"10"}`:  "duration",
		`{"endpoint":"http://127.0.0.1:8700","end_action":"shutdown"}`: "end_action",
	} {
		_, err := open(t.Context(), "sim", json.RawMessage(settings), providers.Env{Secret: secret})
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", settings, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2")):
			t.Errorf("%s: %v, want %q", settings, err, want)
		}
	}
	p, err := open(t.Context(), "sim", json.RawMessage(`{"endpoint":"http://127.0.0.1:8700"}`), providers.Env{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cloud.Default(1).Capabilities(), p.Capabilities()); diff != "" {
		t.Errorf("the built-in rules differ from the built-in world's: %s", diff)
	}
}

// TestBillsAreTheInvoice recomputes the invoice from what the adapter reports.
func TestBillsAreTheInvoice(t *testing.T) {
	inCloud(t, cloud.Default(3), func(t *testing.T, w *cloud.World, a *simcloud.Adapter) {
		var refs []providers.Ref
		for _, id := range []string{"a", "b", "c"} {
			i, err := a.Launch(t.Context(), request(id))
			if err != nil {
				t.Fatal(err)
			}
			refs = append(refs, i.Ref)
			time.Sleep(97 * time.Second)
		}
		time.Sleep(time.Hour) // their ends come
		var sum money.Amount
		for _, ref := range refs {
			b, err := a.Bill(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			var segments []money.Segment
			for i, p := range b.Prices {
				to := b.End
				if i+1 < len(b.Prices) {
					to = b.Prices[i+1].From
				}
				segments = append(segments, money.Segment{Duration: to.Sub(p.From), Rate: p.Price})
			}
			charge, err := money.ChargeSegments(segments, a.Capabilities().Billing)
			if err != nil || charge != *b.Total {
				t.Errorf("%s: recomputed %s, billed %s, %v", ref.ID, charge, *b.Total, err)
			}
			sum += charge
		}
		if got := w.Invoice().Total; got != sum || sum == 0 {
			t.Errorf("invoice %s, bills %s", got, sum)
		}
	})
}
