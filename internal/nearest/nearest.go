// Package nearest finds the words that a misspelt word was probably meant to
// be, for "did you mean" hints.
package nearest

import (
	"cmp"
	"slices"
	"strings"
)

// Of returns at most n of the candidates that are close to word, the closest
// first and equals in their given order; one that differs in case alone is the only one. Close means few edits for the word's
// length, or that one is the beginning of the other. Case is ignored. It
// returns nil when nothing is close.
func Of(word string, candidates []string, n int) []string {
	type scored struct {
		name string
		cost float64
	}
	w := strings.ToLower(word)
	var close []scored
	for _, c := range candidates {
		lc := strings.ToLower(c)
		d := float64(distance(w, lc))
		limit := float64(max(len(w), len(lc))) / 3
		if limit < 1 {
			limit = 1
		}
		prefix := len(w) >= 3 && len(lc) >= 3 && (strings.HasPrefix(lc, w) || strings.HasPrefix(w, lc))
		if prefix {
			d = min(d, limit)
		}
		if d <= limit && lc != "" {
			close = append(close, scored{c, d})
		}
	}
	if i := slices.IndexFunc(close, func(s scored) bool { return s.cost == 0 }); i >= 0 {
		return []string{close[i].name} // only its case differs
	}
	slices.SortStableFunc(close, func(a, b scored) int { return cmp.Compare(a.cost, b.cost) })
	var names []string
	for _, s := range close {
		if !slices.Contains(names, s.name) && len(names) < n {
			names = append(names, s.name)
		}
	}
	return names
}

// Hint turns the words near word into `did you mean "a" or "b"?`, or "".
func Hint(word string, candidates []string) string {
	return Ask(Of(word, candidates, 2))
}

// Ask turns names into `did you mean "a", "b" or "c"?`, or "" when there are none.
func Ask(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "did you mean " + Or(names) + "?"
}

// Or quotes names and joins them: `"a", "b" or "c"`.
func Or(names []string) string {
	var b strings.Builder
	for i, n := range names {
		switch {
		case i == 0:
		case i == len(names)-1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(`"` + n + `"`)
	}
	return b.String()
}

// distance counts insertions, deletions, changes and swaps of neighbours
// (optimal string alignment) over bytes.
func distance(a, b string) int {
	const longest = 64 // a longer word is no slip of the fingers
	if len(a) > longest || len(b) > longest {
		return max(len(a), len(b))
	}
	var rows [3][longest + 1]int
	for j := range len(b) + 1 {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		row, up, upup := &rows[i%3], &rows[(i+2)%3], &rows[(i+1)%3]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(up[j]+1, row[j-1]+1, up[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], upup[j-2]+1)
			}
		}
	}
	return rows[len(a)%3][len(b)]
}
