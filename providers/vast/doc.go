// Package vast is the adapter for the marketplace Vast.ai over its REST API,
// version 0, and version 1 for the list of instances
// (https://docs.vast.ai/api-reference).
//
// # Setting up
//
// Make an API key with these permissions
// (https://docs.vast.ai/api-reference/permissions), which is the least that does:
//
//	{"api": {"misc": {}, "user_read": {}, "instance_read": {}, "instance_write": {}}}
//
// Then:
//
//	providers:
//	  - name: vast
//	    type: vast
//	    settings:
//	      api_key: env:VAST_API_KEY        # the default
//	      regions: [SE, NO, FI]            # codes of countries; default all
//	      image: vastai/base-image:@vastai-automatic-tag
//	      disk: 50GB                       # of each container, whole GB, 8GB at least
//	      filters:                         # over verified, reliability 0.95, a day of stay
//	        reliability: {gte: 0.99}
//	        inet_down: {gte: 500}
//	      network: {proxy: ""}
//	      endpoint: https://console.vast.ai
//
// The calls that are made: POST /api/v0/bundles/, PUT /api/v0/asks/{id}/, GET
// /api/v1/instances/, GET and DELETE /api/v0/instances/{id}/, GET
// /api/v0/users/current/. The search needs no key; without an account the broker
// shows its prices as a public feed.
//
// # Markets
//
// Every ask at Vast is one machine, which can be rented once. A market here is all
// asks of a country that are alike: its type "RTX_4090-24G-x2-c16-m64" is the GPU
// with its memory, their number, and the vCPUs and the GiB of memory that come with
// them, each rounded down to a power of two. Its price is that of the cheapest ask,
// its capacity the number of asks. A launch searches again and rents the cheapest
// ask that is within the bound; two launches at once take different ones.
//
// On demand the price is dph_total with our disk. Interruptible, it is min_bid with
// the disk's price on top; who bids pays the bid, so the bid is min_bid exactly, and
// no machine gets dearer while it runs. Traffic is charged by the host beside it
// (inet_up_cost, inet_down_cost) and is in no price here: filters bound it.
//
// # Who ends a machine
//
// SelfEnd is guest. Each container has a key that can start, stop and destroy it
// alone, CONTAINER_API_KEY
// (https://docs.vast.ai/documentation/instances/docker-environment); with it the
// timer of root on the machine destroys the instance when its lease ends, by curl or
// GNU wget. No end can be set at Vast. If the broker is away a machine ends with its
// lease; if the machine hangs as well, or its host loses the network, it stays until
// the broker or "gpubroker sweep --expired" ends it, so a cap holds only as far as
// that and guard: strict refuses Vast.
//
// # Quirks
//
//   - Nothing is idempotent. A create whose answer was lost is found by its label,
//     which holds our tags and the market in 256 bytes; until the list has had time
//     to show it, no second create of the request is sent. There are no other tags.
//   - A bid that is too low, because the price rose after the search, is answered
//     with an error and leaves a stopped instance, named in new_contract, whose disk
//     is paid for (https://github.com/dstackai/dstack/pull/4036). It is destroyed at
//     once; if that fails the outcome is unknown, and the list shows it by its label.
//   - A create without a price is one on demand, whatever was searched
//     (https://github.com/vast-ai/vast-cli/pull/403).
//   - Who is outbid is stopped, not ended; the disk is charged, and the machine would
//     start again by itself once the bid wins
//     (https://docs.vast.ai/documentation/instances/choosing/instance-types). Nobody
//     is warned. The adapter reads the list every few seconds and tells the broker,
//     which ends the instance as preempted. The same holds while it is provisioned
//     (https://github.com/dstackai/dstack/pull/4037).
//   - What was destroyed is forgotten at once: {"instances": null}, with status 200
//     (https://github.com/Max19970/easy-server/issues/125).
//   - The list of version 0 is gone (https://github.com/skypilot-org/skypilot/issues/10517);
//     that of version 1 has pages of 25.
//   - Somebody else was faster: 410 no_such_ask, or 404 with invalid_args and
//     no_such_ask in the text.
//   - Calls of one kind must be apart, without a burst: creates by 4.5 seconds, ends by
//     3, lists by 2, searches by 6 and within a day's quota of rows
//     (https://docs.vast.ai/api-reference/rate-limits-and-errors). A throttled call
//     answers 429, mostly as plain text and without Retry-After. Launches that come
//     together share a search and a list; when the day's searches are used up nothing
//     is rented until the time that was told, while machines are ended as ever. Fewer
//     regions, more filters and a longer intervals.offers need fewer rows.
//   - A failure may come with status 200 and success: false; a wrong key also as 404.
//   - A search that was cut says so with truncated. There are no pages: the next
//     search begins at the last price.
//   - cpu_cores and geolocation may be null. The memory is the host's; our share of
//     it is that of the cores. What has no price, country or name is not offered.
//   - A machine's stay is limited by its host; when it is over the instance is
//     stopped, and may be deleted two days later. The default filter leaves out what stays
//     less than a day.
//   - Script and arguments of a create have 4,096 bytes together: a longer start
//     script goes packed, which needs base64 and gzip in the image. The script runs
//     at every start of the container.
//   - For limits of an account no word is documented: instance_limit is a guess.
package vast
