package runpod_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/providers"
	"gpubroker/providers/runpod"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func reply(r *http.Request, status int, body string, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{
		StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r, ContentLength: -1, ProtoMajor: 1, ProtoMinor: 1,
	}
}

// refusing is an adapter whose account is empty and whose changes all fail.
func refusing(t *testing.T, status int, body string, header ...string) providers.Provider {
	t.Helper()
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet {
			return reply(r, http.StatusOK, `{"pods": []}`), nil
		}
		if r.URL.Path == "/graphql" {
			asked, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			if bytes.Contains(asked, []byte("lowestPrice")) {
				return reply(r, http.StatusOK, `{"data": {"gpuTypes": [{"id": "NVIDIA L4", "lowestPrice": {"minimumBidPrice": 0.22, "stockStatus": "High"}}]}}`), nil
			}
		}
		return reply(r, status, body, header...), nil
	})}
	a, err := runpod.New("runpod", runpod.Settings{Spot: "graphql"}, runpod.Access{Key: key, Owner: "broker", Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func request(id string, kind providers.Kind) providers.LaunchRequest {
	m := providers.Market{Provider: "runpod", Region: "US-KS-2", Zone: "secure", Type: "1x NVIDIA L4", Kind: kind}
	if kind == providers.Spot {
		m.Region = ""
	}
	return providers.LaunchRequest{
		Request: id, Market: m, UserData: "#!/bin/sh\necho hello\n",
		Tags: providers.Tags{Owner: "broker", Generation: "g1", Request: id, Project: "media"},
	}
}

func TestErrorTable(t *testing.T) {
	type means struct {
		Code    providers.Code
		Scope   providers.ErrScope
		Outcome providers.Outcome
	}
	want := map[string]means{
		"rest-400-no-instances.json":    {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
		"rest-400-no-resources.json":    {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
		"rest-400-spend-limit.json":     {providers.QuotaExceeded, providers.ScopeProvider, providers.NotCreated},
		"rest-400-unheard-of.json":      {providers.Unknown, providers.ScopeOffer, providers.NotCreated},
		"rest-401-missing-token.json":   {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
		"rest-402-balance.json":         {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
		"rest-403-access-denied.json":   {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
		"rest-403-pool.json":            {providers.Unsupported, providers.ScopeFamily, providers.NotCreated},
		"rest-404-pod.json":             {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
		"rest-404-elsewhere.txt":        {providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown},
		"rest-409-busy.json":            {providers.Unavailable, providers.ScopeOffer, providers.NotCreated},
		"rest-418-unheard-of.json":      {providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown},
		"rest-422-validation.json":      {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
		"rest-429-minute.json":          {providers.RateLimited, providers.ScopeProvider, providers.NotCreated},
		"rest-500-internal.json":        {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		"rest-502-proxy.html":           {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		"rest-503-unavailable.json":     {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		"rest-200-error-inside.json":    {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		"graphql-200-no-instances.json": {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
		"graphql-200-no-disk.json":      {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
		"graphql-200-low-bid.json":      {providers.PriceTooLow, providers.ScopeOffer, providers.NotCreated},
		"graphql-200-balance.json":      {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
		"graphql-200-validation.json":   {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
		"graphql-200-bad-input.json":    {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
		"graphql-200-internal.json":     {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		"graphql-200-unheard-of.json":   {providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown},
		"graphql-200-nothing.json":      {providers.NoCapacity, providers.ScopeOffer, providers.OutcomeUnknown},
		"graphql-401-unauthorized.json": {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	}
	files, err := filepath.Glob("testdata/errors/[a-z]*")
	if err != nil || len(files) != len(want) {
		t.Fatalf("%d bodies, %d expectations, %v", len(files), len(want), err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			api, rest, _ := strings.Cut(name, "-")
			status, err := strconv.Atoi(rest[:3])
			if err != nil {
				t.Fatal(err)
			}
			kind := providers.OnDemand
			if api == "graphql" {
				kind = providers.Spot
			}
			req := request("r1", kind)
			_, err = refusing(t, status, string(body)).Launch(t.Context(), req)
			e, ok := errors.AsType[*providers.Error](err)
			if !ok {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(want[name], means{e.Code, e.Scope, e.Outcome}); diff != "" {
				t.Errorf("%v: %s", err, diff)
			}
			if e.Provider != "runpod" || e.Op != "launch" || e.Target != req.Market.String() || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is %q", err)
			}
		})
	}
}

// TestPace reads how long to wait from either header.
func TestPace(t *testing.T) {
	const body = `{"title": "Too Many Requests", "status": 429, "detail": "rate limit exceeded for the minute window"}`
	for name, test := range map[string]struct {
		header []string
		want   time.Duration
	}{
		"retry-after": {[]string{"Retry-After", "12", "RateLimit", `"minute";r=0;t=99`}, 12 * time.Second},
		"windows":     {[]string{"RateLimit", `"minute";r=0;t=12, "hour";r=0;t=1812, "day";r=49500;t=45012`}, 1812 * time.Second},
		"long":        {[]string{"RateLimit", `"day";r=0;t=45012`}, time.Hour},
		"none":        {nil, 0},
		"spoilt":      {[]string{"RateLimit", `soon`}, 0},
	} {
		_, err := refusing(t, http.StatusTooManyRequests, body, test.header...).Launch(t.Context(), request("r1", providers.OnDemand))
		if e, ok := errors.AsType[*providers.Error](err); !ok || e.Code != providers.RateLimited || e.RetryAfter != test.want {
			t.Errorf("%s: %v after %s", name, err, e.RetryAfter)
		}
	}
}

// TestGone says which not-found ends a pod: a problem of the API, and nothing else.
func TestGone(t *testing.T) {
	for body, want := range map[string]providers.Code{
		`{"title": "Not Found", "status": 404, "detail": "pod not found"}`: providers.NotFound,
		"404 page not found": providers.Unknown,
		"{}":                 providers.Unknown,
	} {
		err := refusing(t, http.StatusNotFound, body).Terminate(t.Context(), providers.Ref{ID: "i", Request: "r"})
		if got := providers.CodeOf(err); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}
