package checkpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
)

// refusals is how many URLs for one object may be refused before the store is
// believed: the first may only have run out.
const refusals = 4

// Fetch gets an object into a file, going on where a broken connection left off.
// With a digest to want ("sha256:…") or a size above zero what came is checked, and got
// once more when it differs. what names the object in errors; url hands out its
// URLs, as [URLs] does. An object that is not there, or whose URLs are refused
// time and again, is an error; a store that is away is waited for.
func (t *Transfer) Fetch(ctx context.Context, what string, url func(ctx context.Context, stale string) (string, error), path, want string, size int64) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", what, err)
	}
	var have int64
	refused, wrong := 0, 0
	err = t.repeat(ctx, "fetch "+what,
		func(stale string) (string, error) { return url(ctx, stale) },
		func(url string) error {
			if err := t.fetchRest(ctx, file, url, &have); err != nil {
				if a, ok := errors.AsType[*again](err); ok && a.stale && !throttled(err) {
					if refused++; refused == refusals {
						return a.err
					}
				}
				return err
			}
			err := checkFile(file, want, size)
			if b, ok := errors.AsType[*badObject](err); ok {
				if wrong++; wrong < 2 {
					have = 0
					return &again{b, false}
				}
			}
			return err
		})
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("fetch %s: %w", what, err)
	}
	return nil
}

func throttled(err error) bool {
	s, ok := errors.AsType[*StatusError](err)
	return ok && s.Status == http.StatusTooManyRequests
}

// fetchRest gets what is missing from *have on.
func (t *Transfer) fetchRest(ctx context.Context, file *os.File, url string, have *int64) error {
	ctx, w := t.watch(ctx)
	defer w.stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return &again{redact(ctx, err), true}
	}
	if *have > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(*have, 10)+"-")
	}
	resp, err := t.Client.Do(req)
	if err != nil {
		return &again{redact(ctx, err), false}
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusPartialContent:
	case http.StatusOK:
		*have = 0
	case http.StatusNotFound, http.StatusGone:
		return &badObject{"it is not there"}
	case http.StatusRequestedRangeNotSatisfiable:
		*have = 0
		return &again{errors.New("the object changed while it was fetched"), false}
	default:
		return refused(resp)
	}
	if err := file.Truncate(*have); err != nil {
		return err
	}
	body := &moved{r: resp.Body, w: w}
	n, err := io.Copy(io.NewOffsetWriter(file, *have), body)
	*have += n
	if _, failed := body.end(); failed != nil {
		return &again{redact(ctx, failed), false}
	}
	return err
}

func checkFile(file *os.File, want string, size int64) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if size > 0 && info.Size() != size {
		return &badObject{fmt.Sprintf("%d bytes instead of %d", info.Size(), size)}
	}
	if want == "" {
		return nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(file, 0, info.Size())); err != nil {
		return err
	}
	if got := digest(h.Sum(nil)); got != want {
		return &badObject{fmt.Sprintf("its digest is %s instead of %s", got, want)}
	}
	return nil
}
