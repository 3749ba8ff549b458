package runpod_test

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/simcloud"
	dialect "gpubroker/internal/simcloud/dialects/runpod"
	"gpubroker/providers"
	"gpubroker/providers/runpod"
)

// TestGuest runs, in a real shell, what a pod starts with and what it ends itself
// with: its own key is refused by REST and let in by GraphQL.
func TestGuest(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl")
	}
	cfg := dialect.Default(1)
	cfg.Tokens.API = key
	ran := make(chan simcloud.Guest, 1)
	w, err := simcloud.New(cfg, runner{ran}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	server := httptest.NewServer(simcloud.Dialected(w))
	defer server.Close()
	a, err := runpod.New("runpod", runpod.Settings{Endpoint: server.URL + "/v2", GraphQL: server.URL + "/graphql"}, runpod.Access{Key: key, Owner: "broker"})
	if err != nil {
		t.Fatal(err)
	}
	req := request("r1", providers.OnDemand)
	proof := t.TempDir() + "/ran"
	req.UserData = "#!/bin/sh\necho 'it'\"'\"'s $RUNPOD_POD_ID' >" + proof + "; kill -TERM $PPID\n"
	i, err := a.Launch(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var guest simcloud.Guest
	select {
	case guest = <-ran:
	case <-time.After(20 * time.Second):
		t.Fatal("the pod does not start")
	}
	env := append(os.Environ(), guest.Env("")...)
	start := exec.CommandContext(t.Context(), "sh", "-c", guest.UserData)
	start.Env = env
	_ = start.Run() // killed by the script itself
	if got, err := os.ReadFile(proof); err != nil || string(got) != "it's $RUNPOD_POD_ID\n" {
		t.Errorf("the script wrote %q, %v", got, err)
	}
	end := exec.CommandContext(t.Context(), "sh", "-c", a.Capabilities().EndScript)
	end.Env = env
	out, err := end.CombinedOutput()
	if err != nil || strings.Contains(string(out), key) {
		t.Errorf("%s: %v", out, err)
	}
	if _, err := a.Describe(t.Context(), i.Ref); err != nil {
		t.Error(err)
	}
	if err := a.Terminate(t.Context(), i.Ref); providers.CodeOf(err) != providers.NotFound {
		t.Errorf("the pod did not end itself: %v", err)
	}
}

// runner hands over the insides of the machine instead of running them.
type runner struct{ ran chan simcloud.Guest }

func (r runner) Start(g simcloud.Guest) (simcloud.Process, error) {
	r.ran <- g
	return (&simcloud.Null{}).Start(g)
}

func (runner) Close() {}
