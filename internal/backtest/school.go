package backtest

import (
	"slices"
	"sync"
	"time"

	"gpubroker/scheduler/policy"
)

// school is what our policy has learned before a job, and the tables that its
// jobs share.
type school struct {
	know policy.Knowledge

	mu      sync.Mutex
	models  map[time.Duration]*policy.Model
	pasts   map[*stretch][][]*policy.Memory
	library *policy.Library
}

func newSchool(k policy.Knowledge) *school {
	return &school{
		know: k, models: map[time.Duration]*policy.Model{}, pasts: map[*stretch][][]*policy.Memory{},
		library: &policy.Library{},
	}
}

// keptTables is how many tables are kept: some megabytes each.
const keptTables = 48

func (s *school) tables() *policy.Library {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.library
}

// learn builds a table.
func (s *school) learn(k policy.Sketch) {
	t := policy.Build(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.library = s.library.With(t, keptTables)
}

// chunk is how many ticks lie between memories of the past that are kept.
const chunk = 64

// memories is what the broker remembers of each pool when a job starts: what the
// capture says of the time before, or nothing.
func (s *school) memories(of *sight) []*policy.Memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := of.r
	grid := of.step()
	if r.opt.Between { // as serve has it
		grid = policy.Grid
	}
	model, ok := s.models[grid]
	if !ok {
		model = policy.NewModel(s.know, grid)
		s.models[grid] = model
	}
	var fresh []*policy.Memory
	if r.opt.Cold {
		for range of.pools() {
			fresh = append(fresh, model.Memory(r.now()))
		}
		return fresh
	}
	past := s.pasts[r.stretch]
	if past == nil {
		for range of.pools() {
			fresh = append(fresh, model.Memory(r.stretch.start))
		}
		past = append(past, fresh)
	}
	for len(past)*chunk <= r.first {
		n := len(past)
		past = append(past, r.stretch.remember(past[n-1], (n-1)*chunk, n*chunk, of.step()))
	}
	s.pasts[r.stretch] = past
	n := r.first / chunk
	return r.stretch.remember(past[n], n*chunk, r.first, of.step())
}

// remember adds ticks of the capture to copies of memories.
func (s *stretch) remember(old []*policy.Memory, from, to int, step time.Duration) []*policy.Memory {
	out := slices.Clone(old)
	at := s.start.Add(time.Duration(to) * step)
	for i, m := range old {
		m = &policy.Memory{Belief: m.Belief.Clone()}
		for t := from; t < to; t++ {
			m.See(s.start.Add(time.Duration(t)*step), s.up[t][i])
		}
		m.Belief.Pass(at)
		m.Facts, m.Drawn = m.Belief.Facts(), at
		out[i] = m
	}
	return out
}
