// Package aws makes a simcloud world speak as Amazon EC2 and the services beside
// it: what an independent client of AWS would meet.
//
// One address answers for all of them, told apart as AWS's own front ends do:
//
//   - EC2 (2016-11-15), STS and old SQS clients: the Query protocol, by Action and
//     the service of the signature's credential scope;
//   - Pricing, SQS, SSM and Service Quotas: JSON, by X-Amz-Target;
//   - EventBridge Scheduler: REST below /schedules.
//
// Point clients at it with AWS_ENDPOINT_URL (or --endpoint-url); the region is that
// of the signature. A machine finds its instance metadata service, version 2
// only, at GPUBROKER_METADATA_URL.
//
// A request must carry a version 4 signature by the access key id that is the
// world's API token; with an empty one any key will do. The signature itself is not computed anew. The
// session token "expired" is one that has run out.
//
// Where the documents are vague it does what clients trip over: pages are as
// small as the world's page_size whatever MaxResults says, filtered lists lag by
// list_lag, the last page of the spot price history has an empty token, client
// tokens count per zone, the price list holds Windows, dedicated and Capacity Block
// products, and a fraction of a GPU has the count 0.
//
// The world's price of an offer is that of the machine with 100 GiB of gp3 and a
// public address. Spot interruptions and rebalance recommendations reach an SQS
// queue of any name in the machine's region, as an EventBridge rule would send them.
//
// Limits: stopped machines, Capacity Blocks, fleets and volumes apart from the
// root are not there; a shutdown from within always terminates.
package aws
