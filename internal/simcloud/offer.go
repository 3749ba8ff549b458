package simcloud

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// offer is a market as it is now, with what it cost before.
type offer struct {
	simapi.Place
	shape    providers.Shape
	price    money.Rate
	first    money.Rate
	capacity *int
	live     int
	history  []providers.PriceChange // ascending; the last is the present price
}

func comparePlaces(a, b simapi.Place) int {
	return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Kind, b.Kind))
}

func (w *World) addOffer(c Offer, number int) error {
	o := &offer{Place: c.Place, shape: c.Shape, price: c.Price, first: c.Price, capacity: c.Capacity}
	o.history = []providers.PriceChange{{From: w.start, Price: c.Price}}
	w.offers = append(w.offers, o)
	w.byPlace[o.Place] = o
	steps := slices.Clone(c.Steps)
	if c.Replay != nil {
		more, err := c.Replay.Steps()
		if err != nil {
			return err
		}
		steps = append(steps, more...)
		sort.SliceStable(steps, func(i, j int) bool { return steps[i].At < steps[j].At })
	}
	w.nextStep(o, steps)
	if c.Walk != nil {
		w.walk(o, *c.Walk, uint64(number))
	}
	return nil
}

// nextStep has the first step done when it is due, and then the others.
func (w *World) nextStep(o *offer, steps []Step) {
	if len(steps) == 0 {
		return
	}
	w.at(w.start.Add(steps[0].At.D()), func() {
		if s := steps[0]; s.Capacity != nil {
			w.setCapacity(o, s.Capacity)
		}
		if s := steps[0]; s.Price != nil {
			w.setPrice(o, *s.Price)
		}
		w.nextStep(o, steps[1:])
	})
}

func (w *World) walk(o *offer, walk Walk, number uint64) {
	random := w.random(forWalk, number)
	next := w.start
	var step func()
	step = func() {
		next = next.Add(walk.Every.D())
		w.at(next, func() {
			move := random.Int64N(2*walk.Percent*10+1) - walk.Percent*10 // thousandths of the first price
			p := int64(o.price) + int64(o.first)/1000*move
			p = min(max(p, int64(o.first)/100*walk.Low), int64(o.first)/100*walk.High)
			w.setPrice(o, money.Rate(max(p, 1)))
			step()
		})
	}
	step()
}

// setPrice changes what the market costs. Spot machines pay the new price from
// now on, up to their bound: one whose bound is passed goes on at the price it
// had and is taken. On-demand machines keep the price of their launch.
func (w *World) setPrice(o *offer, p money.Rate) {
	if p == o.price {
		return
	}
	w.note("price", nil, o.Place.String(), "%s to %s", o.price, p)
	o.price = p
	o.history = append(o.history, providers.PriceChange{From: w.now, Price: p})
	if o.Kind != providers.Spot {
		return
	}
	for _, m := range w.living {
		if m.offer != o {
			continue
		}
		if m.req.PriceMax > 0 && p > m.req.PriceMax {
			w.preempt(m, w.cfg.Notice.D(), providers.CausePrice)
			continue
		}
		m.reprice(w.now, p)
	}
}

// setCapacity changes how many machines the market holds; nil is without limit.
// Spot machines over it are preempted, drawn from the seed.
func (w *World) setCapacity(o *offer, n *int) {
	if (n == nil) == (o.capacity == nil) && (n == nil || *n == *o.capacity) {
		return
	}
	if n == nil {
		w.note("capacity", nil, o.Place.String(), "without limit")
		o.capacity = nil
		return
	}
	w.note("capacity", nil, o.Place.String(), "%d machines", *n)
	o.capacity = new(*n)
	if o.Kind != providers.Spot {
		return
	}
	var stay []*machine
	for _, m := range w.living {
		if m.offer == o && m.taken.IsZero() && m.stopping.IsZero() {
			stay = append(stay, m)
		}
	}
	random := w.random(forEviction, uint64(w.eventSeq))
	for len(stay) > *n {
		i := random.IntN(len(stay))
		w.preempt(stay[i], w.cfg.Notice.D(), providers.CausePreempted)
		stay = slices.Delete(stay, i, i+1)
	}
}

func (o *offer) full() bool { return o.capacity != nil && o.live >= *o.capacity }

// at returns the price that held at t.
func (o *offer) at(t time.Time) providers.PriceChange {
	i := sort.Search(len(o.history), func(i int) bool { return o.history[i].From.After(t) })
	return o.history[max(i-1, 0)]
}

// Offers returns every market of a region, or of all when it is empty, sorted.
// With an age they are those of that long ago, and what is free is not said.
func (w *World) Offers(region string, age time.Duration) []simapi.Offer {
	w.enter()
	defer w.mu.Unlock()
	out := []simapi.Offer{}
	for _, o := range w.offers {
		if region != "" && o.Region != region {
			continue
		}
		v := simapi.Offer{Place: o.Place, Shape: o.shape, Currency: w.cfg.Currency, Price: o.price, Seen: w.now}
		if age > 0 {
			v.Seen = w.now.Add(-age)
			v.Price = o.at(v.Seen).Price
			out = append(out, v)
			continue
		}
		v.Available = providers.Open
		if o.full() {
			v.Available = providers.Full
		}
		if o.capacity != nil {
			v.Free = new(max(*o.capacity-o.live, 0))
		}
		out = append(out, v)
	}
	return out
}

// Quotas returns the account's limits and what counts towards them.
func (w *World) Quotas() []providers.Quota {
	w.enter()
	defer w.mu.Unlock()
	out := []providers.Quota{}
	for _, q := range w.cfg.Quotas {
		out = append(out, providers.Quota{
			Name: q.Name, Region: q.Region, Kind: q.Kind, Types: slices.Clone(q.Types),
			Unit: q.Unit, Limit: q.Limit, Used: w.used(q),
		})
	}
	return out
}

func (w *World) used(q Quota) (sum float64) {
	for _, m := range w.living {
		if q.covers(m.offer) {
			sum += q.units(m.offer.shape)
		}
	}
	return sum
}

func (q Quota) covers(o *offer) bool {
	return (q.Region == "" || q.Region == o.Region) && (q.Kind == "" || q.Kind == o.Kind) &&
		(len(q.Types) == 0 || slices.Contains(q.Types, o.Type))
}

func (q Quota) units(s providers.Shape) float64 {
	switch q.Unit {
	case "vcpu":
		return s.VCPU
	case "gpu":
		return s.GPUs
	default:
		return 1
	}
}
