package objectstest

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/objects"
)

// ErrAway is the cause of what an away transport or store answers.
var ErrAway = errors.New("connection refused (test)")

// Dir returns a folder for a store that a test writes much to: in memory where
// the system has such a place, since a store syncs all that it writes.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gpubroker-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Transport carries requests to a handler of this process without a network,
// so that it works in virtual time, and spoils them on demand.
type Transport struct {
	Handler http.Handler

	mu    sync.Mutex
	away  bool
	calls int
	sent  int64 // bytes of PUT bodies that arrived
	got   int64 // bytes of GET answers
	rate  int64 // bytes a second; 0 is unlimited
	spoil func(n int, r *http.Request) Fault
}

// Fault is what happens to one request.
type Fault struct {
	// Status answers instead of the handler if it is not 0.
	Status int
	// Tear cuts the body of a PUT, or of the answer to a GET, after so many bytes.
	Tear *int64
	// Lost drops the answer after the handler has done its work.
	Lost bool
}

// Client returns a client over the transport.
func (t *Transport) Client() *http.Client { return &http.Client{Transport: t} }

// Away makes every request fail until it is taken back.
func (t *Transport) Away(on bool) { t.mu.Lock(); defer t.mu.Unlock(); t.away = on }

// Rate limits bodies to so many bytes a second.
func (t *Transport) Rate(n int64) { t.mu.Lock(); defer t.mu.Unlock(); t.rate = n }

// Spoil asks f about each request; n counts from 0.
func (t *Transport) Spoil(f func(n int, r *http.Request) Fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spoil, t.calls = f, 0
}

// Counts returns the requests made, and the bytes sent by PUT and got by GET.
func (t *Transport) Counts() (calls int, sent, got int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls, t.sent, t.got
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	t.mu.Lock()
	n := t.calls
	t.calls++
	away, rate := t.away, t.rate
	var fault Fault
	if t.spoil != nil {
		fault = t.spoil(n, req)
	}
	t.mu.Unlock()
	if req.Body != nil {
		defer req.Body.Close()
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	if away {
		return nil, ErrAway
	}
	in := req.Clone(req.Context())
	in.RequestURI = req.URL.RequestURI()
	body := &counted{r: req.Body}
	if req.Body == nil {
		body.r = http.NoBody
	}
	if fault.Tear != nil && req.Method == http.MethodPut {
		body.r = io.MultiReader(io.LimitReader(body.r, *fault.Tear), failing{})
	}
	in.Body = io.NopCloser(body)
	rec := httptest.NewRecorder()
	if fault.Status != 0 {
		rec.Code = fault.Status
	} else {
		t.Handler.ServeHTTP(rec, in)
	}
	down := int64(rec.Body.Len())
	if rate > 0 {
		select {
		case <-time.After(time.Duration(float64(body.n+down) / float64(rate) * float64(time.Second))):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	t.mu.Lock()
	t.sent += body.n
	t.got += down
	t.mu.Unlock()
	if fault.Lost || fault.Tear != nil && req.Method == http.MethodPut {
		return nil, ErrAway
	}
	resp := rec.Result()
	resp.Request = req
	resp.ContentLength = down
	if fault.Tear != nil {
		resp.Body = io.NopCloser(io.MultiReader(io.LimitReader(resp.Body, *fault.Tear), failing{}))
	}
	return resp, nil
}

type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Store is a store whose broker-side calls fail while Fail returns an error.
type Store struct {
	objects.Store
	// Fail is asked before each call, with its name and key; After, after each
	// call that did its work, so that an error from it is an answer that was lost.
	Fail, After func(op, key string) error
}

func (s *Store) before(op, key string) error {
	if s.Fail == nil {
		return nil
	}
	return s.code(op, key, s.Fail(op, key))
}

func (s *Store) after(op, key string, err error) error {
	if s.After == nil || err != nil {
		return err
	}
	return s.code(op, key, s.After(op, key))
}

func (s *Store) code(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &objects.Error{Op: op, Key: key, Code: objects.Away, Err: err}
}

// Put implements [objects.Store].
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, opts objects.PutOptions) (objects.Info, error) {
	if err := s.before("put", key); err != nil {
		return objects.Info{}, err
	}
	i, err := s.Store.Put(ctx, key, body, opts)
	return i, s.after("put", key, err)
}

// Get implements [objects.Store].
func (s *Store) Get(ctx context.Context, key string, r objects.Range) (io.ReadCloser, objects.Info, error) {
	if err := s.before("get", key); err != nil {
		return nil, objects.Info{}, err
	}
	return s.Store.Get(ctx, key, r)
}

// Stat implements [objects.Store].
func (s *Store) Stat(ctx context.Context, key string) (objects.Info, error) {
	if err := s.before("stat", key); err != nil {
		return objects.Info{}, err
	}
	return s.Store.Stat(ctx, key)
}

// List implements [objects.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[objects.Info, error] {
	if err := s.before("list", prefix); err != nil {
		return func(yield func(objects.Info, error) bool) { yield(objects.Info{}, err) }
	}
	return s.Store.List(ctx, prefix)
}

// Delete implements [objects.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.before("delete", key); err != nil {
		return err
	}
	return s.after("delete", key, s.Store.Delete(ctx, key))
}

// Begin implements [objects.Store].
func (s *Store) Begin(ctx context.Context, key string, meta map[string]string) (string, error) {
	if err := s.before("begin", key); err != nil {
		return "", err
	}
	id, err := s.Store.Begin(ctx, key, meta)
	return id, s.after("begin", key, err)
}

// Complete implements [objects.Store].
func (s *Store) Complete(ctx context.Context, key, upload string, parts []objects.Part, cond objects.Cond) (objects.Info, error) {
	if err := s.before("complete", key); err != nil {
		return objects.Info{}, err
	}
	i, err := s.Store.Complete(ctx, key, upload, parts, cond)
	return i, s.after("complete", key, err)
}

// Abort implements [objects.Store].
func (s *Store) Abort(ctx context.Context, key, upload string) error {
	if err := s.before("abort", key); err != nil {
		return err
	}
	return s.after("abort", key, s.Store.Abort(ctx, key, upload))
}
