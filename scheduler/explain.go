package scheduler

import (
	"slices"
	"time"

	"gpubroker/internal/reason"
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
	// Change is what would change it, while tasks wait; Again is when the broker looks
	// again at the latest, zero when only new facts can change it.
	Change string    `json:"change,omitzero"`
	Again  time.Time `json:"again,omitzero"`
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
	if d := &e.Decision; d.Wait {
		e.Change, e.Again = d.Why.Change(), d.Again
		if w := r.Wake; !w.IsZero() && (e.Again.IsZero() || w.Before(e.Again)) {
			e.Again = w
		}
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
	if near := &g.Needs.Near; !near.IsZero() {
		for i := range e.Options {
			m := &e.Options[i].Market
			e.Options[i].RTT = max(0, p.awayOf(near.From, region{m.Provider, m.Region}).rtt)
		}
	}
	e.Otherwise = p.otherwise(g, &e.Decision, ch)
	return e, true
}
