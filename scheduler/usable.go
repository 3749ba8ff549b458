package scheduler

import (
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Usable is an offer that a group may use.
type Usable struct {
	Market providers.Market
	Shape  providers.Shape
	Price  money.Rate // whole machine per hour, paid for already or not
	Slots  int        // tasks that it runs at once
}

// UsableOffers returns the cheapest offer of a kind of every shape that fits a
// group, and that it may use now; what only cools down counts as usable. m may be
// nil.
func UsableOffers(s *Snapshot, m *Memo, g *Group, kind providers.Kind) []Usable {
	if m == nil {
		m = &Memo{}
	}
	p := newPass(s, m)
	c := p.classOf(g)
	l := c.fits.ask.loadOf(g, 0)
	var out []Usable
	for k := range kinds {
		if kinds[k] != kind || c.kinds[k] != usable {
			continue
		}
		for _, f := range c.fits.fits {
			shape := &p.Catalog.Shapes[f.shape]
			var best *Offer
			for i, list := 0, shape.list(k); i < len(list); i++ {
				if o := &list[i]; (best == nil || o.Price < best.Price) && p.rule(&l, c, o) == usable {
					best = o
				}
			}
			if best != nil {
				out = append(out, Usable{Market: best.Market, Shape: shape.Shape, Price: best.Price, Slots: int(f.slots)})
			}
		}
	}
	return out
}

// PriceOf is the least price at which a type of machine is offered in a region, by
// kind; 0 when it is not.
func (c *Catalog) PriceOf(m providers.Market) money.Rate {
	var least money.Rate
	for i := range c.Shapes {
		list := c.Shapes[i].OnDemand
		if m.Kind == providers.Spot {
			list = c.Shapes[i].Spot
		}
		for j := range list {
			o := &list[j]
			if o.Market.Provider == m.Provider && o.Market.Region == m.Region && o.Market.Type == m.Type && o.Price > 0 && (least == 0 || o.Price < least) {
				least = o.Price
			}
		}
	}
	return least
}
