package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
)

// authority is a CA with a server certificate for 127.0.0.1 and localhost.
func authority(t *testing.T) (ca []byte, server tls.Certificate) {
	t.Helper()
	issue := func(template, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if by == nil {
			by = key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		return der, key
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, rootKey := issue(root, root, nil)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	leafDER, leafKey := issue(leaf, root, rootKey)
	return rootDER, tls.Certificate{Certificate: [][]byte{leafDER, rootDER}, PrivateKey: leafKey}
}

func TestOnlyThePinnedBrokerIsTrusted(t *testing.T) {
	serve := func(cert tls.Certificate) string {
		s := httptest.NewUnstartedServer(newFakeBroker(t).handler())
		s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
		s.Config.ErrorLog = nil
		s.StartTLS()
		t.Cleanup(s.Close)
		return strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	}
	ca, cert := authority(t)
	_, stranger := authority(t)
	ours, theirs := serve(cert), serve(stranger)
	text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca}))
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(ca)
	for name, pin := range map[string]string{"pem": text, "file": file, "digest": "sha256:" + hex.EncodeToString(sum[:])} {
		broker, store, err := Transports(pin)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			url string
			via http.RoundTripper
			ok  bool
		}{{ours, broker, true}, {ours, store, true}, {theirs, broker, false}, {theirs, store, false}} {
			_, err := HTTPBroker(c.url, c.via).Join(t.Context(), agentapi.JoinRequest{Nonce: "n"})
			if (err == nil) != c.ok {
				t.Errorf("%s: ours=%t store=%t: %v", name, c.url == ours, c.via == store, err)
			}
		}
	}
	for _, bad := range []string{"sha256:12", "/nowhere/ca.pem", "-----BEGIN NOTHING-----"} {
		if _, _, err := Transports(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestAnswersOfProxiesAreNotTheBrokers(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		stale  bool
	}{
		{410, `{"code":"stale","message":"gone"}`, true},
		{502, "<html>bad gateway</html>", false},
		{403, "<html>forbidden by the firewall</html>", false},
		{200, "<html>please log in</html>", false},
		{302, "", false},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://elsewhere.invalid/")
			w.WriteHeader(c.status)
			w.Write([]byte(c.body))
		}))
		_, err := HTTPBroker(s.URL, http.DefaultTransport).Sync(t.Context(), "c", agentapi.Observed{})
		s.Close()
		if err == nil || isStale(err) != c.stale || isRefused(err) {
			t.Errorf("%d %s: %v", c.status, c.body, err)
		}
	}
}

