package azure

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// life is a machine in the activity log.
type life struct{ group, name, machine string }

// activityFilter is the form of filter that the log takes for a resource group
// (learn.microsoft.com/rest/api/monitor/activity-logs/list).
var activityFilter = regexp.MustCompile(`^eventTimestamp ge '([^']+)' and eventTimestamp le '([^']+)' and resourceGroupName eq '([^']+)'$`)

// activities answers the log of one resource group: the making of machines, and
// their end, whoever ended them.
func (c *Cloud) activities(rw http.ResponseWriter, r *http.Request) {
	c.w.Answer(rw, r, simcloud.Call{Op: "bill"}, wordsAt(simapi.Place{}), func(time.Duration, bool) (simcloud.Reply, error) {
		m := activityFilter.FindStringSubmatch(r.URL.Query().Get("$filter"))
		if m == nil {
			return simcloud.Reply{}, failf(http.StatusBadRequest, "BadRequest", "The $filter query parameter value is invalid.")
		}
		from, errFrom := time.Parse(time.RFC3339, m[1])
		to, errTo := time.Parse(time.RFC3339, m[2])
		if errFrom != nil || errTo != nil {
			return simcloud.Reply{}, failf(http.StatusBadRequest, "BadRequest", "The eventTimestamp in the $filter query parameter is invalid.")
		}
		c.mu.Lock()
		lives := c.lives[strings.ToLower(m[3])]
		c.mu.Unlock()
		var events []any
		add := func(l life, what, status string, at time.Time) {
			if at.Before(from) || at.After(to) {
				return
			}
			events = append(events, object{
				"eventTimestamp": at.UTC().Format(time.RFC3339Nano), "resourceGroupName": l.group,
				"operationName": object{"value": "Microsoft.Compute/virtualMachines/" + what}, "status": object{"value": status},
				"resourceId": "/subscriptions/" + Subscription + "/resourceGroups/" + l.group + "/providers/Microsoft.Compute/virtualMachines/" + l.name,
			})
		}
		for _, truth := range c.w.Truth() {
			for _, l := range lives {
				if l.machine != truth.ID {
					continue
				}
				add(l, "write", "Accepted", truth.Launched)
				if truth.State == providers.Terminated {
					add(l, "delete", "Started", truth.Ended)
					add(l, "delete", "Succeeded", truth.Ended)
				}
			}
		}
		return c.page(r, events)
	})
}
