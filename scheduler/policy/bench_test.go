package policy_test

import (
	"fmt"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"
)

// crowd is a view of as many candidates as are allowed: 13 spot markets of which something
// was seen, in three regions with data that costs something to move, and on demand in each.
func crowd() policy.View {
	now := time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	v := policy.View{
		Now: now, Start: now.Add(-10 * time.Hour), Deadline: now.Add(50 * time.Hour), Look: 5 * time.Second,
		Total: 48 * time.Hour, Left: 40 * time.Hour, Interruptible: true, AtRisk: 10 * time.Minute, Egress: money.Unit,
	}
	for i := range policy.MaxCandidates {
		c := policy.Candidate{
			Market: fmt.Sprint("m", i), Kind: policy.Spot, Price: money.Rate(1e9 + i*1e8), Work: v.Left,
			Delay: 5 * time.Minute, Region: fmt.Sprint("r", i%3),
		}
		if i%3 > 0 {
			c.Entry = money.Unit
		}
		if i >= policy.MaxCandidates-3 {
			c.Kind, c.Price = policy.OnDemand, money.Rate(3e9+i*1e8)
		} else {
			m := policy.ShippedModel().Memory(now.Add(-100 * time.Hour))
			for k := range 300 {
				m.See(now.Add(time.Duration(k-300)*time.Duration(i+1)*time.Minute), k/(i+2)%3 > 0)
			}
			c.Outlook = m.Outlook(now)
		}
		v.Candidates = append(v.Candidates, c)
	}
	return v
}

func BenchmarkDecide(b *testing.B) {
	v := crowd()
	for _, name := range []policy.Name{policy.UniformProgress, policy.CheapestExpected, policy.Learned} {
		b.Run(string(name), func(b *testing.B) {
			v.Policy, v.Library = name, &policy.Library{}
			if d := policy.Decide(v); d.Want != nil {
				v.Library = v.Library.With(policy.Build(*d.Want), 1)
			}
			b.ReportAllocs()
			for b.Loop() {
				if policy.Decide(v).Want != nil {
					b.Fatal("there is no table")
				}
			}
		})
	}
}

// BenchmarkBuild builds the table of 13 markets in three regions.
func BenchmarkBuild(b *testing.B) {
	v := crowd()
	v.Library = &policy.Library{}
	d := policy.Decide(v)
	b.ReportAllocs()
	for b.Loop() {
		policy.Build(*d.Want)
	}
}
