// Package runpod is the adapter for RunPod.
package runpod
