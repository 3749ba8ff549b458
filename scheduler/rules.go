package scheduler

import (
	"slices"
	"strings"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
)

// Rules are what the owner lets the work of a project or of a queue rent,
// whatever a job asks for. What is empty allows all.
type Rules struct {
	Of        string           // whose they are, for people: "project dev"
	MaxPrice  money.Rate       // whole machine per hour
	GPU       []string         // canonical ids, sorted; machines without a GPU are not meant
	Kinds     []providers.Kind //
	Providers []string
	Regions   []string
}

// IsZero reports whether they allow all.
func (r *Rules) IsZero() bool {
	return r.MaxPrice == 0 && len(r.GPU) == 0 && len(r.Kinds) == 0 && len(r.Providers) == 0 && len(r.Regions) == 0
}

// appendKey is equal for rules that allow the same.
func (r *Rules) appendKey(b []byte) []byte {
	b = append(append(b, r.Of...), 1)
	for _, words := range [...][]string{r.GPU, r.Providers, r.Regions} {
		b = appendWords(b, words)
	}
	for _, k := range r.Kinds {
		b = append(append(b, k...), 0)
	}
	return appendRate(b, r.MaxPrice)
}

// allowsGPU reports whether machines with that GPU may be rented: one whose GPU
// nobody knows may not.
func (r *Rules) allowsGPU(facts *gpu.Table, s *providers.Shape) bool {
	return len(r.GPU) == 0 || s.GPUs <= 0 || s.GPU != "" && namedBy(facts, r.GPU, s.GPU)
}

// ruledOut says which rule machines of that kind and shape break, wherever they
// are.
func (c *class) ruledOut(facts *gpu.Table, kind providers.Kind, s *providers.Shape) (*Rules, ruling) {
	for i := range c.rules {
		r := &c.rules[i]
		switch {
		case len(r.Kinds) > 0 && !slices.Contains(r.Kinds, kind):
			return r, ruleKind
		case !r.allowsGPU(facts, s):
			return r, ruleGPU
		}
	}
	return nil, usable
}

// ruled says which rule a machine in that market breaks at a price.
func (c *class) ruled(facts *gpu.Table, m *providers.Market, s *providers.Shape, price money.Rate) (*Rules, ruling) {
	if len(c.rules) == 0 {
		return nil, usable
	}
	if r, broken := c.ruledOut(facts, m.Kind, s); broken != usable {
		return r, broken
	}
	for i := range c.rules {
		r := &c.rules[i]
		switch {
		case len(r.Providers) > 0 && !slices.Contains(r.Providers, m.Provider):
			return r, ruleProvider
		case len(r.Regions) > 0 && !slices.Contains(r.Regions, m.Region):
			return r, ruleRegion
		case r.MaxPrice > 0 && price > r.MaxPrice:
			return r, rulePrice
		}
	}
	return nil, usable
}

// because says how an offer breaks a rule.
func (r *Rules) because(broken ruling, o *Offer, s *providers.Shape) reason.Reason {
	code := rulingCodes[broken]
	switch {
	case broken == ruleKind:
		return reason.New(code, "of", r.Of, "allowed", kindWords(r.Kinds), "have", o.Market.Kind)
	case broken == ruleGPU:
		have := s.GPU
		if have == "" {
			have = s.GPUName
		}
		return reason.New(code, "of", r.Of, "allowed", words(r.GPU), "have", have)
	case broken == ruleProvider:
		return reason.New(code, "of", r.Of, "allowed", words(r.Providers), "have", o.Market.Provider)
	case broken == ruleRegion:
		return reason.New(code, "of", r.Of, "allowed", words(r.Regions), "have", o.Market.Region)
	}
	return reason.New(code, "of", r.Of, "price", money.Amount(o.Price).Round(4), "max", r.MaxPrice)
}

