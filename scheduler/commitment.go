package scheduler

import (
	"slices"
	"time"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Commitment is machines that the owner has paid for already, used or not: up to
// so many of a type, in a region or one of its zones. While fewer live, one more
// costs nothing at the margin, and is compared with others so. What it reserves,
// and what the ledger takes it for until its bill is known, is its price all the
// same: which machine a provider lets off is the provider's word, and a cap holds
// also where it lets off another.
type Commitment struct {
	Provider string         `json:"provider"`
	Region   string         `json:"region,omitzero"`
	Zone     string         `json:"zone,omitzero"`
	Type     string         `json:"type"`
	Kind     providers.Kind `json:"kind"`
	Machines int            `json:"machines"`
	Sunk     money.Rate     `json:"sunk,omitzero" doc:"paid for each of them per hour, used or not"`
	Until    time.Time      `json:"until,omitzero"`
}

// Covers reports whether machines of a market are counted by it. An empty region
// or zone is any.
func (c *Commitment) Covers(m *providers.Market) bool {
	return c.Provider == m.Provider && c.Type == m.Type && c.Kind == m.Kind &&
		(c.Region == "" || c.Region == m.Region) && (c.Zone == "" || c.Zone == m.Zone)
}

// holds reports whether it has not ended.
func (c *Commitment) holds(now time.Time) bool { return c.Until.IsZero() || c.Until.After(now) }

// paidFor is the price at which a machine of a commitment is compared: nothing, and
// yet not the 0 of a price that nobody knows.
const paidFor = money.Rate(1)

// Commit marks the offers that commitments cover, each by the first that does. It
// is called before anybody reads the catalog, which it returns.
func (c *Catalog) Commit(list []Commitment) *Catalog {
	c.commitments = list
	if len(list) == 0 {
		return c
	}
	for i := range c.Shapes {
		s := &c.Shapes[i]
		for _, offers := range [...][]Offer{s.Spot, s.OnDemand} {
			for j := range offers {
				o := &offers[j]
				if o.commitment = c.covering(&o.Market); o.commitment != 0 && o.Price > 0 {
					o.least = paidFor
				}
			}
			slices.SortFunc(offers, compareOffers)
		}
	}
	return c
}

// covering is the number of the commitment that covers a market, from 1; 0 is none.
func (c *Catalog) covering(m *providers.Market) int {
	return 1 + slices.IndexFunc(c.commitments, func(one Commitment) bool { return one.Covers(m) })
}

// commit counts the machines that live on commitments.
func (p *pass) commit() {
	if len(p.Catalog.commitments) == 0 {
		return
	}
	p.committed = make([]int, len(p.Catalog.commitments))
	for i := range p.Machines {
		if n := p.Catalog.covering(&p.Machines[i].Market); n > 0 {
			p.committed[n-1]++
		}
	}
	for i := range p.Catalog.commitments {
		p.wake(p.Catalog.commitments[i].Until)
	}
}

// spare is how many more machines of an offer cost nothing more.
func (p *pass) spare(o *Offer) int {
	if o.commitment == 0 {
		return 0
	}
	c := &p.Catalog.commitments[o.commitment-1]
	if !c.holds(p.Now) {
		return 0
	}
	return c.Machines - p.committed[o.commitment-1]
}

// margin is what keeping a machine costs per hour, compared with others: nothing
// where no more live than are paid for.
func (p *pass) margin(m *Machine) money.Rate {
	n := p.Catalog.covering(&m.Market)
	if n == 0 {
		return m.Price
	}
	if c := &p.Catalog.commitments[n-1]; c.holds(p.Now) && p.committed[n-1] <= c.Machines {
		return paidFor
	}
	return m.Price
}

// committedMark ends the name under which the policy knows a candidate that is
// paid for.
const committedMark = " (committed)"
