package scheduler

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
)

// Explanation is a group's decision with everything that people ask about it:
// every offer looked at, and what the least change to the job would bring.
type Explanation struct {
	Now   time.Time `json:"now"`
	Group string    `json:"group"`
	Job   string    `json:"job"`
	// Notes say how what is asked of machines follows from the work described.
	Notes    []reason.Reason `json:"notes,omitzero"`
	Decision Decision        `json:"decision"`
	// Options are the best ways to do one task, the chosen one first when one
	// was chosen, those that are cooled down last; at most five.
	Options []Option `json:"options,omitzero"`
	Chosen  bool     `json:"chosen"` // the first option is what the decision rents
	// Considered is the number of all offers; Usable and Reasons sum to it.
	Considered int     `json:"considered"`
	Usable     int     `json:"usable"`
	Reasons    []Count `json:"reasons,omitzero"`
	// Otherwise is what relaxing one constraint would bring, where that helps,
	// the cheapest first.
	Otherwise []Counterfactual `json:"otherwise,omitzero"`
}

// Relax names a constraint that a counterfactual lifts.
type Relax string

// The constraints. Each is lifted by itself, and the others hold.
const (
	RelaxPrice    Relax = "max_price"
	RelaxRegion   Relax = "region" // and zone
	RelaxRTT      Relax = "rtt"
	RelaxProvider Relax = "provider"
	RelaxGPU      Relax = "gpu"
	RelaxRequire  Relax = "require"
	RelaxKind     Relax = "kind"
	RelaxSize     Relax = "size" // vCPUs, memory and disk
)

// Counterfactual is the cheapest option with one constraint lifted.
type Counterfactual struct {
	Relax  Relax         `json:"relax"`
	Why    reason.Reason `json:"why"` // what would have to be allowed
	Option Option        `json:"option"`
	// Saves is what one task would cost less; 0 when nothing is usable as it is.
	Saves money.Amount `json:"saves,omitzero"`
}

// Explain plans s and explains the decision on one group, from every offer. ok
// is false when s has no such group. m may be nil.
func Explain(s *Snapshot, m *Memo, group string) (e Explanation, ok bool) {
	if m == nil {
		m = &Memo{}
	}
	r := Plan(s, m)
	return ExplainResult(s, m, &r, group)
}

// ExplainResult is [Explain] for who has planned s with m already.
func ExplainResult(s *Snapshot, m *Memo, r *Result, group string) (e Explanation, ok bool) {
	at := slices.IndexFunc(s.Groups, func(g Group) bool { return g.ID == group })
	if at < 0 {
		return Explanation{}, false
	}
	g := &s.Groups[at]
	e = Explanation{Now: s.Now, Group: g.ID, Job: g.Job, Notes: g.Notes}
	if i := slices.IndexFunc(r.Decisions, func(d Decision) bool { return d.Group == group }); i >= 0 {
		e.Decision = r.Decisions[i]
	}
	p := newPass(s, m)
	c := p.classOf(g)
	l := c.fits.ask.loadOf(g, p.jobTasks[g.Job])
	ch := p.look(c, &l, true)
	e.Considered, e.Usable, e.Reasons = ch.considered, ch.usable, ch.reasons
	e.Options = ch.options(&l, c.limit)
	if e.Chosen = e.Decision.Launched > 0; e.Chosen {
		e.Options = chosenFirst(e.Options, e.Decision.Best[0])
	}
	e.Otherwise = p.otherwise(g, ch)
	return e, true
}

