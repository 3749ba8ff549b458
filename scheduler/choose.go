package scheduler

import (
	"slices"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/scheduler/policy"
)

// choice is what the market offers a group.
type choice struct {
	candidates []candidate // usable or cooled down, cheapest first
	usable     int
	considered int
	reasons    tally
}

// choose walks the offers of every shape that fits, by price, and keeps the
// cheapest to finish at.
func (s *Snapshot) choose(g *Group, m *Memo) choice {
	ch := choice{considered: s.Catalog.Offers}
	spot, steady := top{n: spotMarkets}, top{n: onDemandMarkets}
	fits := m.fitsFor(s, &g.Needs)
	kinds := g.kinds()
	refusals := s.refusals(g)
	for i := range s.Catalog.Shapes {
		shape := &s.Catalog.Shapes[i]
		if fits[i].slots == 0 {
			ch.reasons.add(fits[i].why, len(shape.Spot)+len(shape.OnDemand))
			continue
		}
		for k, list := range shape.lists(nil) {
			kind, keep := providers.Spot, &spot
			if k == 1 {
				kind, keep = providers.OnDemand, &steady
			}
			if why, ok := kinds[kind]; ok {
				ch.reasons.add(why, len(list))
				continue
			}
			s.walk(g, shape, &fits[i], list, keep, &ch, refusals)
		}
	}
	ch.candidates = slices.Concat(spot.list, steady.list)
	slices.SortFunc(ch.candidates, func(a, b candidate) int { return a.less(&b) })
	return ch
}

func (s *Snapshot) walk(g *Group, shape *Shape, f *fit, list []Offer, keep *top, ch *choice, refusals map[string]reason.Reason) {
	for i := range list {
		o := &list[i]
		why := refusals[o.Market.Provider]
		switch {
		case !why.IsZero():
		case len(g.Needs.Providers) > 0 && !slices.Contains(g.Needs.Providers, o.Market.Provider):
			why = reason.New("provider_not_asked", "provider", o.Market.Provider)
		case len(g.Needs.Regions) > 0 && !slices.Contains(g.Needs.Regions, o.Market.Region):
			why = reason.New("region_not_asked", "region", o.Market.Region)
		case len(g.Needs.Zones) > 0 && !slices.Contains(g.Needs.Zones, o.Market.Zone):
			why = reason.New("zone_not_asked", "zone", o.Market.Zone)
		case o.Full:
			why = reason.New("full", "market", o.Market)
		case s.Settings.Stale > 0 && s.Now.Sub(o.Seen) > s.Settings.Stale:
			why = reason.New("stale_price", "seen", o.Seen.UTC().Format(time.RFC3339))
		case g.Needs.MaxPrice > 0 && o.Price > g.Needs.MaxPrice:
			ch.reasons.add(reason.New("price_over_max", "price", money.Amount(o.Price).Round(4), "max", g.Needs.MaxPrice), len(list)-i)
			return // the rest is dearer
		}
		if !why.IsZero() {
			ch.reasons.add(why, 1)
			continue
		}
		c, why := s.price(g, shape, f, o)
		if !why.IsZero() {
			ch.reasons.add(why, len(list)-i) // the facts are the shape's
			return
		}
		if cool, cooling := s.cooled(o.Market); cooling {
			ch.reasons.add(reason.New("cooled_down", "until", clock(cool.Until), "after", cool.Reason.Code), 1)
		} else {
			ch.usable++
		}
		keep.add(c)
		if i+1 < len(list) && keep.closed(floor(g, &c, &list[i+1])) {
			// No offer from here on can enter the best: they are usable, only dearer.
			ch.usable += len(list) - i - 1
			return
		}
	}
}

// floor is the least that one task can cost at the next offer of the same shape
// and kind: no preemption at all.
func floor(g *Group, c *candidate, next *Offer) money.Amount {
	a, err := money.Charge(c.view.Work, next.Price, money.Billing{Unit: time.Nanosecond})
	if err != nil {
		return money.MaxAmount
	}
	return a / money.Amount(c.tasks(g))
}

// kinds returns the kinds of capacity that the group may not use, with why.
func (g *Group) kinds() map[providers.Kind]reason.Reason {
	out := map[providers.Kind]reason.Reason{}
	if len(g.Needs.Kinds) > 0 {
		for _, k := range []providers.Kind{providers.Spot, providers.OnDemand} {
			if !slices.Contains(g.Needs.Kinds, k) {
				out[k] = reason.New("kind_not_allowed", "kind", k)
			}
		}
	}
	if !g.Interruptible && !g.SpotAllowed {
		if _, ok := out[providers.Spot]; !ok {
			out[providers.Spot] = reason.New("not_interruptible")
		}
	}
	if g.OnDemand == "never" {
		out[providers.OnDemand] = reason.New("kind_not_allowed", "kind", providers.OnDemand)
	}
	return out
}

// refusals returns the providers that the group may not use at all, with why.
func (s *Snapshot) refusals(g *Group) map[string]reason.Reason {
	out := map[string]reason.Reason{}
	strict := ""
	for _, b := range s.Budgets {
		if b.Guard == "strict" && b.Matches(g.Payer) {
			strict = b.Name
		}
	}
	for name, p := range s.Providers {
		end := p.Capabilities.SelfEnd
		itself := end == providers.EndGuest || end == providers.EndNone
		switch {
		case len(p.Projects) > 0 && !slices.Contains(p.Projects, g.Project):
			out[name] = reason.New("provider_not_for_project", "provider", name, "project", g.Project)
		case !p.Ready.IsZero():
			out[name] = p.Ready
		case strict != "" && itself && !p.Capabilities.Shared:
			out[name] = reason.New("no_guest_end", "provider", name, "budget", strict)
		case end == providers.EndNone && !p.GuestEnd && !p.Capabilities.Shared:
			out[name] = reason.New("nothing_ends_it", "provider", name)
		}
	}
	return out
}

// decide asks the policy about the cheapest candidates.
func (s *Snapshot) decide(g *Group, ch *choice, current *policy.Placement) (policy.Decision, []policy.Candidate) {
	v := policy.View{
		Policy: g.Policy, Now: s.Now, Start: g.Accepted, Deadline: g.Deadline,
		Interruptible: g.Interruptible, SpotAllowed: g.SpotAllowed,
		AtRisk: g.AtRisk, Margin: s.Settings.Margin, Look: 5 * time.Second,
		Patience: g.Patience, WaitingSince: g.Since, Current: current,
	}
	if v.AtRisk <= 0 {
		v.AtRisk = assumedTask
	}
	for i := range ch.candidates {
		v.Candidates = append(v.Candidates, ch.candidates[i].view)
	}
	if len(ch.candidates) > 0 {
		// The reference rate is the cheapest candidate's; the whole of the work is
		// what its slots run one after another.
		v.Left = ch.candidates[0].view.Work
		v.Total = v.Left
		if g.Left > 0 && g.Left < 1 {
			v.Total = time.Duration(float64(v.Left) / g.Left)
		}
		v.AtRisk = min(v.AtRisk, ch.candidates[0].task)
	} else {
		v.Left, v.Total = assumedTask, assumedTask
	}
	if current != nil {
		v.Left = current.Work
		if g.Left > 0 && g.Left < 1 {
			v.Total = time.Duration(float64(v.Left) / g.Left)
		}
	}
	return policy.Decide(v), v.Candidates
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