// keep says what a rule that is broken allows.
func (r *Rules) keep(broken ruling) reason.Reason {
	allowed := "at most " + r.MaxPrice.String() + "/h"
	switch {
	case broken == ruleKind:
		allowed = "only " + kindWords(r.Kinds)
	case broken == ruleGPU:
		allowed = "only " + words(r.GPU)
	case broken == ruleProvider:
		allowed = "only provider " + words(r.Providers)
	case broken == ruleRegion:
		allowed = "only region " + words(r.Regions)
	}
	return reason.New("rules_keep", "of", r.Of, "allowed", allowed)
}

// words joins names as people do: "l4 and t4".
func words(names []string) string {
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}

func kindWords(kinds []providers.Kind) string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	return words(names)
}

// ceiling is the most that a machine may cost per hour, by the job and by the
// rules; 0 means no limit.
func (g *Group) ceiling() money.Rate {
	most := g.Needs.MaxPrice
	for i := range g.Rules {
		if limit := g.Rules[i].MaxPrice; limit > 0 && (most == 0 || limit < most) {
			most = limit
		}
	}
	return most
}

// Against says which rule a group can never meet, whatever is offered; zero when
// there is none. It is the same for what waits and for what is handed in.
func (g *Group) Against(facts *gpu.Table) reason.Reason {
	n := &g.Needs
	for i := range g.Rules {
		r := &g.Rules[i]
		no := func(what string, allowed, asked string) reason.Reason {
			return reason.New("against_rules", "of", r.Of, "what", what, "allowed", allowed, "asked", asked)
		}
		if len(r.GPU) > 0 && n.GPUs > 0 {
			if len(n.GPU) > 0 && !slices.ContainsFunc(n.GPU, func(id string) bool { return slices.Contains(r.GPU, id) }) {
				return no("GPU", words(r.GPU), words(n.GPU))
			}
			if failed, all := meetsNone(facts, r.GPU, n); all {
				return no("GPU", words(r.GPU), "one with "+failed.Attribute+" "+failed.unit(failed.Want)+" ("+failed.GPU+" has "+failed.unit(failed.Have)+")")
			}
		}
		if len(r.Kinds) > 0 {
			rulings := g.kindRulings()
			spot, onDemand := slices.Contains(r.Kinds, providers.Spot), slices.Contains(r.Kinds, providers.OnDemand)
			switch {
			case spot && rulings[0] == usable || onDemand && rulings[1] == usable:
			case spot && rulings[0] == notInterruptible:
				return no("kind of machine", kindWords(r.Kinds), "on-demand, as its work cannot be interrupted")
			default:
				return no("kind of machine", kindWords(r.Kinds), kindWords(g.kindsAsked(rulings)))
			}
		}
		for _, place := range [...]struct {
			what           string
			allowed, asked []string
		}{{"provider", r.Providers, n.Providers}, {"region", r.Regions, n.Regions}} {
			if len(place.allowed) > 0 && len(place.asked) > 0 && !slices.ContainsFunc(place.asked, func(a string) bool { return slices.Contains(place.allowed, a) }) {
				return no(place.what, words(place.allowed), words(place.asked))
			}
		}
	}
	return reason.Reason{}
}

// kindsAsked are the kinds of capacity that a group may use by its own account.
func (g *Group) kindsAsked(rulings [len(kinds)]ruling) []providers.Kind {
	var out []providers.Kind
	for k, kind := range kinds {
		if rulings[k] == usable {
			out = append(out, kind)
		}
	}
	if len(out) == 0 {
		return []providers.Kind{"neither"}
	}
	return out
}

// lack is what a GPU does not have.
type lack struct {
	gpu.Failure
	GPU string
}

// unit writes a value with its unit.
func (l lack) unit(value string) string {
	if l.Unit == "" {
		return value
	}
	return value + " " + l.Unit
}

// meetsNone reports whether none of the allowed GPUs has what the needs require,
// with what the last of them lacks.
func meetsNone(facts *gpu.Table, allowed []string, n *Needs) (lack, bool) {
	var out lack
	for _, id := range allowed {
		f, known := facts.Lookup(id)
		if !known {
			return out, false
		}
		failures := facts.Check(f, n.Require)
		if len(failures) == 0 {
			return out, false
		}
		out = lack{failures[0], id}
	}
	return out, true
}
