package gcp

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"gpubroker/providers"
)

// causes are the operations that end a machine, and why. Google documents the
// preemption alone (cloud.google.com/compute/docs/instances/create-use-spot#list_preemption_history);
// the others are as operation lists show them.
var causes = map[string]providers.Cause{
	"compute.instances.preempted":      providers.CausePreempted,
	"compute.instances.deferredDelete": providers.CauseExpired, // maxRunDuration is over
	"compute.instances.deferredStop":   providers.CauseExpired,
	"compute.instances.guestTerminate": providers.CauseGuest,
	"compute.instances.hostError":      providers.CauseError,
	"delete":                           providers.CauseUser,
	"stop":                             providers.CauseUser,
}

// gone describes a machine that Google no longer has, from the operations on it.
// Its error is that of the call, or not found.
func (a *Adapter) gone(ctx context.Context, ref providers.Ref, zone string) (providers.Instance, error) {
	none := &providers.Error{Code: providers.NotFound, Scope: providers.ScopeOffer, Message: "there is no machine of this request, and no operation on one"}
	ops, err := a.history(ctx, nameOf(ref.Request), zone)
	if err != nil {
		// The machine is gone for certain; why, an account that may not list
		// operations, or an emulator without them, does not tell.
		if e := judgeError(err); e.Code != providers.Unauthorized && e.Code != providers.InvalidRequest && e.Code != providers.NotFound && e.Code != providers.Unsupported && e.Code != providers.Unknown {
			return providers.Instance{}, err
		}
		return providers.Instance{}, none
	}
	slices.SortStableFunc(ops, func(x, y *computepb.Operation) int {
		return cmp.Or(parseTime(x.GetInsertTime()).Compare(parseTime(y.GetInsertTime())), cmp.Compare(x.GetId(), y.GetId()))
	})
	var insert, end *computepb.Operation
	for _, op := range ops {
		failed := len(op.GetError().GetErrors()) > 0
		switch _, ends := causes[op.GetOperationType()]; {
		case op.GetOperationType() == "insert":
			insert, end = op, nil
		case ends && !failed && end == nil:
			end = op
		}
	}
	if insert == nil && end == nil {
		return providers.Instance{}, none
	}
	f, _ := a.seen.get(ref.Request)
	i := providers.Instance{
		Ref:    providers.Ref{ID: nameOf(ref.Request), Request: ref.Request, Region: ref.Region, Zone: zone},
		Market: f.market, Tags: f.tags, State: providers.Terminated, Launched: f.launched,
	}
	if at := parseTime(insert.GetInsertTime()); !at.IsZero() {
		i.Launched = at
	}
	zone = last(cmp.Or(insert, end).GetZone())
	i.Ref.Zone, i.Ref.Region = zone, regionOf(zone)
	if i.Tags.Request == "" { // forgotten
		i.Tags = providers.Tags{Owner: a.owner, Request: ref.Request}
		i.Market = providers.Market{Provider: a.name, Region: regionOf(zone), Zone: zone}
	}
	switch e := judgeOperation(insert); {
	case end != nil:
		i.Cause = causes[end.GetOperationType()]
		i.Message = a.billing.Line(cmp.Or(end.GetStatusMessage(), end.GetOperationType()))
		i.Ended = ended(end)
	case e != nil:
		i.Cause, i.Message, i.Ended = providers.CauseError, a.billing.Line(e.Message), ended(insert)
	case insert.GetStatus() != computepb.Operation_DONE:
		// It is being made, and not to be seen yet.
		i.State = providers.Pending
	default:
		i.Ended = ended(insert)
	}
	return i, nil
}

// off says why a machine is off, from the operations on it. Google deletes what it
// takes; a machine that is off without one of these has shut itself down.
func (a *Adapter) off(ctx context.Context, i providers.Instance) providers.Instance {
	if i.Cause != providers.CauseGuest {
		return i
	}
	ops, err := a.history(ctx, i.Ref.ID, i.Ref.Zone)
	if err != nil {
		a.log.DebugContext(ctx, "why a machine is off is not known", "machine", i.Ref.ID, "error", err)
		return i
	}
	newest := time.Time{}
	for _, op := range ops {
		if cause, ends := causes[op.GetOperationType()]; ends && len(op.GetError().GetErrors()) == 0 && !ended(op).Before(newest) {
			newest, i.Cause = ended(op), cause
		}
	}
	return i
}

// ended is when an operation was over, as far as it tells.
func ended(op *computepb.Operation) time.Time {
	return parseTime(cmp.Or(op.GetEndTime(), op.GetStartTime(), op.GetInsertTime()))
}

// history returns the operations on an instance, in a zone or everywhere.
func (a *Adapter) history(ctx context.Context, name, zone string) ([]*computepb.Operation, error) {
	var out []*computepb.Operation
	keep := func(op *computepb.Operation) {
		if strings.HasSuffix(op.GetTargetLink(), "/instances/"+name) {
			out = append(out, op)
		}
	}
	// A regular expression: ":" finds nothing in links, and "=" wants the whole
	// link with a host that differs between answers.
	filter := `targetLink eq ".*/instances/` + name + `"`
	if zone != "" {
		err := pages(ctx, a, "/zones/"+zone+"/operations", filter, func() *computepb.OperationList { return new(computepb.OperationList) }, func(p *computepb.OperationList) {
			for _, op := range p.GetItems() {
				keep(op)
			}
		})
		return out, err
	}
	var lost error
	err := pages(ctx, a, "/aggregated/operations", filter, func() *computepb.OperationAggregatedList { return new(computepb.OperationAggregatedList) }, func(p *computepb.OperationAggregatedList) {
		each(p.GetItems(), &lost, func(_ string, s *computepb.OperationsScopedList) {
			for _, op := range s.GetOperations() {
				keep(op)
			}
		})
	})
	return out, cmp.Or(err, lost)
}
