package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/reason"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == InitArg {
		os.Exit(Init())
	}
	os.Exit(m.Run())
}

// fakeBroker holds a desired state, answers calls as the real one is bound to,
// and keeps objects.
type fakeBroker struct {
	t     testing.TB
	store *fakeStore

	mu       sync.Mutex
	changed  chan struct{}
	revision int
	lease    agentapi.Grant
	attempts map[string]*agentapi.DesiredAttempt
	leave    bool

	joins    []agentapi.JoinRequest
	nonce    string
	issued   string // credential
	calls    []agentapi.Observed
	inFlight int
	last     agentapi.Observed
	ended    map[string]agentapi.ObservedAttempt
	stale    bool // answer 410
	refuse   bool // answer 403 to join
	down     bool // answer nothing
	saves    []agentapi.Save
}

func newFakeBroker(t testing.TB) *fakeBroker {
	t.Helper()
	b := &fakeBroker{
		t: t, store: &fakeStore{objects: map[string][]byte{}, puts: map[string]int{}, fails: map[string]int{}},
		changed: make(chan struct{}), lease: agentapi.Grant{For: agentapi.Of(20 * time.Minute)},
		attempts: map[string]*agentapi.DesiredAttempt{}, ended: map[string]agentapi.ObservedAttempt{},
	}
	return b
}

// change alters the broker's state and wakes held calls.
func (b *fakeBroker) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	b.touch()
}

func (b *fakeBroker) touch() {
	b.revision++
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *fakeBroker) add(id string, task agentapi.Task, more ...func(*agentapi.DesiredAttempt)) {
	b.change(func() {
		if task.StopGrace == 0 {
			task.StopGrace = agentapi.Of(2 * time.Second)
		}
		task.Job, task.Number = "job", 1
		b.attempts[id] = &agentapi.DesiredAttempt{
			ID: id, Token: "token-" + id, Task: task, Slot: len(b.attempts), Next: 1,
			Put: map[string]string{}, Get: map[string]string{},
		}
		for _, f := range more {
			f(b.attempts[id])
		}
	})
}

func (b *fakeBroker) Join(_ context.Context, req agentapi.JoinRequest) (agentapi.JoinResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.joins = append(b.joins, req)
	if b.down {
		return agentapi.JoinResponse{}, io.ErrUnexpectedEOF
	}
	if b.refuse || b.nonce != "" && b.nonce != req.Nonce {
		return agentapi.JoinResponse{}, &ProblemError{http.StatusForbidden, agentapi.Problem{Code: agentapi.Refused, Message: "another machine has joined"}}
	}
	b.nonce = req.Nonce
	b.issued = fmt.Sprintf("credential-%d", len(b.joins))
	return agentapi.JoinResponse{Instance: "i-1", Credential: b.issued, Lease: b.lease}, nil
}

func (b *fakeBroker) Sync(ctx context.Context, credential string, o agentapi.Observed) (agentapi.Desired, error) {
	b.mu.Lock()
	if b.inFlight++; b.inFlight > 1 && b.store.base == "" { // a server sees late that a caller has gone
		b.t.Error("two sync calls in flight")
	}
	defer func() {
		b.mu.Lock()
		b.inFlight--
		b.mu.Unlock()
	}()
	if n := len(b.calls); n > 0 && b.calls[n-1].Sent >= o.Sent && b.store.base == "" {
		b.t.Errorf("Sent went from %d to %d", b.calls[n-1].Sent, o.Sent)
	}
	b.calls = append(b.calls, o)
	switch {
	case b.down:
		b.mu.Unlock()
		return agentapi.Desired{}, io.ErrUnexpectedEOF
	case b.stale || credential != b.issued:
		b.mu.Unlock()
		return agentapi.Desired{}, &ProblemError{http.StatusGone, agentapi.Problem{Code: agentapi.Stale, Message: "not known"}}
	}
	b.last = o
	b.take(o)
	deadline := time.NewTimer(o.Wait.Std())
	defer deadline.Stop()
	for o.Wait > 0 && o.Revision == fmt.Sprint(b.revision) {
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-deadline.C:
			o.Wait = 0
		case <-ctx.Done():
			b.mu.Lock()
			b.mu.Unlock()
			return agentapi.Desired{}, ctx.Err()
		}
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	if b.down {
		return agentapi.Desired{}, io.ErrUnexpectedEOF
	}
	return b.desired(), nil
}

