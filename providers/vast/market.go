package vast

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Vast takes a search every six seconds, a list every two, a create every four and
// a half (vast-ai/docs, search_offers.yaml and
// rate-limit-endpoint-method-data.mdx), with no burst. Launches that come together
// therefore share one search and one list.
const (
	searchFresh = 10 * time.Second
	listFresh   = 2 * time.Second
	// claimTime is how long an ask that was rented may still be shown.
	claimTime = time.Minute
)

// board is what launches know in common.
type board struct {
	searching chan struct{} // held by the launch that searches
	listing   chan struct{} // held by who reads the list for all

	mu       sync.Mutex
	listed   time.Time // when the list was asked for that is kept
	list     []instance
	searched map[wanted]answered
	claimed  map[int64]time.Time // asks that somebody here is renting, until when
}

// wanted is what a launch searches for.
type wanted struct {
	market providers.Market
	disk   int64
}

type answered struct {
	at   time.Time
	asks []priced // that fit, the cheapest first
}

type priced struct {
	ask

	total money.Rate
}

func newBoard() *board {
	return &board{
		searching: make(chan struct{}, 1), listing: make(chan struct{}, 1), searched: map[wanted]answered{}, claimed: map[int64]time.Time{},
	}
}

// enter waits for a turn.
func (a *Adapter) enter(ctx context.Context, op, target string, turn chan struct{}) error {
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return a.api.Error(op, target, rest.Transport(context.Cause(ctx), false))
	}
}

// lately returns every instance of the account as it was at most a moment ago.
func (a *Adapter) lately(ctx context.Context, op, target string) ([]instance, error) {
	if err := a.enter(ctx, op, target, a.board.listing); err != nil {
		return nil, err
	}
	defer func() { <-a.board.listing }()
	a.board.mu.Lock()
	at, all := a.board.listed, a.board.list
	a.board.mu.Unlock()
	if time.Since(at) <= listFresh {
		return all, nil
	}
	return a.instances(ctx, op, target)
}

// note keeps a list for those who would read it a moment later.
func (b *board) note(sent time.Time, all []instance) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if sent.After(b.listed) {
		b.listed, b.list = sent, all
	}
}

// pick returns the cheapest ask of the market that nobody here is about to rent.
func (a *Adapter) pick(ctx context.Context, target string, req providers.LaunchRequest, disk int64) (ask, error) {
	b, w := a.board, wanted{req.Market, disk}
	if err := a.enter(ctx, opLaunch, target, b.searching); err != nil {
		return ask{}, err
	}
	defer func() { <-b.searching }()
	if asks, ok := b.known(w); ok {
		if k, ok := b.take(asks, req.PriceMax); ok {
			return k, nil
		}
	}
	asks, err := a.fitting(ctx, target, w)
	if err != nil {
		return ask{}, err
	}
	b.keep(w, asks)
	if k, ok := b.take(asks, req.PriceMax); ok {
		return k, nil
	}
	switch {
	case len(asks) == 0:
		return ask{}, a.refused(target, providers.NoCapacity, "no machine of this kind is for rent")
	case req.PriceMax > 0 && asks[0].total > req.PriceMax:
		return ask{}, a.refused(target, providers.PriceTooLow, "the price is %s, the bound %s", asks[0].total, req.PriceMax)
	}
	return ask{}, a.refused(target, providers.NoCapacity, "every machine of this kind within the bound is being rented already")
}

// fitting searches for the asks of a market, the cheapest first.
func (a *Adapter) fitting(ctx context.Context, target string, w wanted) ([]priced, error) {
	name, gpus, ok := parseType(w.market.Type)
	if !ok || !country(w.market.Region) || w.market.Zone != "" {
		return nil, a.refused(target, providers.Unsupported, "no such type or country; want a type such as RTX_4090-24G-x1-c16-m64")
	}
	asks, err := a.search(ctx, opLaunch, target, w.market.Kind, w.disk, map[string]any{
		"gpu_name": map[string]any{"eq": name}, "num_gpus": map[string]any{"eq": gpus}, "geolocation": map[string]any{"in": []string{w.market.Region}},
	})
	if err != nil {
		return nil, err
	}
	var fit []priced
	for _, k := range asks {
		total, _, ok := k.price(w.market.Kind)
		if ok && k.GPUs == gpus && k.region() == w.market.Region && typeOf(k.shape(w.disk)) == w.market.Type {
			fit = append(fit, priced{k, total})
		}
	}
	slices.SortStableFunc(fit, func(x, y priced) int { return cmp.Compare(x.total, y.total) })
	return fit, nil
}

func (b *board) known(w wanted) ([]priced, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.searched, func(_ wanted, a answered) bool { return time.Since(a.at) > searchFresh })
	a, ok := b.searched[w]
	return a.asks, ok
}

func (b *board) keep(w wanted, asks []priced) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.searched[w] = answered{time.Now(), asks}
}

// forget has the next launch search anew.
func (b *board) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.searched)
}

// take claims the first ask within the bound that is not claimed: two launches at
// once would else rent the same machine, one would fail, and its market be cooled
// down while others are free.
func (b *board) take(asks []priced, bound money.Rate) (ask, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(b.claimed, func(_ int64, end time.Time) bool { return now.After(end) })
	for _, k := range asks {
		if bound > 0 && k.total > bound {
			break
		}
		if _, taken := b.claimed[k.ID]; !taken {
			b.claimed[k.ID] = now.Add(claimTime)
			return k.ask, true
		}
	}
	return ask{}, false
}

// free gives back an ask that was not rented.
func (b *board) free(id int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.claimed, id)
}
