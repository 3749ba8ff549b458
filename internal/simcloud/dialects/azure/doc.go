// Package azure is a fake of Azure over a simcloud world: Azure Resource Manager
// with its long-running operations, the Microsoft Entra token endpoint, the
// Retail Prices API and the Instance Metadata Service of each machine.
//
// One address serves all hosts, told apart by path:
//
//	/subscriptions/…                      ARM (management.azure.com)
//	/{tenant}/oauth2/v2.0/token           sign-in (login.microsoftonline.com)
//	/api/retail/prices                    Retail Prices (prices.azure.com)
//	/bootdiagnostics/…                    blobs with serial console logs
//	/metadata/…                           IMDS, on a machine's own address only
//
// Point a client's endpoint, authority and price URL at it. It must be served over
// TLS: Azure's libraries send no token over plain HTTP. The subscription is
// [Subscription], the tenant [Tenant], the application [ClientID]; its secret is
// the world's API token, or any where the world has none.
//
// What is kept of ARM: resource groups with tags, filters, pages and their
// deletion in the background; virtual networks, security groups, public
// addresses and network interfaces with references checked; virtual machines with
// If-None-Match, identity, spot eviction and instance view; Azure-AsyncOperation
// and Location polling with Retry-After; roles of managed identities; SKUs with
// zones and restrictions; usages; permissions; spot placement scores. Errors have ARM's codes, statuses
// and bodies.
//
// What differs from Azure: network resources are made within [Cloud.NetworkTime];
// disks have no resource of their own, they come and go with their machine; a
// resource group is gone as soon as its machines are; prices of a region's zones
// are one price, so a world's zones should agree (the dearest is shown).
package azure
