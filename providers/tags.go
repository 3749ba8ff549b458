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
	if s, err := strconv.ParseInt(m[TagDeleteAt], 10, 64); err == nil {
		t.DeleteAt = time.Unix(s, 0).UTC()
	}
	return t
}