// desired is a copy, as the wire makes one.
func (b *fakeBroker) desired() agentapi.Desired {
	d := agentapi.Desired{Revision: fmt.Sprint(b.revision), Lease: b.lease, Leave: b.leave}
	for _, id := range slices.Sorted(maps.Keys(b.attempts)) {
		d.Attempts = append(d.Attempts, *b.attempts[id])
	}
	data, err := json.Marshal(d)
	if err != nil {
		b.t.Error(err)
	}
	var copied agentapi.Desired
	if err := json.Unmarshal(data, &copied); err != nil {
		b.t.Error(err)
	}
	return copied
}

// take does what the broker does with an observed state.
func (b *fakeBroker) take(o agentapi.Observed) {
	before := b.revision
	for _, a := range o.Attempts {
		d := b.attempts[a.ID]
		if d == nil || d.Token != a.Token {
			continue
		}
		for _, name := range a.Want.Put {
			d.Put[name] = b.store.sign(a.ID + "/" + name)
			b.revision++
		}
		for _, name := range a.Want.Get {
			key := name
			if part, ok := strings.CutPrefix(name, "get/part/"); ok {
				if f := strings.Split(part, "/"); len(f) == 3 {
					key = f[0] + "/save/" + f[1] + "/" + f[2]
				}
			}
			d.Get[name] = b.store.sign(key)
			b.revision++
		}
		for _, s := range a.Saves {
			if s.Number > d.Committed {
				d.Committed, d.Next = s.Number, s.Number+1
				b.saves = append(b.saves, s)
				b.revision++
			}
		}
		if a.Output != nil && d.Published == "" && d.PublishErr == "" {
			d.Published = a.Output.Digest
			b.revision++
		}
		if a.Phase == agentapi.PhaseEnded && !d.Recorded {
			d.Recorded = true
			b.ended[a.ID] = a
			b.revision++
		}
	}
	if b.revision != before {
		b.touch()
	}
}

