// Package all is the list of the built-in adapters. Only programs import it: it
// links every adapter and the libraries that they stand on.
package all

import (
	"gpubroker/providers"
	"gpubroker/providers/aws"
	"gpubroker/providers/azure"
	"gpubroker/providers/gcp"
	"gpubroker/providers/hosts"
	"gpubroker/providers/lambda"
	"gpubroker/providers/runpod"
	"gpubroker/providers/simcloud"
	"gpubroker/providers/vast"
	"gpubroker/providers/verda"
)

// Descriptors returns the built-in types of provider, by type.
func Descriptors() []providers.Descriptor {
	return []providers.Descriptor{
		aws.Descriptor(),
		azure.Descriptor(),
		gcp.Descriptor(),
		hosts.Descriptor(),
		lambda.Descriptor(),
		runpod.Descriptor(),
		simcloud.Descriptor(),
		vast.Descriptor(),
		verda.Descriptor(),
	}
}