// otherwise lifts one constraint at a time.
func (p *pass) otherwise(g *Group, as *choice) []Counterfactual {
	now := as.ready()
	var out []Counterfactual
	for _, relax := range [...]Relax{RelaxPrice, RelaxRegion, RelaxRTT, RelaxProvider, RelaxGPU, RelaxRequire, RelaxKind, RelaxSize} {
		other, changed := g.without(relax)
		if !changed {
			continue
		}
		c := p.classOf(other)
		l := c.fits.ask.loadOf(other, p.jobTasks[g.Job])
		one := p.look(c, &l, false).ready()
		if one == nil || now != nil && one.compare(now) >= 0 {
			continue
		}
		cf := Counterfactual{Relax: relax, Option: one.option(&l, c.limit), Why: p.allow(one, relax, g)}
		if now != nil {
			cf.Saves = max(0, now.per-one.per)
		}
		out = append(out, cf)
	}
	slices.SortStableFunc(out, func(a, b Counterfactual) int { return cmp.Compare(a.Option.Cost.Total, b.Option.Cost.Total) })
	return out
}

// without copies a group with one constraint lifted; changed is false when it
// has no such constraint.
func (g *Group) without(relax Relax) (*Group, bool) {
	o := *g
	n := &o.Needs
	changed := false
	switch relax {
	case RelaxPrice:
		changed, n.MaxPrice = n.MaxPrice > 0, 0
	case RelaxRegion:
		changed, n.Regions, n.Zones = len(n.Regions)+len(n.Zones) > 0, nil, nil
	case RelaxRTT:
		changed, n.Near = !n.Near.IsZero(), Near{}
	case RelaxProvider:
		changed, n.Providers = len(n.Providers) > 0, nil
	case RelaxGPU:
		changed, n.GPU = n.GPUs > 0 && len(n.GPU) > 0, nil
	case RelaxRequire:
		changed, n.Require = n.GPUs > 0 && len(n.Require) > 0, nil
	case RelaxKind:
		rulings := g.kindRulings()
		changed = rulings != [len(kinds)]ruling{}
		n.Kinds, o.SpotAllowed, o.OnDemand = nil, true, ""
	case RelaxSize:
		changed = n.VCPU > 0 || n.Memory > 0 || n.Disk > 0
		n.VCPU, n.Memory, n.Disk = 0, 0, 0
	}
	return &o, changed
}

// allow says what would have to be allowed for this option.
func (p *pass) allow(c *candidate, relax Relax, g *Group) reason.Reason {
	m, s := c.offer.Market, &c.shape.Shape
	switch relax {
	case RelaxPrice:
		return reason.New("if_max_price", "price", c.offer.Price)
	case RelaxRegion:
		if len(g.Needs.Regions) == 0 || slices.Contains(g.Needs.Regions, m.Region) {
			return reason.New("if_zone", "zone", cmp.Or(m.Zone, "unknown"))
		}
		return reason.New("if_region", "region", cmp.Or(m.Region, "unknown"))
	case RelaxRTT:
		at := p.awayOf(g.Needs.Near.From, region{m.Provider, m.Region})
		if at.unknown {
			return reason.New("if_rtt_unknown")
		}
		return reason.New("if_rtt", "rtt", at.rtt)
	case RelaxProvider:
		return reason.New("if_provider", "provider", m.Provider)
	case RelaxGPU:
		return reason.New("if_gpu", "gpu", s.GPU)
	case RelaxRequire:
		failed := gpu.Failure{}
		if f, ok := gpu.Builtin().Lookup(s.GPU); ok {
			if failures := gpu.Builtin().Check(f, g.Needs.Require); len(failures) > 0 {
				failed = failures[0]
			}
		}
		return reason.New("if_require", "attribute", failed.Attribute, "have", failed.Have, "want", failed.Want, "gpu", s.GPU)
	case RelaxKind:
		if m.Kind == providers.Spot && !g.Interruptible {
			return reason.New("if_interruptible")
		}
		return reason.New("if_kind", "kind", m.Kind)
	case RelaxSize:
		if s.VCPU == 0 || s.Memory == 0 {
			return reason.New("if_size_unknown")
		}
		return reason.New("if_size", "vcpu", strconv.FormatFloat(s.VCPU, 'f', -1, 64), "memory", gib(s.Memory))
	}
	return reason.Reason{}
}
