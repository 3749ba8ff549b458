package market

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Model is a GPU with what is known of it and where it is cheapest.
type Model struct {
	gpu.Fact
	// Spot and OnDemand are the cheapest offers that are not stale, nil where there
	// is none.
	Spot     *Best `json:"spot,omitempty"`
	OnDemand *Best `json:"on_demand,omitempty"`
	Offers   int   `json:"offers,omitzero" doc:"that are not stale"`
}

// Best is the cheapest offer of a GPU.
type Best struct {
	PerGPU   money.Rate       `json:"per_gpu" doc:"price of one whole GPU for an hour"`
	Currency money.Currency   `json:"currency"`
	Market   providers.Market `json:"market"`
	Seen     time.Time        `json:"seen"`
}

// Models returns a row for each GPU that there are facts of, in their order, and
// then one for each that is only offered: ids that leave a variant open, and GPUs
// that nobody knows, under their provider's words. Prices in other currencies than
// the first that is met of a GPU are not compared with it.
func (v *View) Models(now time.Time) []Model {
	var out []Model
	at := map[string]int{}
	for _, f := range gpu.Builtin().All() {
		at[f.ID] = len(out)
		out = append(out, Model{Fact: f})
	}
	known := len(out)
	for i := range v.rows { // the cheapest machine first, which need not be the cheapest GPU
		o := v.rows[i].offer
		if o.GPUs <= 0 || v.opts.Stale.Is(o.Kind, o.Seen, now) {
			continue
		}
		id := o.GPU
		if id == "" {
			id = UnknownGPU + " " + o.GPUName
		}
		n, ok := at[id]
		if !ok {
			n = len(out)
			at[id] = n
			out = append(out, Model{Fact: factOf(o)})
		}
		m := &out[n]
		m.Offers++
		best := &m.OnDemand
		if o.Kind == providers.Spot {
			best = &m.Spot
		}
		each := money.Rate(v.rows[i].perGPU)
		if *best == nil || (*best).Currency == o.Currency && each < (*best).PerGPU {
			*best = &Best{each, o.Currency, o.Market, o.Seen}
		}
	}
	slices.SortStableFunc(out[known:], func(a, b Model) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Name, b.Name))
	})
	return out
}

// factOf is what an offer of a GPU without facts says of it.
func factOf(o *providers.Offer) gpu.Fact {
	if f, ok := gpu.Builtin().Lookup(o.GPU); ok {
		return f
	}
	f := gpu.Fact{ID: o.GPU, Name: o.GPUName}
	if f.ID == "" {
		f.ID = UnknownGPU
	}
	if o.GPUMemory > 0 {
		f.Memory = gpu.Of(float64(o.GPUMemory / 1e9))
	}
	return f
}