func TestMetadataOfEachCloud(t *testing.T) {
	at := time.Now().Add(2 * time.Minute).UTC().Truncate(time.Second)
	var notice, advice bool
	tokens := map[string]bool{}
	mux := http.NewServeMux()
	when := func(on *bool, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if !*on {
				http.NotFound(w, r)
				return
			}
			w.Write([]byte(body))
		}
	}
	always := true
	action := `{"action":"terminate","time":"` + at.Format(time.RFC3339) + `"}`
	mux.HandleFunc("GET /v1/instance-id", when(&always, "m-1"))
	mux.HandleFunc("GET /v1/notice", when(&notice, action))
	mux.HandleFunc("GET /v1/rebalance", when(&advice, `{"time":"`+at.Format(time.RFC3339)+`"}`))
	mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") == "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		token := "t" + string(rune('0'+len(tokens)))
		tokens[token] = true
		w.Write([]byte(token))
	})
	needs := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if !tokens[r.Header.Get("X-aws-ec2-metadata-token")] {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next(w, r)
		}
	}
	mux.HandleFunc("GET /latest/meta-data/instance-id", needs(when(&always, "i-1")))
	mux.HandleFunc("GET /latest/meta-data/spot/instance-action", needs(when(&notice, action)))
	mux.HandleFunc("GET /latest/meta-data/events/recommendations/rebalance", needs(when(&advice, `{"noticeTime":"x"}`)))
	google := func(body func() string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Metadata-Flavor") != "Google" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			w.Write([]byte(body()))
		}
	}
	mux.HandleFunc("GET /computeMetadata/v1/instance/name", google(func() string { return "vm-1" }))
	mux.HandleFunc("GET /computeMetadata/v1/instance/preempted", google(func() string {
		if notice {
			return "TRUE"
		}
		return "FALSE"
	}))
	mux.HandleFunc("GET /metadata/instance/compute/name", when(&always, "az-1"))
	mux.HandleFunc("GET /metadata/scheduledevents", func(w http.ResponseWriter, _ *http.Request) {
		events := `{"EventType":"Preempt","Resources":["another"],"NotBefore":""},{"EventType":"Reboot","Resources":["az-1"],"NotBefore":""}`
		if notice {
			events += `,{"EventType":"Preempt","Resources":["az-1"],"NotBefore":"` + at.Format(time.RFC1123) + `"}`
		}
		w.Write([]byte(`{"DocumentIncarnation":1,"Events":[` + events + `]}`))
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	for _, c := range []struct {
		cloud, id string
		advises   bool
	}{{"simcloud", "m-1", true}, {"ec2", "i-1", true}, {"gce", "vm-1", false}, {"azure", "az-1", false}} {
		notice, advice = false, false
		m, err := NewMetadata(Settings{Metadata: c.cloud, MetadataURL: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		if id, err := m.CloudID(t.Context()); err != nil || id != c.id {
			t.Errorf("%s: id %q, %v", c.cloud, id, err)
		}
		if n, err := m.Notice(t.Context()); n != nil || err != nil {
			t.Errorf("%s: notice %v, %v", c.cloud, n, err)
		}
		clear(tokens) // they run out
		advice = true
		if n, err := m.Notice(t.Context()); err != nil || (n != nil) != c.advises || n != nil && n.Kind != kindRebalance {
			t.Errorf("%s: advice %v, %v", c.cloud, n, err)
		}
		notice = true
		n, err := m.Notice(t.Context())
		if err != nil || n == nil || n.Kind != kindPreempt {
			t.Errorf("%s: notice %v, %v", c.cloud, n, err)
		} else if c.cloud != "gce" && !n.At.Equal(at) {
			t.Errorf("%s: at %s, want %s", c.cloud, n.At, at)
		}
	}
	if _, err := NewMetadata(Settings{Metadata: "simcloud"}); err == nil {
		t.Error("simcloud without an address")
	}
	var none NoMetadata
	if id, err := none.CloudID(context.Background()); id != "" || err != nil {
		t.Errorf("none: %q, %v", id, err)
	}
}

// The agent asks for its id and for notices at the same time.
func TestMetadataIsAskedFromTwoSides(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("token")) })
	mux.HandleFunc("GET /latest/meta-data/instance-id", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("i-1")) })
	s := httptest.NewServer(mux)
	defer s.Close()
	m, err := NewMetadata(Settings{Metadata: "ec2", MetadataURL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if id, err := m.CloudID(t.Context()); err != nil || id != "i-1" {
				t.Errorf("id %q, %v", id, err)
			}
		})
		wg.Go(func() {
			if n, err := m.Notice(t.Context()); err != nil || n != nil {
				t.Errorf("notice %v, %v", n, err)
			}
		})
	}
	wg.Wait()
}

func TestSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings")
	text := "# a comment\nexport GPUBROKER_URL=https://broker:8443/\nGPUBROKER_INSTANCE=i-1\nGPUBROKER_TOKEN=t\nGPUBROKER_LEASE=90s\nGPUBROKER_CA='-----BEGIN\nx\n-----END'\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others can read: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	get, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	set, err := FromEnv(get)
	if err != nil {
		t.Fatal(err)
	}
	if err := set.Check(); err != nil {
		t.Fatal(err)
	}
	if set.URL != "https://broker:8443" || set.Lease != 90*time.Second || set.CA != "-----BEGIN\nx\n-----END" || set.Metadata != "none" || set.Dir != "/var/lib/gpubroker" {
		t.Errorf("%+v", set)
	}
	for _, c := range []struct{ key, value, want string }{
		{"GPUBROKER_LEASE", "soon", "write for example 20m"},
		{"GPUBROKER_URL", "broker:8443", "no http or https URL"},
		{"GPUBROKER_TOKEN", "", "no join token"},
		{"GPUBROKER_INSTANCE", "", "either GPUBROKER_INSTANCE"},
		{"GPUBROKER_METADATA", "aws", "want one of"},
	} {
		set, err := FromEnv(func(k string) string {
			if k == c.key {
				return c.value
			}
			return get(k)
		})
		if err := errors.Join(err, set.Check()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%q: %v", c.key, c.value, err)
		}
	}
}
