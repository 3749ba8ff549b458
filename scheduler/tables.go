package scheduler

import (
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"
)

// tableWait is how long work that holds nothing waits for its table at most.
const tableWait = 10 * time.Second

// answer asks the policy and notes the table that it wants. What it would do without one
// on new machines waits for it a while, if the deadline allows: a table is built in a
// moment, and a machine is rented for hours.
func (p *pass) answer(v *policy.View) policy.Decision {
	d := policy.Decide(*v)
	if d.Want == nil {
		return d
	}
	key := d.Want.Key()
	if !p.tables[key] {
		if p.tables == nil {
			p.tables = map[policy.Key]bool{}
		}
		p.tables[key] = true
		p.out.Wanted = append(p.out.Wanted, *d.Want)
	}
	if p.Asked == nil || v.Current != nil || d.Action == policy.Wait || v.Spare() <= tableWait {
		return d
	}
	since, ok := p.Asked[key]
	if !ok {
		since = p.Now
	}
	if until := since.Add(tableWait); until.After(p.Now) {
		return policy.Decision{Action: policy.Wait, Market: -1, Until: until, Want: d.Want, Why: policy.Why{Code: policy.TableSoon, At: until}}
	}
	return d
}

// elsewhere is what it costs more, at most, to take the work where its data is not.
func elsewhere(list []policy.Candidate) money.Amount {
	if len(list) == 0 {
		return 0
	}
	least, most := list[0].Entry, list[0].Entry
	for i := range list {
		least, most = min(least, list[i].Entry), max(most, list[i].Entry)
	}
	return most - least
}
