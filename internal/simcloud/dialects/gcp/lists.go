package gcp

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpubroker/internal/simcloud/simapi"
)

// item is one resource of a list, with the zone or region it stands in.
type item struct {
	scope string
	value object
}

func values(items []item) []any {
	var out []any
	for _, i := range items {
		out = append(out, i.value)
	}
	return out
}

// pageOf returns the page that a call asks for and the token of the next.
func pageOf[T any](r *http.Request, size int, all []T) ([]T, string, error) {
	q := r.URL.Query()
	start := 0
	if s := q.Get("pageToken"); s != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(s, "page-"))
		if err != nil || n < 0 {
			return nil, "", bad("pageToken", s)
		}
		start = min(n, len(all))
	}
	if s := q.Get("maxResults"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 500 {
			return nil, "", bad("maxResults", s)
		}
		size = min(size, n)
	}
	end := min(start+size, len(all))
	next := ""
	if end < len(all) {
		next = "page-" + strconv.Itoa(end)
	}
	return all[start:end], next, nil
}

func bad(field, value string) error {
	return &simapi.Error{Status: http.StatusBadRequest, Code: simapi.CodeInvalid, Message: fmt.Sprintf("Invalid value for field '%s': '%s'.", field, value)}
}

// aggregated answers a page of a list over all scopes. A scope without anything
// on this page says so in a warning.
func (h *handler) aggregated(r *http.Request, what, kind string, all []item) (any, error) {
	h.s.mu.Lock()
	lost := map[string]bool{}
	for zone, yes := range h.s.unreachable {
		if yes {
			lost["zones/"+zone] = true
		}
	}
	h.s.mu.Unlock()
	all = slices.DeleteFunc(all, func(i item) bool { return lost[i.scope] })
	slices.SortStableFunc(all, func(a, b item) int { return strings.Compare(a.scope, b.scope) })
	page, next, err := pageOf(r, h.w.Config().PageSize, all)
	if err != nil {
		return nil, err
	}
	scopes := map[string][]any{}
	for _, i := range page {
		scopes[i.scope] = append(scopes[i.scope], i.value)
	}
	items := object{}
	for _, z := range h.places() {
		scope := "zones/" + z
		switch {
		case lost[scope]:
			items[scope] = object{"warning": object{"code": "UNREACHABLE", "message": "The zone '" + z + "' is not reachable."}}
		case len(scopes[scope]) == 0:
			items[scope] = object{"warning": object{
				"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope '" + scope + "' on this page.",
				"data": []any{object{"key": "scope", "value": scope}},
			}}
		}
	}
	for scope, list := range scopes {
		items[scope] = object{what: list}
	}
	out := object{"kind": kind, "id": "projects/" + Project + "/aggregated/" + what, "items": items, "selfLink": link("aggregated/" + what)}
	if next != "" {
		out["nextPageToken"] = next
	}
	if len(lost) > 0 {
		var names []string
		for scope := range lost {
			names = append(names, scope)
		}
		slices.Sort(names)
		out["unreachables"] = names
	}
	return out, nil
}

// places returns the zones of the world.
func (h *handler) places() []string {
	var zones []string
	for _, o := range h.w.Config().Offers {
		if !slices.Contains(zones, o.Zone) {
			zones = append(zones, o.Zone)
		}
	}
	slices.Sort(zones)
	return zones
}

// filtered keeps what a call's filter lets through. Of the language it knows
// comparisons by =, != and eq, alone or in parentheses, all of which must hold.
func filtered(r *http.Request, all []item) ([]item, error) {
	text := strings.TrimSpace(r.URL.Query().Get("filter"))
	if text == "" {
		return all, nil
	}
	var parts []string
	if strings.HasPrefix(text, "(") {
		for p := range strings.SplitSeq(strings.ReplaceAll(text, ") AND (", ") ("), ") (") {
			parts = append(parts, strings.Trim(strings.TrimSpace(p), "()"))
		}
		// A regular expression may end with a parenthesis of its own.
		if n := len(parts) - 1; strings.Count(parts[n], "(") > strings.Count(parts[n], ")") {
			parts[n] += ")"
		}
	} else {
		parts = []string{text}
	}
	for _, p := range parts {
		m := comparison.FindStringSubmatch(p)
		if m == nil {
			return nil, bad("filter", text)
		}
		field, op, want := m[1], m[2], m[3]
		if s, err := strconv.Unquote(want); err == nil {
			want = s
		}
		var match func(string) bool
		switch op {
		case "=":
			match = func(have string) bool { return have == want }
		case "!=":
			match = func(have string) bool { return have != want }
		default:
			re, err := regexp.Compile("^(?:" + want + ")$")
			if err != nil {
				return nil, bad("filter", text)
			}
			match = re.MatchString
		}
		all = slices.DeleteFunc(slices.Clone(all), func(i item) bool { return !match(field1(i.value, field)) })
	}
	return all, nil
}

var comparison = regexp.MustCompile(`^([A-Za-z.0-9_-]+)\s*(=|!=|\beq\b)\s*(.+)$`)

// field1 reads a field, nested ones by dots.
func field1(v any, path string) string {
	for name := range strings.SplitSeq(path, ".") {
		switch m := v.(type) {
		case object:
			v = m[name]
		case map[string]string:
			v = m[name]
		default:
			return ""
		}
	}
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
