package lambda_test

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/lambda"
)

// document is Lambda's own description of its API, version 1.6.0. It is not ours
// to give away: without it the test is skipped.
const document = "../../../shared/api-samples/gpu-clouds/lambda-cloud-openapi-1.6.0.json"

// checked holds every exchange between adapter and fake to the document.
type checked struct {
	t      *testing.T
	next   http.RoundTripper
	router routers.Router
	calls  map[string]int // by operation and status
}

func (c *checked) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	route, params, err := c.router.FindRoute(r)
	if err != nil {
		c.t.Errorf("%s %s is not in the document: %v", r.Method, r.URL, err)
		return c.next.RoundTrip(r)
	}
	options := &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true}
	in := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route, Options: options}
	if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
		c.t.Errorf("the request breaks the document: %v", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	res, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	_ = res.Body.Close()
	res.Body = io.NopCloser(bytes.NewReader(answer))
	c.calls[route.Operation.OperationID+" "+res.Status[:3]]++
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: res.StatusCode, Header: res.Header, Options: options}
	out.SetBodyBytes(answer)
	if err := openapi3filter.ValidateResponse(r.Context(), out); err != nil {
		c.t.Errorf("%s %s: the answer breaks the document: %v", r.Method, r.URL, err)
	}
	return res, nil
}

// TestDocument holds adapter and fake to Lambda's own document.
func TestDocument(t *testing.T) {
	if _, err := os.Stat(document); err != nil {
		t.Skipf("Lambda's document is not here: %v", err)
	}
	doc, err := openapi3.NewLoader().LoadFromFile(document)
	if err != nil {
		t.Fatal(err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, nil)
	c := &checked{t, l.client.Transport, router, map[string]int{}}
	l.client = &http.Client{Transport: c}
	settings := func(s *lambda.Settings) { s.Endpoint, s.Image = oldBase, anyImage }
	a := l.adapter(t, settings, key)
	if _, err := a.Offers(t.Context(), providers.Scope{}); err != nil {
		t.Error(err)
	}
	if err := a.Preflight(t.Context()); err != nil {
		t.Error(err)
	}
	i, err := a.Launch(t.Context(), request("r1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, effect := range []string{simapi.NoCapacity, simapi.Quota, simapi.Invalid, simapi.Denied, simapi.NoFunds} {
		l.fault(t, simapi.Fault{Op: "launch", Effect: effect})
		if _, err := a.Launch(t.Context(), request("r-"+effect)); err == nil {
			t.Errorf("%s did not come", effect)
		}
	}
	strange := request("strange")
	strange.Market.Type = "no-such-type"
	if _, err := a.Launch(t.Context(), strange); err == nil {
		t.Error("a type that is not there")
	}
	_ = l.adapter(t, settings, "wrong").Preflight(t.Context())
	if _, err := a.Describe(t.Context(), i.Ref); err != nil {
		t.Error(err)
	}
	if err := a.Terminate(t.Context(), i.Ref); err != nil {
		t.Error(err)
	}
	_, _ = a.Describe(t.Context(), providers.Ref{ID: "0123", Request: "x"})
	_ = a.Terminate(t.Context(), providers.Ref{ID: "0123", Request: "x"})
	for _, call := range []string{
		"listInstanceTypes 200", "listSSHKeys 200", "listSSHKeys 401", "listImages 200", "listInstances 200", "getInstance 200", "getInstance 404",
		"launchInstance 200", "launchInstance 400", "launchInstance 401", "launchInstance 403", "launchInstance 404",
		"terminateInstance 200", "terminateInstance 404",
	} {
		if c.calls[call] == 0 {
			t.Errorf("%s was not seen: %v", call, c.calls)
		}
	}
}
