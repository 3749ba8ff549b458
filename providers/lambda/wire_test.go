package lambda_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/lambda"
)

func inCloud(t *testing.T, f func(t *testing.T, l *lab, a *lambda.Adapter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		f(t, l, l.adapter(t, nil, key))
	})
}

func (l *lab) fault(t *testing.T, f simapi.Fault) {
	t.Helper()
	if err := l.world.AddFault(f); err != nil {
		t.Fatal(err)
	}
}

// TestLaunchFaults tries every way in which a launch goes wrong, and that asking
// again ends with one machine.
func TestLaunchFaults(t *testing.T) {
	d := func(d time.Duration) simapi.Duration { return simapi.Duration(d) }
	for name, test := range map[string]struct {
		fault   simapi.Fault
		code    providers.Code
		outcome providers.Outcome
		after   time.Duration
		created bool
	}{
		"capacity":         {simapi.Fault{Effect: simapi.NoCapacity}, providers.NoCapacity, providers.NotCreated, 0, false},
		"quota":            {simapi.Fault{Effect: simapi.Quota}, providers.QuotaExceeded, providers.NotCreated, 0, false},
		"throttled":        {simapi.Fault{Effect: simapi.Throttle}, providers.RateLimited, providers.NotCreated, 12 * time.Second, false},
		"throttled, told":  {simapi.Fault{Effect: simapi.Throttle, RetryAfter: d(40 * time.Second)}, providers.RateLimited, providers.NotCreated, 40 * time.Second, false},
		"expired key":      {simapi.Fault{Effect: simapi.Denied}, providers.Unauthorized, providers.NotCreated, 0, false},
		"no funds":         {simapi.Fault{Effect: simapi.NoFunds}, providers.NoFunds, providers.NotCreated, 0, false},
		"unavailable":      {simapi.Fault{Effect: simapi.Unavailable}, providers.Unavailable, providers.OutcomeUnknown, 0, false},
		"error":            {simapi.Fault{Effect: simapi.Internal}, providers.Unavailable, providers.OutcomeUnknown, 0, false},
		"proxy":            {simapi.Fault{Effect: simapi.Proxy}, providers.Unavailable, providers.OutcomeUnknown, 0, false},
		"error in 200":     {simapi.Fault{Effect: simapi.ErrorIn200}, providers.Unavailable, providers.OutcomeUnknown, 0, false},
		"dropped before":   {simapi.Fault{Effect: simapi.Drop}, providers.Unavailable, providers.OutcomeUnknown, 0, false},
		"dropped after":    {simapi.Fault{Effect: simapi.DropAfter}, providers.Unavailable, providers.OutcomeUnknown, 0, true},
		"error after":      {simapi.Fault{Effect: simapi.InternalAfter}, providers.Unavailable, providers.OutcomeUnknown, 0, true},
		"half an answer":   {simapi.Fault{Effect: simapi.Truncate}, providers.Unavailable, providers.OutcomeUnknown, 0, true},
		"no answer before": {simapi.Fault{Effect: simapi.Hang}, providers.DeadlineExceed, providers.OutcomeUnknown, 0, false},
		"no answer after":  {simapi.Fault{Effect: simapi.Slow, Delay: d(time.Hour)}, providers.DeadlineExceed, providers.OutcomeUnknown, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			inCloud(t, func(t *testing.T, l *lab, a *lambda.Adapter) {
				test.fault.Op = "launch"
				l.fault(t, test.fault)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				_, err := a.Launch(ctx, request("r1"))
				e, ok := errors.AsType[*providers.Error](err)
				if !ok || e.Code != test.code || e.Outcome != test.outcome || e.RetryAfter != test.after {
					t.Fatalf("%v: %s, retry after %s", err, providers.OutcomeOf(err), e.RetryAfter)
				}
				if got := len(l.world.Truth()) == 1; got != test.created {
					t.Errorf("instance created: %t, want %t", got, test.created)
				}
				// At once the list does not show it yet; later it does.
				if _, err := a.Launch(t.Context(), request("r1")); err != nil && providers.CodeOf(err) != providers.Conflict {
					t.Errorf("second try: %v", err)
				}
				time.Sleep(time.Minute)
				if _, err := a.Launch(t.Context(), request("r1")); err != nil {
					t.Errorf("third try: %v", err)
				}
				if n := len(l.world.Truth()); n != 1 {
					t.Errorf("%d instances", n)
				}
			})
		})
	}
}

