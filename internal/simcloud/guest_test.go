package simcloud

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// ask makes a call of the machine's metadata address.
func ask(g Guest, method, path string) (int, string, error) {
	req, err := http.NewRequest(method, g.MetadataURL+path, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := g.Client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, strings.TrimSpace(string(body)), err
}

func TestMetadata(t *testing.T) {
	var guest atomic.Pointer[Guest]
	runner := &Null{Boot: func(_ context.Context, g Guest) { guest.Store(&g) }}
	inWorld(t, small(), runner, func(t *testing.T, w *World) {
		m := launch(t, w, "req", spotA, func(l *simapi.Launch) { l.UserData = "the script" })
		time.Sleep(2 * time.Second)
		want := func(method, path string, status int, text string) {
			t.Helper()
			got, body, err := ask(*guest.Load(), method, path)
			if err != nil || got != status || !strings.Contains(body, text) {
				t.Errorf("%s %s: %d %q, %v; want %d %q", method, path, got, body, err, status, text)
			}
		}
		want("GET", "/v1/instance-id", 200, m.ID)
		want("GET", "/v1/user-data", 200, "the script")
		want("GET", "/v1/notice", 404, "")
		want("GET", "/v1/rebalance", 404, "")
		want("GET", "/v1/machines", 404, "") // the API is elsewhere
		if _, err := w.Do(simapi.Action{Rebalance: &simapi.Pick{}}); err != nil {
			t.Fatal(err)
		}
		want("GET", "/v1/rebalance", 200, time.Now().UTC().Format(time.RFC3339))
		want("GET", "/v1/notice", 404, "")
		if _, err := w.Do(simapi.Action{Preempt: &simapi.Preempt{}}); err != nil {
			t.Fatal(err)
		}
		want("GET", "/v1/notice", 200, `"action":"terminate","time":"`+time.Now().UTC().Add(30*time.Second).Format(time.RFC3339))
		want("DELETE", "/v1/instance", 202, "")
		if got := describe(t, w, m.ID); got.State != providers.Stopping || got.Cause != providers.CauseUser {
			t.Errorf("after it deleted itself: %s %s", got.State, got.Cause)
		}
		time.Sleep(3 * time.Second)
		if _, _, err := ask(*guest.Load(), "GET", "/v1/instance-id"); err == nil {
			t.Error("the metadata of a machine that is gone answers")
		}

		n := launch(t, w, "other", spotB)
		time.Sleep(2 * time.Second)
		want("POST", "/v1/poweroff", 202, "")
		if got := describe(t, w, n.ID); got.Cause != providers.CauseGuest {
			t.Errorf("after poweroff: %s %s", got.State, got.Cause)
		}
	})
}

func TestDud(t *testing.T) {
	var boots atomic.Int32
	runner := &Null{Boot: func(context.Context, Guest) { boots.Add(1) }}
	cfg := small()
	cfg.Faults = []simapi.Fault{{Op: "launch", Effect: simapi.Dud}}
	inWorld(t, cfg, runner, func(t *testing.T, w *World) {
		for _, request := range []string{"dud", "sound"} {
			body := strings.NewReader(`{"request":"` + request + `","region":"r1","zone":"r1a","type":"l4x1","kind":"spot"}`)
			res, err := InProcess(w).Post(InProcessURL+"/v1/machines", "application/json", body)
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatal(res, err)
			}
		}
		time.Sleep(time.Minute)
		if n := boots.Load(); n != 1 {
			t.Errorf("%d machines run their user data, want 1", n)
		}
		if got := describe(t, w, "request:dud").State; got != providers.Running {
			t.Errorf("the dud is %s", got)
		}
	})
}

// brokenHost is a host on which no machine starts.
type brokenHost struct{}

func (brokenHost) Start(Guest) (Process, error) { return nil, errors.New("the host is full") }
func (brokenHost) Close()                       {}

func TestAMachineThatCannotStart(t *testing.T) {
	inWorld(t, small(), brokenHost{}, func(t *testing.T, w *World) {
		m := launch(t, w, "req", spotA)
		time.Sleep(4 * time.Second)
		if got := describe(t, w, m.ID); got.State != providers.Terminated || got.Cause != providers.CauseError || strings.Contains(got.Message, "full") {
			t.Errorf("%s %s %q", got.State, got.Cause, got.Message)
		}
	})
}
