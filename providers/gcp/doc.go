// Package gcp is the adapter for Google Cloud: Compute Engine API v1 through
// cloud.google.com/go/compute/apiv1 (REST), prices from the Cloud Billing catalog
// API v1.
package gcp
