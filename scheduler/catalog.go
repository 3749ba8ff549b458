package scheduler

import (
	"cmp"
	"slices"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Catalog is the market's offers by shape. It is built once per refresh and
// never changed.
type Catalog struct {
	Revision uint64
	Shapes   []Shape
	Offers   int // in all shapes

	providers []string           // names, sorted
	families  []providers.Market // markets without their zones, as quotas see them
	regions   []region
	seen      [len(kinds)][]time.Time // when offers were seen, ascending and distinct

	commitments []Commitment
}

// Shape is offers that differ only in market and price.
type Shape struct {
	providers.Shape
	// Spot and OnDemand are sorted by price, then by market.
	Spot, OnDemand []Offer
}

// Offer is one market of a shape.
type Offer struct {
	Market    providers.Market
	Price     money.Rate
	Reference money.Rate // the same type on demand in the same region; 0 when unknown
	Full      bool
	Capacity  int // machines; 0 unknown
	Seen      time.Time
	Currency  money.Currency

	least      money.Rate // what counts in the order: under Price only where a commitment covers it
	commitment int        // number of the commitment, from 1; 0 is none
	provider   int        // index in the catalog's providers
	family     int32      // index in the catalog's families
	region     int32      // index in the catalog's regions
	shape      int32      // index in the catalog's shapes
}

// NewCatalog groups offers by shape. Its result does not depend on their order.
// Of several offers of one market the one seen last is kept, and of those the
// cheapest.
func NewCatalog(revision uint64, offers []providers.Offer) *Catalog {
	type place struct{ provider, region, kind string }
	c := &Catalog{Revision: revision}
	onDemand := map[place]money.Rate{}
	names := map[string]int{}
	families := map[providers.Market]int32{}
	regions := map[region]int32{}
	at := map[providers.Shape]int{}
	offers = distinct(offers)
	for i := range offers {
		o := &offers[i]
		if _, ok := names[o.Provider]; !ok {
			names[o.Provider] = 0
			c.providers = append(c.providers, o.Provider)
		}
		if _, ok := at[o.Shape]; !ok {
			at[o.Shape] = len(c.Shapes)
			c.Shapes = append(c.Shapes, Shape{Shape: o.Shape})
		}
		if o.Kind == providers.OnDemand && o.Price > 0 {
			key := place{o.Provider, o.Region, o.Type}
			if p, ok := onDemand[key]; !ok || o.Price < p {
				onDemand[key] = o.Price
			}
		}
	}
	slices.Sort(c.providers)
	for i, name := range c.providers {
		names[name] = i
	}
	for i := range offers {
		o := &offers[i]
		s := &c.Shapes[at[o.Shape]]
		family := o.Market
		family.Zone = ""
		if _, ok := families[family]; !ok {
			families[family] = int32(len(c.families))
			c.families = append(c.families, family)
		}
		where := region{o.Provider, o.Region}
		if _, ok := regions[where]; !ok {
			regions[where] = int32(len(c.regions))
			c.regions = append(c.regions, where)
		}
		list := &s.OnDemand
		if o.Kind == providers.Spot {
			list = &s.Spot
		}
		*list = append(*list, Offer{
			Market: o.Market, Price: o.Price, Reference: onDemand[place{o.Provider, o.Region, o.Type}],
			Full: o.Available == providers.Full, Capacity: o.Capacity, Seen: o.Seen.UTC(), Currency: o.Currency,
			provider: names[o.Provider], family: families[family], region: regions[where], least: o.Price,
		})
	}
	slices.SortFunc(c.Shapes, func(a, b Shape) int { return compareShapes(&a.Shape, &b.Shape) })
	for i := range c.Shapes {
		s := &c.Shapes[i]
		slices.SortFunc(s.Spot, compareOffers)
		slices.SortFunc(s.OnDemand, compareOffers)
		c.Offers += len(s.Spot) + len(s.OnDemand)
		for k := range kinds {
			list := s.list(k)
			for j := range list {
				c.seen[k] = append(c.seen[k], list[j].Seen)
				list[j].shape = int32(i)
			}
		}
	}
	for k, seen := range c.seen {
		slices.SortFunc(seen, time.Time.Compare)
		c.seen[k] = slices.CompactFunc(seen, time.Time.Equal)
	}
	return c
}

// distinct leaves one offer of each market.
func distinct(offers []providers.Offer) []providers.Offer {
	at := make(map[providers.Market]int, len(offers))
	out := make([]providers.Offer, 0, len(offers))
	for i := range offers {
		o := &offers[i]
		j, twice := at[o.Market]
		switch {
		case !twice:
			at[o.Market] = len(out)
			out = append(out, *o)
		case newer(o, &out[j]):
			out[j] = *o
		}
	}
	return out
}

// newer orders the offers of one market; it looks at all that differs, so that
// the order in which they come does not matter.
func newer(a, b *providers.Offer) bool {
	return cmp.Or(
		b.Seen.Compare(a.Seen), cmp.Compare(a.Price, b.Price), compareShapes(&a.Shape, &b.Shape),
		cmp.Compare(a.Currency, b.Currency), cmp.Compare(a.Capacity, b.Capacity), cmp.Compare(a.Available, b.Available),
	) < 0
}

func compareOffers(a, b Offer) int {
	if order := cmp.Compare(a.least, b.least); order != 0 {
		return order
	}
	return a.Market.Compare(b.Market)
}

func compareShapes(a, b *providers.Shape) int {
	return cmp.Or(
		cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.GPUName, b.GPUName), cmp.Compare(a.GPUs, b.GPUs),
		cmp.Compare(a.GPUMemory, b.GPUMemory), cmp.Compare(a.VCPU, b.VCPU), cmp.Compare(a.Memory, b.Memory),
		cmp.Compare(a.Disk, b.Disk), cmp.Compare(a.NetworkBps, b.NetworkBps), cmp.Compare(a.Arch, b.Arch),
		three(a.Fabric, b.Fabric), three(a.RDMA, b.RDMA),
	)
}

// three orders unknown before false before true.
func three(a, b gpu.Known[bool]) int {
	return cmp.Or(truth(!a.IsZero(), !b.IsZero()), truth(a.Or(false), b.Or(false)))
}

// truth orders false before true.
func truth(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// kinds are the lists of a shape in the order in which they are walked.
var kinds = [...]providers.Kind{providers.Spot, providers.OnDemand}

// list returns a shape's offers of kinds[k].
func (s *Shape) list(k int) []Offer {
	if k == 0 {
		return s.Spot
	}
	return s.OnDemand
}

// Stale is from what age on an offer is not used; 0 is never.
type Stale struct{ Spot, OnDemand time.Duration }

// Of is what holds for a kind of capacity.
func (s Stale) Of(k providers.Kind) time.Duration {
	if k == providers.Spot {
		return s.Spot
	}
	return s.OnDemand
}

// Is reports whether an offer that was seen at a moment is too old now.
func (s Stale) Is(k providers.Kind, seen, now time.Time) bool {
	of := s.Of(k)
	return of > 0 && now.Sub(seen) > of
}

// staleAt is the first moment after now at which an offer of kinds[k] turns stale.
func (c *Catalog) staleAt(k int, now time.Time, stale Stale) time.Time {
	of := stale.Of(kinds[k])
	// An offer is used while now - seen <= of.
	i, _ := slices.BinarySearchFunc(c.seen[k], now.Add(-of), time.Time.Compare)
	if of <= 0 || i == len(c.seen[k]) {
		return time.Time{}
	}
	return c.seen[k][i].Add(of + 1)
}
