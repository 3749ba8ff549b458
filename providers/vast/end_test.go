package vast_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/dialects/vast"
	"gpubroker/providers"
	adapter "gpubroker/providers/vast"
)

// TestAMachineEndsItself: with what its container knows, by curl or by wget, and
// with a key that is good for nothing else.
func TestAMachineEndsItself(t *testing.T) {
	cfg := vast.Default(1)
	cfg.Tokens.API = secret
	w, err := simcloud.New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	srv := httptest.NewServer(simcloud.Dialected(w))
	t.Cleanup(srv.Close)
	a, err := adapter.New("vast-test", adapter.Settings{Endpoint: srv.URL + "/"}, adapter.Access{Key: secret, Owner: "broker"})
	if err != nil {
		t.Fatal(err)
	}
	caps := a.Capabilities()
	if caps.SelfEnd != providers.EndGuest || caps.EndAction != providers.EndAPI || caps.Reach != providers.ReachHost {
		t.Errorf("%+v", caps)
	}
	for _, tool := range []string{"curl", "wget"} {
		i, err := a.Launch(t.Context(), request("by-"+tool))
		if err != nil {
			t.Fatal(err)
		}
		m, err := w.Machine(vast.WorldID(i.Ref.ID))
		if err != nil {
			t.Fatal(err)
		}
		env := cfg.Dialect.Env(m)
		key := strings.TrimPrefix(env[slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "CONTAINER_API_KEY=") })], "CONTAINER_API_KEY=")
		own, err := adapter.New("guest", adapter.Settings{Endpoint: srv.URL}, adapter.Access{Key: key, Owner: "broker"})
		if err != nil {
			t.Fatal(err)
		}
		_, list := own.List(t.Context())
		_, describe := own.Describe(t.Context(), providers.Ref{ID: "9000999", Request: "x"})
		if _, err := own.Describe(t.Context(), i.Ref); err != nil || providers.CodeOf(list) != providers.Unauthorized || providers.CodeOf(describe) != providers.Unauthorized {
			t.Errorf("its key reads itself: %v, all: %v, another: %v", err, list, describe)
		}
		// Only the one tool is found.
		bin := t.TempDir()
		for _, name := range []string{tool, "tr", "sed", "sh"} {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skip(err)
			}
			if err := os.Symlink(path, bin+"/"+name); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), bin+"/sh", "-c", caps.EndScript)
		cmd.Env = append([]string{"PATH=" + bin}, env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", tool, err, out)
		}
		if m, err := w.Machine(vast.WorldID(i.Ref.ID)); err != nil || m.State != providers.Stopping && m.State != providers.Terminated {
			t.Errorf("by %s: %+v, %v", tool, m, err)
		}
		time.Sleep(time.Second)
		if _, err := a.Describe(t.Context(), i.Ref); providers.CodeOf(err) != providers.NotFound {
			t.Errorf("by %s, afterwards: %v", tool, err)
		}
	}
	res, err := http.Get(srv.URL + "/api/v0/instances/9000001/")
	if err != nil {
		t.Fatal(err)
	}
	if _ = res.Body.Close(); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key: %s", res.Status)
	}
}
