package gcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/auth"

	"gpubroker/internal/objects"
)

// connections is how many are kept open to one host.
const connections = 32

func client() *http.Client {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return &http.Client{}
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = connections
	return &http.Client{Transport: t}
}

// answer is an answer that is no success.
type answer struct {
	status int
	reason string // as the JSON API gives it, "conditionNotMet"
	text   string
}

func (a *answer) Error() string {
	return strings.TrimSpace(fmt.Sprintf("HTTP %d %s %s", a.status, a.reason, a.text))
}

// refused reads an answer that is no success.
func refused(resp *http.Response) error {
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	if err != nil {
		text = nil // the status says enough
	}
	var said struct {
		Error struct {
			Message string
			Errors  []struct{ Reason string }
		}
	}
	if json.Unmarshal(text, &said) == nil {
		a.text = strings.Join(strings.Fields(said.Error.Message), " ")
		if len(said.Error.Errors) > 0 {
			a.reason = said.Error.Errors[0].Reason
		}
	}
	return a
}

// denied is a token that is refused or cannot be had.
type denied struct{ err error }

func (d *denied) Error() string { return d.err.Error() }
func (d *denied) Unwrap() error { return d.err }

// code follows cloud.google.com/storage/docs/json_api/v1/status-codes.
func code(err error) objects.Code {
	if _, ok := errors.AsType[*denied](err); ok {
		return objects.Denied
	}
	a, ok := errors.AsType[*answer](err)
	if !ok {
		return objects.Away // no answer
	}
	switch a.reason {
	case "rateLimitExceeded", "userRateLimitExceeded":
		return objects.Away
	}
	switch {
	case a.status == http.StatusNotFound:
		return objects.NotFound
	case a.status == http.StatusPreconditionFailed, a.status == http.StatusConflict, a.status == http.StatusNotModified:
		return objects.Exists
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		return objects.Denied
	case a.status == http.StatusInsufficientStorage:
		return objects.Full
	case a.status == http.StatusTooManyRequests, a.status == http.StatusRequestTimeout, a.status >= 500:
		return objects.Away
	}
	return objects.Invalid
}

// bucketMissing reads "not found" in answer to a call that needs no object: then
// it is the bucket that is not there.
func bucketMissing(err error) error {
	if a, ok := errors.AsType[*answer](err); ok && a.status == http.StatusNotFound {
		return &answer{status: http.StatusBadRequest, reason: a.reason, text: "there is no such bucket"}
	}
	return err
}

func fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	// What a transport failed at would repeat the whole address.
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return &objects.Error{Op: op, Key: name, Code: code(err), Err: err}
}

// tries is how often a call is made that may be made again, and firstWait the time
// before the second, of which a random share of up to a half is left out.
const (
	tries     = 3
	firstWait = 300 * time.Millisecond
)

// send makes a request until it succeeds; only one that may be repeated is made
// more than once, when the store is away.
func (b *bucket) send(ctx context.Context, repeat bool, build func() (*http.Request, error)) (*http.Response, error) {
	wait := firstWait
	for n := 1; ; n++ {
		resp, err := b.try(ctx, build)
		if err == nil || !repeat || n == tries || code(err) != objects.Away {
			return resp, err
		}
		select {
		case <-time.After(wait - rand.N(wait/2)):
		case <-ctx.Done():
			return nil, err
		}
		wait *= 2
	}
}

func (b *bucket) try(ctx context.Context, build func() (*http.Request, error)) (*http.Response, error) {
	req, err := build()
	if err != nil {
		return nil, err
	}
	token, err := b.account.token(ctx)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := b.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return nil, refused(resp)
	}
	return resp, nil
}

// call sends a request and reads the answer into out, unless that is nil.
func (b *bucket) call(ctx context.Context, repeat bool, build func() (*http.Request, error), out any) error {
	resp, err := b.send(ctx, repeat, build)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out != nil {
		err = json.NewDecoder(resp.Body).Decode(out)
	}
	// What is read to its end leaves the connection to others.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// tokenError tells a token that is refused from one that cannot be had now.
func tokenError(err error) error {
	if e, ok := errors.AsType[*auth.Error](err); ok && e.Response != nil {
		if s := e.Response.StatusCode; s >= 400 && s < 500 && !e.Temporary() {
			return &denied{fmt.Errorf("no token from Google (HTTP %d): check the credentials", s)}
		}
		return fmt.Errorf("no token from Google (HTTP %d)", e.Response.StatusCode)
	}
	return fmt.Errorf("get a token from Google: %w", err)
}

// guarded keeps a body from being read after the call that was given it.
type guarded struct {
	mu    sync.Mutex
	r     io.Reader
	ended bool
}

func (g *guarded) Read(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return 0, io.ErrClosedPipe
	}
	return g.r.Read(p)
}

func (g *guarded) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
}
