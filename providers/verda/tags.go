package verda

import (
	"maps"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gpubroker/providers"
)

// A machine's tags stand in its description, in the form of a URL's query, which
// holds any text: descriptions have always been there and come back as they were
// given. They stand in Verda's own tags as well, for people and bills, and are
// read from there when somebody has edited the description.

// wireTag is a tag of Verda's: at most ten on a thing.
type wireTag struct {
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
}

// tagEnded marks an instance that we are about to delete: Verda shows what it took
// and what was deleted in the same way.
const tagEnded = "gpubroker-ended"

func encode(t providers.Tags) string {
	v := url.Values{}
	for key, value := range t.Map() {
		v.Set(key, value)
	}
	return v.Encode()
}

// tagsOf reads an instance's tags; without an owner it is not ours.
func tagsOf(description string, tags []wireTag) providers.Tags {
	m := map[string]string{}
	for _, t := range tags {
		m[t.Key] = t.Value
	}
	if v, err := url.ParseQuery(description); err == nil && v.Has(providers.TagOwner) {
		for key := range v {
			m[key] = v.Get(key)
		}
	}
	return providers.TagsOf(m)
}

// ownTagsOf are the tags that an instance is created with.
func (a *Adapter) ownTagsOf(t providers.Tags) []wireTag {
	m := t.Map()
	maps.Copy(m, a.set.Tags)
	out := []wireTag{}
	for key, value := range m {
		// The description holds what does not fit.
		if len(value) <= maxTagValue {
			out = append(out, wireTag{key, value})
		}
	}
	return out
}

// sidePrefix begins the names of what we make beside machines.
const sidePrefix = "gpubroker/"

// sideName names the OS volume and the script of a machine, so that they are
// found without it, and known to be old: the vendor's SDKs have no time of a script.
func sideName(t providers.Tags, made time.Time) string {
	return sidePrefix + strings.Join([]string{
		url.PathEscape(t.Owner), url.PathEscape(t.Generation), url.PathEscape(t.Request), strconv.FormatInt(made.Unix(), 36),
	}, "/")
}

// sideTags reads such a name; made is zero in one that does not say.
func sideTags(name string) (t providers.Tags, made time.Time, ok bool) {
	rest, ok := strings.CutPrefix(name, sidePrefix)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) < 3 || len(parts) > 4 {
		return t, made, false
	}
	for i, p := range parts {
		text, err := url.PathUnescape(p)
		if err != nil {
			return t, made, false
		}
		parts[i] = text
	}
	if len(parts) == 4 {
		made = providers.Moment(parts[3], 36)
	}
	return providers.Tags{Owner: parts[0], Generation: parts[1], Request: parts[2]}, made, parts[0] != "" && parts[2] != ""
}

// hostname makes a request id a host's name.
func hostname(request string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, request)
	name = strings.Trim(name[:min(len(name), 63)], "-")
	if name == "" {
		return "gpubroker"
	}
	return name
}
