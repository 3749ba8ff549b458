package invariant

import "gpubroker/queue"

// at is an attempt's place in its task: alone it leads itself.
type at struct {
	lead        string
	rank, nodes int
}

func place(a *queue.Attempt) at {
	if a.Member == nil {
		return at{a.ID, 0, 1}
	}
	return at{a.Member.Lead, a.Member.Rank, a.Member.Nodes}
}

// gang makes sure that a gang is whole: a member of each rank, each on a machine of
// its own, all of one market.
func (c *Checker) gang(r *queue.Attempt) error {
	if r.Member == nil {
		return nil
	}
	lead := c.attempts[r.Member.Lead]
	if lead == nil || lead.Member == nil || len(lead.Member.All) != r.Member.Nodes {
		return breach(places, "attempt %s is one of %d, and its gang %s is not", r.ID, r.Member.Nodes, r.Member.Lead)
	}
	if r.ID != lead.ID {
		if all := lead.Member.All; r.Member.Rank <= 0 || r.Member.Rank >= len(all) || all[r.Member.Rank] != r.ID {
			return breach(places, "attempt %s is not of rank %d in gang %s", r.ID, r.Member.Rank, lead.ID)
		}
		return nil // the leading one is looked at with all of them
	}
	on := map[string]bool{}
	first := c.instances[r.Instance]
	for rank, id := range r.Member.All {
		a := c.attempts[id]
		if a == nil || a.TaskID != r.TaskID || a.Number != r.Number || place(a) != (at{r.ID, rank, len(r.Member.All)}) {
			return breach(places, "gang %s has no member of rank %d", r.ID, rank)
		}
		i := c.instances[a.Instance]
		if i == nil || first == nil || on[i.ID] || i.Provider != first.Provider || i.Region != first.Region || i.Zone != first.Zone || i.Type != first.Type || i.Kind != first.Kind {
			return breach(places, "member %d of gang %s is on machine %s, which is not its own or of another market", rank, r.ID, a.Instance)
		}
		on[i.ID] = true
	}
	if e := r.Member.End; e != nil && e.Outcome == queue.Succeeded && e.Rank == 0 && r.Outcome != queue.Succeeded {
		return breach(oneResult, "gang %s counts as done, and its leading attempt is %s", r.ID, r.Outcome)
	}
	return nil
}

// memberFailed reports whether one of a gang has failed by the task's own doing.
func (c *Checker) memberFailed(lead *queue.Attempt) bool {
	for _, id := range lead.Member.All {
		if a := c.attempts[id]; a != nil && a.Outcome == queue.Failed {
			return true
		}
	}
	return false
}
