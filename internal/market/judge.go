package market

import (
	"cmp"
	_ "embed"
	"encoding/csv"
	"fmt"
	"strings"
	"sync"

	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/providers/managed"
)

// Quarantined is an offer that is shown and never used.
type Quarantined struct {
	Offer providers.Offer `json:"offer"`
	Why   reason.Reason   `json:"why"`
}

// Broken are the offers of a list that break the provider contract.
func Broken(c managed.Catalog) []Quarantined {
	out := make([]Quarantined, len(c.Quarantined))
	for i, q := range c.Quarantined {
		why := reason.New(reason.Code(q.Reason))
		if q.Reason == managed.NoPrice {
			why = reason.New("no_price", "market", q.Offer.Market)
		}
		out[i] = Quarantined{q.Offer, why}
	}
	return out
}

// ListPrice is an offer's price before the discount that it has.
func ListPrice(o *providers.Offer) money.Rate {
	p := o.Price
	for i := range o.Parts {
		if o.Parts[i].Name == managed.DiscountPart {
			p -= o.Parts[i].Price
		}
	}
	return p
}

// perGPU is a price per GPU-hour; a share of a GPU counts as such. It is 0 for a
// machine without one.
func perGPU(r money.Rate, gpus float64) money.Rate {
	switch {
	case gpus <= 0:
		return 0
	case gpus == float64(int64(gpus)):
		return r / money.Rate(gpus)
	}
	return money.Rate(float64(r) / gpus)
}

// judge sets offers aside that no plan may use. Each is whole in itself already:
// what is looked at is what a price is beside the prices of its GPU and beside the
// same machine on demand. It keeps the order.
func judge(offers []providers.Offer, b *bands, stated bool) (good []providers.Offer, odd []Quarantined) {
	type place struct {
		region, zone, kind string
		currency           money.Currency
	}
	onDemand := make(map[place]money.Rate, len(offers))
	believed := func(o *providers.Offer) (low, high money.Rate, ok bool) {
		if stated || o.Currency != money.USD {
			return 0, 0, true
		}
		return b.of(o)
	}
	for i := range offers {
		o := &offers[i]
		if o.Kind != providers.OnDemand || o.Price <= 0 {
			continue
		}
		if _, _, ok := believed(o); !ok {
			continue // a price that is not believed says nothing of another
		}
		price := ListPrice(o)
		onDemand[place{o.Region, o.Zone, o.Type, o.Currency}] = price
		// Where a zone has no price of its own, the dearest of its region counts.
		whole := place{o.Region, "*", o.Type, o.Currency}
		onDemand[whole] = max(onDemand[whole], price)
	}
	out := func(i int, code reason.Code, args ...any) {
		if odd == nil {
			good = append(make([]providers.Offer, 0, len(offers)), offers[:i]...)
		}
		odd = append(odd, Quarantined{offers[i], reason.New(code, args...)})
	}
	for i := range offers {
		o := &offers[i]
		if o.Kind == providers.Spot {
			p, ok := onDemand[place{o.Region, o.Zone, o.Type, o.Currency}]
			if !ok {
				p = onDemand[place{o.Region, "*", o.Type, o.Currency}]
			}
			if list := ListPrice(o); p > 0 && list > p {
				out(i, "spot_above_on_demand", "price", list, "on_demand", p)
				continue
			}
		}
		if low, high, ok := believed(o); !ok {
			each := perGPU(ListPrice(o), o.GPUs)
			if o.GPUs <= 0 {
				out(i, "price_absurd", "price", o.Price, "high", high)
			} else {
				out(i, "price_outside_band", "price", money.Amount(each).Round(6), "low", low, "high", high, "gpu", cmp.Or(o.GPU, "a GPU that is not known"))
			}
			continue
		}
		if odd != nil {
			good = append(good, *o)
		}
	}
	if odd == nil {
		return offers, nil
	}
	return good, odd
}

// The bands of what the table does not have: a GPU-hour of a GPU that has no row,
// and the hour of a machine without one.
const (
	unknownLow  = money.Rate(2 * money.Unit / 1000)
	unknownHigh = money.Rate(250 * money.Unit)
)

type band struct{ low, high money.Rate }

// bands are the prices per GPU-hour that are believed, by id.
type bands struct{ by map[string]band }

// of returns the band that holds for an offer, and whether its price is inside.
func (b *bands) of(o *providers.Offer) (low, high money.Rate, ok bool) {
	price := ListPrice(o)
	if o.GPUs <= 0 {
		return 0, unknownHigh, price <= unknownHigh
	}
	x, known := b.by[o.GPU]
	if !known {
		x = band{unknownLow, unknownHigh}
	}
	each := perGPU(price, o.GPUs)
	return x.low, x.high, each >= x.low && each <= x.high
}

//go:embed data/bands.csv
var bandsCSV string

var builtinBands = sync.OnceValue(func() *bands {
	b, err := readBands(bandsCSV)
	if err != nil {
		panic("market: built-in bands: " + err.Error())
	}
	return b
})

func readBands(text string) (*bands, error) {
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	b := &bands{by: map[string]band{}}
	for i, r := range rows {
		if i == 0 {
			continue
		}
		low, err := money.RateOf(r[1])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		high, err := money.RateOf(r[2])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		b.by[r[0]] = band{low, high}
	}
	return b, nil
}
