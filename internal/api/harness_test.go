package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/control"
	"gpubroker/internal/market"
	"gpubroker/internal/objects"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/spec"
	"gpubroker/internal/state"
	"gpubroker/internal/store"
	"gpubroker/providers/managed"
	"gpubroker/providers/simcloud"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

const cloudToken = "of-the-test"

// site is a broker with its API, a simulated cloud and machines, in one process
// and without sockets, so that it lives in a synctest bubble.
type site struct {
	t       *testing.T
	broker  *control.Broker
	tables  *state.State
	objects objects.Store
	pipe    *pipeListener
	maxWork int64
}

// newSite starts a site; it ends with the test. With run the broker's loops work.
func newSite(t *testing.T, run bool) *site {
	t.Helper()
	s := &site{t: t, maxWork: 1 << 20}
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir()
	cfg := cloud.Default(1)
	cfg.Tokens.API = cloudToken
	world, err := cloud.New(cfg, &cloud.Null{Boot: s.boot}, nil)
	must(t, err)
	folders, err := objects.NewFolders("http://objects.internal", []byte(strings.Repeat("k", 32)), time.Now)
	must(t, err)
	s.objects, err = folders.Open(filepath.Join(dir, "objects"))
	must(t, err)
	st, err := store.Open(ctx, filepath.Join(dir, "store.db"), store.Options{})
	must(t, err)
	epoch, err := st.Lead(ctx, "test", time.Hour)
	must(t, err)
	s.tables, err = state.Open(ctx, st, slog.New(slog.DiscardHandler))
	must(t, err)
	s.tables.SetEpoch(epoch)
	meta, err := st.Meta(ctx)
	must(t, err)
	adapter, err := simcloud.New("sim", simcloud.SettingsFor(cloud.InProcessURL, world.Config().Capabilities()),
		simcloud.Access{Token: cloudToken, Owner: "broker", Client: cloud.InProcess(world)})
	must(t, err)
	account := &control.Account{Provider: managed.New(adapter, managed.Options{Owner: "broker"}), GuestEnd: true}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	set := control.Settings{
		Owner: "broker", PublicURL: "http://broker.internal", AgentDigests: map[string]string{"amd64": "00"},
		Plan: scheduler.Settings{Lease: 20 * time.Minute, Idle: 30 * time.Second, Stale: scheduler.Stale{Spot: time.Hour, OnDemand: time.Hour}},
	}
	history, err := market.OpenHistory(filepath.Join(t.TempDir(), "prices"), time.Now())
	must(t, err)
	t.Cleanup(func() { must(t, history.Close()) })
	s.broker = control.New(set, s.tables, meta, []*control.Account{account}, market.With(market.Options{Stale: set.Plan.Stale, History: history}), s.objects, s, log)
	server := api.New(s.broker, api.Options{
		Version: "1.2.3", Source: spec.Local{Dir: dir}, MaxWorkdir: s.maxWork, TempDir: dir, Log: log,
	})
	s.pipe = &pipeListener{calls: make(chan net.Conn), closed: make(chan struct{})}
	srv := &http.Server{Handler: server, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), BaseContext: func(net.Listener) context.Context { return ctx }}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.tables.Run(ctx) })
	wg.Go(func() { _ = srv.Serve(s.pipe) })
	if run {
		wg.Go(func() { _ = s.broker.Run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		s.pipe.transport().CloseIdleConnections()
		wg.Wait()
		world.Close()
		must(t, errors.Join(st.Close(), folders.Close()))
	})
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Open serves outputs and inputs from the site's own folder.
func (s *site) Open(_ context.Context, url string) (objects.Store, string, error) {
	return s.objects, "data/" + strings.TrimPrefix(url, "/"), nil
}

// token makes a token of a role for projects.
func (s *site) token(role api.Role, projects ...string) string {
	s.t.Helper()
	return s.tokenUntil(time.Time{}, role, projects...)
}

func (s *site) tokenUntil(expires time.Time, role api.Role, projects ...string) string {
	s.t.Helper()
	text, row := api.NewToken("tester-"+string(role), role, projects, time.Now().UTC(), expires)
	must(s.t, s.tables.Do(s.t.Context(), func(tx *state.Tx) error { tx.PutToken(row); return nil }))
	return text
}

// client calls the site with a token.
func (s *site) client(token string) *client.Client {
	s.t.Helper()
	tr := s.pipe.transport()
	s.t.Cleanup(tr.CloseIdleConnections)
	c, err := client.New(client.Settings{URL: "http://broker.internal", Token: token, Transport: tr})
	must(s.t, err)
	return c
}

// raw makes a call without the client and returns status and body.
func (s *site) raw(method, path, token, contentType string, body io.Reader) (int, http.Header, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://broker.internal"+path, body)
	must(s.t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	tr := s.pipe.transport()
	defer tr.CloseIdleConnections()
	res, err := tr.RoundTrip(req)
	must(s.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	must(s.t, err)
	return res.StatusCode, res.Header, string(text)
}

// submit hands a spec in.
func (s *site) submit(c *client.Client, text string) api.Job {
	s.t.Helper()
	j, err := c.Submit(s.t.Context(), request(s.t, text))
	must(s.t, err)
	return j
}

func request(t *testing.T, text string) api.SubmitRequest {
	t.Helper()
	j, err := spec.Parse("job.yaml", []byte(text))
	must(t, err)
	return api.SubmitRequest{Spec: j.Canonical()}
}

// await waits until a job is done.
func (s *site) await(c *client.Client, id string) api.Job {
	s.t.Helper()
	for range 3600 {
		j, err := c.Job(s.t.Context(), id)
		must(s.t, err)
		if j.Ended != nil {
			return j
		}
		time.Sleep(time.Second)
	}
	s.t.Fatalf("job %s is not done after an hour", id)
	return api.Job{}
}

// pipeListener takes connections that are made in this process.
type pipeListener struct {
	calls  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.calls:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (l *pipeListener) transport() *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		here, there := net.Pipe()
		select {
		case l.calls <- there:
			return here, nil
		case <-l.closed:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
}

// boot is a machine whose agent speaks the real protocol over HTTP: each task
// takes as long as its command's second word says, logs a line a second, and
// fails when the third is "fail".
func (s *site) boot(ctx context.Context, g cloud.Guest) {
	set := map[string]string{}
	for line := range strings.Lines(g.UserData) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(k, "GPUBROKER_") {
			set[k] = strings.Trim(v, "'")
		}
	}
	a := &agent{site: s, began: time.Now(), instance: set["GPUBROKER_INSTANCE"], tasks: map[string]*running{}, http: s.pipe.transport()}
	defer a.http.CloseIdleConnections()
	a.run(ctx, set["GPUBROKER_TOKEN"], g.ID)
}

type agent struct {
	site       *site
	began      time.Time
	instance   string
	credential string
	tasks      map[string]*running
	http       *http.Transport
}

type running struct {
	want  agentapi.DesiredAttempt
	began time.Time
	log   []byte
	ended *agentapi.Ended
}

func (a *agent) call(ctx context.Context, path string, in, out any) (int, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://broker.internal"+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+a.credential)
	res, err := a.http.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return res.StatusCode, fmt.Errorf("%s", res.Status)
	}
	return res.StatusCode, json.NewDecoder(res.Body).Decode(out)
}

func (a *agent) run(ctx context.Context, token, nonce string) {
	sleep := func() bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Second):
			return true
		}
	}
	for a.credential == "" {
		if !sleep() {
			return
		}
		var res agentapi.JoinResponse
		if _, err := a.call(ctx, agentapi.PathJoin, agentapi.JoinRequest{Instance: a.instance, Token: token, Nonce: nonce, CloudID: nonce, Sent: a.ticks()}, &res); err == nil {
			a.credential = res.Credential
		}
	}
	for sleep() {
		var want agentapi.Desired
		status, err := a.call(ctx, agentapi.PathSync, a.observe(ctx), &want)
		if status == http.StatusGone || err == nil && want.Leave {
			return
		}
		if err == nil {
			a.apply(want)
		}
	}
}

