package agent

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/agentapi"
)

// The broker and the stores are called through the proxy that the machine's
// environment names, save those that no_proxy leaves out; its metadata service
// never is: a proxy would ask about another machine. The environment is read once
// in a process, so that this runs in one of its own.
func TestProxy(t *testing.T) {
	if os.Getenv("AGENT_TEST_PROXY") != "" {
		callEverybody(t)
		return
	}
	var mu sync.Mutex
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Method+" "+r.Host)
		mu.Unlock()
		if r.Method == http.MethodConnect {
			http.Error(w, "no tunnel today", http.StatusBadGateway)
			return
		}
		_, _ = io.WriteString(w, "{}")
	}))
	defer proxy.Close()
	c := exec.Command(os.Args[0], "-test.run=^TestProxy$", "-test.v")
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(strings.ToLower(v), "=")
		return strings.HasSuffix(name, "_proxy")
	})
	c.Env = append(c.Env, "AGENT_TEST_PROXY=1", "HTTP_PROXY="+proxy.URL, "HTTPS_PROXY="+proxy.URL, "NO_PROXY=169.254.169.254,near.invalid")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := []string{"POST broker.invalid:7743", "CONNECT broker.invalid:7743", "GET store.invalid", "CONNECT store.invalid:443"}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("the proxy was asked for (-want +got):\n%s", diff)
	}
}

// callEverybody makes calls to names that do not exist: what is answered was
// answered by the proxy.
func callEverybody(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	broker, store, err := Transports("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := HTTPBroker("http://broker.invalid:7743", broker).Join(ctx, agentapi.JoinRequest{}); err != nil {
		t.Errorf("the broker was not reached: %v", err)
	}
	if _, err := HTTPBroker("https://broker.invalid:7743", broker).Join(ctx, agentapi.JoinRequest{}); err == nil {
		t.Error("a broker was reached through a tunnel that there is not")
	}
	get := func(url string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := (&http.Client{Transport: store}).Do(req)
		if err != nil {
			return err
		}
		return res.Body.Close()
	}
	if err := get("http://store.invalid/part"); err != nil {
		t.Errorf("the store was not reached: %v", err)
	}
	if get("https://store.invalid/part") == nil {
		t.Error("a store was reached through a tunnel that there is not")
	}
	if get("http://near.invalid/part") == nil {
		t.Error("a name in NO_PROXY was asked for at the proxy")
	}
	for _, kind := range []string{"simcloud", "ec2", "gce", "azure"} {
		m, err := NewMetadata(Settings{Metadata: kind, MetadataURL: "http://metadata.invalid"})
		if err != nil {
			t.Fatal(err)
		}
		if id, err := m.CloudID(ctx); err == nil && id != "" {
			t.Errorf("%s: the proxy said that this machine is %q", kind, id)
		}
		_, _ = m.Notice(ctx)
	}
}
