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

// Like is what a catalog says of a type of machine in a region, of one kind: the
// least price, and the network of its shape; 0 is unknown.
type Like struct {
	Price      money.Rate
	NetworkBps int64
}

// Like looks for a market's type in its region, in any zone.
func (c *Catalog) Like(m providers.Market) Like {
	var out Like
	for i := range c.Shapes {
		s := &c.Shapes[i]
		list := s.OnDemand
		if m.Kind == providers.Spot {
			list = s.Spot
		}
		for j := range list {
			o := &list[j]
			if o.Market.Provider == m.Provider && o.Market.Region == m.Region && o.Market.Type == m.Type && o.Price > 0 && (out.Price == 0 || o.Price < out.Price) {
				out = Like{o.Price, s.NetworkBps}
			}
		}
	}
	return out
}
