package managed

import (
	"path"
	"slices"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Discount is what an account pays less than its provider's prices say. It is
// applied here, at the edge: every price that leaves the wrapper is what is paid,
// and a price bound that enters it is turned into the provider's terms. A bill is
// the provider's word and stays as it is.
type Discount struct {
	Millionths int64            // of the price, under 1,000,000
	Kinds      []providers.Kind // empty means all
	Types      []string         // patterns of [path.Match]; empty means all
}

// DiscountPart is the name of the part of a price that a discount takes off.
const DiscountPart = "discount"

const whole = 1_000_000

// discount is what the first rule that fits takes off in a market, in millionths.
func (p *Provider) discount(m *providers.Market) int64 {
	for _, d := range p.opts.Discounts {
		kind := len(d.Kinds) == 0 || slices.Contains(d.Kinds, m.Kind)
		if kind && (len(d.Types) == 0 || slices.ContainsFunc(d.Types, func(pattern string) bool {
			ok, err := path.Match(pattern, m.Type)
			return ok && err == nil
		})) {
			return d.Millionths
		}
	}
	return 0
}

// off is the part of a price that a discount takes off it, rounded down.
func off(price money.Rate, millionths int64) money.Rate {
	a, b := int64(price)/whole, int64(price)%whole
	return money.Rate(a*millionths + b*millionths/whole)
}

// net is what is paid of a price.
func (p *Provider) net(m *providers.Market, price money.Rate) money.Rate {
	return price - off(price, p.discount(m))
}

// gross is the highest price of which no more than bound is paid.
func (p *Provider) gross(m *providers.Market, bound money.Rate) money.Rate {
	d := p.discount(m)
	if d == 0 {
		return bound
	}
	a, b := int64(bound)/(whole-d), int64(bound)%(whole-d)
	return money.Rate(a*whole + b*whole/(whole-d))
}

// lower takes the discount off an offer's price, as a part of its own.
func (p *Provider) lower(o *providers.Offer) {
	less := off(o.Price, p.discount(&o.Market))
	if less == 0 {
		return
	}
	if len(o.Parts) == 0 {
		o.Parts = []providers.PricePart{{Name: "compute", Price: o.Price}}
	}
	o.Parts = append(slices.Clip(o.Parts), providers.PricePart{Name: DiscountPart, Price: -less})
	o.Price -= less
}
