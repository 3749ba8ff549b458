package all_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"gpubroker/internal/certs"
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/dialects"
	"gpubroker/internal/simcloud/dialects/azure"
	"gpubroker/internal/simcloud/dialects/gcp"
	"gpubroker/providers"
	"gpubroker/providers/all"
)

// BenchmarkRefresh reads each cloud's offers once, over TLS on loopback, from a
// world of its dialect with pages as large as the cloud's own: how many calls that
// takes, and what each offer costs both ends. A real list has the same number of
// calls for each region and page.
func BenchmarkRefresh(b *testing.B) {
	dir := b.TempDir()
	authority, err := certs.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	// Trust is read once, at the first connection.
	for _, name := range []string{"SSL_CERT_FILE", "AWS_CA_BUNDLE"} {
		b.Setenv(name, filepath.Join(dir, "ca.pem"))
	}
	pair, err := authority.Server([]string{"127.0.0.1"})
	if err != nil {
		b.Fatal(err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		b.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		b.Fatal(err)
	}
	account := fmt.Sprintf(`{"type": "service_account", "private_key_id": "1", "client_email": "broker@test", "token_uri": "%%s/token", "private_key": %q}`,
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	settings := map[string]string{
		"aws": `{"endpoint": "%[1]s", "regions": ["us-east-1", "us-west-2"], "access_key": "env:T", "secret_key": "env:T"}`,
		"azure": `{"endpoint": "%[1]s", "login": "%[1]s", "prices": "%[1]s", "subscription": "` + azure.Subscription + `", "tenant": "` + azure.Tenant +
			`", "client_id": "` + azure.ClientID + `", "client_secret": "env:T", "regions": ["eastus", "westeurope"]}`,
		"gcp":    `{"endpoint": "%[1]s", "project": "` + gcp.Project + `", "credentials": "file:account"}`,
		"lambda": `{"endpoint": "%[1]s/api/v1", "key": "env:T", "ssh_key": "broker"}`,
		"runpod": `{"endpoint": "%[1]s/v2", "graphql_endpoint": "%[1]s/graphql", "key": "env:T"}`,
		"vast":   `{"endpoint": "%[1]s", "api_key": "env:T"}`,
		"verda":  `{"endpoint": "%[1]s/v1", "client_id": "c", "client_secret": "env:T"}`,
	}
	for _, d := range all.Descriptors() {
		entry, ok := dialects.All()[d.Type]
		if !ok {
			continue
		}
		b.Run(d.Type, func(b *testing.B) {
			cfg := entry.Default(1)
			cfg.Dialect, cfg.PageSize = entry.Dialect(), 1000
			for i := range cfg.Offers {
				cfg.Offers[i].Walk, cfg.Offers[i].Steps = nil, nil
			}
			w, err := simcloud.New(cfg, nil, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			var calls atomic.Int64
			handler := simcloud.Dialected(w)
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				handler.ServeHTTP(rw, r)
			}))
			srv.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
			srv.StartTLS()
			defer srv.Close()
			p, err := d.Open(b.Context(), d.Type, fmt.Appendf(nil, settings[d.Type], srv.URL), providers.Env{
				Owner: "broker", Secret: func(ref string) (string, error) {
					if ref == "file:account" {
						return fmt.Sprintf(account, srv.URL), nil
					}
					return "token", nil
				},
			})
			if err != nil {
				b.Fatal(err)
			}
			offers := 0
			n := 0
			calls.Store(0)
			for b.Loop() {
				list, err := p.Offers(b.Context(), providers.Scope{})
				if err != nil {
					b.Fatal(err)
				}
				offers = len(list)
				n++
			}
			b.ReportMetric(float64(calls.Load())/float64(n), "calls/op")
			b.ReportMetric(float64(offers), "offers")
		})
	}
}
