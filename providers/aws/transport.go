package aws

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws/middleware"
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
	if res.StatusCode == http.StatusOK {
		switch {
		case errorInside(data):
			// The table decides by the code; the status says only that it is an error.
			res.StatusCode = http.StatusInternalServerError
		case !answers(r, data):
			return nil, errNoAnswer
		}
	}
	res.Body = io.NopCloser(bytes.NewReader(data))
	return res, nil
}

var errNoAnswer = errors.New("HTTP 200 with something else than AWS's answer")

// errorInside reports whether an answer is an error document: EC2's and the
// Query protocol's roots, or the type that the JSON protocols name.
func errorInside(data []byte) bool {
	root := rootOf(data)
	return root == "Response" || root == "ErrorResponse" || bytes.HasPrefix(bytes.TrimSpace(data), []byte(`{"__type"`))
}

// answers reports whether data can be the answer to a call of EC2 or of the
// JSON protocols. The SDK takes an empty body, and any XML, for an answer in which
// nothing is: a list without machines.
func answers(r *http.Request, data []byte) bool {
	switch {
	case r.Header.Get("X-Amz-Target") != "":
		return bytes.HasPrefix(bytes.TrimSpace(data), []byte("{"))
	case strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded"):
		root := rootOf(data)
		if action := middleware.GetOperationName(r.Context()); action != "" {
			return root == action+"Response"
		}
		return strings.HasSuffix(root, "Response")
	}
	return true
}

// rootOf is the name of an XML document's root, "" where there is none.
func rootOf(data []byte) string {
	for d := xml.NewDecoder(bytes.NewReader(data)); ; {
		token, err := d.RawToken()
		if err != nil {
			return ""
		}
		if start, ok := token.(xml.StartElement); ok {
			return start.Name.Local
		}
	}
}
