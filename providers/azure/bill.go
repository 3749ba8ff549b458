package azure

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"gpubroker/providers"
)

// activityVersion is that of the activity log, which Azure keeps for 90 days
// (learn.microsoft.com/rest/api/monitor/activity-logs/list).
const (
	activityVersion = "2015-04-01"
	activityKept    = 89 * 24 * time.Hour
)

// activity is an event of the log.
type activity struct {
	At        time.Time `json:"eventTimestamp"`
	Operation struct {
		Value string `json:"value"`
	} `json:"operationName"`
	Status struct {
		Value string `json:"value"`
	} `json:"status"`
}

// is reports whether an event is of an operation that went well.
func (e activity) is(operation string) bool {
	return strings.EqualFold(e.Operation.Value, operation) && !strings.EqualFold(e.Status.Value, "Failed")
}

// Bill returns from when to when a machine was paid for, as the activity log has
// it: Azure has no bill of a single machine, and so no prices are said. The log
// comes minutes late and may be closed to us: what it does not show is NotFound.
func (a *Adapter) Bill(ctx context.Context, ref providers.Ref) (providers.Bill, error) {
	const op = "bill"
	target := ref.String()
	if err := a.alive(ctx, op, target); err != nil {
		return providers.Bill{}, err
	}
	events, err := a.activities(ctx, nameOf(ref.Request))
	if err != nil {
		failed := a.failure(ctx, op, target, err)
		if providers.CodeOf(failed) == providers.Unauthorized {
			return providers.Bill{}, a.errorf(op, target, providers.NotFound, "", "the activity log is closed to this application: Microsoft.Insights/eventtypes/values/read opens it")
		}
		return providers.Bill{}, failed
	}
	var bill providers.Bill
	for _, e := range events {
		if e.is("Microsoft.Compute/virtualMachines/write") && (bill.Start.IsZero() || e.At.Before(bill.Start)) {
			bill.Start = e.At.UTC()
		}
		ends := e.is("Microsoft.Compute/virtualMachines/delete") && strings.EqualFold(e.Status.Value, "Succeeded")
		if ends && (bill.End.IsZero() || e.At.Before(bill.End)) {
			bill.End = e.At.UTC()
		}
	}
	if bill.Start.IsZero() {
		return providers.Bill{}, a.errorf(op, target, providers.NotFound, "", "the activity log shows no machine")
	}
	if bill.End.IsZero() {
		f, err := a.look(ctx, op, target, ref.Request)
		switch {
		case err != nil:
			return providers.Bill{}, err
		case f.vm == nil:
			return providers.Bill{}, a.errorf(op, target, providers.NotFound, "", "the activity log does not show the machine's end yet")
		}
	}
	return bill, nil
}

// activities reads the log of one resource group to its end.
func (a *Adapter) activities(ctx context.Context, group string) ([]activity, error) {
	now := time.Now().UTC()
	filter := "eventTimestamp ge '" + now.Add(-activityKept).Format(time.RFC3339) + "' and eventTimestamp le '" + now.Add(time.Minute).Format(time.RFC3339) +
		"' and resourceGroupName eq '" + group + "'"
	next := a.cloud.base + "/providers/Microsoft.Insights/eventtypes/management/values?" +
		url.Values{"$filter": {filter}, "$select": {"eventTimestamp,operationName,status"}}.Encode()
	var all []activity
	for next != "" {
		var page struct {
			Value    []activity `json:"value"`
			NextLink string     `json:"nextLink"`
		}
		if !strings.HasPrefix(next, a.cloud.base) {
			return nil, a.errorf("bill", group, providers.Unavailable, "", "a link leads to another host than %s", a.cloud.base)
		}
		if err := a.cloud.call(ctx, http.MethodGet, next, activityVersion, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Value...)
		if page.NextLink == next {
			break
		}
		next = page.NextLink
	}
	return all, nil
}