// until waits for ok, which is called with the lock held after each call.
func (b *fakeBroker) until(what string, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		b.mu.Lock()
		done := ok()
		b.mu.Unlock()
		if done {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	data, _ := json.Marshal(b.last)
	b.t.Fatalf("waited in vain for %s; last call: %s", what, data)
}

// end waits until the attempt's end is in the books.
func (b *fakeBroker) end(id string) agentapi.ObservedAttempt {
	b.t.Helper()
	b.until("the end of "+id, func() bool { _, ok := b.ended[id]; return ok })
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended[id]
}

func (b *fakeBroker) observed(id string) agentapi.ObservedAttempt {
	for _, a := range b.last.Attempts {
		if a.ID == id {
			return a
		}
	}
	return agentapi.ObservedAttempt{}
}

func (b *fakeBroker) stop(id string, s agentapi.Stop) {
	if s.Why.IsZero() {
		s.Why = reason.New("cancelled", "by", "test")
	}
	b.change(func() { b.attempts[id].Stop = &s })
}

// handler is the broker and its store over HTTP.
func (b *fakeBroker) handler() http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any, err error) {
		if p, ok := errors.AsType[*ProblemError](err); ok {
			w.WriteHeader(p.Status)
			v = p.Problem
		} else if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("POST "+agentapi.PathJoin, func(w http.ResponseWriter, r *http.Request) {
		var req agentapi.JoinRequest
		json.NewDecoder(r.Body).Decode(&req)
		res, err := b.Join(r.Context(), req)
		answer(w, res, err)
	})
	mux.HandleFunc("POST "+agentapi.PathSync, func(w http.ResponseWriter, r *http.Request) {
		var o agentapi.Observed
		json.NewDecoder(r.Body).Decode(&o)
		res, err := b.Sync(r.Context(), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), o)
		answer(w, res, err)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key, ok := strings.CutPrefix(r.URL.Path, "/store"); ok { // a mux would mend its double slashes
			r.URL.Path = key
			b.store.serve(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// fakeStore is an object store behind signed URLs, as a transport.
type fakeStore struct {
	mu      sync.Mutex
	objects map[string][]byte
	puts    map[string]int // how often an object was sent
	fails   map[string]int // status to answer for keys with this prefix
	signed  int
	refuse  map[string]bool // URLs that ran out
	base    string          // of URLs; default http://store/
}

func (s *fakeStore) sign(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signed++
	return fmt.Sprintf("%s%s?sig=%d", cmp.Or(s.base, "http://store/"), key, s.signed)
}

func (s *fakeStore) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	s.serve(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	res := w.Result()
	res.ContentLength = int64(w.Body.Len())
	return res, nil
}

func (s *fakeStore) serve(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.URL.Path, "/")
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for prefix, status := range s.fails {
		if strings.HasPrefix(key, prefix) {
			http.Error(w, "as the test wants it", status)
			return
		}
	}
	if s.refuse[r.URL.String()] {
		http.Error(w, "expired", http.StatusForbidden)
		return
	}
	switch r.Method {
	case http.MethodPut:
		s.objects[key] = body
		s.puts[key]++
		w.Header().Set("ETag", fmt.Sprintf(`"%d"`, len(body)))
	case http.MethodGet:
		data, ok := s.objects[key]
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
}

func (s *fakeStore) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *fakeStore) get(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.objects[key])
}

// log is what was sent of an attempt's log.
func (s *fakeStore) log(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text strings.Builder
	for n := 1; ; n++ {
		chunk, ok := s.objects[fmt.Sprintf("%s/log/%d", id, n)]
		if !ok {
			return text.String()
		}
		text.Write(chunk)
	}
}

// testClock is CLOCK_BOOTTIME in a test: it follows Go's clock, and jumps when
// the machine sleeps.
type testClock struct {
	mu    sync.Mutex
	start time.Time
	slept time.Duration
	boot  string
}

func newTestClock() *testClock { return &testClock{start: time.Now(), boot: "boot-1"} }

func (c *testClock) Now() agentapi.Ticks {
	c.mu.Lock()
	defer c.mu.Unlock()
	return agentapi.Ticks(time.Since(c.start) + c.slept)
}

func (c *testClock) Boot() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot
}

func (c *testClock) suspend(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slept += d
}

// fakeMetadata is a metadata service.
type fakeMetadata struct {
	mu     sync.Mutex
	id     string
	notice *MetadataNotice
}

func (m *fakeMetadata) CloudID(context.Context) (string, error) { return m.id, nil }

func (m *fakeMetadata) Notice(context.Context) (*MetadataNotice, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.notice, nil
}

func (m *fakeMetadata) warn(n MetadataNotice) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notice = &n
}

// testAgent is a running agent.
type testAgent struct {
	*Agent
	cancel context.CancelFunc
	err    chan error
}

func testLog(t testing.TB) *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	return slog.New(slog.DiscardHandler)
}

// startAgent runs an agent until the test ends or stop is called.
func startAgent(t testing.TB, b *fakeBroker, dir string, alter func(*Settings, *Parts)) *testAgent {
	t.Helper()
	set := Settings{URL: "http://broker", Instance: "i-1", Token: "join", Dir: dir}
	if err := set.Check(); err != nil {
		t.Fatal(err)
	}
	log := testLog(t)
	p := Parts{Broker: b, Store: b.store, Metadata: NoMetadata{}, Clock: newTestClock(), Log: log}
	if alter != nil {
		alter(&set, &p)
	}
	if p.Executor == nil {
		var err error
		if p.Executor, err = NewProcesses(dir, nil, log); err != nil {
			t.Fatal(err)
		}
	}
	a := &testAgent{Agent: New(set, p), err: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	go func() { a.err <- a.Run(ctx) }()
	t.Cleanup(func() { a.stop() })
	return a
}

// stop ends the agent and returns what Run returned.
func (a *testAgent) stop() error {
	a.cancel()
	err := <-a.err
	a.err <- err
	return err
}
