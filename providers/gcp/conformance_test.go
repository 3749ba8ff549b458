package gcp_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"sync"
	"testing"

	cloud "gpubroker/internal/simcloud"
	fake "gpubroker/internal/simcloud/dialects/gcp"
	"gpubroker/internal/simcloud/dialects/gcp/discovery"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/internal/simcloud/simtest"
	"gpubroker/providers"
	"gpubroker/providers/gcp"
	"gpubroker/providers/providertest"
)

const (
	token = "ya29.test-token-of-the-project"
	base  = "https://googleapis.test"
)

// keyFile is a service account's, whose tokens the fake gives. Its key is made
// once: it takes longer than a test.
var keyFile = sync.OnceValue(func() string {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	data, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": fake.Project, "private_key_id": "k1", "client_id": "1",
		"private_key":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"client_email": "broker@" + fake.Project + ".iam.gserviceaccount.com", "token_uri": base + "/token",
	})
	if err != nil {
		panic(err)
	}
	return string(data)
})

// project is one project at the fake.
type project struct {
	server *fake.Server
	world  *cloud.World
	client *http.Client
	net    *simtest.Net
}

func newProject(t testing.TB, edit func(*cloud.Config), wrap func(http.Handler) http.Handler) *project {
	t.Helper()
	p := &project{server: fake.New(), net: simtest.NewNet(t)}
	cfg := fake.Default(1)
	cfg.Dialect = p.server.Dialect()
	cfg.Tokens.API = token
	if edit != nil {
		edit(&cfg)
	}
	w, err := cloud.New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	handler := cloud.Dialected(w)
	if wrap != nil {
		handler = wrap(handler)
	}
	handler = discovered(t, handler)
	p.net.ServeTLS("googleapis.test", handler)
	p.world, p.client = w, p.net.Client()
	return p
}

// discovered holds every call and answer against Google's discovery documents.
func discovered(t testing.TB, next http.Handler) http.Handler {
	apis, err := discovery.Google()
	if err != nil {
		t.Fatal(err)
	}
	return apis.Watch(next, func(problem string) { t.Errorf("against Google's discovery documents: %s", problem) })
}

func (p *project) open(t testing.TB, edit func(*gcp.Settings)) *gcp.Adapter {
	t.Helper()
	s := gcp.Settings{Project: fake.Project, Endpoint: base}
	if edit != nil {
		edit(&s)
	}
	a, err := gcp.New("gcp", s, gcp.Access{Credentials: keyFile(), Owner: "broker", Client: p.client})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestConformance(t *testing.T) {
	keyFile()
	if _, err := discovery.Google(); err != nil { // before the bubbles: it starts a program
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*cloud.Config){
		"default": nil,
		"paged":   func(c *cloud.Config) { c.PageSize = 4 },
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, providertest.Harness{Bubble: true, New: func(t testing.TB) providertest.Account {
				p := newProject(t, edit, nil)
				return providertest.Account{
					Provider: p.open(t, nil), Owner: "broker", Secrets: []string{token},
					Reopen: func() providers.Provider { return p.open(t, nil) },
					Inject: simtest.Inject(p.world),
					Outsider: func() error {
						_, err := p.world.Launch(simapi.Launch{
							Place: p.world.Offers("", 0)[0].Place, Request: "outsider", Tags: map[string]string{"gpubroker-owner": "somebody-else", "gpubroker-request": "theirs"},
						})
						return err
					},
					Preempt: simtest.Preempt(p.world, p.server.WorldID),
				}
			}})
		})
	}
}
