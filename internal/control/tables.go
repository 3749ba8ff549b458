package control

import (
	"context"
	"sync"
	"time"

	"gpubroker/scheduler/policy"
)

const (
	keptTables = 64 // of some megabytes each
	// keptFor is how long each is kept at least: where more are wanted than that, some
	// work does without, and the broker is not busy with building for ever.
	keptFor = 10 * time.Minute
)

// tables are what work with a deadline is decided by. They are built beside the passes,
// one at a time, from what the last pass wanted; another pass follows each.
type tables struct {
	mu      sync.Mutex
	library *policy.Library
	built   []time.Time // when each in the library was, oldest first
	wanted  []policy.Sketch
	asked   map[policy.Key]time.Time // since when, of those wanted
	more    chan struct{}
}

func newTables() *tables {
	return &tables{library: &policy.Library{}, asked: map[policy.Key]time.Time{}, more: make(chan struct{}, 1)}
}

// now returns the library, and since when others are wanted.
func (t *tables) now() (*policy.Library, map[policy.Key]time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.library, t.asked
}

// want says what a pass wanted.
func (t *tables) want(list []policy.Sketch, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	asked := make(map[policy.Key]time.Time, len(list)) // the last map is somebody's
	for i := range list {
		key := list[i].Key()
		asked[key] = now
		if since, ok := t.asked[key]; ok {
			asked[key] = since
		}
	}
	t.wanted, t.asked = list, asked
	if len(list) > 0 {
		select {
		case t.more <- struct{}{}:
		default:
		}
	}
}

// next is the first table that is wanted and not built yet.
func (t *tables) next() (policy.Sketch, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.wanted) > 0 && (len(t.built) < keptTables || time.Since(t.built[0]) >= keptFor) {
		s := t.wanted[0]
		t.wanted = t.wanted[1:]
		if !t.library.Has(s.Key()) {
			return s, true
		}
	}
	return policy.Sketch{}, false
}

func (t *tables) add(table *policy.Table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.library = t.library.With(table, keptTables)
	t.built = append(t.built[max(0, len(t.built)+1-keptTables):], time.Now())
}

// build builds what is wanted until ctx ends, and tells after each.
func (t *tables) build(ctx context.Context, tell func()) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.more:
		}
		for s, ok := t.next(); ok; s, ok = t.next() {
			built := make(chan *policy.Table, 1)
			go func() { built <- policy.Build(s) }() // a moment of computing, for which no end waits
			select {
			case <-ctx.Done():
				return ctx.Err()
			case table := <-built:
				t.add(table)
				tell()
			}
		}
	}
}
