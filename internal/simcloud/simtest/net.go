// Package simtest is for tests of adapters against worlds: a network without
// sockets, which works in a testing/synctest bubble, and the knobs that
// providertest wants of a world.
package simtest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/certs"
)

// Net is a network in memory. What passes over it is real HTTP, and TLS where
// asked for: servers and clients are those of net/http.
type Net struct {
	t      testing.TB
	mu     sync.Mutex
	hosts  map[string]*listener
	client *http.Client
	roots  *x509.CertPool
	ca     *certs.Authority
}

// NewNet returns an empty network that ends with the test.
func NewNet(t testing.TB) *Net {
	n := &Net{t: t, hosts: map[string]*listener{}, roots: x509.NewCertPool()}
	transport := &http.Transport{DialContext: n.Dial, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: n.roots}}
	n.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		transport.CloseIdleConnections()
		for _, l := range n.hosts {
			_ = l.Close() // it has no error
		}
	})
	return n
}

// Client returns a client that reaches the network's hosts and nothing else, and
// trusts their certificates.
func (n *Net) Client() *http.Client { return n.client }

// Dial connects to a host of the network, whatever the port.
func (n *Net) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	l := n.hosts[host]
	n.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("no host %s in the test's network", host)}
	}
	near, far := net.Pipe()
	select {
	case l.waiting <- far:
		l.mu.Lock()
		l.pipes = append(l.pipes, far)
		l.mu.Unlock()
		return near, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Serve answers http://host.
func (n *Net) Serve(host string, h http.Handler) { n.serve(host, h, nil) }

// ServeTLS answers https://host, with a certificate that the network's client
// trusts.
func (n *Net) ServeTLS(host string, h http.Handler) {
	n.mu.Lock()
	if n.ca == nil {
		ca, err := certs.Open(n.t.TempDir())
		if err != nil {
			n.t.Fatal(err)
		}
		n.ca = ca
		n.roots.AppendCertsFromPEM(ca.PEM)
	}
	pair, err := n.ca.Server([]string{host})
	n.mu.Unlock()
	if err != nil {
		n.t.Fatal(err)
	}
	n.serve(host, h, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}})
}

func (n *Net) serve(host string, h http.Handler, secure *tls.Config) {
	l := &listener{host: host, waiting: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	n.hosts[host] = l
	n.mu.Unlock()
	var open sync.WaitGroup
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: time.Hour, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ConnState: func(_ net.Conn, to http.ConnState) {
			switch to {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed, http.StateHijacked:
				open.Done()
			case http.StateActive, http.StateIdle:
			}
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var outer net.Listener = l
		if secure != nil {
			outer = tls.NewListener(l, secure)
		}
		_ = srv.Serve(outer) // ends with the listener
	}()
	n.t.Cleanup(func() {
		l.cut()
		_ = srv.Close()
		<-done
		open.Wait() // a connection lingers after an answer to a call that was not read
	})
}

// listener hands over the far ends of pipes.
type listener struct {
	host    string
	waiting chan net.Conn
	closed  chan struct{}
	once    sync.Once

	mu    sync.Mutex
	pipes []net.Conn // the far ends that were handed over
}

// cut ends every connection at once. A server that says goodbye over TLS would
// wait for its client to read it, under a lock that stops the bubble's time.
func (l *listener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.pipes {
		_ = p.Close() // it has no error
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.waiting:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return address(l.host) }

type address string

func (address) Network() string  { return "memory" }
func (a address) String() string { return string(a) }
