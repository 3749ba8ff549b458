package client

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpubroker/internal/api"
)

func TestTrust(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"ok": true}`)) }))
	defer srv.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	trusting, err := New(Settings{URL: srv.URL, CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	if h, err := trusting.Health(t.Context()); err != nil || !h.OK {
		t.Errorf("with its authority: %+v, %v", h, err)
	}
	other, err := New(Settings{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Health(t.Context()); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without its authority: %v", err)
	}
	for _, s := range []Settings{{URL: "127.0.0.1:1"}, {URL: "ftp://x"}, {URL: srv.URL, CA: "no certificate"}} {
		if _, err := New(s); err == nil {
			t.Errorf("%+v was taken", s)
		}
	}
}

// Reads are repeated while the broker is briefly away, changes never.
func TestWhatIsRepeated(t *testing.T) {
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`{}`))
	}))
	defer srv.Close()
	c, err := New(Settings{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Jobs(t.Context(), JobQuery{}); err != nil || calls.Load() != 3 {
		t.Errorf("a read: %d calls, %v", calls.Load(), err)
	}
	calls.Store(0)
	if _, err := c.Submit(t.Context(), api.SubmitRequest{}); !Is(err, http.StatusServiceUnavailable) || calls.Load() != 1 {
		t.Errorf("a change: %d calls, %v", calls.Load(), err)
	}
}

// The token goes to the broker and nowhere else.
func TestRedirectsAreNotFollowed(t *testing.T) {
	stolen := ""
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen = r.Header.Get("Authorization") }))
	defer thief.Close()
	srv := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer srv.Close()
	c, err := New(Settings{URL: srv.URL, Token: "gpb_secret"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Jobs(t.Context(), JobQuery{}); err == nil || !strings.Contains(err.Error(), "is this address a gpubroker's") {
		t.Errorf("got %v", err)
	}
	if stolen != "" {
		t.Errorf("the other server was sent %q", stolen)
	}
}

// Something that takes calls and answers none is no broker.
func TestAReadThatIsNeverAnsweredEnds(t *testing.T) {
	gone := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-gone }))
	defer srv.Close()
	defer close(gone)
	c, err := New(Settings{URL: srv.URL, Wait: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Jobs(t.Context(), JobQuery{}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("%v", err)
	}
}
