// Package dialects is the list of clouds whose words simcloud speaks. A dialect
// is built to the cloud's published API, not to our adapter, and links none of
// the cloud's libraries.
package dialects

import (
	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/dialects/aws"
	"gpubroker/internal/simcloud/dialects/azure"
	"gpubroker/internal/simcloud/dialects/gcp"
	"gpubroker/internal/simcloud/dialects/lambda"
	"gpubroker/internal/simcloud/dialects/runpod"
	"gpubroker/internal/simcloud/dialects/vast"
	"gpubroker/internal/simcloud/dialects/verda"
)

// Entry is one cloud: how it is spoken, and a world in its own names.
type Entry struct {
	Dialect func() *simcloud.Dialect
	Default func(seed uint64) simcloud.Config
}

// All returns the dialects by the name of the provider's type.
func All() map[string]Entry {
	return map[string]Entry{
		"gcp":    {gcp.Dialect, gcp.Default},
		"aws":    {aws.Dialect, aws.Default},
		"azure":  {azure.Dialect, azure.Default},
		"lambda": {lambda.Dialect, lambda.Default},
		"runpod": {runpod.Dialect, runpod.Default},
		"vast":   {vast.Dialect, vast.Default},
		"verda":  {verda.Dialect, verda.Default},
	}
}
