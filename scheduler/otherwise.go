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
	RelaxWindow   Relax = "window"
	RelaxDeadline Relax = "deadline"
	RelaxBudget   Relax = "budget"
	// What the work is, by [Group.Variants].
	RelaxPrecision Relax = "precision"
	RelaxMethod    Relax = "method"
	// RelaxRules is no constraint of the job: a rule of the owner stands in the way.
	RelaxRules Relax = "rules"
)

// Counterfactual is the cheapest option with one constraint lifted.
type Counterfactual struct {
	Relax  Relax         `json:"relax"`
	Why    reason.Reason `json:"why"` // what would have to be allowed
	Option Option        `json:"option"`
	// Saves is what one task would cost less; where nothing is usable as it is, Costs
	// is what one would cost then.
	Saves money.Amount `json:"saves,omitzero"`
	Costs money.Amount `json:"costs,omitzero"`
	// Sooner is how much earlier it could start.
	Sooner time.Duration `json:"sooner,omitzero"`
	// Kept says which rule of the owner would still not allow it.
	Kept reason.Reason `json:"kept,omitzero"`
}

// Variant is what the same job would ask for if its work were another: by another
// number format, or by another way to train.
type Variant struct {
	Relax Relax
	Why   reason.Reason
	Needs Needs
	Work  Work
}

// relaxations are the constraints that a job may lift by itself.
var relaxations = [...]Relax{
	RelaxPrice, RelaxRegion, RelaxRTT, RelaxProvider, RelaxGPU, RelaxRequire, RelaxKind, RelaxSize, RelaxWindow, RelaxDeadline,
}

// otherwise lifts one constraint at a time. The owner's rules hold meanwhile; where
// they alone stand in the way of what would help, that is said.
func (p *pass) otherwise(g *Group, d *Decision, as *choice) []Counterfactual {
	if !g.Held.IsZero() {
		return nil // whatever the job asks for, it would still be held
	}
	o := outlook{pass: p, group: g, now: as.ready(), held: d.Wait && d.Placed == 0 && (d.Why.Code == "outside_window" || d.Why.Code == "deadline_passed")}
	for _, relax := range relaxations {
		if other, changed := g.without(relax); changed {
			o.try(relax, other, reason.Reason{})
		}
	}
	o.variants()
	o.budget(d)
	if other, ruled := g.without(RelaxRules); ruled {
		o.unruled(RelaxRules, other, reason.Reason{})
	}
	slices.SortStableFunc(o.out, func(a, b Counterfactual) int {
		return cmp.Or(truth(!a.Kept.IsZero(), !b.Kept.IsZero()), cmp.Compare(a.Option.Cost.Total, b.Option.Cost.Total))
	})
	return o.out
}

// outlook collects what would help a group.
type outlook struct {
	*pass
	group *Group
	now   *candidate  // the best as it is; nil for none
	free  **candidate // the best without rules, once somebody asked
	held  bool        // its window or its deadline keeps it, whatever the market
	out   []Counterfactual
}

// before is the best that the group can have now, where lifting a constraint has to
// be better than it; nil when there is nothing.
func (o *outlook) before(relax Relax) *candidate {
	if o.held && (relax == RelaxWindow || relax == RelaxDeadline) {
		return nil
	}
	return o.now
}

// best is the best option of a group, where it is better than what there is now.
func (o *outlook) best(relax Relax, other *Group) (*candidate, *class, load) {
	c := o.classOf(other)
	l := c.fits.ask.loadOf(other, o.jobTasks[other.Job])
	one := o.look(c, &l, false).ready()
	if before := o.before(relax); one != nil && before != nil && (one.compare(before) >= 0 || relax == RelaxDeadline && one.per >= before.per) {
		one = nil // without a deadline nothing is late: only a lower price helps
	}
	return one, c, l
}

// try adds what a group with one constraint lifted could have.
func (o *outlook) try(relax Relax, other *Group, why reason.Reason) bool {
	if o.held && relax != RelaxWindow && relax != RelaxDeadline {
		return false // it would still be kept
	}
	one, c, l := o.best(relax, other)
	if one == nil {
		return len(other.Rules) > 0 && o.unruled(relax, other, why)
	}
	o.add(relax, one, c, &l, why, reason.Reason{})
	return true
}

