package scheduler

import (
	"cmp"
	"slices"

	"gpubroker/internal/reason"
	"gpubroker/providers"
)

// room is what the quotas of accounts leave, as a pass uses it up.
type room struct {
	quotas []quota
	// of lists the quotas that count each family of the catalog; nil where it has
	// not been asked for yet.
	of [][]int32
}

// quota is one limit of an account with what is left of it.
type quota struct {
	*providers.Quota
	provider string
	left     float64
	held     float64 // of that, for the job that keeps it
	keeper   string
}

var unitWords = map[string]string{providers.UnitVCPU: "vCPUs", providers.UnitGPU: "GPUs", providers.UnitMachine: "machines"}

// unlimited stands for families that no quota counts.
var unlimited = []int32{}

func newRoom(s *Snapshot) room {
	var r room
	for _, name := range s.Catalog.providers {
		list := s.Providers[name].Quotas
		for i := range list {
			if q := &list[i]; q.Limit >= 0 {
				r.quotas = append(r.quotas, quota{Quota: q, provider: name, left: q.Limit - q.Used})
			}
		}
	}
	// Of several that are short the first is named: the same one each time.
	slices.SortFunc(r.quotas, func(a, b quota) int {
		return cmp.Or(cmp.Compare(a.provider, b.provider), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.left, b.left), cmp.Compare(a.Limit, b.Limit), slices.Compare(a.Types, b.Types))
	})
	if len(r.quotas) > 0 {
		r.of = make([][]int32, len(s.Catalog.families))
	}
	return r
}

// counting returns the quotas that count an offer.
func (p *pass) counting(o *Offer) []int32 {
	r := &p.quotas
	if r.of == nil {
		return nil
	}
	list := r.of[o.family]
	if list == nil {
		list = unlimited
		for i := range r.quotas {
			if q := &r.quotas[i]; q.provider == o.Market.Provider && Counts(q.Quota, o.Market) {
				list = append(list, int32(i))
			}
		}
		r.of[o.family] = list
	}
	return list
}

// Counts reports whether a quota of an account counts a machine in a market of
// that account.
func Counts(q *providers.Quota, m providers.Market) bool {
	return (q.Region == "" || q.Region == m.Region) && (q.Kind == "" || q.Kind == m.Kind) &&
		(len(q.Types) == 0 || slices.Contains(q.Types, m.Type))
}

// Units is how much of a quota one machine takes; 0 means that nobody knows.
func Units(q *providers.Quota, s *providers.Shape) float64 {
	switch q.Unit {
	case providers.UnitVCPU:
		return s.VCPU
	case providers.UnitGPU:
		return s.GPUs
	case providers.UnitMachine:
		return 1
	}
	return 0
}

// short is the first quota that n more machines of an offer would pass, -1 when
// there is none. What is not known limits nothing.
func (p *pass) short(o *Offer, n int) int {
	for _, i := range p.counting(o) {
		q := &p.quotas.quotas[i]
		if need := Units(q.Quota, &p.Catalog.Shapes[o.shape].Shape); need > 0 && need*float64(n) > q.left {
			return int(i)
		}
	}
	return -1
}

// shortage says which quota has no room for an offer.
func (p *pass) shortage(o *Offer, n int) reason.Reason {
	i := p.short(o, n)
	if i < 0 {
		return reason.New("quota")
	}
	q := &p.quotas.quotas[i]
	return reason.New("quota", "quota", q.Name, "provider", q.provider, "region", q.Region, "unit", unitWords[q.Unit],
		"left", max(0, q.left), "limit", q.Limit, "need", Units(q.Quota, &p.Catalog.Shapes[o.shape].Shape)*float64(n))
}

// draw takes a machine of an offer out of its quotas.
func (p *pass) draw(o *Offer) {
	if n := o.commitment; n > 0 {
		p.committed[n-1]++
	}
	for _, i := range p.counting(o) {
		q := &p.quotas.quotas[i]
		q.left -= Units(q.Quota, &p.Catalog.Shapes[o.shape].Shape)
	}
}
