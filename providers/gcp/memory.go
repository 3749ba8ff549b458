package gcp

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// facts are what a machine was. Google deletes an instance with its labels and its
// type: only the operations on it stay, which tell when and why it ended.
type facts struct {
	market   providers.Market
	tags     providers.Tags
	launched time.Time
	policy   string // the resource policy of its group
	open     bool   // an insert of this process may still make it
	refused  int    // inserts that certainly made nothing
}

// maxFacts bounds the memory; the oldest are forgotten, and a machine that is
// forgotten and gone is described without its market.
const maxFacts = 10_000

// memory holds the facts of machines by request: those that this process has
// launched or seen.
type memory struct {
	mu    sync.Mutex
	facts map[string]facts
	order []string
}

func (m *memory) get(request string) (facts, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.facts[request]
	return f, ok
}

func (m *memory) put(request string, f facts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.facts == nil {
		m.facts = map[string]facts{}
	}
	if _, ok := m.facts[request]; !ok {
		m.order = append(m.order, request)
	}
	m.facts[request] = f
	if len(m.order) > maxFacts {
		drop := len(m.order) - maxFacts*9/10
		for _, old := range m.order[:drop] {
			delete(m.facts, old)
		}
		m.order = slices.Clone(m.order[drop:])
	}
}

// saw keeps the facts of a machine as the cloud shows it.
func (m *memory) saw(i providers.Instance, policy string) {
	old, _ := m.get(i.Ref.Request)
	m.put(i.Ref.Request, facts{i.Market, i.Tags, i.Launched, policy, false, old.refused})
}

// came notes that what was asked for is there: Google ends it.
func (m *memory) came(request string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f, ok := m.facts[request]; ok {
		f.open = false
		m.facts[request] = f
	}
}

// turns lets the launches of one request go one after another.
type turns struct {
	mu   sync.Mutex
	held map[string]*turn
}

type turn struct {
	free  chan struct{}
	calls int
}

// take waits for a request's turn, until ctx ends.
func (t *turns) take(ctx context.Context, request string) (done func(), err error) {
	t.mu.Lock()
	if t.held == nil {
		t.held = map[string]*turn{}
	}
	own := t.held[request]
	if own == nil {
		own = &turn{free: make(chan struct{}, 1)}
		t.held[request] = own
	}
	own.calls++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.calls--; own.calls == 0 {
			maps.DeleteFunc(t.held, func(_ string, other *turn) bool { return other == own })
		}
	}
	select {
	case own.free <- struct{}{}:
		return func() { <-own.free; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, rest.Transport(context.Cause(ctx), false)
	}
}
