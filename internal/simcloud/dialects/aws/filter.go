package aws

import (
	"fmt"
	"net/http"
	"strings"
)

// filter is one of the filters of a call of EC2: any of the values must fit.
type filter struct {
	name   string
	values []string
}

func (q *request) filters() []filter {
	var out []filter
	for n := 1; ; n++ {
		key := fmt.Sprintf("Filter.%d", n)
		name := q.form.Get(key + ".Name")
		if name == "" {
			return out
		}
		out = append(out, filter{name, q.list(key + ".Value")})
	}
}

// pass reports whether all filters fit. of returns what a thing has under a
// filter's name; ok is false for a filter that the call does not have.
func pass(filters []filter, of func(name string) (have []string, ok bool)) (bool, error) {
	for _, f := range filters {
		have, ok := of(f.name)
		if !ok {
			return false, errorf(http.StatusBadRequest, "InvalidParameterValue", "The filter '%s' is invalid", f.name)
		}
		if !anyFits(f.values, have) {
			return false, nil
		}
	}
	return true, nil
}

func anyFits(patterns, have []string) bool {
	for _, p := range patterns {
		for _, h := range have {
			if fits(p, h) {
				return true
			}
		}
	}
	return false
}

// fits compares a value with a pattern in which * stands for any text and ? for
// one character.
func fits(pattern, s string) bool {
	for {
		switch {
		case pattern == "":
			return s == ""
		case pattern[0] == '*':
			for i := 0; i <= len(s); i++ {
				if fits(pattern[1:], s[i:]) {
					return true
				}
			}
			return false
		case s == "" || pattern[0] != '?' && pattern[0] != s[0]:
			return false
		}
		pattern, s = pattern[1:], s[1:]
	}
}

// tagged returns what tags have under a filter of EC2's tag filters.
func tagged(tags map[string]string, name string) ([]string, bool) {
	if key, ok := strings.CutPrefix(name, "tag:"); ok {
		if v, there := tags[key]; there {
			return []string{v}, true
		}
		return nil, true
	}
	if name == "tag-key" {
		var keys []string
		for k := range tags {
			keys = append(keys, k)
		}
		return keys, true
	}
	return nil, false
}