// TestQuotas meets the world's own limits of capacity and account.
func TestQuotas(t *testing.T) {
	inCloud(t, func(t *testing.T, l *lab, a *lambda.Adapter) {
		try := func(id, region, typ string) providers.Code {
			req := request(id)
			req.Market.Region, req.Market.Type = region, typ
			_, err := a.Launch(t.Context(), req)
			return providers.CodeOf(err)
		}
		got := []providers.Code{
			try("a", "us-south-1", "gpu_1x_a10"), // sold out there
			try("b", "us-east-1", "gpu_8x_a100"), try("c", "us-east-1", "gpu_8x_a100"),
			try("d", "us-south-1", "gpu_8x_a100"), try("e", "us-east-1", "gpu_8x_h100_sxm5"), // 32 GPUs
			try("f", "us-east-1", "gpu_1x_a10"),
			try("g", "us-east-1", "no-such-type"),
		}
		want := []providers.Code{providers.NoCapacity, "", "", "", "", providers.QuotaExceeded, providers.InvalidRequest}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOffers(t *testing.T) {
	inCloud(t, func(t *testing.T, l *lab, a *lambda.Adapter) {
		all, err := a.Offers(t.Context(), providers.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		by := map[string]providers.Offer{}
		for _, o := range all {
			by[o.Region+"/"+o.Type] = o
		}
		for _, o := range l.world.Offers("", 0) { // the adapter's sum is the world's price
			got := by[o.Region+"/"+o.Type]
			if got.Price != o.Price || got.GPU != o.GPU || got.GPUs != o.GPUs || got.Arch != o.Arch || got.Disk != o.Disk {
				t.Errorf("%s: %+v", o.Place, got)
			}
			if got.Available != o.Available {
				t.Errorf("%s is %s, not %s", o.Place, got.Available, o.Available)
			}
		}
		if got := by["us-east-2/gpu_1x_a10"].Available; got != providers.Full {
			t.Errorf("a region without capacity is %q", got)
		}
		some, err := l.adapter(t, func(s *lambda.Settings) { s.Regions = []string{"us-west-1"} }, key).Offers(t.Context(), providers.Scope{})
		if err != nil || len(some) != 7 || some[0].Region != "us-west-1" {
			t.Errorf("%d offers in one region, %v", len(some), err)
		}
	})
}

// TestUnpriced leaves out what has no price, and keeps a GPU that nobody knows.
func TestUnpriced(t *testing.T) {
	body := `{"data": {
		"gpu_1x_zz9": {"instance_type": {"name": "gpu_1x_zz9", "gpu_description": "ZZ9 (512 GB)", "price_cents_per_hour": 150, "specs": {"vcpus": 8, "memory_gib": 64, "storage_gib": 512, "gpus": 1}}, "regions_with_capacity_available": [{"name": "moon-1", "description": "Moon"}]},
		"free": {"instance_type": {"name": "free", "gpu_description": "A10 (24 GB PCIe)", "price_cents_per_hour": 0, "specs": {"gpus": 1}}, "regions_with_capacity_available": []},
		"odd": {"instance_type": {"name": "odd", "gpu_description": "A10 (24 GB PCIe)", "price_cents_per_hour": 12.5, "specs": {"gpus": 1}}, "regions_with_capacity_available": []}}}`
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) { return reply(r, http.StatusOK, []byte(body)), nil })}
	a, err := lambda.New("lambda", lambda.Settings{SSHKey: "k"}, lambda.Access{Key: key, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.Offers(t.Context(), providers.Scope{Region: "moon-1"})
	if err != nil || len(got) != 1 {
		t.Fatalf("%d offers, %v", len(got), err)
	}
	if o := got[0]; o.GPU != "" || o.GPUName != "ZZ9 (512 GB)" || o.GPUMemory != 512<<30 || o.Price.String() != "1.50" || o.Available != providers.Open {
		t.Errorf("%+v", o)
	}
}

// TestLife follows an instance through its states, and ends it against faults.
func TestLife(t *testing.T) {
	inCloud(t, func(t *testing.T, l *lab, a *lambda.Adapter) {
		i, err := a.Launch(t.Context(), request("r1"))
		if err != nil {
			t.Fatal(err)
		}
		if all, err := a.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("a list that lags shows %d, %v", len(all), err)
		}
		time.Sleep(5 * time.Second)
		got, err := a.Describe(t.Context(), i.Ref)
		if err != nil || got.State != providers.Running || got.Price.String() != "1.29" || got.Address == "" || !got.Launched.Equal(i.Launched) {
			t.Errorf("%+v, %v", got, err)
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
		if got, _ := a.Describe(t.Context(), i.Ref); got.State != providers.Stopping || got.Cause != providers.CauseUser {
			t.Errorf("it is %s by %q", got.State, got.Cause)
		}
		time.Sleep(time.Minute)
		if err := a.Terminate(t.Context(), i.Ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("terminate of what is gone: %v", err)
		}
	})
}

// TestStates reads what the fake never says.
func TestStates(t *testing.T) {
	for status, want := range map[string]providers.Instance{
		"unhealthy": {State: providers.Running, Message: "Lambda's health checks fail"},
		"preempted": {State: providers.Terminated, Cause: providers.CausePreempted},
		"dreaming":  {State: providers.StateStrange},
	} {
		body, err := json.Marshal(map[string]any{"data": map[string]any{"id": "i-1", "status": status}})
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) { return reply(r, http.StatusOK, body), nil })}
		a, err := lambda.New("lambda", lambda.Settings{SSHKey: "k"}, lambda.Access{Key: key, Client: client})
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.Describe(t.Context(), providers.Ref{ID: "i-1", Request: "r"})
		if err != nil || got.State != want.State || got.Cause != want.Cause || got.Message != want.Message {
			t.Errorf("%s: %+v, %v", status, got, err)
		}
	}
}

