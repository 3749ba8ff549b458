package azure_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	cloud "gpubroker/internal/simcloud"
	fake "gpubroker/internal/simcloud/dialects/azure"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
	"gpubroker/providers/azure"
	"gpubroker/providers/providertest"
)

const (
	host   = "azure.test"
	secret = "s3cret-of-the-application"
)

func TestConformance(t *testing.T) {
	providertest.Run(t, providertest.Harness{
		Bubble:     true,
		New:        func(t testing.TB) providertest.Account { return newRig(t).account(t) },
		Deviations: providertest.Deviations(t),
	})
}

// rig is a world of Azure and an adapter at it, over TLS in memory.
type rig struct {
	w    *cloud.World
	fake *fake.Cloud
	net  *simtest.Net
	api  http.Handler
	a    *azure.Adapter

	mu    sync.Mutex
	calls []call
	// front answers a call in the cloud's place where it returns true.
	front func(http.ResponseWriter, *http.Request) bool
}

// call is a request that reached the cloud.
type call struct {
	method, path, query string
	header              http.Header
	body                []byte
}

// ServeHTTP stands before the cloud.
func (r *rig) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	req.Body = io.NopCloser(bytes.NewReader(body))
	r.mu.Lock()
	r.calls = append(r.calls, call{req.Method, req.URL.Path, req.URL.RawQuery, req.Header, body})
	front := r.front
	r.mu.Unlock()
	if front == nil || !front(rw, req) {
		r.api.ServeHTTP(rw, req)
	}
}

// intercept has calls of a method to paths with an ending answered with so many
// times the same.
func (r *rig) intercept(method, ending string, times, status int, body string, header ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.front = func(rw http.ResponseWriter, req *http.Request) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if req.Method != method || !strings.HasSuffix(req.URL.Path, ending) || times == 0 {
			return false
		}
		times--
		for i := 0; i+1 < len(header); i += 2 {
			rw.Header().Set(header[i], header[i+1])
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, body)
		return true
	}
}

// seen are the calls of a method to paths with an ending.
func (r *rig) seen(method, ending string) []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []call
	for _, c := range r.calls {
		if c.method == method && strings.HasSuffix(c.path, ending) {
			out = append(out, c)
		}
	}
	return out
}

func settings() azure.Settings {
	return azure.Settings{
		Subscription: fake.Subscription, Tenant: fake.Tenant, ClientID: fake.ClientID,
		Regions: []string{"eastus", "westeurope"}, Sizes: []string{"Standard_D8as_v5"},
		ConsoleLog: true,
		Endpoint:   "https://" + host, Login: "https://" + host, Prices: "https://" + host,
	}
}

func newRig(t testing.TB, edits ...func(*cloud.Config)) *rig {
	t.Helper()
	r := &rig{fake: fake.New(), net: simtest.NewNet(t)}
	cfg := fake.Default(1)
	cfg.Tokens.API = secret
	cfg.Dialect = r.fake.Dialect()
	for _, edit := range edits {
		edit(&cfg)
	}
	w, err := cloud.New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	r.w, r.api = w, cloud.Dialected(w)
	r.net.ServeTLS(host, r)
	r.a = r.open(t, settings())
	return r
}

func (r *rig) open(t testing.TB, s azure.Settings) *azure.Adapter {
	t.Helper()
	a, err := azure.New("azure", s, azure.Access{Secret: secret, Owner: "broker", Client: r.net.Client()})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (r *rig) account(t testing.TB) providertest.Account {
	return providertest.Account{
		Provider: r.a, Owner: "broker", Secrets: []string{secret},
		Reopen: func() providers.Provider { return r.open(t, settings()) },
		Inject: simtest.Inject(r.w),
		Outsider: func() error {
			other, err := azure.New("azure", settings(), azure.Access{Secret: secret, Owner: "somebody-else", Client: r.net.Client()})
			if err != nil {
				return err
			}
			o := r.w.Offers("", 0)[0]
			_, err = other.Launch(t.Context(), providers.LaunchRequest{
				Request: "outsider", Tags: providers.Tags{Owner: "somebody-else", Request: "outsider"},
				Market: providers.Market{Provider: "azure", Region: o.Region, Zone: o.Zone, Type: o.Type, Kind: o.Kind},
			})
			return err
		},
		Preempt: simtest.Preempt(r.w, r.fake.Machine),
	}
}

// request asks for the cheapest spot machine that the world sells in a region.
func request(id string) providers.LaunchRequest {
	return providers.LaunchRequest{
		Request: id, UserData: "#!/bin/sh\n:\n", PriceMax: 1_000_000_000,
		Market: providers.Market{Provider: "azure", Region: "eastus", Zone: "1", Type: "Standard_NC4as_T4_v3", Kind: providers.Spot},
		Tags:   providers.Tags{Owner: "broker", Generation: "g1", Request: id, Project: "p", DeleteAt: time.Unix(2_000_000_000, 0).UTC()},
	}
}

func addFault(t testing.TB, w *cloud.World, f simapi.Fault) {
	t.Helper()
	if err := w.AddFault(f); err != nil {
		t.Fatal(err)
	}
}
