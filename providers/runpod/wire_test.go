package runpod_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/managed"
	"gpubroker/providers/runpod"
)

func inCloud(t *testing.T, edit func(*runpod.Settings), f func(t *testing.T, l *lab, a providers.Provider)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		f(t, l, l.adapter(t, edit, key))
	})
}

func (l *lab) fault(t *testing.T, f simapi.Fault) {
	t.Helper()
	if err := l.world.AddFault(f); err != nil {
		t.Fatal(err)
	}
}

// TestLaunchFaults tries every way in which a launch goes wrong, over both APIs,
// and that asking again ends with one pod.
func TestLaunchFaults(t *testing.T) {
	d := func(d time.Duration) simapi.Duration { return simapi.Duration(d) }
	for name, test := range map[string]struct {
		fault   simapi.Fault
		code    providers.Code
		outcome providers.Outcome
		after   [2]time.Duration // on demand, spot
		created bool
	}{
		"capacity":         {simapi.Fault{Effect: simapi.NoCapacity}, providers.NoCapacity, providers.NotCreated, [2]time.Duration{}, false},
		"spend limit":      {simapi.Fault{Effect: simapi.Quota}, providers.QuotaExceeded, providers.NotCreated, [2]time.Duration{}, false},
		"throttled":        {simapi.Fault{Effect: simapi.Throttle}, providers.RateLimited, providers.NotCreated, [2]time.Duration{12 * time.Second, 0}, false},
		"throttled, told":  {simapi.Fault{Effect: simapi.Throttle, RetryAfter: d(40 * time.Second)}, providers.RateLimited, providers.NotCreated, [2]time.Duration{40 * time.Second, 40 * time.Second}, false},
		"expired key":      {simapi.Fault{Effect: simapi.Denied}, providers.Unauthorized, providers.NotCreated, [2]time.Duration{}, false},
		"no credit":        {simapi.Fault{Effect: simapi.NoFunds}, providers.NoFunds, providers.NotCreated, [2]time.Duration{}, false},
		"invalid":          {simapi.Fault{Effect: simapi.Invalid}, providers.InvalidRequest, providers.NotCreated, [2]time.Duration{}, false},
		"unavailable":      {simapi.Fault{Effect: simapi.Unavailable}, providers.Unavailable, providers.OutcomeUnknown, [2]time.Duration{}, false},
		"error":            {simapi.Fault{Effect: simapi.Internal}, providers.Unavailable, providers.OutcomeUnknown, [2]time.Duration{}, false},
		"proxy":            {simapi.Fault{Effect: simapi.Proxy}, providers.Unavailable, providers.OutcomeUnknown, [2]time.Duration{}, false},
		"error in 200":     {simapi.Fault{Effect: simapi.ErrorIn200}, providers.Unavailable, providers.OutcomeUnknown, [2]time.Duration{}, false},
		"dropped before":   {simapi.Fault{Effect: simapi.Drop}, providers.Unavailable, providers.OutcomeUnknown, [2]time.Duration{}, false},
		"dropped after":    {simapi.Fault{Effect: simapi.DropAfter}, providers.Unavailable, providers.OutcomeUnknown, [2]time.Duration{}, true},
		"error after":      {simapi.Fault{Effect: simapi.InternalAfter}, providers.Unavailable, providers.OutcomeUnknown, [2]time.Duration{}, true},
		"half an answer":   {simapi.Fault{Effect: simapi.Truncate}, providers.Unavailable, providers.OutcomeUnknown, [2]time.Duration{}, true},
		"no answer before": {simapi.Fault{Effect: simapi.Hang}, providers.DeadlineExceed, providers.OutcomeUnknown, [2]time.Duration{}, false},
		"no answer after":  {simapi.Fault{Effect: simapi.Slow, Delay: d(time.Hour)}, providers.DeadlineExceed, providers.OutcomeUnknown, [2]time.Duration{}, true},
	} {
		for k, kind := range []providers.Kind{providers.OnDemand, providers.Spot} {
			t.Run(name+"/"+string(kind), func(t *testing.T) {
				inCloud(t, spot, func(t *testing.T, l *lab, a providers.Provider) {
					test.fault.Op = "launch"
					l.fault(t, test.fault)
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					req := request("r1", kind)
					_, err := a.Launch(ctx, req)
					e, ok := errors.AsType[*providers.Error](err)
					if !ok || e.Code != test.code || e.Outcome != test.outcome || e.RetryAfter != test.after[k] {
						t.Fatalf("%v: %s, retry after %s", err, providers.OutcomeOf(err), e.RetryAfter)
					}
					if got := len(l.world.Truth()) == 1; got != test.created {
						t.Errorf("pod created: %t, want %t", got, test.created)
					}
					// At once the list does not show it yet; later it does.
					if _, err := a.Launch(t.Context(), req); err != nil && providers.CodeOf(err) != providers.Conflict {
						t.Errorf("second try: %v", err)
					}
					time.Sleep(time.Minute)
					if _, err := a.Launch(t.Context(), req); err != nil {
						t.Errorf("third try: %v", err)
					}
					if n := len(l.world.Truth()); n != 1 {
						t.Errorf("%d pods", n)
					}
				})
			})
		}
	}
}

