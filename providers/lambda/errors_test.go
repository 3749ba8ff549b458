package lambda_test

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

	"github.com/google/go-cmp/cmp"

	"gpubroker/providers"
	"gpubroker/providers/lambda"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func reply(r *http.Request, status int, body []byte) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)),
		Request: r, ContentLength: -1, ProtoMajor: 1, ProtoMinor: 1,
	}
}

// refusing is an adapter whose account is empty and whose changes all fail.
func refusing(t *testing.T, status int, body []byte) *lambda.Adapter {
	t.Helper()
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet {
			return reply(r, http.StatusOK, []byte(`{"data": []}`)), nil
		}
		return reply(r, status, body), nil
	})}
	a, err := lambda.New("lambda", lambda.Settings{SSHKey: "k"}, lambda.Access{Key: key, Owner: "broker", Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func request(id string) providers.LaunchRequest {
	return providers.LaunchRequest{
		Request: id, Market: market, UserData: "#!/bin/sh\n",
		Tags: providers.Tags{Owner: "broker", Generation: "g1", Request: id, Project: "media"},
	}
}

var market = providers.Market{Provider: "lambda", Region: "us-east-1", Type: "gpu_1x_a10", Kind: providers.OnDemand}

func TestErrorTable(t *testing.T) {
	type means struct {
		Code    providers.Code
		Scope   providers.ErrScope
		Outcome providers.Outcome
	}
	want := map[string]means{
		"400-insufficient-capacity.json":       {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
		"400-quota-exceeded.json":              {providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated},
		"400-invalid-parameters.json":          {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
		"400-file-system-in-wrong-region.json": {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
		"401-invalid-api-key.json":             {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
		"403-account-inactive.json":            {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
		"403-invalid-address.json":             {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
		"403-forbidden.json":                   {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
		// A launch names a key, an image or a type that is not there.
		"404-object-does-not-exist.json": {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
		"404-not-found.json":             {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
		"409-conflict.json":              {providers.Unavailable, providers.ScopeOffer, providers.NotCreated},
		"409-duplicate.json":             {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
		"500-internal-error.json":        {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		"503-provider-unavailable.json":  {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		"400-provider-quota.json":        {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		"400-unheard-of.json":            {providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown},
		"200-error-inside.json":          {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		"429-edge.txt":                   {providers.RateLimited, providers.ScopeProvider, providers.NotCreated},
		"502-proxy.html":                 {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
		"301-moved.html":                 {providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown},
		"404-elsewhere.html":             {providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown},
	}
	files, err := filepath.Glob("testdata/errors/[0-9]*")
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
			status, err := strconv.Atoi(name[:3])
			if err != nil {
				t.Fatal(err)
			}
			_, err = refusing(t, status, body).Launch(t.Context(), request("r1"))
			e, ok := errors.AsType[*providers.Error](err)
			if !ok {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(want[name], means{e.Code, e.Scope, e.Outcome}); diff != "" {
				t.Errorf("%v: %s", err, diff)
			}
			if e.Provider != "lambda" || e.Op != "launch" || e.Target != market.String() || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is %q", err)
			}
		})
	}
}

// TestGone says which not-found ends a machine: the API's own word on it, and
// nothing else.
func TestGone(t *testing.T) {
	for body, want := range map[string]providers.Code{
		`{"error":{"code":"global/object-does-not-exist","message":"Specified instance does not exist."}}`: providers.NotFound,
		`{"error":{"code":"global/not-found","message":"The requested resource was not found."}}`:          providers.InvalidRequest,
		`<html>Not Found</html>`: providers.Unknown,
		``:                       providers.Unknown,
	} {
		err := refusing(t, http.StatusNotFound, []byte(body)).Terminate(t.Context(), providers.Ref{ID: "i", Request: "r"})
		if got := providers.CodeOf(err); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}
