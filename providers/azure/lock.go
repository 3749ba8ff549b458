package azure

import (
	"context"
	"net/url"
)

// turn is what launches of one request wait for.
type turn struct {
	free    chan struct{} // holds one token while nobody works
	waiting int
}

// enter waits until no other launch of the request is under way, or ctx ends. The
// function that it returns lets the next one in.
func (a *Adapter) enter(ctx context.Context, request string) (func(), error) {
	a.mu.Lock()
	t := a.busy[request]
	if t == nil {
		t = &turn{free: make(chan struct{}, 1)}
		t.free <- struct{}{}
		a.busy[request] = t
	}
	t.waiting++
	a.mu.Unlock()
	leave := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if t.waiting--; t.waiting == 0 {
			delete(a.busy, request)
		}
	}
	select {
	case <-t.free:
		return func() {
			t.free <- struct{}{}
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// sameOrigin reports whether two URLs lead to the same scheme, host and port.
func sameOrigin(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	if errX != nil || errY != nil {
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
	return x.Scheme == y.Scheme && x.Hostname() == y.Hostname() && port(x) == port(y)
}
