package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/cli"
)

// A look that brings nothing new but younger prices shows nothing.
func TestWatchingOffersShowsWhatChanges(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		looks++
		price := "0.30"
		if looks > 2 {
			price = "0.40"
		}
		if looks == 4 {
			cancel()
		}
		_, _ = fmt.Fprintf(w, `{"total": 1, "offers": [{"provider": "sim", "type": "l4x1", "kind": "spot", "gpu": "l4", "gpus": 1, "price": %q, "currency": "USD", "seen": "2026-07-20T13:59:%02dZ"}]}`, price, looks)
	}))
	defer srv.Close()
	var out, errs bytes.Buffer
	w := cli.Wiring{Now: func() time.Time { return now }}
	code := cli.Run(ctx, []string{"offers", "--watch", "--every", "1s", "--broker", srv.URL, "--token", "gpb_x"}, cli.Streams{Out: &out, Err: &errs}, w)
	if code != 0 || errs.Len() > 0 {
		t.Errorf("exit %d, %s", code, errs.String())
	}
	if n := strings.Count(out.String(), "1 machine offered"); n != 2 || !strings.Contains(out.String(), "0.4000") {
		t.Errorf("%d pictures in %d looks:\n%s", n, looks, out.String())
	}
}

// A long type makes columns give up width; the column of notes may not be there.
func TestWideOffersWithoutNotes(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"total": 1, "offers": [{"provider": "vast", "region": "SE", "type": %q, "kind": "on-demand", "gpu": "a100-sxm-80gb", "gpus": 1, "price": "0.30", "currency": "USD", "seen": "2026-07-20T13:59:00Z"}]}`, strings.Repeat("A100_SXM4-", 20))
	}))
	t.Cleanup(srv.Close)
	var out bytes.Buffer
	w := cli.Wiring{Now: func() time.Time { return now }}
	code := cli.Run(t.Context(), []string{"offers", "--broker", srv.URL, "--token", "gpb_x"}, cli.Streams{Out: &out, Err: &out}, w)
	if code != 0 || !strings.Contains(out.String(), "…") {
		t.Errorf("exit code %d:\n%s", code, out.String())
	}
}
