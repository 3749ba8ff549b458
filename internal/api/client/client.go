// Package client calls a broker's HTTP API, with the types of package api.
//
// Calls that only read are repeated a few times when the broker is briefly away;
// calls that change something are made once, and a caller who is not answered
// may repeat a submission under the same key.
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// Settings say where the broker is, and who calls.
type Settings struct {
	URL   string `json:"url"`
	Token string `json:"token"`
	CA    string `json:"ca,omitempty"` // PEM of the authority that signed its certificate; "" means the system's
	// Transport, when set, carries the calls instead, and CA is not used.
	Transport http.RoundTripper `json:"-"`
	// Wait is how long the answer to a read may take to begin; 0 means two minutes. A
	// carrier of one's own has its own patience.
	Wait time.Duration `json:"-"`
}

// readTime is enough for all that a broker only looks up.
const readTime = 2 * time.Minute

// Client calls one broker. It is safe for concurrent use.
type Client struct {
	base  *url.URL
	token string
	once  *http.Client // changes and streams
	again *http.Client // reads
}

// Error is the broker's answer to a call that it did not carry out.
type Error struct {
	Status int      // of HTTP
	Detail string   // one line for people
	Faults []string // each fault of what was sent, when there are several
}

// Error is one line.
func (e *Error) Error() string {
	if len(e.Faults) == 0 {
		return e.Detail
	}
	return e.Detail + ": " + strings.Join(e.Faults, "; ")
}

// Is reports whether err is an [*Error] of the given status.
func Is(err error, status int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == status
}

// ErrUnreachable is wrapped by errors of calls that no broker answered.
var ErrUnreachable = errors.New("no broker answers")

// New makes a client. It makes no call.
func New(s Settings) (*Client, error) {
	base, err := url.Parse(s.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("broker address %q: expected http://HOST:PORT or https://HOST:PORT", s.URL)
	}
	carrier := s.Transport
	reads := carrier
	if carrier == nil {
		t, err := transport(s.CA)
		if err != nil {
			return nil, err
		}
		carrier = t
		// What changes something may take its time; who only looks is told.
		t = t.Clone()
		t.ResponseHeaderTimeout = cmp.Or(s.Wait, readTime)
		reads = t
	}
	c := &Client{base: base, token: s.Token, once: &http.Client{Transport: carrier, CheckRedirect: noRedirect}}
	retry := &retryablehttp.Client{
		HTTPClient: &http.Client{Transport: reads, CheckRedirect: noRedirect}, RetryMax: 3, RetryWaitMin: 200 * time.Millisecond, RetryWaitMax: 2 * time.Second,
		CheckRetry: worthAnother, Backoff: retryablehttp.LinearJitterBackoff, ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
	c.again = retry.StandardClient()
	c.again.CheckRedirect = noRedirect
	return c, nil
}

func transport(ca string) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
		ForceAttemptHTTP2: true,
	}
	if ca == "" {
		return t, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca)) {
		return nil, errors.New("broker's CA: expected a certificate in PEM form")
	}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	return t, nil
}

// noRedirect keeps the token from going anywhere else.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// worthAnother repeats a read whose answer may be different a moment later. A
// refused connection is not repeated: nobody is there, and people want to know.
func worthAnother(ctx context.Context, res *http.Response, err error) (bool, error) {
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil {
		return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), nil
	}
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true, nil
	}
	return false, nil
}

// URL is the broker's address.
func (c *Client) URL() string { return c.base.String() }

func (c *Client) request(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Request, error) {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

// do makes a call and returns an answer of success, whose body the caller closes.
func (c *Client) do(h *http.Client, req *http.Request) (*http.Response, error) {
	res, err := h.Do(req)
	if err != nil {
		if ctx := req.Context(); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err // it repeats method and address
		}
		return nil, fmt.Errorf("%w at %s: %w", ErrUnreachable, c.base, err)
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, failure(res)
}

// failure reads an answer of failure.
func failure(res *http.Response) error {
	e := &Error{Status: res.StatusCode}
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	var problem struct {
		Detail string `json:"detail"`
		Errors []struct {
			Message  string `json:"message"`
			Location string `json:"location"`
		} `json:"errors"`
	}
	if err == nil && json.Unmarshal(text, &problem) == nil && problem.Detail != "" {
		e.Detail = problem.Detail
		for _, f := range problem.Errors {
			where := strings.TrimPrefix(f.Location, "body.")
			if where != "" {
				where += ": "
			}
			e.Faults = append(e.Faults, where+f.Message)
		}
		return e
	}
	e.Detail = fmt.Sprintf("the answer was %s; is this address a gpubroker's?", res.Status)
	return e
}

// read decodes the answer of a call into out; out nil drops it.
func read(res *http.Response, out any) error {
	defer res.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("the broker's answer is not understood (%w): are its version and this one the same?", err)
	}
	return nil
}

func (c *Client) get(ctx context.Context, path string, query url.Values, out any) error {
	req, err := c.request(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	res, err := c.do(c.again, req)
	if err != nil {
		return err
	}
	return read(res, out)
}

func (c *Client) send(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := c.request(ctx, method, path, nil, body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.do(c.once, req)
	if err != nil {
		return err
	}
	return read(res, out)
}
