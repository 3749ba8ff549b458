package azure_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/agent"
	cloud "gpubroker/internal/simcloud"
	fake "gpubroker/internal/simcloud/dialects/azure"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
	"gpubroker/providers/azure"
)

// TestInside looks at a machine from within: the metadata service as our agent
// reads it, and the machine's own end by the script that the adapter gives it, with
// a real shell over real TLS.
func TestInside(t *testing.T) {
	sh, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl here")
	}
	_ = sh
	guests := make(chan cloud.Guest, 4)
	f := fake.New()
	cfg := fake.Default(1)
	cfg.Tokens.API, cfg.Dialect, cfg.Boot, cfg.BootSpan = secret, f.Dialect(), simapi.Duration(10*time.Millisecond), 0
	w, err := cloud.New(cfg, &cloud.Null{Boot: func(_ context.Context, g cloud.Guest) { guests <- g }}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	api := httptest.NewTLSServer(cloud.Dialected(w))
	t.Cleanup(api.Close)
	s := settings()
	s.Endpoint, s.Login, s.Prices, s.Audience = api.URL, api.URL, api.URL, api.URL
	a, err := azure.New("azure", s, azure.Access{Secret: secret, Owner: "broker", Client: api.Client()})
	if err != nil {
		t.Fatal(err)
	}
	inside := map[string]string{} // metadata address by machine
	for _, id := range []string{"r1", "r2"} {
		i, err := a.Launch(t.Context(), request(id))
		if err != nil {
			t.Fatal(err)
		}
		g := <-guests
		if g.UserData != request(id).UserData {
			t.Errorf("the machine was given %q", g.UserData)
		}
		srv := httptest.NewServer(g.Metadata)
		t.Cleanup(srv.Close)
		inside[i.Ref.ID] = srv.URL
		if env := strings.Join(g.Env(srv.URL), " "); !strings.Contains(env, "GPUBROKER_METADATA_URL="+srv.URL) {
			t.Errorf("the machine is told %s", env)
		}
	}

	// The agent knows the machine by the id that the adapter has for it, and sees a
	// preemption as a scheduled event.
	meta, err := agent.NewMetadata(agent.Settings{Metadata: string(providers.MetadataAzure), MetadataURL: inside["gpubroker-r2"]})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := meta.CloudID(t.Context()); err != nil || id != "gpubroker-r2" {
		t.Errorf("the machine calls itself %q, %v", id, err)
	}
	if n, err := meta.Notice(t.Context()); err != nil || n != nil {
		t.Errorf("a notice %+v, %v", n, err)
	}
	if _, err := w.Do(simapi.Action{Preempt: &simapi.Preempt{Pick: simapi.Pick{Machine: f.Machine("gpubroker-r2")}, Notice: new(simapi.Duration(time.Minute))}}); err != nil {
		t.Fatal(err)
	}
	n, err := meta.Notice(t.Context())
	if err != nil || n == nil || n.Kind != "preempt" || time.Until(n.At) < 50*time.Second || time.Until(n.At) > time.Minute {
		t.Errorf("a notice %+v, %v", n, err)
	}
	acknowledge(t, inside["gpubroker-r2"])
	if n, err := meta.Notice(t.Context()); err != nil || n == nil || !n.At.IsZero() {
		t.Errorf("once it has begun: %+v, %v", n, err)
	}

	// Without the header it says nothing.
	res, err := http.Get(inside["gpubroker-r1"] + "/metadata/instance?api-version=2021-02-01")
	if err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("without the header: %v, %v", res.Status, err)
	}
	_ = res.Body.Close()

	// A machine's token ends its own group and no other.
	token := tokenOf(t, inside["gpubroker-r1"])
	if got := deleteGroup(t, api, token, "gpubroker-r2"); got != http.StatusForbidden {
		t.Errorf("another's group: %d", got)
	}
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	caps := a.Capabilities()
	if caps.SelfEnd != providers.EndGuest || caps.EndAction != providers.EndAPI {
		t.Fatalf("%s, %s", caps.SelfEnd, caps.EndAction)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", caps.EndScript)
	cmd.Env = append(os.Environ(), "GPUBROKER_METADATA_URL="+inside["gpubroker-r1"], "CURL_CA_BUNDLE="+filepath.Join(dir, "ca.pem"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the script: %v: %s", err, out)
	}
	for _, m := range w.Truth() {
		ended := m.State == providers.Stopping || m.State == providers.Terminated
		if ended != (m.Request == "r1") {
			t.Errorf("%s is %s", m.Request, m.State)
		}
	}
}

func ask(t testing.TB, method, url, body string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Metadata", "true")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %s, %v", method, url, res.Status, data, err)
	}
	return data
}

func acknowledge(t testing.TB, metadata string) {
	t.Helper()
	const path = "/metadata/scheduledevents?api-version=2020-07-01"
	var doc struct{ Events []struct{ EventID string } }
	if err := json.Unmarshal(ask(t, "GET", metadata+path, ""), &doc); err != nil || len(doc.Events) != 1 {
		t.Fatalf("%+v, %v", doc, err)
	}
	ask(t, "POST", metadata+path, `{"StartRequests":[{"EventId":"`+doc.Events[0].EventID+`"}]}`)
}

func tokenOf(t testing.TB, metadata string) string {
	t.Helper()
	var got struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal(ask(t, "GET", metadata+"/metadata/identity/oauth2/token?api-version=2018-02-01&resource=x", ""), &got); err != nil || got.Token == "" {
		t.Fatalf("no token: %v", err)
	}
	return got.Token
}

func deleteGroup(t testing.TB, api *httptest.Server, token, group string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, api.URL+"/subscriptions/"+fake.Subscription+"/resourcegroups/"+group+"?api-version=2021-04-01", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := api.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}
