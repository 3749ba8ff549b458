// Package rest is what adapters over plain HTTP have in common: one call is one
// request, whose answer a [Judge] turns into data or a [*providers.Error].
//
// Nothing is repeated but the later pages of a long list ([Call.Page]): a catalog
// of hundreds of pages must not start anew for one that was throttled. Redirects
// are not followed, answers are bounded, and what an error shows of an answer is
// one line without the secrets.
package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/go-retryablehttp"

	"gpubroker/providers"
)

// maxAnswer is the longest answer that is read, in bytes.
const maxAnswer = 64 << 20

// maxMessage is how much of the cloud's words is kept, in bytes.
const maxMessage = 300

const hidden = "[hidden]"

// Answer is a whole answer.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Judge says what an answer means: nil when the call did what it was asked for.
// It fills Code, Scope, Outcome as of a launch, RetryAfter and Message. The body
// comes before the status: some clouds answer 200 with an error inside.
type Judge func(Answer) *providers.Error

// Options are what a client needs.
type Options struct {
	Provider string // the account's name, for errors
	Base     string // "https://api.example.org/v1"
	Client   *http.Client
	Judge    Judge
	// Authorize adds the credential to a request. An error that is no
	// [*providers.Error] means that nothing was sent and nobody was reached.
	Authorize func(ctx context.Context, r *http.Request) error
	Secrets   []string // what no error may show
}

// Client makes calls to one cloud. It is safe for concurrent use.
type Client struct {
	opts  Options
	base  string
	once  *retryablehttp.Client
	pages *retryablehttp.Client
}

// New returns a client. It makes no call.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.Base)
	switch {
	case err != nil:
		return nil, fmt.Errorf("provider %s: endpoint: %w", o.Provider, err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("provider %s: endpoint %q: want a URL such as https://api.example.org/v1", o.Provider, u.Redacted())
	case u.User != nil || u.RawQuery != "":
		return nil, fmt.Errorf("provider %s: endpoint %q: no user and no query; credentials have keys of their own", o.Provider, u.Redacted())
	}
	client := o.Client
	if client == nil {
		client = &http.Client{Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second,
			MaxIdleConnsPerHost: 8,
			IdleConnTimeout:     time.Minute,
			ForceAttemptHTTP2:   true,
		}}
	}
	// A redirect would turn a launch into a GET; it is an answer like any other.
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c := &Client{opts: o, base: strings.TrimRight(o.Base, "/")}
	c.once = &retryablehttp.Client{HTTPClient: &own, CheckRetry: never, ErrorHandler: retryablehttp.PassthroughErrorHandler}
	c.pages = &retryablehttp.Client{
		HTTPClient: &own, RetryMax: 3, RetryWaitMin: 500 * time.Millisecond, RetryWaitMax: 10 * time.Second,
		CheckRetry: pageAgain, Backoff: pageWait, ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
	return c, nil
}

func never(context.Context, *http.Response, error) (bool, error) { return false, nil }

func pageAgain(ctx context.Context, res *http.Response, err error) (bool, error) {
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return err != nil || res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500, nil
}

// pageWait caps what a cloud may ask for: whoever reads the list has a deadline.
func pageWait(low, high time.Duration, try int, res *http.Response) time.Duration {
	if res != nil {
		if d := RetryAfter(res.Header); d > 0 {
			return min(d, high)
		}
	}
	return min(low<<try, high)
}

// Call is one request. The zero Method is GET.
type Call struct {
	Op     string // as errors name it: launch, list, …
	Target string // market or machine that errors name
	Method string
	Path   string // below the base; or a whole URL of the same host
	Query  url.Values
	Header http.Header
	In     any  // sent as JSON; nil sends no body
	Out    any  // filled from JSON; a *[]byte takes the body as it is, nil ignores it
	Page   bool // a later page of a list: a read that may be repeated
}

// Do makes a call. Its error is a [*providers.Error] with everything filled in;
// it has an outcome only for the operation "launch".
func (c *Client) Do(ctx context.Context, call Call) error {
	e := c.exchange(ctx, call)
	if e == nil {
		return nil
	}
	return c.Error(call.Op, call.Target, e)
}

// Error completes what a judge, or an adapter itself, says of a call.
func (c *Client) Error(op, target string, e *providers.Error) error {
	e.Provider, e.Op, e.Target = c.opts.Provider, op, target
	if op != "launch" {
		e.Outcome = ""
	} else if e.Outcome == "" {
		e.Outcome = providers.OutcomeUnknown
	}
	if e.Scope == "" {
		e.Scope = providers.Reactions()[e.Code].Scope
	}
	e.Message = c.Line(e.Message)
	return e
}

