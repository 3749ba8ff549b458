package simcloud

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
)

// InProcessURL is the address of a world's API for the client of [InProcess].
const InProcessURL = "http://simcloud.internal"

const metadataSuffix = ".metadata.simcloud.internal"

// InProcess returns a client that reaches the world's API at [InProcessURL] and
// each machine's metadata at its Guest's MetadataURL, and nothing else. It uses
// no sockets, so that it works in a testing/synctest bubble: waits are waits of
// the bubble. Like a connection, it drops answers, and a call goes on after its
// caller has left.
func InProcess(w *World) *http.Client { return &http.Client{Transport: &transport{w}} }

type transport struct{ w *World }

// errDropped is what a dropped connection looks like to its client.
var errDropped = io.ErrUnexpectedEOF

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	h, err := t.route(r.URL.Host)
	if err != nil {
		return nil, err
	}
	var body []byte
	if r.Body != nil {
		body, err = io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	ctx := r.Context()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	in := r.Clone(ctx)
	in.Body, in.RequestURI, in.Host = io.NopCloser(bytes.NewReader(body)), r.URL.RequestURI(), r.URL.Host
	out := &capture{head: http.Header{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				if e, ok := v.(error); !ok || !errors.Is(e, http.ErrAbortHandler) {
					panic(v)
				}
				out.dropped = true
			}
		}()
		h.ServeHTTP(out, in)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if out.dropped && out.status == 0 {
		return nil, errDropped
	}
	return out.response(r), nil
}

func (t *transport) route(host string) (http.Handler, error) {
	if "http://"+host == InProcessURL {
		return t.w.handler, nil
	}
	if id, ok := strings.CutSuffix(host, metadataSuffix); ok {
		t.w.enter()
		defer t.w.mu.Unlock()
		if m := t.w.byID[id]; m != nil && m.live() {
			return t.w.metadata(m), nil
		}
	}
	return nil, errors.New("simcloud: no host " + host + " in process")
}

// capture holds a handler's answer.
type capture struct {
	head    http.Header
	status  int
	body    bytes.Buffer
	dropped bool
}

func (c *capture) Header() http.Header { return c.head }

func (c *capture) WriteHeader(status int) {
	if c.status == 0 {
		c.status = status
	}
}

func (c *capture) Write(p []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	return c.body.Write(p)
}

func (c *capture) response(r *http.Request) *http.Response {
	c.WriteHeader(http.StatusOK)
	var body io.Reader = &c.body
	if c.dropped {
		body = io.MultiReader(body, broken{})
	}
	return &http.Response{
		Status: http.StatusText(c.status), StatusCode: c.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: c.head, Body: io.NopCloser(body), ContentLength: -1, Request: r,
	}
}

// broken is the end of a connection in the middle of an answer.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errDropped }
