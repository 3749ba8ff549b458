package invariant

import (
	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/queue"
)

func (c *Checker) instance(r *queue.Instance) error {
	var was queue.Instance
	if old := c.instances[r.ID]; old != nil {
		was = *old
	}
	c.instances[r.ID] = r
	if err := version("instance "+r.ID, was.Version, r.Version); err != nil {
		return err
	}
	if !reaches(queue.InstanceMoves, string(was.State), string(r.State), always) {
		return breach(rows, "instance %s goes from %q to %q", r.ID, was.State, r.State)
	}
	switch {
	case was.Version > 0 && (was.Provider != r.Provider || was.Project != r.Project || was.Payer != r.Payer || was.Bound != r.Bound):
		return breach(rows, "instance %s has become another", r.ID)
	case was.CloudID != "" && was.CloudID != r.CloudID:
		return breach(noLeak, "instance %s was machine %s and is machine %q", r.ID, was.CloudID, r.CloudID)
	case r.State == queue.InstanceGone && r.Gone.IsZero():
		return breach(rows, "instance %s is gone without a cause", r.ID)
	case r.Lease.Before(was.Lease):
		return breach(noBrokenCap, "the lease of %s is shortened from %v to %v", r.ID, was.Lease, r.Lease)
	case !r.Settled.IsZero() && r.State != queue.InstanceGone:
		return breach(noBrokenCap, "instance %s is settled and %s", r.ID, r.State)
	}
	return nil
}

func (c *Checker) addEntry(e *budget.Entry) error {
	if e.Seq <= c.entry {
		return breach(ledger, "entry %d comes after %d", e.Seq, c.entry)
	}
	c.entry = e.Seq
	s := c.sums[e.Key]
	if s == nil {
		s = &sums{}
		c.sums[e.Key] = s
	}
	switch e.Kind {
	case budget.Reserved, budget.Released:
		s.reserved += e.Amount
	case budget.Accrued, budget.Settled:
		s.reserved -= e.Amount
		s.cost += e.Amount
	case budget.Overspent:
		s.cost += e.Amount
		s.over += e.Amount
	case budget.Adjusted:
		s.cost += e.Amount
	}
	if e.Kind == budget.Overspent && !c.Beyond {
		return breach(noBrokenCap, "an overrun of %v by machine %s in %v", e.Amount, e.Instance, e.Key)
	}
	return nil
}

func (c *Checker) hold(r *budget.Hold) error {
	of := c.holds[r.Instance]
	if of == nil {
		of = map[budget.Key]*budget.Hold{}
		c.holds[r.Instance] = of
	}
	var was budget.Hold
	if old := of[r.Key]; old != nil {
		was = *old
	}
	of[r.Key] = r
	if err := version("hold "+r.Instance, was.Version, r.Version); err != nil {
		return err
	}
	if was.Settled || r.Reserved < 0 || r.Accrued < was.Accrued && !r.Settled {
		return breach(ledger, "hold of %s in %v goes from %+v to %+v", r.Instance, r.Key, was, *r)
	}
	if r.Settled {
		i := c.instances[r.Instance]
		if i == nil || i.State != queue.InstanceGone || r.Reserved != 0 {
			return breach(noBrokenCap, "the hold of %s in %v is released before the machine is gone", r.Instance, r.Key)
		}
	} else if r.Reserved+r.Accrued < was.Reserved+was.Accrued {
		return breach(noBrokenCap, "the hold of %s in %v shrinks from %+v to %+v", r.Instance, r.Key, was, *r)
	}
	return nil
}

func (c *Checker) account(r *budget.Account) error {
	var was budget.Account
	if old := c.accounts[r.Key]; old != nil {
		was = *old
	}
	c.accounts[r.Key] = r
	if err := version("account "+r.Key.String(), was.Version, r.Version); err != nil {
		return err
	}
	s := c.sums[r.Key]
	if s == nil {
		s = &sums{}
	}
	if s.reserved != r.Reserved || s.cost != r.Cost || s.over != r.Overrun || r.Reserved < 0 {
		return breach(ledger, "account %v holds %+v, its entries sum to %+v", r.Key, *r, *s)
	}
	var held money.Amount
	for _, of := range c.holds {
		if h := of[r.Key]; h != nil {
			held += h.Reserved
		}
	}
	if held != r.Reserved {
		return breach(ledger, "account %v reserves %v, its holds %v", r.Key, r.Reserved, held)
	}
	most, capped := c.limit(r.Budget)
	now, before := r.Committed()-r.Overrun, was.Committed()-was.Overrun
	if capped && now > most && now > before {
		return breach(noBrokenCap, "account %v commits %v of %v", r.Key, now, most)
	}
	return nil
}

// limit returns the cap of a budget by its name.
func (c *Checker) limit(name string) (money.Amount, bool) {
	for _, b := range c.Caps {
		if b.Name == name {
			return b.Cap, b.Capped
		}
	}
	if id, own := cutPrefix(name, "job/"); own && c.jobs[id] != nil {
		if s, err := c.spec(c.jobs[id]); err == nil && s.Budget != nil {
			return s.Budget.Max.Amount, true
		}
	}
	return 0, false
}

func cutPrefix(s, prefix string) (string, bool) {
	if len(s) > len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):], true
	}
	return s, false
}
