// Package lambda is the adapter for Lambda's public cloud (on-demand instances).
//
// API: Lambda Cloud API v1, documents 1.6.0 and 1.10.0
// (https://docs.lambda.ai/api/cloud). The base is https://cloud.lambda.ai/api/v1;
// https://cloud.lambdalabs.com/api/v1, which document 1.6.0 names, answers with
// redirects today and is deprecated in 1.10.0. Set endpoint for another one.
//
// # Permissions
//
// An API key has all rights of its account or workspace; there are no scopes. Give
// the broker a workspace of its own, so that its key reaches nothing else.
//
// # Set-up
//
//  1. Make a key at https://cloud.lambda.ai/api-keys/cloud-api and give it to the
//     broker as a reference, for example LAMBDA_API_KEY.
//
//  2. Add an SSH key at https://cloud.lambda.ai/ssh-keys. Every launch names exactly
//     one; the broker itself does not use it.
//
// A configuration:
//
//	providers:
//	  - name: lambda
//	    type: lambda
//	    allow_guest_end: true               # nothing at Lambda ends a machine that the broker has lost
//	    settings:
//	      key: env:LAMBDA_API_KEY
//	      ssh_key: broker
//	      regions: [us-east-1, us-west-1]   # default: all
//	      image: lambda-stack-24-04         # family or id; default: Lambda's
//	      tags: {team: research}            # set on every instance
//	      network: {proxy: "http://proxy.example.org:3128"}
//	      endpoint: https://cloud.lambda.ai/api/v1
//	      labels: tags                      # or name, for an endpoint without tags
//
// # Ends and caps
//
// SelfEnd is none: Lambda ends no instance by itself, a shutdown from within does
// not stop its bill, and no credential on the machine could end it. When broker
// and agent both fail an instance runs and costs until somebody ends it, so that
// budgets with guard strict refuse it, and guard normal wants the configuration to
// name the account.
//
// # Labels
//
// Every instance bears our tags. Its name holds the same in 64 bytes at most, for
// people and for endpoints of before 1.10.0 that know no tags; there (labels: name)
// a launch whose owner, generation, request and project do not fit is refused.
//
// # Quirks
//
//   - No capacity (instance-operations/launch/insufficient-capacity) and a used up
//     quota (global/quota-exceeded) are both HTTP 400; only the code tells them
//     apart. What the cloud lists as available is often refused a moment later.
//   - There is no idempotency key: the adapter looks for the request's own label
//     before it creates.
//   - /instance-types names the regions with capacity and is silent on where else a
//     type is sold. The other regions are listed as full, so that an offer does not
//     come and go.
//   - An instance shows neither when it was launched nor when it ended. The launch
//     stands in our label; an instance that is seen terminated has ended by then.
//   - unhealthy instances are billed and may recover: they count as running.
//   - About one call per second, and one launch in 12 seconds. 429 comes from the
//     edge, as text without one of the API's codes (error 1015).
//   - provider/… codes are faults of an upstream service, to be tried again.
//   - There is no spot, no quota or balance in the API, and a disk has the size of
//     its type.
//   - Billed by the minute, from the first passed health check to the terminate
//     call (https://docs.lambda.ai/public-cloud/billing).
package lambda
