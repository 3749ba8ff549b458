// Package runpod is the adapter for RunPod's pods.
//
// API: REST v2 (https://docs.runpod.io/api-reference-v2, OpenAPI document 2.0.0),
// at https://api.runpod.io/v2. Spot pods and the balance exist in GraphQL alone
// (https://api.runpod.io/graphql), which RunPod retires in early 2027; both are
// off unless the settings switch them on, and a warning at start says that they
// will end.
//
// # Permissions
//
// An API key with the permission "GraphQL: Read/Write"
// (https://console.runpod.io/user/settings, a restricted key; "api.runpod.ai", which
// is serverless, stays at None). REST v2 and GraphQL take the same one. A key
// with read rights passes the preflight and fails at the first launch with
// unauthorized.
//
// # Set-up
//
//  1. Make the key and give it to the broker as a reference.
//
//  2. Load credit: RunPod is prepaid, and stops every pod when it runs out.
//
// A configuration:
//
//	providers:
//	  - name: runpod
//	    type: runpod
//	    settings:
//	      key: env:RUNPOD_API_KEY
//	      regions: [US-KS-2, EU-RO-1]   # data centers; default: all
//	      clouds: [secure, community]   # default: secure
//	      counts: [1, 2, 4, 8]          # GPUs of a pod; this is the default
//	      vcpus: [8]                    # pods without GPUs; default: none
//	      image: runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404   # this is the default
//	      registry: cr-1                # id of the credentials for a private image
//	      cuda: "12.8"                  # least of the host; the default goes with the default image
//	      disk: 50GB                    # container disk; this is the default
//	      vcpu_per_gpu: 4               # least of the host; this is the default
//	      memory_per_gpu: 16GB          # least of the host; this is the default
//	      network: {proxy: "http://proxy.example.org:3128"}
//	      self_end: guest               # or none, which needs allow_guest_end: true beside the settings
//	      spot: graphql                 # default: off
//	      balance: graphql              # default: off
//	      endpoint: https://api.runpod.io/v2
//	      graphql_endpoint: https://api.runpod.io/graphql
//
// The image needs a shell, base64, mktemp, and curl or wget. An instance type is
// written "2x NVIDIA L4" or "8vcpu cpu5c", and the zone of a market is the cloud.
//
// # Ends and caps
//
// SelfEnd is guest: a timer in the pod deletes it with the key that RunPod gives to
// each pod and that reaches no other (RUNPOD_API_KEY; "scoped to that pod, so it
// cannot affect other pods"). RunPod documents the use of that key by its own tool
// (runpodctl remove pod $RUNPOD_POD_ID). Users have seen REST refuse it with 403
// where GraphQL's podTerminate let it in, so the script tries REST, GraphQL and the
// tool, in this order. It has not been tried against RunPod itself from here: set
// self_end: none if your pods cannot delete themselves. Either way nothing at RunPod
// ends a pod whose container hangs, so that budgets with guard strict refuse both;
// the account's credit is the last bound. Tasks can read the pod's key.
//
// # Labels
//
// Pods have no tags. What the broker must know of one stands in variables of its
// container (GPUBROKER_TAG_…), which the API shows, and its name is OWNER.REQUEST.
// Settings therefore take no tags.
//
// # Quirks
//
//   - Capacity has no code: a create is refused with 400 and words. Words that are
//     not known are unknown, not invalid, since 400 also means a broken rule. An
//     empty credit is 402, a pool that the account may not use 403, a used up spend
//     limit (80 USD per hour at first) has no documented form.
//   - There is no idempotency key: the adapter looks for the request's own label
//     before it creates.
//   - dataCenterIds is a preference: a pod that lands elsewhere is deleted at once
//     and counts as no capacity.
//   - A pod is a container: the user data is its start command, in base64. RunPod
//     starts a container again whose command ends, so it never does.
//   - The catalog says neither vCPUs nor memory of the hosts: offers promise the
//     least that is asked for. Prices are per GPU-hour; the container disk is added at
//     0.10 USD per GB and month (https://docs.runpod.io/pods/pricing).
//   - A spot pod pays its bid. The adapter bids the lowest that is taken at the
//     moment, and refuses above the bound. RunPod warns the container alone, five
//     seconds before. An outbid pod stays as EXITED, at no cost, until it is deleted:
//     it is shown as stopping, by preemption, and a notice has the broker delete it. Why
//     it stopped (lastStatusChange "Outbid: …") is told by GraphQL alone.
//   - Lists come in pages by cursor; older deployments send all at once.
//   - 429 has Retry-After; without it the header RateLimit tells when the window
//     that is used up begins anew. A catalog takes one call per cloud and number of
//     GPUs, of 60 in a minute.
//   - GraphQL answers its failures with status 200.
//   - A request without a User-Agent is answered with 403 by the edge.
//   - The bill of a pod comes in hours and days, not by its start and end: the
//     broker reckons from what it saw, with the time in which the image is fetched.
package runpod
