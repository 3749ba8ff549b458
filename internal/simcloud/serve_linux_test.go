package simcloud

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
)

func TestServe(t *testing.T) {
	cfg := small()
	cfg.Boot, cfg.Tokens = 0, Tokens{API: "api-token", Admin: "admin-token"}
	cfg.Machines.Dir = t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, cfg, l, nil, slog.New(slog.DiscardHandler)) }()
	do := func(token, method, path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+l.Addr().String()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		data, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(data)
	}
	body := `{"region":"r1","zone":"r1a","type":"l4x1","kind":"spot","request":"r1","user_data":"sleep 1000"}`
	for _, c := range []struct {
		token, method, path, body string
		status                    int
		has                       string
	}{
		{"", "GET", "/v1/offers", "", 401, "Unauthorized"},
		{"api-token", "GET", "/admin/machines", "", 401, "Unauthorized"},
		{"api-token", "GET", "/v1/offers?region=r1", "", 200, `"price":"0.30"`},
		{"api-token", "POST", "/v1/machines", body, 200, `"id":"sim-000001"`},
		{"api-token", "POST", "/v1/machines", `{"requst":"r1"}`, 400, "requst"},
		{"api-token", "GET", "/v1/machines/sim-000001", "", 200, `"state":"`},
		{"api-token", "GET", "/v1/events?wait=soon", "", 400, "wait"},
		{"api-token", "GET", "/v1/nothing", "", 404, ""},
		{"admin-token", "POST", "/admin/actions", `{"preempt":{"longest":true,"notice":"20s"}}`, 200, "sim-000001"},
		{"api-token", "GET", "/v1/events?wait=1s", "", 200, `"kind":"preempt"`},
		{"admin-token", "POST", "/admin/actions", `{"fault":{"op":"list","effect":"drop_after"}}`, 200, ""},
		{"admin-token", "GET", "/admin/faults", "", 200, "drop_after"},
		{"admin-token", "DELETE", "/admin/faults", "", 204, ""},
		{"admin-token", "GET", "/admin/events", "", 200, `"kind":"launched"`},
		{"api-token", "DELETE", "/v1/machines/request:r1", "", 204, ""},
		{"api-token", "GET", "/v1/invoice", "", 200, `"total"`},
	} {
		if c.path == "/admin/actions" {
			until(t, "the boot", func() bool {
				_, text := do("admin-token", "GET", "/admin/machines", "")
				return strings.Contains(text, `"state":"running"`)
			})
		}
		if status, text := do(c.token, c.method, c.path, c.body); status != c.status || !strings.Contains(text, c.has) {
			t.Errorf("%s %s: %d %s, want %d %q", c.method, c.path, status, text, c.status, c.has)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(cfg.Machines.Dir)
	if err != nil || len(left) > 0 {
		t.Errorf("folders left: %v, %v", left, err)
	}
}
