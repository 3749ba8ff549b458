package aws

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// transport is the HTTP client under the SDK. It notes that a request was sent,
// follows no redirect, bounds answers, and turns an error inside a 200 into one.
type transport struct{ client http.Client }

func newTransport(c *http.Client) *transport {
	t := &transport{client: *c}
	// A redirect would turn a launch into a GET; it is an answer like any other.
	t.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return t
}

// sentKey is the context's key of the *atomic.Bool that a sent request sets.
type sentKey struct{}

// maxAnswer is the longest answer that is read, in bytes.
const maxAnswer = 64 << 20

var errTooLong = errors.New("the answer is longer than 64 MiB")

// Do sends a request and reads its answer whole.
func (t *transport) Do(r *http.Request) (*http.Response, error) {
	if sent, ok := r.Context().Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
	r.GetBody = nil // Go repeats a request on a fresh connection if it can; a launch never may be
	res, err := t.client.Do(r)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	_ = res.Body.Close() // everything of use has been read
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxAnswer:
		return nil, errTooLong
	}
	if res.StatusCode == http.StatusOK && errorInside(data) {
		// The table decides by the code; the status says only that it is an error.
		res.StatusCode = http.StatusInternalServerError
	}
	res.Body = io.NopCloser(bytes.NewReader(data))
	return res, nil
}

// errorInside reports whether an answer is an error document: EC2's and the
// Query protocol's roots, or the type that the JSON protocols name.
func errorInside(data []byte) bool {
	head := string(data[:min(len(data), 512)])
	if rest, ok := strings.CutPrefix(strings.TrimSpace(head), "<?xml"); ok {
		_, head, _ = strings.Cut(rest, "?>")
	}
	head = strings.TrimSpace(head)
	return strings.HasPrefix(head, "<Response><Errors>") || strings.HasPrefix(head, "<ErrorResponse") || strings.HasPrefix(head, `{"__type"`)
}
