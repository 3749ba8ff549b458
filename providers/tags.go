package providers

import (
	"strconv"
	"time"
)

// The keys under which [Tags] stand at a cloud with free tags: lower-case with
// dashes, which every such cloud permits.
const (
	TagOwner      = "gpubroker-owner"
	TagGeneration = "gpubroker-generation"
	TagRequest    = "gpubroker-request"
	TagProject    = "gpubroker-project"
	TagDeleteAt   = "gpubroker-delete-at" // Unix seconds, since colons are not permitted everywhere
)

// Map returns the tags that are set, by their keys.
func (t Tags) Map() map[string]string {
	m := map[string]string{}
	for key, value := range map[string]string{TagOwner: t.Owner, TagGeneration: t.Generation, TagRequest: t.Request, TagProject: t.Project} {
		if value != "" {
			m[key] = value
		}
	}
	if !t.DeleteAt.IsZero() {
		m[TagDeleteAt] = strconv.FormatInt(t.DeleteAt.Unix(), 10)
	}
	return m
}

// TagsOf reads our tags. A delete-at that somebody has spoilt is the zero time:
// unknown, and not now.
func TagsOf(m map[string]string) Tags {
	t := Tags{Owner: m[TagOwner], Generation: m[TagGeneration], Request: m[TagRequest], Project: m[TagProject]}
	t.DeleteAt = Moment(m[TagDeleteAt], 10)
	return t
}

// Moment reads Unix seconds in a base. What cannot be read, or lies outside the
// years 1 to 9999, which is all that can be stored and shown, is the zero time.
func Moment(text string, base int) time.Time {
	s, err := strconv.ParseInt(text, base, 64)
	if err != nil {
		return time.Time{}
	}
	return Sane(time.Unix(s, 0))
}

// Sane returns a moment in UTC, and the zero time for one outside the years 1 to
// 9999: clouds and people write such.
func Sane(t time.Time) time.Time {
	if t = t.UTC(); t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}
