package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errGone says that the store does not have the object.
var errGone = errors.New("it is not in the store")

// errDigest says that what came is not what was meant.
var errDigest = errors.New("the digest differs")

// statusError is an answer of a store that is no success.
type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the store answered %d %s", e.status, e.body)
}

func statusOf(res *http.Response) error {
	// Enough of the body to see why.
	body, err := io.ReadAll(io.LimitReader(res.Body, 300))
	if err != nil {
		body = nil
	}
	return &statusError{res.StatusCode, strings.Join(strings.Fields(string(body)), " ")}
}

// backoff is the pause before try n+1: doubled from first to most, and spread so
// that a thousand agents do not come at once.
func backoff(n int, first, most time.Duration) time.Duration {
	d := most
	if n < 20 {
		d = min(first<<(n-1), most)
	}
	return d/2 + rand.N(d)
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// refusals is how many URLs for one object may be refused before the store is
// believed: the first may only have run out.
const refusals = 4

// source gives the URL of an object; stale is the last one that did not work.
type source func(ctx context.Context, stale string) (string, error)

// fetchTo gets an object into a file, going on where a broken connection left
// off. With a digest ("sha256:…") or a size above zero what came is checked, and
// fetched once more when it differs. A store that is away is waited for.
func fetchTo(ctx context.Context, client *http.Client, from source, path, digest string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	var have int64
	stale := ""
	for n, refused, wrong := 1, 0, 0; ; n++ {
		url, err := from(ctx, stale)
		if err != nil {
			return err
		}
		stale = ""
		err = fetchFrom(ctx, client, f, url, &have)
		if err == nil {
			err = checkFile(f, digest, size)
		}
		s, answered := errors.AsType[*statusError](err)
		switch {
		case err == nil:
			return f.Close()
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, syscall.ENOSPC), errors.Is(err, errGone):
			return err
		case errors.Is(err, errDigest):
			if wrong++; wrong == 2 {
				return err
			}
			have = 0
		case answered && s.status >= 400 && s.status < 500 && s.status != http.StatusTooManyRequests:
			if refused++; refused == refusals {
				return err
			}
			stale = url
		}
		if err := pause(ctx, backoff(n, 250*time.Millisecond, 20*time.Second)); err != nil {
			return err
		}
	}
}

// fetchFrom fetches what is missing from *have on.
func fetchFrom(ctx context.Context, client *http.Client, f *os.File, url string, have *int64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if *have > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(*have, 10)+"-")
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusPartialContent:
	case http.StatusOK:
		*have = 0
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("%w: %w", errGone, statusOf(res))
	case http.StatusRequestedRangeNotSatisfiable:
		*have = 0
		return errors.New("the object changed while it was fetched")
	default:
		return statusOf(res)
	}
	if err := f.Truncate(*have); err != nil {
		return err
	}
	n, err := io.Copy(io.NewOffsetWriter(f, *have), res.Body)
	*have += n
	return err
}

func checkFile(f *os.File, digest string, size int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if size > 0 && info.Size() != size {
		return fmt.Errorf("%w: %d bytes instead of %d", errDigest, info.Size(), size)
	}
	if digest == "" {
		return nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, info.Size())); err != nil {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != digest {
		return fmt.Errorf("%w: %s instead of %s", errDigest, got, digest)
	}
	return nil
}
