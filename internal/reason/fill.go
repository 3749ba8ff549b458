package reason

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"gpubroker/internal/money"
)

// A sentence has slots, {name} or {name|form}, and parts in brackets that are
// left out when a slot in them has no argument. The forms:
//
//	size    bytes as "95 KiB"
//	money   an amount with at least two significant digits
//	rate    a price with at most four decimals
//	budget  a budget by its kind: "budget media", "the job's own budget"
//	market  a market as "provider/place type kind"
//	prose   text in which markets of an unknown place are written like that
//	times   "once", "3 times"
//
// Any other form is a noun that is counted: "1 task", "3 tasks".
var (
	slot   = regexp.MustCompile(`\{(\w+)(?:\|([\w ]+))?\}`)
	option = regexp.MustCompile(`\[[^\[\]]*\]`)
	place  = regexp.MustCompile(`[^\s/]+/[^\s/]*/[^\s/]*/[^\s:;,]+?/(?:spot|on-demand)\b`)
)

// fill fills a sentence and says which arguments are in it.
func (r Reason) fill(text string) (string, map[string]bool) {
	used := map[string]bool{}
	text = option.ReplaceAllStringFunc(text, func(part string) string {
		for _, m := range slot.FindAllStringSubmatch(part, -1) {
			if r.Args[m[1]] == "" {
				return ""
			}
		}
		return part[1 : len(part)-1]
	})
	text = slot.ReplaceAllStringFunc(text, func(s string) string {
		m := slot.FindStringSubmatch(s)
		value, ok := r.Args[m[1]]
		if !ok {
			return s
		}
		used[m[1]] = true
		return formed(value, m[2])
	})
	return text, used
}

// Outline is the sentence of a code with its slots by name and its parts that may
// be missing in brackets, for documents: "none of {offers} offers fits".
func Outline(code Code) (string, bool) {
	text, ok := Sentences[code]
	return slot.ReplaceAllStringFunc(text, func(s string) string {
		m := slot.FindStringSubmatch(s)
		return formed("{"+m[1]+"}", m[2])
	}), ok
}

// formed shows an argument in a form; what does not have it stays as it is.
func formed(value, form string) string {
	switch form {
	case "":
		return value
	case "size":
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			return size(n)
		}
		return value
	case "money":
		if a, err := money.ParseAmount(value); err == nil {
			return a.Short().String()
		}
		return value
	case "rate":
		if a, err := money.ParseAmount(value); err == nil {
			return a.Round(4).String()
		}
		return value
	case "budget":
		return budgetName(value)
	case "market":
		return place.ReplaceAllStringFunc(value, market)
	case "prose":
		return place.ReplaceAllStringFunc(value, func(key string) string {
			if strings.Contains(key, "//") {
				return market(key)
			}
			return key
		})
	case "times":
		if value == "1" {
			return "once"
		}
		return value + " times"
	}
	if value == "1" {
		return "1 " + form
	}
	if strings.HasSuffix(form, "ch") {
		form += "e"
	}
	return value + " " + form + "s"
}

// budgetName names a budget: those of jobs have a name that only we know.
func budgetName(key string) string {
	name, period, dated := strings.Cut(key, "@")
	if strings.HasPrefix(name, "job/") {
		return "the job's own budget"
	}
	if dated {
		return "budget " + name + " of the period from " + strings.Replace(strings.TrimSuffix(period, ":00Z")+"Z", "ZZ", "Z", 1)
	}
	return "budget " + name
}

// market names provider/region/zone/type/kind by what is known of its place; a
// zone that is named after its region says both.
func market(key string) string {
	part := strings.Split(key, "/")
	where, region, zone := part[0], part[1], part[2]
	if region != "" && !strings.HasPrefix(zone, region) {
		where += "/" + region
	}
	if zone != "" {
		where += "/" + zone
	}
	n := len(part) - 1
	return where + " " + strings.Join(part[3:n], "/") + " " + part[n]
}

// size shows a number of bytes.
func size(n int64) string {
	f, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 || f >= 10 {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
