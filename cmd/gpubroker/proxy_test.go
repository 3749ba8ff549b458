package main_test

import (
	"net"
	"sync"
	"testing"
)

// proxy is the network between agents and broker.
type proxy struct {
	net.Listener
	mu      sync.Mutex
	changed *sync.Cond
	to      string // where connections go
	how     network
	conns   map[net.Conn]bool
}

// network is what it does with connections.
type network int

const (
	whole   network = iota
	stalled         // nothing comes through, and nobody is told
	cut             // connections end, and new ones with them
)

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, to: to, conns: map[net.Conn]bool{}}
	p.changed = sync.NewCond(&p.mu)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.carry(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close() // the accept loop ends with it
		p.set(cut, "")
		wg.Wait()
	})
	return p
}

// set changes what the network does; an address other than "" is where new
// connections go from now on.
func (p *proxy) set(how network, to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.how = how
	if to != "" {
		p.to = to
	}
	if how == cut {
		for c := range p.conns {
			_ = c.Close() // that is the point
		}
	}
	p.changed.Broadcast()
}

// keep takes note of a connection, and reports false while there is no network.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	return p.how != cut
}

func (p *proxy) drop(c net.Conn) {
	_ = c.Close() // both ends are dropped when either is
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

func (p *proxy) carry(from net.Conn) {
	defer p.drop(from)
	p.mu.Lock()
	address := p.to
	p.mu.Unlock()
	if !p.keep(from) {
		return
	}
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer p.drop(to)
	if !p.keep(to) {
		return
	}
	var wg sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		wg.Go(func() {
			p.copy(way[1], way[0])
			p.drop(from)
			p.drop(to)
		})
	}
	wg.Wait()
}

func (p *proxy) copy(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		for p.how == stalled {
			p.changed.Wait()
		}
		p.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
