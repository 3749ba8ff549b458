package control

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"gpubroker/internal/market"
)

// offers refreshes what one account offers. A failed refresh keeps the old list at
// its true age. The looks of several accounts fall apart: each comes up to a fifth
// earlier than its interval says.
func (b *Broker) offers(ctx context.Context, a *Account) (time.Duration, error) {
	every, now := b.set.Every.Offers, b.now()
	again := every - rand.N(every/5+1)
	catalog, err := a.Catalog(ctx, everything)
	if err != nil {
		b.market.Fail(a.Name(), err, now)
		return again, fmt.Errorf("offers of %s: %w", a.Name(), err)
	}
	if b.market.Replace(a.Name(), catalog.Offers, now, market.Broken(catalog)...) {
		b.state.Poke()
	}
	return again, nil
}