func (a *agent) ticks() agentapi.Ticks { return agentapi.Ticks(time.Since(a.began)) + 1 }

func (a *agent) observe(ctx context.Context) agentapi.Observed {
	o := agentapi.Observed{Instance: a.instance, BootID: a.instance, Sent: a.ticks()}
	for id, t := range a.tasks {
		x := agentapi.ObservedAttempt{ID: id, Token: t.want.Token, Phase: agentapi.Running, Busy: agentapi.Of(time.Since(t.began))}
		length, _ := time.ParseDuration(t.want.Task.Command[1])
		if t.ended == nil {
			t.log = fmt.Appendf(t.log, "second %d\n", int(time.Since(t.began)/time.Second))
			x.Progress = new(min(1, float64(time.Since(t.began))/float64(length)))
			if t.want.Watch != nil {
				x.Tail = &agentapi.Tail{Offset: 0, Data: t.log}
			}
			switch {
			case t.want.Stop != nil:
				t.ended = &agentapi.Ended{ExitCode: new(143), Layer: "task"}
			case time.Since(t.began) >= length && len(t.want.Task.Command) > 2:
				t.ended = &agentapi.Ended{ExitCode: new(3), Layer: "task"}
			case time.Since(t.began) >= length:
				t.ended = &agentapi.Ended{ExitCode: new(0), Layer: "task"}
			}
			if t.ended != nil {
				a.keepLog(ctx, id, t)
			}
		}
		if t.ended != nil {
			x.Phase, x.Ended, x.LogSize = agentapi.PhaseEnded, t.ended, int64(len(t.log))
		}
		o.Attempts = append(o.Attempts, x)
	}
	return o
}

func (a *agent) keepLog(ctx context.Context, id string, t *running) {
	key, err := checkpoint.LogKey(queue.TaskID{Job: t.want.Task.Job, Index: t.want.Task.Index}, id, 1)
	if err == nil {
		_, err = a.site.objects.Put(ctx, key, bytes.NewReader(t.log), objects.PutOptions{})
	}
	if err != nil {
		a.site.t.Error(err)
	}
}

func (a *agent) apply(want agentapi.Desired) {
	seen := map[string]bool{}
	for _, w := range want.Attempts {
		if w.Recorded {
			continue
		}
		seen[w.ID] = true
		if a.tasks[w.ID] == nil {
			a.tasks[w.ID] = &running{began: time.Now()}
		}
		a.tasks[w.ID].want = w
	}
	for id := range a.tasks {
		if !seen[id] {
			delete(a.tasks, id)
		}
	}
}
