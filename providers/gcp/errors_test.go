package gcp_test

import (
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
	"gpubroker/providers/gcp"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answering is an adapter whose cloud knows no machine and answers every insert
// with the same.
func answering(t *testing.T, status int, header http.Header, body string) *gcp.Adapter {
	t.Helper()
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r, ContentLength: -1, ProtoMajor: 1, ProtoMinor: 1}
		text := `{"kind": "compute#instanceAggregatedList"}`
		if r.Method == http.MethodPost {
			res.StatusCode, res.Header, text = status, header, body
		}
		res.Body = io.NopCloser(strings.NewReader(text))
		return res, nil
	})}
	a, err := gcp.New("gcp", gcp.Settings{Project: "my-project", Endpoint: "http://cloud.test", Anonymous: true}, gcp.Access{Owner: "broker", Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func launch(request, zone, typ string, kind providers.Kind) providers.LaunchRequest {
	region := zone[:strings.LastIndex(zone, "-")]
	return providers.LaunchRequest{
		Request: request, Market: providers.Market{Provider: "gcp", Region: region, Zone: zone, Type: typ, Kind: kind}, UserData: "#!/bin/sh\n",
		Life: 2 * time.Hour, Tags: providers.Tags{Owner: "broker", Generation: "g1", Request: request, Project: "Team A"},
	}
}

func TestErrorTable(t *testing.T) {
	type row struct {
		Code    providers.Code
		Scope   providers.ErrScope
		Outcome providers.Outcome
	}
	broken := row{providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown}
	unknown := row{providers.Unknown, providers.ScopeProvider, providers.OutcomeUnknown}
	denied := row{providers.Unauthorized, providers.ScopeProvider, providers.NotCreated}
	throttled := row{providers.RateLimited, providers.ScopeProvider, providers.NotCreated}
	full := row{providers.NoCapacity, providers.ScopeOffer, providers.NotCreated}
	quota := row{providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated}
	invalid := row{providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated}
	want := map[string]row{
		"403-quotaExceeded.json":                            quota,
		"403-rateLimitExceeded.json":                        throttled,
		"429-RATE_LIMIT_EXCEEDED.json":                      throttled,
		"401-authError.json":                                denied,
		"403-accessNotConfigured.json":                      denied,
		"403-forbidden.json":                                denied,
		"403-BILLING_DISABLED.json":                         {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
		"404-notFound.json":                                 {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated}, // of an insert: the zone or the project
		"409-alreadyExists.json":                            {providers.Conflict, providers.ScopeOffer, providers.OutcomeUnknown},
		"400-invalid.json":                                  invalid,
		"400-resourceNotReady.json":                         {providers.Unavailable, providers.ScopeOffer, providers.NotCreated},
		"412-conditionNotMet.json":                          invalid,
		"503-stockout.json":                                 full,
		"503-backendError.json":                             broken,
		"500-internalError.json":                            broken,
		"200-backendError.json":                             broken,
		"418-wordOfTomorrow.json":                           unknown,
		"502-proxy.html":                                    broken,
		"200-truncated.json":                                broken,
		"200-empty.json":                                    broken,
		"op-ZONE_RESOURCE_POOL_EXHAUSTED.json":              full,
		"op-ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS.json": full,
		"op-QUOTA_EXCEEDED.json":                            quota,
		"op-RESOURCE_OPERATION_RATE_EXCEEDED.json":          throttled,
		"op-UNSUPPORTED_OPERATION.json":                     {providers.Unsupported, providers.ScopeFamily, providers.NotCreated},
		"op-INTERNAL_ERROR.json":                            broken,
		"op-WORD_OF_TOMORROW.json":                          {providers.Unknown, providers.ScopeOffer, providers.OutcomeUnknown},
	}
	files, err := filepath.Glob("testdata/errors/*-*")
	if err != nil || len(files) != len(want) {
		t.Fatalf("%d bodies for %d rows, %v", len(files), len(want), err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		status, _, _ := strings.Cut(name, "-")
		code, err := strconv.Atoi(status)
		if err != nil {
			code = http.StatusOK
		}
		_, err = answering(t, code, http.Header{}, string(body)).Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.Spot))
		e, ok := errors.AsType[*providers.Error](err)
		if !ok {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want[name], row{e.Code, e.Scope, e.Outcome}); diff != "" {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
		if strings.Contains(err.Error(), "\n") || e.Provider != "gcp" || e.Op != "launch" || !strings.Contains(e.Target, "g2-standard-8") {
			t.Errorf("%s: %q", name, err)
		}
	}
	header := http.Header{"Retry-After": {"7"}}
	_, err = answering(t, 429, header, `{"error": {"code": 429, "message": "slow", "errors": [{"reason": "rateLimitExceeded"}]}}`).Launch(t.Context(), launch("r1", "us-central1-a", "g2-standard-8", providers.Spot))
	if e, ok := errors.AsType[*providers.Error](err); !ok || e.RetryAfter != 7*time.Second {
		t.Errorf("with Retry-After: %v", err)
	}
}