// TestLabels keeps long labels where there are tags, and refuses them where there
// is only a name.
func TestLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, nil)
		long := request("r1")
		long.Tags.Project = strings.Repeat("visual_effects.", 5)
		long.Tags.DeleteAt = time.Unix(1_900_000_000, 0).UTC()
		tagged := l.adapter(t, func(s *lambda.Settings) { s.Tags = map[string]string{"team": "research"} }, key)
		if _, err := tagged.Launch(t.Context(), long); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		all, err := tagged.List(t.Context())
		if err != nil || len(all) != 1 || all[0].Tags != long.Tags {
			t.Errorf("%+v, %v", all, err)
		}
		if tags := l.world.Truth()[0].Tags; tags["team"] != "research" || len(tags["name"]) > 64 {
			t.Errorf("the instance bears %v", tags)
		}
		named := l.adapter(t, func(s *lambda.Settings) { s.Labels = "name" }, key)
		long.Request, long.Tags.Request = "r2", "r2"
		_, err = named.Launch(t.Context(), long)
		if providers.CodeOf(err) != providers.InvalidRequest || providers.OutcomeOf(err) != providers.NotCreated {
			t.Errorf("a label that does not fit: %v", err)
		}
		odd := request("r3_.-x")
		odd.Tags.Request, odd.Tags.Project, odd.Tags.DeleteAt = "r3_.-x", "a_b..-c", long.Tags.DeleteAt
		i, err := named.Launch(t.Context(), odd)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := named.Describe(t.Context(), i.Ref); err != nil || got.Tags != odd.Tags || got.Launched.IsZero() {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestPreflight(t *testing.T) {
	inCloud(t, func(t *testing.T, l *lab, _ *lambda.Adapter) {
		for want, a := range map[string]*lambda.Adapter{
			"":                          l.adapter(t, func(s *lambda.Settings) { s.Image = anyImage }, key),
			"no SSH key named other":    l.adapter(t, func(s *lambda.Settings) { s.SSHKey = "other" }, key),
			"family or id windows":      l.adapter(t, func(s *lambda.Settings) { s.Image = "windows" }, key),
			"global/invalid-api-key":    l.adapter(t, nil, "wrong"),
			"requested resource was":    l.adapter(t, func(s *lambda.Settings) { s.Endpoint = "https://" + host }, key),
			"no host elsewhere.test in": l.adapter(t, func(s *lambda.Settings) { s.Endpoint = "https://elsewhere.test/api/v1" }, key),
		} {
			err := a.Preflight(t.Context())
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	})
}

func TestSettings(t *testing.T) {
	secret := func(string) (string, error) { return key, nil }
	for settings, want := range map[string]string{
		`{"key":"env:K","ssh_key":"k","regions":["us-east-1"],"image":"lambda-stack-24-04","tags":{"team":"x"},"network":{"proxy":"http://p:3128"}}`: "",
		`{"ssh_key":"k"}`: "key is missing", `{"key":"env:K"}`: "ssh_key is missing",
		`{"key":"env:K","ssh_key":"k","disk":"100GiB"}`:                   "disk",
		`{"key":"env:K","ssh_key":"k","network":{"subnet":"a"}}`:          "no subnets",
		`{"key":"env:K","ssh_key":"k","tags":{"Team":"x"}}`:               "tag",
		`{"key":"env:K","ssh_key":"k","tags":{"gpubroker-owner":"x"}}`:    "tag",
		`{"key":"env:K","ssh_key":"k","labels":"sticker"}`:                "labels",
		`{"key":"env:K","ssh_key":"k","labels":"name","tags":{"ab":"c"}}`: "tags need",
		`{"key":"env:K","ssh_key":"k","endpoint":"cloud.lambda.ai"}`:      "endpoint",
	} {
		p, err := lambda.Descriptor().Open(t.Context(), "lambda", json.RawMessage(settings), providers.Env{Secret: secret, Owner: "broker"})
		switch {
		case want == "" && (err != nil || p.Name() != "lambda" || p.Capabilities().Reach != providers.ReachPrivate):
			t.Errorf("%s: %v", settings, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", settings, err, want)
		}
	}
}

// TestProxy gives a machine's script the proxy of the settings.
func TestProxy(t *testing.T) {
	inCloud(t, func(t *testing.T, l *lab, _ *lambda.Adapter) {
		a := l.adapter(t, func(s *lambda.Settings) { s.Network.Proxy = "http://proxy.test:3128" }, key)
		i, err := a.Launch(t.Context(), request("r1"))
		if err != nil {
			t.Fatal(err)
		}
		in, err := l.world.Inside(l.worldID(i.Ref.ID))
		if err != nil || !strings.Contains(in.UserData, "http://proxy.test:3128") || !strings.HasPrefix(in.UserData, "#!/bin/sh\n") {
			t.Errorf("%q, %v", in.UserData, err)
		}
	})
}
