package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"gpubroker/internal/cli"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/managed"
)

var update = flag.Bool("update", false, "write golden files anew")

// now is the moment at which the scripts are run.
var now = time.Date(2026, 7, 20, 14, 0, 0, 0, time.UTC)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gpubroker": func() {
		w := cli.Wiring{
			Version: "1.2.3", Now: func() time.Time { return now }, ProviderTypes: []string{"simcloud", "hosts"},
			Serve: func(_ context.Context, o cli.ServeOptions) error {
				fmt.Println("serving", o.Config)
				return nil
			},
			Demo: func(_ context.Context, o cli.DemoOptions) error {
				fmt.Fprintln(o.Out, "demo, keep", o.Keep, "json", o.JSON)
				return nil
			},
			Sweep: sweep,
		}
		if os.Getenv("PUBLIC") != "" {
			w.Public = public
		}
		os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, w))
	}})
}

// public is a marketplace that answers and a cloud that does not.
func public(context.Context) []cli.PublicList {
	o := func(kind providers.Kind, price money.Rate) providers.Offer {
		return providers.Offer{
			Market: providers.Market{Provider: "vast", Type: "1x L4", Kind: kind}, Shape: providers.Shape{GPU: "l4", GPUName: "L4", GPUs: 1, VCPU: 8},
			Price: price, Currency: money.USD, Seen: now.Add(-10 * time.Second), Source: "search",
		}
	}
	return []cli.PublicList{
		{Title: "Vast.ai", Type: "vast", Offers: managed.Catalog{Offers: []providers.Offer{o(providers.OnDemand, 210_000_000), o(providers.Spot, 900_000)}}},
		{Title: "Azure", Type: "azure", Err: fmt.Errorf("reading prices: %w", context.DeadlineExceeded)},
	}
}

func sweep(_ context.Context, o cli.SweepOptions) (cli.Swept, error) {
	m := cli.SweptMachine{Expired: true, Ended: o.End, Instance: providers.Instance{
		Ref: providers.Ref{ID: "i-1"}, Market: providers.Market{Provider: "sim", Type: "l4x1"}, Launched: now.Add(-2 * time.Hour),
		Tags: providers.Tags{Request: "i1", DeleteAt: now.Add(-time.Hour)},
	}}
	return cli.Swept{Machines: []cli.SweptMachine{m}, Unread: map[string]string{"aws": "no credentials"}}, nil
}

// The scripts run the command line against answers that lie in the script itself:
// a call of GET /api/v1/jobs/j1 is answered with api/GET/jobs/j1.json, or, if
// there is one, with j1.2.json from the second time on. A file .404.json is
// answered with that status. What was sent lies in sent/ under the same name.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: *update, ContinueOnError: true,
		Setup: func(e *testscript.Env) error {
			s := &stub{dir: e.WorkDir, times: map[string]int{}}
			srv := httptest.NewServer(s)
			e.Defer(srv.Close)
			e.Vars = append(e.Vars, "GPUBROKER_URL="+srv.URL, "GPUBROKER_TOKEN=gpb_secret", "TZ=Asia/Shanghai", "NO_COLOR=1", "EXAMPLES="+examples(t))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exit": exitCode},
	})
}

func examples(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// exitCode runs the command line and checks its exit code: exit 3 plan job.yaml.
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exit CODE ARGUMENTS")
	}
	err := ts.Exec("gpubroker", args[1:]...)
	got := "0"
	if err != nil {
		var e interface{ ExitCode() int }
		if !errors.As(err, &e) {
			ts.Fatalf("%v", err)
		}
		got = fmt.Sprint(e.ExitCode())
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

type stub struct {
	dir   string
	mu    sync.Mutex
	times map[string]int
}

func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1"), "/")
	if n := r.URL.Query().Get("name"); n != "" {
		name += "@" + n
	}
	name = filepath.Join(r.Method, filepath.FromSlash(name))
	body, err := io.ReadAll(r.Body)
	if err == nil && len(body) > 0 {
		sent := filepath.Join(s.dir, "sent", name)
		if err = os.MkdirAll(filepath.Dir(sent), 0o755); err == nil {
			err = os.WriteFile(sent, body, 0o644)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if r.Header.Get("Authorization") != "Bearer gpb_secret" && r.URL.Path != "/healthz" {
		problem(w, http.StatusUnauthorized, "this broker does not know the token: give a valid one")
		return
	}
	s.answer(w, name)
}

func (s *stub) answer(w http.ResponseWriter, name string) {
	s.mu.Lock()
	s.times[name]++
	n := s.times[name]
	s.mu.Unlock()
	base := filepath.Join(s.dir, "api", name)
	for i := n; i > 0; i-- {
		file := base
		if i > 1 {
			file += fmt.Sprintf(".%d", i)
		}
		if text, err := os.ReadFile(file + ".json"); err == nil {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(text)
			return
		}
	}
	if text, err := os.ReadFile(base + ".txt"); err == nil {
		_, _ = w.Write(text)
		return
	}
	for _, status := range []int{404, 409, 413, 422, 503} {
		if text, err := os.ReadFile(fmt.Sprintf("%s.%d.json", base, status)); err == nil {
			w.WriteHeader(status)
			_, _ = w.Write(text)
			return
		}
	}
	if _, digest, ok := strings.Cut(filepath.ToSlash(name), "/workdirs/"); ok {
		_, _ = fmt.Fprintf(w, `{"ref": "workdir:%s", "have": false}`, digest)
		return
	}
	if strings.HasPrefix(name, filepath.Join("GET", "jobs@")) {
		_, _ = io.WriteString(w, `{"jobs": []}`)
		return
	}
	problem(w, http.StatusNotFound, "there is no "+filepath.ToSlash(name))
}

func problem(w http.ResponseWriter, status int, detail string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "detail": detail})
}
