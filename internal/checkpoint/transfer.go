package checkpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gpubroker/internal/objects"
)

// URLs hands out signed URLs by name (see [agentapi.Want]). It waits until it has
// one. A URL that did not work is handed back as stale, so that another one is
// asked for; stale is "" at first.
type URLs interface {
	Put(ctx context.Context, name, stale string) (string, error)
	Get(ctx context.Context, name, stale string) (string, error)
}

// Transfer moves bytes by signed URLs. It repeats what failed for as long as the
// context lasts, since a store that is away comes back.
type Transfer struct {
	URLs   URLs
	Client *http.Client // without a timeout of its own
	Log    *slog.Logger
	// Stall ends a request in which nothing moves for so long; 0 means a minute.
	Stall time.Duration

	meter meter
}

// Backoff between tries: 0.25 s doubling up to 20 s, each shortened by a random
// share of up to a half.
const (
	backoffFirst = 250 * time.Millisecond
	backoffMax   = 20 * time.Second
)

// again says how a try ended that may be repeated.
type again struct {
	err   error
	stale bool // the URL is to blame, perhaps
}

func (a *again) Error() string { return a.err.Error() }
func (a *again) Unwrap() error { return a.err }

// repeat calls try with a URL until it succeeds or fails for good.
func (t *Transfer) repeat(ctx context.Context, what string, url func(stale string) (string, error), try func(url string) error) error {
	wait := backoffFirst
	stale := ""
	for n := 1; ; n++ {
		u, err := url(stale)
		if err == nil {
			err = try(u)
			a, ok := errors.AsType[*again](err)
			if !ok {
				return err
			}
			if a.stale {
				stale = u
			}
			err = a.err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
		if n >= 3 {
			t.Log.WarnContext(ctx, "transfer failed, trying again", "what", what, "tries", n, "err", err)
		}
		select {
		case <-time.After(wait - rand.N(wait/2)):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
		wait = min(2*wait, backoffMax)
	}
}

// Put uploads n bytes of body from offset on under name, and returns the ETag by
// which the store knows it ([objects.PartETag]) and the digest of what was sent.
func (t *Transfer) Put(ctx context.Context, name string, body io.ReaderAt, offset, n int64) (etag, sum string, err error) {
	err = t.repeat(ctx, "upload "+name,
		func(stale string) (string, error) { return t.URLs.Put(ctx, name, stale) },
		func(url string) error {
			etag, sum, err = t.put(ctx, url, io.NewSectionReader(body, offset, n), n)
			return err
		})
	return etag, sum, err
}

func (t *Transfer) put(ctx context.Context, to string, body io.Reader, n int64) (etag, sum string, err error) {
	ctx, w := t.watch(ctx)
	defer w.stop()
	h, crc := sha256.New(), crc32.New(objects.SumTable())
	source := &moved{r: io.TeeReader(body, io.MultiWriter(h, crc)), w: w}
	req, err := objects.NewRequest(ctx, http.MethodPut, to, source)
	if err != nil {
		return "", "", &again{redact(ctx, err), true}
	}
	req.ContentLength = n
	if n == 0 {
		req.Body = http.NoBody
	}
	done := t.meter.begin()
	resp, err := t.Client.Do(req)
	read, failed := source.end()
	if err == nil {
		defer resp.Body.Close()
	}
	switch {
	case failed != nil:
		done(0)
		return "", "", fmt.Errorf("read what is to be uploaded: %w", failed)
	case err != nil:
		done(0)
		return "", "", &again{redact(ctx, err), false}
	case !objects.Stored(resp.StatusCode):
		done(0)
		return "", "", refused(resp)
	case read != n:
		done(0)
		return "", "", &again{fmt.Errorf("the store answered after %d of %d bytes", read, n), false}
	}
	done(n)
	return objects.PartETag(resp.Header, crc.Sum32()), digest(h.Sum(nil)), nil
}

// refused turns an answer that is no success into an error.
func refused(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, 300))
	if err != nil {
		text = nil
	}
	e := &StatusError{Status: resp.StatusCode, Text: strings.TrimSpace(string(text))}
	return &again{e, resp.StatusCode < 500}
}

// StatusError is an answer of a store that is no success.
type StatusError struct {
	Status int
	Text   string
}

// Error gives status and text.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the store answered %d %s", e.Status, e.Text)
}

// redact says what failed without the URL, which is a secret while it is valid,
// and why a request was ended from here.
func redact(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// watched ends a request in which nothing moves.
type watched struct {
	timer *time.Timer
	stall time.Duration
	stop  func()
}

var errStalled = errors.New("nothing moved")

func (t *Transfer) watch(ctx context.Context) (context.Context, *watched) {
	stall := t.Stall
	if stall == 0 {
		stall = time.Minute
	}
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watched{stall: stall}
	w.timer = time.AfterFunc(stall, func() { cancel(fmt.Errorf("%w for %s", errStalled, stall)) })
	w.stop = func() { w.timer.Stop(); cancel(nil) }
	return ctx, w
}

// moved resets the watch as bytes go by, and keeps count of them.
type moved struct {
	r io.Reader
	w *watched

	mu     sync.Mutex
	n      int64
	failed error
	ended  bool
}

func (m *moved) Read(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return 0, io.ErrClosedPipe
	}
	n, err := m.r.Read(p)
	if n > 0 {
		m.n += int64(n)
		m.w.timer.Reset(m.w.stall)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		m.failed = err
	}
	return n, err
}

func (m *moved) Close() error { return nil }

// end stops reads that a client may still have under way.
func (m *moved) end() (n int64, failed error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	return m.n, m.failed
}

// meter measures what goes up: bytes over the time in which at least one upload
// was under way, older ones counting half after a minute.
type meter struct {
	mu      sync.Mutex
	active  int
	since   time.Time
	bytes   float64
	seconds float64
	sent    atomic.Int64
}

const meterHalf = 60 // seconds

func (m *meter) begin() (done func(n int64)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pass()
	m.active++
	return func(n int64) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.pass()
		m.active--
		m.bytes += float64(n)
		m.sent.Add(n)
	}
}

func (m *meter) pass() {
	now := time.Now()
	if m.active > 0 {
		s := now.Sub(m.since).Seconds()
		keep := math.Exp2(-s / meterHalf)
		m.bytes, m.seconds = m.bytes*keep, (m.seconds+s)*keep
	}
	m.since = now
}

// Rate is the measured upload rate in bytes a second, 0 while it is unknown.
func (t *Transfer) Rate() float64 {
	t.meter.mu.Lock()
	defer t.meter.mu.Unlock()
	if t.meter.seconds <= 0 {
		return 0
	}
	return t.meter.bytes / t.meter.seconds
}

// Sent is the number of bytes that the store has confirmed.
func (t *Transfer) Sent() int64 { return t.meter.sent.Load() }
