// Package market keeps what providers offer, each list with its true age: a
// refresh that fails keeps the old list and does not make it younger.
package market

import (
	"maps"
	"slices"
	"sync"
	"time"

	"gpubroker/providers"
	"gpubroker/scheduler"
)

// List is one provider's offers.
type List struct {
	Offers []providers.Offer
	Seen   time.Time // when the list was last read whole
	Err    error     // of the newest try; nil when it went well
	Tried  time.Time
}

// Market holds the lists of all providers. It is safe for concurrent use.
type Market struct {
	mu       sync.Mutex
	lists    map[string]List
	revision uint64
	catalog  *scheduler.Catalog // of that revision; nil until somebody asks
}

// New returns an empty market.
func New() *Market {
	return &Market{lists: map[string]List{}}
}

// Replace takes over a provider's whole list, and reports whether it says
// anything new but its age.
func (m *Market) Replace(provider string, offers []providers.Offer, at time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.lists[provider].Offers
	m.lists[provider] = List{Offers: offers, Seen: at, Tried: at}
	m.revision++
	m.catalog = nil
	return !slices.EqualFunc(old, offers, func(a, b providers.Offer) bool {
		return a.Market == b.Market && a.Shape == b.Shape && a.Price == b.Price && a.Currency == b.Currency &&
			a.Available == b.Available && a.Capacity == b.Capacity
	})
}

// Fail notes that a refresh failed: the old list stays, at its age.
func (m *Market) Fail(provider string, err error, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lists[provider]
	l.Err, l.Tried = err, at
	m.lists[provider] = l
}

func (m *Market) all() []providers.Offer {
	var out []providers.Offer
	for _, name := range slices.Sorted(maps.Keys(m.lists)) {
		out = append(out, m.lists[name].Offers...)
	}
	return out
}

// Offers returns every offer of every provider.
func (m *Market) Offers() []providers.Offer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all()
}

// Lists returns each provider's list.
func (m *Market) Lists() map[string]List {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.lists)
}

// Catalog returns the offers by shape, as of the newest lists.
func (m *Market) Catalog() *scheduler.Catalog {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.catalog == nil {
		m.catalog = scheduler.NewCatalog(m.revision, m.all())
	}
	return m.catalog
}
