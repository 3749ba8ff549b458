package providers

import (
	"maps"
	"slices"
	"sync"
)

// LeftOut remembers what an adapter's lists of offers leave out, and why: types
// for which no price is found. An adapter embeds it and so has the ability
// [Gaps]. The zero value is ready.
type LeftOut struct {
	mu    sync.Mutex
	lines map[string][]string
}

// Note keeps what the last list leaves out, for a part of the whole such as a
// region, and reports whether that is news. No lines mean nothing.
func (l *LeftOut) Note(part string, lines ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Equal(l.lines[part], lines) {
		return false
	}
	if l.lines == nil {
		l.lines = map[string][]string{}
	}
	l.lines[part] = slices.Clone(lines)
	return true
}

// Unmatched returns what the last lists leave out, a line for each reason.
func (l *LeftOut) Unmatched() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, part := range slices.Sorted(maps.Keys(l.lines)) {
		all = append(all, l.lines[part]...)
	}
	return all
}