func TestOffers(t *testing.T) {
	inCloud(t, spot, func(t *testing.T, l *lab, a providers.Provider) {
		all, err := a.Offers(t.Context(), providers.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		by := map[string]providers.Offer{}
		for _, o := range all {
			by[o.Region+"/"+o.Zone+"/"+o.Type+"/"+string(o.Kind)] = o
		}
		seen := 0
		for _, o := range l.world.Offers("", 0) { // the adapter's sum is the world's price
			if o.Zone != "secure" || o.Kind == providers.Spot || o.Available == providers.Full {
				continue
			}
			seen++
			got := by[o.Place.String()]
			if got.Price != o.Price || got.GPU != o.GPU || got.GPUs != o.GPUs || got.GPUMemory != o.GPUMemory || got.Available != providers.Open {
				t.Errorf("%s: %+v, want %s", o.Place, got, o.Price)
			}
		}
		if seen < 20 {
			t.Errorf("only %d offers were compared", seen)
		}
		// Spot is the least of all data centers.
		if o := by["/secure/1x NVIDIA L4/spot"]; o.Price.String() != "0.22694445" || o.Parts[0].Price.String() != "0.22" {
			t.Errorf("spot: %+v", o)
		}
		// What stands nowhere now is full, without a region.
		if o := by["/secure/8x NVIDIA H100 80GB HBM3/on-demand"]; by["EU-RO-1/secure/8x NVIDIA H100 80GB HBM3/on-demand"].Available != providers.Full && o.Available != providers.Full {
			t.Errorf("%+v", o)
		}
		small, err := l.adapter(t, func(s *runpod.Settings) {
			s.Regions, s.Clouds, s.Counts, s.VCPUs, s.Disk = []string{"US-TX-3"}, []string{"community"}, []int{2}, nil, 100_000_000_000
		}, key).Offers(t.Context(), providers.Scope{})
		if err != nil || len(small) != 3 {
			t.Fatalf("%d offers, %v", len(small), err)
		}
		if o := small[0]; o.Zone != "community" || o.Region != "US-TX-3" || o.Parts[1].Price != 100*138_889 || o.Disk != 100_000_000_000 || o.VCPU != 8 || o.Memory != 32_000_000_000 {
			t.Errorf("%+v", o)
		}
	})
}

// TestOddPrices reads floats as they are, leaves out what has no price, and keeps a
// GPU that nobody knows.
func TestOddPrices(t *testing.T) {
	body := `{"gpus": [
		{"id": "ACME ZZ9", "name": "ZZ9", "memory": 512, "secure": true, "price": {"secure": 0.4399999976158142, "community": 0}, "maxCount": {"secure": 8}, "availability": "HIGH"},
		{"id": "NVIDIA RTX 6000 Ada Generation", "name": "RTX 6000 Ada", "memory": 48, "secure": true, "price": {"secure": 7.4e-1}, "maxCount": {"secure": 1}, "availability": "NONE"},
		{"id": "NVIDIA A30", "name": "A30", "memory": 24, "secure": true, "price": {"secure": null}, "maxCount": {"secure": 1}},
		{"id": "NVIDIA A40", "name": "A40", "memory": 48, "secure": false, "price": {"secure": 0.4}, "maxCount": {"secure": 1}}]}`
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) { return reply(r, http.StatusOK, body), nil })}
	a, err := runpod.New("runpod", runpod.Settings{Counts: []int{1}}, runpod.Access{Key: key, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.Offers(t.Context(), providers.Scope{})
	if err != nil || len(got) != 2 {
		t.Fatalf("%d offers, %v", len(got), err)
	}
	if o := got[0]; o.GPU != "" || o.GPUName != "ACME ZZ9" || o.Parts[0].Price != 439_999_998 || o.Available != providers.Open || o.Region != "" {
		t.Errorf("%+v", o)
	}
	if o := got[1]; o.GPU != "rtx-6000-ada" || o.Parts[0].Price != 740_000_000 || o.Available != providers.Full {
		t.Errorf("%+v", o)
	}
}

// TestPages follows a list over more than three pages, through a page that is
// throttled, and holds it to be whole or an error.
func TestPages(t *testing.T) {
	inCloud(t, spot, func(t *testing.T, l *lab, a providers.Provider) {
		for _, id := range []string{"a", "b", "c", "d"} {
			if _, err := a.Launch(t.Context(), request(id, providers.OnDemand)); err != nil {
				t.Fatal(err)
			}
		}
		if all, err := a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("a list that lags shows %d, %v", len(all), err)
		}
		time.Sleep(time.Minute)
		l.fault(t, simapi.Fault{Op: "list", Effect: simapi.Throttle, Nth: 3, RetryAfter: simapi.Duration(2 * time.Second)})
		all, err := a.List(t.Context())
		var ids []string
		for _, i := range all {
			ids = append(ids, i.Tags.Request)
		}
		if slices.Sort(ids); err != nil || !slices.Equal(ids, []string{"a", "b", "c", "d"}) {
			t.Errorf("%v, %v", ids, err)
		}
		l.fault(t, simapi.Fault{Op: "list", Effect: simapi.Unavailable, Times: -1})
		if all, err := a.List(t.Context()); providers.CodeOf(err) != providers.Unavailable || all != nil {
			t.Errorf("%v, %v", all, err)
		}
	})
	for body, want := range map[string]providers.Code{
		`{"pods": []}`: "", // an older deployment: no pages
		`{"pods": [], "pagination": {"nextCursor": null, "hasNextPage": true}}`: providers.Unknown,
		`{"data": []}`: providers.Unknown,
	} {
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) { return reply(r, http.StatusOK, body), nil })}
		a, err := runpod.New("runpod", runpod.Settings{}, runpod.Access{Key: key, Client: client})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.List(t.Context()); providers.CodeOf(err) != want {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestLife follows a pod through its states, and ends it against faults.
func TestLife(t *testing.T) {
	inCloud(t, func(s *runpod.Settings) { s.Network.Proxy = "http://proxy.test:3128" }, func(t *testing.T, l *lab, a providers.Provider) {
		req := request("r1", providers.OnDemand)
		req.Tags.DeleteAt = time.Unix(1_900_000_000, 0).UTC()
		i, err := a.Launch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		got, err := a.Describe(t.Context(), i.Ref)
		if err != nil || got.State != providers.Running || got.Price.String() != "0.44694445" || got.Address == "" || got.Tags != req.Tags || got.Market != req.Market {
			t.Errorf("%+v, %v", got, err)
		}
		in, err := l.world.Inside(worldID(i.Ref.ID))
		if err != nil || !strings.HasPrefix(in.UserData, "#!/bin/sh\nsh -c 'f=$(mktemp); echo ") || in.Machine.Tags["GPUBROKER_TAG_KIND"] != "on-demand" {
			t.Errorf("%q, %v", in.UserData, err)
		}
		for _, effect := range []string{simapi.Internal, simapi.Refuse, simapi.ErrorIn200} {
			l.fault(t, simapi.Fault{Op: "terminate", Effect: effect})
			if err := a.Terminate(t.Context(), i.Ref); providers.CodeOf(err) != providers.Unavailable {
				t.Errorf("terminate with %s: %v", effect, err)
			}
		}
		if got, _ := a.Describe(t.Context(), i.Ref); got.State != providers.Running {
			t.Errorf("after refused ends it is %s", got.State)
		}
		if err := a.Terminate(t.Context(), i.Ref); err != nil {
			t.Fatal(err)
		}
		if err := a.Terminate(t.Context(), i.Ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("terminate of what is gone: %v", err)
		}
	})
}

// TestElsewhere deletes a pod that lands in another data center, and says so when
// it cannot.
func TestElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		status  int
		code    providers.Code
		outcome providers.Outcome
	}{
		"deleted": {http.StatusNoContent, providers.NoCapacity, providers.NotCreated},
		"stays":   {http.StatusInternalServerError, providers.Unavailable, providers.OutcomeUnknown},
	} {
		deleted := ""
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			switch r.Method {
			case http.MethodPost:
				return reply(r, http.StatusCreated, `{"id": "p1", "status": "PROVISIONING", "dataCenterId": "EU-RO-1"}`), nil
			case http.MethodDelete:
				deleted = r.URL.Path
				return reply(r, test.status, ""), nil
			}
			return reply(r, http.StatusOK, `{"pods": []}`), nil
		})}
		a, err := runpod.New("runpod", runpod.Settings{}, runpod.Access{Key: key, Owner: "broker", Client: client})
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.Launch(t.Context(), request("r1", providers.OnDemand))
		if providers.CodeOf(err) != test.code || providers.OutcomeOf(err) != test.outcome || deleted != "/v2/pods/p1" {
			t.Errorf("%s: %v (%s), deleted %q", name, err, providers.OutcomeOf(err), deleted)
		}
	}
}

