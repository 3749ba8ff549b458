package scheduler

import (
	"cmp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Catalog is the market's offers by shape. It is built once per refresh and
// never changed.
type Catalog struct {
	Revision uint64
	Shapes   []Shape
	Offers   int // in all shapes
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
	Capacity  int // 0 unknown
	Seen      time.Time
}

// NewCatalog groups offers by shape. Its result does not depend on their order.
func NewCatalog(revision uint64, offers []providers.Offer) *Catalog {
	onDemand := map[string]money.Rate{}
	place := func(o *providers.Offer) string { return o.Provider + "/" + o.Region + "/" + o.Type }
	for i := range offers {
		if o := &offers[i]; o.Kind == providers.OnDemand {
			if p, ok := onDemand[place(o)]; !ok || o.Price < p {
				onDemand[place(o)] = o.Price
			}
		}
	}
	byShape := map[string]*Shape{}
	for i := range offers {
		o := &offers[i]
		key := shapeKey(&o.Shape)
		s := byShape[key]
		if s == nil {
			s = &Shape{Shape: o.Shape}
			byShape[key] = s
		}
		entry := Offer{
			Market: o.Market, Price: o.Price, Reference: onDemand[place(o)],
			Full: o.Available == providers.Full, Capacity: o.Capacity, Seen: o.Seen,
		}
		if o.Kind == providers.Spot {
			s.Spot = append(s.Spot, entry)
		} else {
			s.OnDemand = append(s.OnDemand, entry)
		}
	}
	c := &Catalog{Revision: revision, Offers: len(offers)}
	keys := make([]string, 0, len(byShape))
	for k := range byShape {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	byPrice := func(a, b Offer) int {
		return cmp.Or(cmp.Compare(a.Price, b.Price), a.Market.Compare(b.Market))
	}
	for _, k := range keys {
		s := byShape[k]
		slices.SortFunc(s.Spot, byPrice)
		slices.SortFunc(s.OnDemand, byPrice)
		c.Shapes = append(c.Shapes, *s)
	}
	return c
}

func shapeKey(s *providers.Shape) string {
	n := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	return strings.Join([]string{
		s.GPU, s.GPUName, n(s.GPUs), strconv.FormatInt(s.GPUMemory, 10), n(s.VCPU),
		strconv.FormatInt(s.Memory, 10), strconv.FormatInt(s.Disk, 10), s.Arch,
	}, "|")
}

// all yields a shape's offers of the kinds allowed.
func (s *Shape) lists(kinds []providers.Kind) [2][]Offer {
	lists := [2][]Offer{s.Spot, s.OnDemand}
	if len(kinds) > 0 {
		if !slices.Contains(kinds, providers.Spot) {
			lists[0] = nil
		}
		if !slices.Contains(kinds, providers.OnDemand) {
			lists[1] = nil
		}
	}
	return lists
}