// Strange is the error of an answer that contradicts its request, or that cannot
// be understood.
func (c *Client) Strange(op, target, format string, args ...any) error {
	return c.Error(op, target, &providers.Error{Code: providers.Unknown, Scope: providers.ScopeOffer, Message: fmt.Sprintf(format, args...)})
}

func (c *Client) exchange(ctx context.Context, call Call) *providers.Error {
	if ctx.Err() != nil {
		return judgeTransport(context.Cause(ctx), false)
	}
	req, failed := c.request(ctx, call)
	if failed != nil {
		return failed
	}
	client := c.once
	if call.Page {
		client = c.pages
	}
	res, err := client.Do(req)
	if err != nil {
		return judgeTransport(c.hide(err), true)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	_ = res.Body.Close() // everything of use has been read
	switch {
	case err != nil:
		return judgeTransport(fmt.Errorf("read the answer: %w", err), true)
	case len(data) > maxAnswer:
		return judgeTransport(fmt.Errorf("the answer is longer than %d bytes", maxAnswer), true)
	}
	if e := c.opts.Judge(Answer{res.StatusCode, res.Header, data}); e != nil {
		// A token that was made for the call is no secret that anybody knew before.
		if _, token, ok := strings.Cut(req.Header.Get("Authorization"), " "); ok && token != "" {
			e.Message = strings.ReplaceAll(e.Message, token, hidden)
		}
		return e
	}
	if call.Out == nil {
		if bytes.HasPrefix(bytes.TrimSpace(data), []byte("<")) {
			return judgeTransport(errors.New("the answer is a page and not the API's"), true)
		}
		return nil
	}
	if raw, ok := call.Out.(*[]byte); ok {
		*raw = data
		return nil
	}
	if err := json.Unmarshal(data, call.Out); err != nil {
		return judgeTransport(fmt.Errorf("decode the answer: %w", err), true)
	}
	return nil
}

func (c *Client) request(ctx context.Context, call Call) (*retryablehttp.Request, *providers.Error) {
	address := c.base + call.Path
	if strings.Contains(call.Path, "://") {
		// A link to another page leads nowhere else: the credential goes with it.
		if !sameOrigin(call.Path, c.base) {
			return nil, &providers.Error{Code: providers.Unavailable, Outcome: providers.NotCreated, Message: "a link leads to another host than " + c.base}
		}
		address = call.Path
	}
	if len(call.Query) > 0 {
		address += "?" + call.Query.Encode()
	}
	var body io.Reader
	if call.In != nil {
		data, err := json.Marshal(call.In)
		if err != nil {
			return nil, invalid(err)
		}
		body = bytes.NewReader(data)
	}
	method := call.Method
	if method == "" {
		method = http.MethodGet
	}
	plain, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, invalid(err)
	}
	if method != http.MethodGet {
		// Go repeats a request whose connection died while it was idle if its body
		// can be had again; a launch never may be.
		plain.GetBody = nil
	}
	maps.Copy(plain.Header, call.Header)
	plain.Header.Set("Accept", "application/json")
	if call.In != nil {
		plain.Header.Set("Content-Type", "application/json")
	}
	if c.opts.Authorize != nil {
		if err := c.opts.Authorize(ctx, plain); err != nil {
			if e, ok := errors.AsType[*providers.Error](err); ok {
				e.Outcome = providers.NotCreated // the call itself was never sent
				return nil, e
			}
			return nil, judgeTransport(c.hide(err), false)
		}
	}
	req, err := retryablehttp.FromRequest(plain)
	if err != nil {
		return nil, invalid(err)
	}
	return req, nil
}

func sameOrigin(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	if errX != nil || errY != nil || x.Scheme != y.Scheme || x.Hostname() != y.Hostname() {
		return false
	}
	port := func(u *url.URL) string {
		switch {
		case u.Port() != "":
			return u.Port()
		case u.Scheme == "https":
			return "443"
		}
		return "80"
	}
	return port(x) == port(y)
}

// hide takes the query out of an error of net/http: keys have stood in one.
func (c *Client) hide(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// Line makes the cloud's words one line without secrets.
func (c *Client) Line(s string) string {
	for _, secret := range c.opts.Secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, hidden)
		}
	}
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(s) > maxMessage {
		// The last word goes whole: a part of a secret that others know to hide would
		// not be known again.
		s = s[:max(0, strings.LastIndexByte(s[:maxMessage], ' '))] + "…"
	}
	return s
}
