package policy_test

import (
	"fmt"
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/scheduler/policy"
)

func BenchmarkDecide(b *testing.B) {
	now := time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	v := policy.View{
		Now: now, Start: now.Add(-10 * time.Hour), Deadline: now.Add(50 * time.Hour),
		Total: 48 * time.Hour, Left: 40 * time.Hour, Interruptible: true, AtRisk: 10 * time.Minute,
	}
	for i := range policy.MaxCandidates {
		c := policy.Candidate{Market: fmt.Sprint("m", i), Kind: policy.Spot, Price: money.Rate(1e9 + i), Work: v.Left, Delay: 5 * time.Minute}
		if i%4 == 0 {
			c.Kind, c.Price = policy.OnDemand, money.Rate(3e9+i)
		}
		v.Candidates = append(v.Candidates, c)
	}
	for _, name := range []policy.Name{policy.UniformProgress, policy.CheapestExpected} {
		b.Run(string(name), func(b *testing.B) {
			v.Policy = name
			b.ReportAllocs()
			for b.Loop() {
				policy.Decide(v)
			}
		})
	}
}