// unruled adds what a group could have, were there no rules, with the rule that
// keeps it. What would be had without the rules alone is not told of other
// constraints.
func (o *outlook) unruled(relax Relax, other *Group, why reason.Reason) bool {
	free := *other
	free.Rules = nil
	one, c, l := o.best(relax, &free)
	if one == nil || relax != RelaxRules && !o.needed(one) {
		return false
	}
	if relax != RelaxRules {
		alone, _ := o.group.without(RelaxRules)
		if only, _, _ := o.best(relax, alone); only != nil && one.compare(only) >= 0 {
			return false
		}
	}
	ruled := class{rules: o.group.Rules}
	of, broken := ruled.ruled(o.Facts, &one.offer.Market, &one.shape.Shape, one.offer.Price)
	if broken == usable {
		return false
	}
	if relax == RelaxRules {
		why = reason.New("if_rules", "of", of.Of)
	}
	o.add(relax, one, c, &l, why, of.keep(broken))
	return true
}

// needed reports whether an option without rules is more than what there is
// without them alone: else it is not the constraint that stands in the way.
func (o *outlook) needed(one *candidate) bool {
	if o.free == nil {
		other, _ := o.group.without(RelaxRules)
		c := o.classOf(other)
		l := c.fits.ask.loadOf(other, o.jobTasks[other.Job])
		best := o.look(c, &l, false).ready()
		o.free = &best
	}
	return *o.free == nil || one.compare(*o.free) < 0
}

func (o *outlook) add(relax Relax, one *candidate, c *class, l *load, why, kept reason.Reason) {
	cf := Counterfactual{Relax: relax, Option: one.option(l, c.limit), Why: why, Kept: kept}
	switch {
	case !why.IsZero():
	case relax == RelaxDeadline:
		cf.Why = reason.New("if_deadline", "done", clock(o.Now.Add(cf.Option.Done)), "deadline", clock(o.group.Deadline))
	default:
		cf.Why = o.allow(one, relax, o.group)
	}
	if before := o.before(relax); before != nil {
		cf.Saves = max(0, before.per-one.per)
	} else {
		cf.Costs = one.per
	}
	if relax == RelaxWindow && o.group.Opens.After(o.Now) {
		cf.Sooner = o.group.Opens.Sub(o.Now)
	}
	o.out = append(o.out, cf)
}

// variants adds the best of the group's other ways to do its work, of each kind.
func (o *outlook) variants() {
	for _, relax := range [...]Relax{RelaxPrecision, RelaxMethod} {
		var found []Counterfactual
		all := o.out
		for i := range o.group.Variants {
			v := &o.group.Variants[i]
			if v.Relax != relax {
				continue
			}
			other := *o.group
			other.Needs, other.Work = v.Needs, v.Work
			o.out = nil
			if o.try(relax, &other, v.Why) {
				found = append(found, o.out...)
			}
		}
		o.out = all
		if len(found) > 0 {
			o.out = append(o.out, slices.MinFunc(found, func(a, b Counterfactual) int {
				return cmp.Or(truth(!a.Kept.IsZero(), !b.Kept.IsZero()), cmp.Compare(a.Option.Cost.Total, b.Option.Cost.Total))
			}))
		}
	}
}

// budget adds how much more money would do.
func (o *outlook) budget(d *Decision) {
	if d.Why.Code != "over_budget" || o.now == nil {
		return
	}
	need, err := money.ParseAmount(d.Why.Args["need"])
	free, unclear := money.ParseAmount(d.Why.Args["free"])
	if err != nil || unclear != nil {
		return
	}
	c := o.classOf(o.group)
	l := c.fits.ask.loadOf(o.group, o.jobTasks[o.group.Job])
	o.out = append(o.out, Counterfactual{
		Relax: RelaxBudget, Option: o.now.option(&l, c.limit), Costs: o.now.per,
		Why: reason.New("if_budget", "budget", d.Why.Args["budget"], "more", (need - free).Short()),
	})
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
	case RelaxWindow:
		changed = !o.Opens.IsZero() || !o.Closes.IsZero()
		o.Opens, o.Closes = time.Time{}, time.Time{}
		o.Shut, o.ShutBefore, o.Reopens = 0, 0, 0
	case RelaxDeadline:
		changed = !o.Deadline.IsZero() || !o.StopAt.IsZero()
		o.Deadline, o.StopAt = time.Time{}, time.Time{}
	case RelaxRules:
		changed, o.Rules = len(o.Rules) > 0, nil
	case RelaxBudget, RelaxPrecision, RelaxMethod: // nothing of the offers' fit hangs on it, or see [Group.Variants]
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
	case RelaxWindow:
		if g.Opens.After(p.Now) {
			return reason.New("if_window", "opens", clock(g.Opens))
		}
		return reason.New("if_window", "closes", clock(g.Closes))
	case RelaxDeadline, RelaxBudget, RelaxPrecision, RelaxMethod, RelaxRules:
	}
	return reason.Reason{}
}
