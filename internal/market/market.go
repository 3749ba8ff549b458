// Package market keeps what providers offer: every price with its source, its
// currency and its true age.
//
// A refresh that fails keeps the old list and does not make it younger. What
// cannot be believed is quarantined with a reason and never offered to a plan;
// what each offer must have by itself is the provider contract's rule (package
// managed), what only shows beside others or beside the facts of its GPU is
// checked here. Discounts are part of a price when it comes here, as a part named
// "discount"; commitments are shown beside it.
//
// Readers see one immutable [View]. Taking over a list makes the next view on the
// caller's time, so that a refresh never holds up a plan or a query.
package market

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/scenario"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

// Options say how a market judges and shows prices. The zero Options are those of
// a market without accounts.
type Options struct {
	// Types are the types of providers by name, where they differ: the facts of an
	// instance type are its cloud's. A name that is not there is its own type.
	Types map[string]string
	// Stated are providers whose prices the owner states himself: no band is held
	// against them.
	Stated map[string]bool
	// Commitments are machines that the owner has paid for already.
	Commitments []scheduler.Commitment
	// Stale is from what age on an offer is not used; the zero Stale is never.
	Stale scheduler.Stale
	// Scenarios are the kinds of work that queries may name; nil means those built in.
	Scenarios *scenario.Set
	// History, when set, is told of every list that is taken over.
	History *History
	Log     *slog.Logger
}

func (o *Options) scenarios() *scenario.Set {
	if o.Scenarios == nil {
		return scenario.Builtin()
	}
	return o.Scenarios
}

// List is one provider's offers.
type List struct {
	Offers      []providers.Offer
	Quarantined []Quarantined
	Seen        time.Time // when the list was last read whole
	Err         error     // of the newest try; nil when it went well
	Tried       time.Time
}

// Market holds the lists of all providers. It is safe for concurrent use.
type Market struct {
	opts Options
	mu   sync.Mutex // of those who change it
	view atomic.Pointer[View]
}

// New returns an empty market.
func New() *Market { return With(Options{}) }

// With returns an empty market with options.
func With(o Options) *Market {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m := &Market{opts: o}
	m.view.Store(newView(&m.opts, 0, map[string]List{}))
	return m
}

// Replace takes over a provider's whole list, with what of it broke the contract,
// and reports whether it says anything new but its age. What it is given is kept,
// not copied.
func (m *Market) Replace(provider string, offers []providers.Offer, at time.Time, broken ...Quarantined) bool {
	describe(offers, m.opts.typeOf(provider))
	good, odd := judge(offers, builtinBands(), m.opts.Stated[provider])
	if m.opts.History != nil {
		if err := m.opts.History.Record(provider, good, at); err != nil {
			m.opts.Log.Error("prices are not recorded", "provider", provider, "error", err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.view.Load()
	old := was.lists[provider]
	quarantined := slices.Concat(broken, odd)
	if len(quarantined) != len(old.Quarantined) && len(quarantined) > 0 {
		first := &quarantined[0]
		m.opts.Log.Warn("offers are quarantined", "provider", provider, "offers", len(quarantined), "first", first.Offer.Market.String(), "why", first.Why.String())
	}
	lists := maps.Clone(was.lists)
	lists[provider] = List{Offers: good, Quarantined: quarantined, Seen: at, Tried: at}
	m.view.Store(newView(&m.opts, was.Revision+1, lists))
	return !slices.EqualFunc(old.Offers, good, same)
}

// describe fills in what the facts say of a cloud's machines.
func describe(offers []providers.Offer, cloud string) {
	facts := gpu.Builtin()
	for i := range offers {
		s := &offers[i].Shape
		s.Fabric, s.RDMA = facts.Joined(cloud, offers[i].Type, s.GPU, s.GPUs)
	}
}

// same reports whether two offers differ in nothing but their age.
func same(a, b providers.Offer) bool {
	return a.Market == b.Market && a.Shape == b.Shape && a.Price == b.Price && a.Currency == b.Currency &&
		a.Available == b.Available && a.Capacity == b.Capacity
}

// Fail notes that a refresh failed: the old list stays, at its age.
func (m *Market) Fail(provider string, err error, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := *m.view.Load()
	next.lists = maps.Clone(next.lists)
	l := next.lists[provider]
	l.Err, l.Tried = err, at
	next.lists[provider] = l
	m.view.Store(&next)
}

// View is the market as it is now.
func (m *Market) View() *View { return m.view.Load() }

// Offers returns every offer of every provider that is not quarantined.
func (m *Market) Offers() []providers.Offer {
	v := m.View()
	out := make([]providers.Offer, len(v.rows))
	for i := range v.rows {
		out[i] = *v.rows[i].offer
	}
	return out
}

// Lists returns each provider's list.
func (m *Market) Lists() map[string]List { return maps.Clone(m.View().lists) }

// Catalog returns the offers by shape, as of the newest lists.
func (m *Market) Catalog() *scheduler.Catalog { return m.View().Catalog }

// History returns the record of prices, nil where none is kept.
func (m *Market) History() *History { return m.opts.History }

// View is a market at one revision. It is never changed.
type View struct {
	Revision uint64
	Catalog  *scheduler.Catalog

	opts    *Options
	lists   map[string]List
	rows    []row    // by price, then by market
	gpus    []string // ids of GPUs that are offered, sorted; "" for one that is not known
	regions []string // sorted
}

// row is an offer with what queries ask about it.
type row struct {
	offer     *providers.Offer
	perGPU    int64 // nano-units per GPU-hour; 0 without a GPU
	memory    float64
	link      string
	gpu       int32 // index in gpus
	region    int32
	provider  int32
	committed int32 // index in commitments, -1 for none
}

// Quarantined returns all offers that are not used, by provider and market.
func (v *View) Quarantined() []Quarantined {
	out := []Quarantined{}
	for _, name := range slices.Sorted(maps.Keys(v.lists)) {
		out = append(out, v.lists[name].Quarantined...)
	}
	slices.SortStableFunc(out, func(a, b Quarantined) int { return a.Offer.Compare(b.Offer.Market) })
	return out
}

func newView(opts *Options, revision uint64, lists map[string]List) *View {
	v := &View{Revision: revision, opts: opts, lists: lists}
	n := 0
	for _, l := range lists {
		n += len(l.Offers)
	}
	all := make([]providers.Offer, 0, n)
	v.rows = make([]row, 0, n)
	rank := newRanks()
	names := slices.Sorted(maps.Keys(lists))
	for p, name := range names {
		offers := lists[name].Offers
		all = append(all, offers...)
		facts := newFacts(opts.typeOf(name))
		for i := range offers {
			o := &offers[i]
			r := row{offer: o, provider: int32(p), committed: opts.commitment(&o.Market)}
			facts.fill(&r)
			r.gpu, r.region = rank.of(&rank.gpus, o.GPU), rank.of(&rank.regions, o.Region)
			v.rows = append(v.rows, r)
		}
	}
	v.gpus, v.regions = rank.settle(v.rows)
	sortRows(v.rows)
	v.Catalog = scheduler.NewCatalog(revision, all).Commit(opts.Commitments)
	return v
}

func (o *Options) typeOf(provider string) string {
	if t, ok := o.Types[provider]; ok {
		return t
	}
	return provider
}

func (o *Options) commitment(m *providers.Market) int32 {
	for i := range o.Commitments {
		if o.Commitments[i].Covers(m) {
			return int32(i)
		}
	}
	return -1
}
