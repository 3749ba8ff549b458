package market

import (
	"cmp"
	"slices"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/scenario"
	"gpubroker/providers"
)

// Worth is what a GPU is for a kind of work.
type Worth struct {
	GPU string `json:"gpu"`
	// Lacks is the first thing that the work asks for and the GPU has not; nil where
	// it fits.
	Lacks *gpu.Failure `json:"lacks,omitempty"`
	// Assumed means that a job may do without what is lacking.
	Assumed bool    `json:"assumed,omitzero" doc:"a job may ask otherwise, and then it would fit"`
	Figure  float64 `json:"figure,omitzero" doc:"what governs the speed, of one GPU; absent when unknown"`
	// Spot and OnDemand are the cheapest offers that are not stale and whose machine
	// is fit for the work.
	Spot     *Best `json:"spot,omitempty"`
	OnDemand *Best `json:"on_demand,omitempty"`
	// PerMoney compares within the currency of the first that has a price: 0 where
	// there is none.
	PerMoney float64 `json:"per_money,omitzero" doc:"figure that one unit of money buys for an hour, at the cheapest kind of machine that the work may run on"`
}

// Best returns the price that the work would pay.
func (w *Worth) Best(p *scenario.Profile) *Best {
	switch {
	case p.Interruptible == scenario.Never || w.Spot == nil:
		return w.OnDemand
	case w.OnDemand == nil || w.Spot.PerGPU < w.OnDemand.PerGPU:
		return w.Spot
	}
	return w.OnDemand
}

// Worth returns a row for each GPU that there are facts of: those that fit first,
// by what their money buys, then by figure.
func (v *View) Worth(p *scenario.Profile, now time.Time) []Worth {
	facts := gpu.Builtin()
	at := map[string]int{}
	var out []Worth
	for _, f := range facts.All() {
		w := Worth{GPU: f.ID}
		// What the work cannot do without is told before what a job may waive.
		for _, asked := range []scenario.Requirements{p.Require, p.Merge(nil)} {
			if failures := facts.Check(f, gpu.Requirements(asked)); w.Lacks == nil && len(failures) > 0 {
				w.Lacks = &failures[0]
				_, w.Assumed = p.Assume[failures[0].Attribute]
			}
		}
		w.Figure, _, _ = p.Figure(f)
		at[f.ID] = len(out)
		out = append(out, w)
	}
	for i := range v.rows {
		o := v.rows[i].offer
		n, ok := at[o.GPU]
		if !ok || o.GPUs <= 0 || v.opts.Stale.Is(o.Kind, o.Seen, now) || !suits(o, p) {
			continue
		}
		best := &out[n].OnDemand
		if o.Kind == providers.Spot {
			best = &out[n].Spot
		}
		if each := money.Rate(v.rows[i].perGPU); *best == nil || (*best).Currency == o.Currency && each < (*best).PerGPU {
			*best = &Best{each, o.Currency, o.Market, o.Seen}
		}
	}
	var currency money.Currency
	for i := range out {
		w := &out[i]
		if b := w.Best(p); w.Lacks == nil && b != nil && b.PerGPU > 0 {
			if currency = cmp.Or(currency, b.Currency); b.Currency == currency {
				w.PerMoney = w.Figure / b.PerGPU.Float()
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Worth) int {
		return cmp.Or(truth(a.Lacks != nil, b.Lacks != nil), cmp.Compare(b.PerMoney, a.PerMoney), cmp.Compare(b.Figure, a.Figure))
	})
	return out
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
