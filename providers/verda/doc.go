// Package verda is the adapter for Verda (formerly DataCrunch) over its public
// REST API, version 1 (https://api.verda.com/v1/docs).
//
// # Setting up
//
// In Verda's console, under Keys, make "REST API credentials" and add one SSH key
// to the project: Verda makes no instance without one. The credentials are those
// of the whole project; there are no narrower ones. Then:
//
//	providers:
//	  - name: verda
//	    type: verda
//	    allow_guest_end: true              # see below
//	    settings:
//	      client_id: env:VERDA_CLIENT_ID   # these two are the defaults
//	      client_secret: env:VERDA_CLIENT_SECRET
//	      regions: [FIN-01, FIN-03]        # location codes; default all
//	      image: ubuntu-24.04-cuda-12.8-open-docker
//	      disk: 100GB                      # OS volume of each machine, whole GB, 50GB at least
//	      ssh_keys: []                     # ids; default all of the account
//	      tags: {cost-centre: ml}          # on every instance, at most five
//	      network: {subnet: NETWORK/SUBNET, private: false, proxy: ""}
//	      endpoint: https://api.verda.com/v1
//
// The calls that are made: POST /oauth2/token; GET /locations, /instance-types,
// /instance-availability, /volume-types, /images, /ssh-keys, /balance; GET, POST and
// PUT /instances, POST /instances/{id}/tags; GET and PUT /volumes; GET, POST and
// DELETE /scripts.
//
// # Who ends a machine
//
// SelfEnd is none. No end can be set at launch, a machine that is shut down from
// within goes on being paid for, and no key can be made that is good for one
// machine only, so a machine cannot delete itself. If the broker dies, machines
// stay until it is back or until "gpubroker sweep --expired" runs elsewhere: a cap
// holds only as far as that. Budgets with guard: strict refuse Verda, and others
// use it only where the account says allow_guest_end.
//
// # Quirks
//
//   - Nothing is idempotent. A create whose answer was lost is found by the
//     description, which holds our tags; until the list has had time to show it, no
//     second create of the request is sent. A 500 may well have made what was
//     asked for (https://github.com/ahelme/comfyume-v1/issues/230, of containers).
//   - POST /instances and POST /scripts answer a bare id as plain text.
//   - 503 with service_unavailable is the word for no capacity; any other 503 is a
//     cloud that is down.
//   - A machine cannot be deleted while it is provisioned, and one that is gone
//     answers forbidden_action (https://github.com/dstackai/dstack/issues/3031):
//     the delete is asked for again, and the status decides.
//   - What was deleted and what was taken both end as "discontinued", without a
//     time. We tag what we delete (gpubroker-ended); a spot machine without the tag
//     was taken. The plain list leaves such machines out, so they are asked for as
//     well: in an old account that list is long.
//   - The OS volume is paid for beside the machine and outlives it unless it is
//     named in the delete; only delete_permanently keeps it out of the trash, where
//     it is paid for. A spot machine's is launched with on_spot_discontinue
//     delete_permanently. Offers hold its price as the part "disk".
//   - The startup script is a thing of its own and holds the machine's join token.
//     It is removed once its machine is gone. Volumes and scripts of ours without a
//     machine, a quarter of an hour old, are listed as machines of their request,
//     so that the broker ends them.
//   - Prices are one for all locations; price_per_hour is the whole machine's, spot
//     prices come as text or as numbers. A bound cannot be set: it is compared with
//     the price just before the create.
//   - V100 and A6000 machines refuse newer images
//     (https://github.com/dstackai/dstack/issues/3067) and get an older one.
//   - Spot availability is asked for apart from that on demand
//     (https://github.com/dstackai/dstack/issues/3927).
//   - No warning of a spot end, no limits of requests and no quotas are documented.
package verda
