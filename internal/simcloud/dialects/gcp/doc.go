// Package gcp makes a world look like Google Cloud: the Compute Engine API v1,
// the Cloud Billing catalog v1, the part of Resource Manager v1 that tests
// permissions, an OAuth token endpoint, and the metadata server of each machine.
// It is built to Google's discovery documents, and its tests hold every answer
// against them.
//
// One address answers for all of Google's hosts, since their paths differ:
//
//	/compute/v1/projects/…                    compute.googleapis.com
//	/v1/services/6F81-5844-456A/skus          cloudbilling.googleapis.com
//	/v1/projects/{project}:testIamPermissions cloudresourcemanager.googleapis.com
//	/token                                    oauth2.googleapis.com
//
// Google's libraries are pointed at it by option.WithEndpoint, gcloud by
// api_endpoint_overrides, and a service account's key file by its token_uri.
// Programs on a machine find the metadata server by GCE_METADATA_HOST.
//
// Every call wants a bearer token: that of the world's configuration, or any when
// it names none, or a machine's own from its metadata server. Inserts and deletes
// answer with operations that are PENDING, RUNNING and DONE; want of capacity and
// exceeded quotas show only in the operation. A machine that has ended is no
// longer found, and the zone's operations say why.
//
// Prices: the world's price of an offer is the whole machine's. The catalog shows
// its parts, of which disk, address and local SSD are constants and the rest is
// split over cores, memory and GPUs. A SKU holds for a family in a whole region,
// so that the parts sum exactly to the world's price where zones of a region cost
// the same, one type of each family is offered there, and the price divides by the
// number of GPUs; otherwise they sum to a little more or to the dearest zone's. An
// n1 type with GPUs implies the type alone, which the world should offer as well.
package gcp
