package workdir

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Ignore says what stays behind.
type Ignore struct{ rules []rule }

type rule struct {
	parts   []string // of the pattern
	folder  bool     // it ends with a slash: folders only
	include bool     // it begins with !
}

// ParseIgnore reads a list of patterns, one a line, as git does:
//
//	# a comment
//	*.bin           anywhere
//	/data           in the folder itself only; so does a pattern with a slash inside
//	cache/          folders only
//	a/**/b          any number of folders between
//	!keep.bin       is packed after all; the last line that fits decides
//
// A file below a folder that stays behind cannot be packed after all.
func ParseIgnore(text string) (*Ignore, error) {
	var ig Ignore
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, " \t\r")
		if line == "" || line[0] == '#' {
			continue
		}
		r, err := parseRule(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %q: %w", i+1, line, err)
		}
		ig.rules = append(ig.rules, r)
	}
	return &ig, nil
}

func parseRule(line string) (rule, error) {
	var r rule
	line, r.include = strings.CutPrefix(line, "!")
	line, r.folder = strings.CutSuffix(line, "/")
	anchored := strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return r, errors.New("the pattern is empty")
	}
	r.parts = strings.Split(line, "/")
	for _, p := range r.parts {
		if _, err := path.Match(p, ""); err != nil {
			return r, err
		}
		if p == "" || p == "." || p == ".." {
			return r, fmt.Errorf("%q is no part of a pattern", p)
		}
	}
	if !anchored {
		r.parts = append([]string{"**"}, r.parts...)
	}
	return r, nil
}

// Match reports whether a path, slash-separated and relative, stays behind. The
// nil Ignore keeps everything.
func (ig *Ignore) Match(name string, folder bool) bool {
	if ig == nil {
		return false
	}
	parts := strings.Split(name, "/")
	for _, r := range slices.Backward(ig.rules) {
		if (folder || !r.folder) && match(r.parts, parts) {
			return !r.include
		}
	}
	return false
}

func match(pattern, name []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			if len(pattern) == 1 {
				return len(name) > 0 // what is below, not the folder itself
			}
			for i := range name {
				if match(pattern[1:], name[i:]) {
					return true
				}
			}
			return false
		}
		if len(name) == 0 {
			return false
		}
		if ok, err := path.Match(pattern[0], name[0]); err != nil || !ok {
			return false
		}
		pattern, name = pattern[1:], name[1:]
	}
	return len(name) == 0
}
