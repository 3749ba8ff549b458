package runpod

import (
	"strings"

	"gpubroker/providers"
)

// A pod has no tags. What we must know of it stands in variables of its container,
// which the API shows, and in its name, for people and as the second best.
const (
	labelPrefix = "GPUBROKER_TAG_"
	labelRegion = labelPrefix + "REGION" // as asked for; "" is anywhere
	labelKind   = labelPrefix + "KIND"
)

// variables are the label of a request.
func variables(req providers.LaunchRequest) map[string]string {
	env := map[string]string{labelKind: string(req.Market.Kind)}
	if req.Market.Region != "" {
		env[labelRegion] = req.Market.Region
	}
	for key, value := range req.Tags.Map() {
		env[variable(key)] = value
	}
	return env
}

func variable(tag string) string {
	return labelPrefix + strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(tag, "gpubroker-"), "-", "_"))
}

// podName is what a pod is called: its owner and its request.
func podName(t providers.Tags) string { return t.Owner + "." + t.Request }

// tagsOf reads a pod's label.
func tagsOf(env map[string]string) providers.Tags {
	m := map[string]string{}
	for _, tag := range []string{
		providers.TagOwner, providers.TagGeneration, providers.TagRequest, providers.TagProject, providers.TagDeleteAt,
	} {
		if v, ok := env[variable(tag)]; ok {
			m[tag] = v
		}
	}
	return providers.TagsOf(m)
}

// requestOf reads the request out of the name that we give to a pod. An owner may
// have dots, a request has none: what "acme.eu" names is not of "acme".
func requestOf(owner, name string) (string, bool) {
	request, ok := strings.CutPrefix(name, owner+".")
	return request, ok && request != "" && !strings.Contains(request, ".")
}