// TestOutbid follows a spot pod that is taken: stopping by preemption, told to the
// stream, there until it is deleted.
func TestOutbid(t *testing.T) {
	inCloud(t, spot, func(t *testing.T, l *lab, a providers.Provider) {
		i, err := a.Launch(t.Context(), request("r1", providers.Spot))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch, ok := managed.Find[providers.Interrupter](a)
		if !ok {
			t.Fatal("no stream")
		}
		notices, err := watch.Interruptions(ctx)
		if err != nil {
			t.Fatal(err)
		}
		// The price passes the bid.
		if _, err := l.world.Do(simapi.Action{Price: &simapi.Price{Match: simapi.Place{Type: "1x NVIDIA L4", Kind: providers.Spot}, Percent: 200}}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if n := <-notices; n.Ref.ID != i.Ref.ID || n.Ref.Request != "r1" || n.Kind != providers.NoticePreempt || time.Since(start) > 5*time.Second {
			t.Errorf("after %s: %+v", time.Since(start), n)
		}
		got, err := a.Describe(t.Context(), i.Ref)
		if err != nil || got.State != providers.Stopping || got.Cause != providers.CausePreempted || !strings.HasPrefix(got.Message, "Outbid: ") || got.Price != 0 {
			t.Errorf("%+v, %v", got, err)
		}
		time.Sleep(time.Hour)
		if all, err := a.List(t.Context()); err != nil || len(all) != 1 || all[0].Cause != providers.CausePreempted {
			t.Errorf("%+v, %v", all, err)
		}
		// Why is not worth an error.
		l.fault(t, simapi.Fault{Op: "events", Effect: simapi.Unavailable, Times: 2})
		if got, err := a.Describe(t.Context(), i.Ref); err != nil || got.State != providers.Stopping {
			t.Errorf("%+v, %v", got, err)
		}
		if err := a.Terminate(t.Context(), i.Ref); err != nil {
			t.Error(err)
		}
		if err := a.Terminate(t.Context(), i.Ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("terminate of what is gone: %v", err)
		}
		if all, err := a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// TestBound keeps a price bound, and bids no more than the market asks.
func TestBound(t *testing.T) {
	inCloud(t, spot, func(t *testing.T, l *lab, a providers.Provider) {
		for _, kind := range []providers.Kind{providers.Spot, providers.OnDemand} {
			req := request("low-"+string(kind), kind)
			req.PriceMax = money.Rate(money.Unit) / 5
			if _, err := a.Launch(t.Context(), req); providers.CodeOf(err) != providers.PriceTooLow || providers.OutcomeOf(err) != providers.NotCreated {
				t.Errorf("%s: %v", kind, err)
			}
			req = request("high-"+string(kind), kind)
			req.PriceMax = 5 * money.Rate(money.Unit)
			if _, err := a.Launch(t.Context(), req); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
		for _, m := range l.world.Truth() {
			if m.Kind == providers.Spot && m.PriceMax.String() != "0.22694445" {
				t.Errorf("bid %s", m.PriceMax)
			}
		}
	})
}

// TestCauses reads what GraphQL says of pods that have stopped.
func TestCauses(t *testing.T) {
	for words, want := range map[string]providers.Cause{
		"Outbid: Wed Jul 29 2026":                        providers.CausePreempted,
		"Exited by user: Thu Jul 16 2026 16:32:26 GMT":   providers.CauseUser,
		"Exited by Runpod: Fri Jun 19 2026 03:36:49 GMT": providers.CauseUnknown,
		"Something else":                                 providers.CauseUnknown,
	} {
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/graphql" {
				data, err := json.Marshal(map[string]any{"data": map[string]any{"myself": map[string]any{"pods": []any{
					map[string]any{"id": "p1", "name": "broker.r1", "desiredStatus": "EXITED", "lastStatusChange": words},
				}}}})
				return reply(r, http.StatusOK, string(data)), err
			}
			return reply(r, http.StatusOK, `{"id": "p1", "name": "broker.r1", "status": "EXITED", "cloud": "SECURE", "gpu": {"id": "NVIDIA L4", "count": 1}, "env": {"GPUBROKER_TAG_KIND": "spot"}}`), nil
		})}
		a, err := runpod.New("runpod", runpod.Settings{Spot: "graphql"}, runpod.Access{Key: key, Owner: "broker", Client: client})
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.Describe(t.Context(), providers.Ref{ID: "p1", Request: "r1"})
		if err != nil || got.Cause != want || got.State != providers.Stopping || got.Tags.Request != "r1" {
			t.Errorf("%s: %+v, %v", words, got, err)
		}
	}
}

// TestStates reads what the fake never says.
func TestStates(t *testing.T) {
	type seen struct {
		State providers.InstanceState
		Cause providers.Cause
	}
	got := map[string]seen{}
	for _, status := range []string{"PROVISIONING", "STARTING", "RUNNING", "EXITED", "ERROR", "TERMINATED", "DREAMING"} {
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			return reply(r, http.StatusOK, `{"id": "p1", "name": "x", "status": "`+status+`", "cpu": {"id": "cpu5c", "vcpuCount": 4}}`), nil
		})}
		a, err := runpod.New("runpod", runpod.Settings{}, runpod.Access{Key: key, Client: client})
		if err != nil {
			t.Fatal(err)
		}
		i, err := a.Describe(t.Context(), providers.Ref{ID: "p1", Request: "r1"})
		if err != nil || i.Market.Type != "4vcpu cpu5c" {
			t.Errorf("%+v, %v", i, err)
		}
		got[status] = seen{i.State, i.Cause}
	}
	want := map[string]seen{
		"PROVISIONING": {providers.Pending, ""}, "STARTING": {providers.Pending, ""}, "RUNNING": {providers.Running, ""},
		"EXITED": {providers.Stopping, ""}, "ERROR": {providers.Stopping, providers.CauseError},
		"TERMINATED": {providers.Terminated, providers.CauseUser}, "DREAMING": {providers.StateStrange, ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSwitches shows that GraphQL is used where it is switched on, and nowhere else.
func TestSwitches(t *testing.T) {
	for name, test := range map[string]struct {
		edit          func(*runpod.Settings)
		kinds         int
		stream, funds bool
	}{
		"off":     {nil, 1, false, false},
		"balance": {func(s *runpod.Settings) { s.Balance = "graphql" }, 1, false, true},
		"spot":    {spot, 2, true, true},
	} {
		inCloud(t, test.edit, func(t *testing.T, l *lab, a providers.Provider) {
			_, stream := managed.Find[providers.Interrupter](a)
			purse, funds := managed.Find[providers.Balance](a)
			if stream != test.stream || funds != test.funds || len(a.Capabilities().Kinds) != test.kinds {
				t.Errorf("%s: stream %t, funds %t, kinds %v", name, stream, funds, a.Capabilities().Kinds)
			}
			if funds {
				if got, err := purse.Balance(t.Context()); err != nil || got.Left != 100*money.Unit || got.Currency != money.USD {
					t.Errorf("%s: %+v, %v", name, got, err)
				}
			}
			if !stream {
				if _, err := a.Launch(t.Context(), request("r1", providers.Spot)); providers.CodeOf(err) != providers.Unsupported {
					t.Errorf("%s: a spot pod: %v", name, err)
				}
			}
		})
	}
}

func TestPreflight(t *testing.T) {
	inCloud(t, nil, func(t *testing.T, l *lab, _ providers.Provider) {
		for want, a := range map[string]providers.Provider{
			"":                             l.adapter(t, spot, key),
			"read pods: unauthorized":      l.adapter(t, nil, "wrong"),
			"no data center MOON-1":        l.adapter(t, func(s *runpod.Settings) { s.Regions = []string{"MOON-1"} }, key),
			"HTTP 404":                     l.adapter(t, func(s *runpod.Settings) { s.Endpoint = "https://" + host }, key),
			"no host graphql.elsewhere in": l.adapter(t, func(s *runpod.Settings) { s.Spot, s.GraphQL = "graphql", "https://graphql.elsewhere" }, key),
		} {
			check, ok := managed.Find[providers.Preflight](a)
			if !ok {
				t.Fatal("no preflight")
			}
			err := check.Preflight(t.Context())
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	})
}

func TestSettings(t *testing.T) {
	secret := func(string) (string, error) { return key, nil }
	for settings, want := range map[string]string{
		`{"key":"env:K","regions":["US-KS-2"],"clouds":["secure","community"],"counts":[1],"vcpus":[8],"disk":"100GB","spot":"graphql","network":{"proxy":"http://p:3128"}}`: "",
		`{}`: "key is missing", `{"key":"env:K","spot":"rest"}`: "spot", `{"key":"env:K","balance":"yes"}`: "balance",
		`{"key":"env:K","clouds":["dark"]}`: "clouds", `{"key":"env:K","counts":[0]}`: "counts", `{"key":"env:K","vcpus":[3]}`: "power of two",
		`{"key":"env:K","cuda":"12"}`: "cuda", `{"key":"env:K","network":{"subnet":"a"}}`: "subnet", `{"key":"env:K","self_end":"rolling"}`: "self_end",
		`{"key":"env:K","tags":{"a":"b"}}`: "tags", `{"key":"env:K","endpoint":"https://a'b"}`: "endpoint", `{"key":"env:K","disk":"100"}`: "",
	} {
		p, err := runpod.Descriptor().Open(t.Context(), "runpod", json.RawMessage(settings), providers.Env{Secret: secret, Owner: "broker"})
		switch {
		case want == "" && strings.Contains(settings, `"100"`):
			if err == nil {
				t.Errorf("%s: a size without a unit", settings)
			}
		case want == "" && (err != nil || p.Name() != "runpod" || p.Capabilities().Reach != providers.ReachPrivate):
			t.Errorf("%s: %v", settings, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", settings, err, want)
		}
	}
}
