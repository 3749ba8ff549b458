package gcp

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"gpubroker/providers"
)

const (
	namePrefix = "gpubroker-"
	// longest is the most that names and label values hold
	// (cloud.google.com/compute/docs/naming-resources, …/labeling-resources).
	longest = 63
)

var plainName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// nameOf is the name of the machine of a request. It follows from the request
// alone, so that a machine is found without its id, and Google itself refuses a
// second one in the zone.
func nameOf(request string) string {
	if len(namePrefix)+len(request) <= longest && plainName.MatchString(request) {
		return namePrefix + request
	}
	return "gpubrokerx-" + short(request) // never the name of a plain request
}

// short is a hash in letters that names may have.
func short(s string) string {
	sum := sha256.Sum256([]byte(s))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20]))
}

// requestID is the token with which Google knows an insert again. It follows from
// the request, its market, and how often Google has already refused it: a refused
// insert would be answered with its old refusal for as long as Google remembers it.
func requestID(req providers.LaunchRequest, refused int) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, fmt.Appendf(nil, "gpubroker:%s:%s:%d", req.Request, req.Market, refused)).String()
}

// encode writes a tag as a label's value: lower-case letters, digits and dashes
// stand for themselves, any other byte as "_" and two hex digits.
func encode(s string) (string, error) {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	if b.Len() > longest {
		return "", fmt.Errorf("%q makes a label of %d characters; Google takes %d", s, b.Len(), longest)
	}
	return b.String(), nil
}

// decode reads what encode wrote. What somebody else wrote stays as it is.
func decode(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '_' && i+2 < len(s) {
			if raw, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b.WriteByte(raw[0])
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// labels are the tags of a machine, with those that the settings want on
// everything.
func (a *Adapter) labels(t providers.Tags) (map[string]string, error) {
	out := maps.Clone(a.set.Tags)
	if out == nil {
		out = map[string]string{}
	}
	for key, value := range t.Map() {
		v, err := encode(value)
		if err != nil {
			return nil, fmt.Errorf("tag %s: %w", key, err)
		}
		out[key] = v
	}
	return out, nil
}

func tagsOf(labels map[string]string) providers.Tags {
	out := make(map[string]string, len(labels))
	for key, value := range labels {
		out[key] = decode(value)
	}
	return providers.TagsOf(out)
}

var (
	labelKey   = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValue = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
)

// regionOf is the region of a zone: "us-central1-a" is in us-central1.
func regionOf(zone string) string {
	if i := strings.LastIndexByte(zone, '-'); i > 0 {
		return zone[:i]
	}
	return zone
}

// last is the name at the end of a resource's URL.
func last(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }
