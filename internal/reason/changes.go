package reason

import "strings"

// Changes is the English text of what would change it, for each code for which a
// task waits; with slots and parts like [Sentences].
var Changes = map[Code]string{
	"held":             "somebody who releases it: gpubroker release",
	"scenario_unknown": "scenario {scenario} back in the configuration, or the job handed in again without it",
	"outside_window":   "its window, which opens at {opens}",
	"backoff":          "{until}, when it is tried again",
	"deadline_passed":  "nothing more: hand the job in again, with another deadline",
	"parallelism":      "a task of the job that ends, or a higher tasks.parallelism",
	"task_limit":       "a task of {of} that ends, or a higher limit in the configuration (limits: tasks)",
	"machine_limit":    "a machine of {of} that is let go, or a higher limit in the configuration (limits: machines)",
	"gpu_limit":        "machines of {of} that are let go, or a higher limit in the configuration (limits: gpus)",
	"hourly_limit":     "machines of {of} that are let go, cheaper ones, or a higher limit in the configuration (limits: per_hour)",
	"against_rules":    "another {what} in the job, or other rules of {of} in the configuration",
	"launch_limit":     "a launch that is done, within minutes",
	"no_offers":        "a provider that offers something",
	"no_offer_fits":    "an offer that fits, or one constraint less (see otherwise)",
	"all_cooled_down":  "{until}, when the first of them is tried again",
	"policy_wait":      "a lower price, or the moment at which waiting does not pay any more",
	"sold_out":         "a machine of theirs that is let go, or a newer offer with room",
	"quota":            "a machine of provider {provider} that is let go, or a higher quota {quota} there",
	"over_budget":      "money of {budget|budget} that is released, its next period, or a higher cap",
	"kept_for":         "job {job}, which gets its part first",
	"no_max_duration":  "max_duration in the job, or a way to interrupt it",
	"not_admitted":     "what stands in the way to be put right",
	"follows":          "a task that ends on those machines",
	"in_turn":          "a task that ends on those machines",
	"gang_limit":       "machines that are let go, or a higher limit, so that all of a task find room",
	"gang_budget":      "money that is released, its next period, or a higher cap, so that all machines of a task are paid for",
	"gang_unsecured":   "room in its budgets for machine {machine}, or max_duration in the job",
	"gang_sold_out":    "an offer with room for all machines of a task",
	"exclusive":        "the provider's word on machine {instance}",
	"not_adopted":      "somebody who runs gpubroker adopt",
}

// Change is what a task waits for, by a reason for which a task waits; "" where
// nobody knows.
func (r Reason) Change() string {
	if r.Code == "no_offer_fits" && r.Args["closest"] != "" {
		return "a change in what stands against those that would fit, or another offer that fits"
	}
	text, _ := r.fill(Changes[r.Code])
	if strings.Contains(text, "{") {
		return "" // what it is about is not known here
	}
	return text
}
