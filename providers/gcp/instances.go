package gcp

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"gpubroker/providers"
)

// parseTime reads Google's times; the zero time where there is none.
func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// get returns a machine by its zone and request. Its error is Google's.
func (a *Adapter) get(ctx context.Context, zone, request string) (providers.Instance, error) {
	v, err := a.instances.Get(ctx, &computepb.GetInstanceRequest{Project: a.set.Project, Zone: zone, Instance: nameOf(request)})
	if err != nil {
		return providers.Instance{}, err
	}
	i, ok := a.instance(v, zone)
	if !ok || i.Ref.Request != request || !a.owns(i.Tags) {
		// Somebody else has taken the name, or the answer is about something else.
		return providers.Instance{}, &providers.Error{
			Code: providers.Unknown, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown,
			Message: fmt.Sprintf("instance %s in %s answers as %q with other labels than ours", nameOf(request), zone, v.GetName()),
		}
	}
	a.seen.saw(i, policyOf(v))
	return i, nil
}

// search looks for a machine by its request in every zone.
func (a *Adapter) search(ctx context.Context, request string) (providers.Instance, bool, error) {
	all, err := a.list(ctx, `name = "`+nameOf(request)+`"`)
	for _, i := range all {
		if i.Ref.Request == request && a.owns(i.Tags) {
			return i, true, err
		}
	}
	return providers.Instance{}, false, err
}

// owns reports whether tags are of our owner.
func (a *Adapter) owns(t providers.Tags) bool { return a.owner == "" || t.Owner == a.owner }

// elsewhere looks for a machine that its zone does not have. Google answers not
// found for a project or a zone, too, that it does not know: only a list of the
// project's says that there is none. A list that still shows the machine in its own
// zone is late.
func (a *Adapter) elsewhere(ctx context.Context, request, zone string) (providers.Instance, bool, error) {
	i, there, err := a.search(ctx, request)
	return i, there && i.Ref.Zone != zone, err
}

// list returns the machines that a filter lets through and that bear our labels.
func (a *Adapter) list(ctx context.Context, filter string) ([]providers.Instance, error) {
	out := []providers.Instance{}
	var lost error
	err := pages(ctx, a, "/aggregated/instances", filter, func() *computepb.InstanceAggregatedList { return new(computepb.InstanceAggregatedList) }, func(p *computepb.InstanceAggregatedList) {
		each(p.GetItems(), &lost, func(key string, s *computepb.InstancesScopedList) {
			for _, v := range s.GetInstances() {
				if i, ok := a.instance(v, last(key)); ok {
					a.seen.saw(i, policyOf(v))
					out = append(out, i)
				}
			}
		})
	})
	return out, cmp.Or(err, lost)
}

// Describe returns a machine as it is now. Of one that is gone Google tells only
// by the operations on it, for about two weeks.
func (a *Adapter) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	none := providers.Instance{}
	zone := a.zoneOf(ref)
	if zone != "" {
		i, err := a.get(ctx, zone, ref.Request)
		if err == nil {
			return a.off(ctx, i), nil
		}
		if e := judgeError(err); e.Code != providers.NotFound {
			return none, a.complete("describe", ref.String(), e, true)
		}
		if i, there, err := a.elsewhere(ctx, ref.Request, zone); err != nil || there {
			return i, a.failedIf("describe", ref.String(), err)
		}
	} else {
		i, there, err := a.search(ctx, ref.Request)
		if err != nil {
			return none, a.failed("describe", ref.String(), err, false)
		}
		if there {
			return a.off(ctx, i), nil
		}
	}
	i, err := a.gone(ctx, ref, zone)
	if err != nil {
		return none, a.failed("describe", ref.String(), err, true)
	}
	return i, nil
}

// zoneOf is where a machine is, as far as that is known.
func (a *Adapter) zoneOf(ref providers.Ref) string {
	if ref.Zone != "" {
		return ref.Zone
	}
	f, _ := a.seen.get(ref.Request)
	return f.market.Zone
}

// List returns every machine with our owner label, and as a machine that is
// stopping every disk that a failed insert or delete has left.
func (a *Adapter) List(ctx context.Context) ([]providers.Instance, error) {
	filter := "labels." + providers.TagOwner + ":*"
	if a.owner != "" {
		owner, err := encode(a.owner)
		if err != nil {
			return nil, a.complete("list", "", &providers.Error{Code: providers.InvalidRequest, Scope: providers.ScopeProvider, Err: err}, false)
		}
		filter = "labels." + providers.TagOwner + " = " + owner
	}
	all, err := a.list(ctx, filter)
	if err != nil {
		return nil, a.failed("list", "", err, false)
	}
	// Not every server filters as it is asked to.
	all = slices.DeleteFunc(all, func(i providers.Instance) bool { return !a.owns(i.Tags) })
	left, err := a.leftDisks(ctx, filter)
	if err != nil {
		return nil, a.failed("list", "", err, false)
	}
	for _, d := range left {
		if !slices.ContainsFunc(all, func(i providers.Instance) bool { return i.Ref == d.Ref }) {
			all = append(all, d)
		}
	}
	return all, nil
}

// young is how long a disk may wait for its machine, or stay behind it, before it
// counts as left.
const young = 10 * time.Minute

// leftDisks returns our disks that no machine uses.
func (a *Adapter) leftDisks(ctx context.Context, filter string) ([]providers.Instance, error) {
	var out []providers.Instance
	var lost error
	err := pages(ctx, a, "/aggregated/disks", filter, func() *computepb.DiskAggregatedList { return new(computepb.DiskAggregatedList) }, func(p *computepb.DiskAggregatedList) {
		each(p.GetItems(), &lost, func(key string, s *computepb.DisksScopedList) {
			for _, d := range s.GetDisks() {
				tags, created := tagsOf(d.GetLabels()), parseTime(d.GetCreationTimestamp())
				if len(d.GetUsers()) > 0 || tags.Request == "" || !a.owns(tags) || d.GetName() != nameOf(tags.Request) || created.IsZero() || time.Since(created) < young {
					continue
				}
				zone := last(cmp.Or(d.GetZone(), key))
				out = append(out, providers.Instance{
					Ref:    providers.Ref{ID: d.GetName(), Request: tags.Request, Region: regionOf(zone), Zone: zone},
					Market: providers.Market{Provider: a.name, Region: regionOf(zone), Zone: zone, Type: "disk", Kind: providers.OnDemand},
					State:  providers.Stopping, Message: "a disk without its machine", Tags: tags, Launched: created,
				})
			}
		})
	})
	return out, cmp.Or(err, lost)
}

// Terminate deletes a machine, whose disk goes with it, and what is left of one
// that is gone: its disk, and the placement policy of its group.
func (a *Adapter) Terminate(ctx context.Context, ref providers.Ref) error {
	zone := a.zoneOf(ref)
	if zone == "" {
		i, there, err := a.search(ctx, ref.Request)
		switch {
		case err != nil:
			return a.failed("terminate", ref.String(), err, false)
		case !there:
			return a.complete("terminate", ref.String(), &providers.Error{Code: providers.NotFound, Message: "no zone has a machine of this request"}, true)
		}
		zone = i.Ref.Zone
	}
	gone, err := a.remove(ctx, ref, zone)
	if gone == nil {
		return err
	}
	i, there, err := a.elsewhere(ctx, ref.Request, zone)
	switch {
	case err != nil:
		return a.failed("terminate", ref.String(), err, false)
	case there:
		if gone, err = a.remove(ctx, ref, i.Ref.Zone); gone == nil {
			return err
		}
	}
	if f, _ := a.seen.get(ref.Request); f.open && time.Since(f.launched) < a.Capabilities().ListLag {
		return a.complete("terminate", ref.String(), &providers.Error{
			Code: providers.Unavailable, Scope: providers.ScopeOffer, Message: "the machine is not there, and was asked for a moment ago; ask again",
		}, true)
	}
	_, err = a.disks.Delete(ctx, &computepb.DeleteDiskRequest{Project: a.set.Project, Zone: zone, Disk: nameOf(ref.Request)})
	if err == nil {
		return nil
	}
	switch e := judgeError(err); e.Code {
	case providers.NotFound:
	case providers.Unknown, providers.Unsupported:
		// An emulator without disks. The machine is gone; a disk that stayed is one of
		// those that List shows.
		a.log.DebugContext(ctx, "disk was not looked for", "disk", nameOf(ref.Request), "zone", zone, "error", e)
	default:
		return a.complete("terminate", ref.String(), e, true)
	}
	if e := a.ungroup(ctx, ref.Request); e != nil {
		return a.complete("terminate", ref.String(), e, true)
	}
	return a.complete("terminate", ref.String(), gone, true)
}

// remove deletes an instance. gone is what Google says when there is none.
func (a *Adapter) remove(ctx context.Context, ref providers.Ref, zone string) (gone *providers.Error, err error) {
	_, err = a.instances.Delete(ctx, &computepb.DeleteInstanceRequest{Project: a.set.Project, Zone: zone, Instance: nameOf(ref.Request)})
	if err == nil {
		a.seen.came(ref.Request)
		return nil, nil
	}
	e := judgeError(err)
	if e.Code == providers.NotFound {
		return e, nil
	}
	return nil, a.complete("terminate", ref.String(), e, true)
}

// Console returns the last megabyte of the first serial port.
func (a *Adapter) Console(ctx context.Context, ref providers.Ref) ([]byte, error) {
	zone := a.zoneOf(ref)
	if zone == "" {
		i, there, err := a.search(ctx, ref.Request)
		switch {
		case err != nil:
			return nil, a.failed("console", ref.String(), err, false)
		case !there:
			return nil, a.complete("console", ref.String(), &providers.Error{Code: providers.NotFound, Message: "no zone has a machine of this request"}, true)
		}
		zone = i.Ref.Zone
	}
	out, err := a.instances.GetSerialPortOutput(ctx, &computepb.GetSerialPortOutputInstanceRequest{Project: a.set.Project, Zone: zone, Instance: nameOf(ref.Request)})
	if err != nil {
		return nil, a.failed("console", ref.String(), err, true)
	}
	return []byte(out.GetContents()), nil
}

// instance reads an instance resource, of a zone should it not say one; false when
// it is none of the broker's.
func (a *Adapter) instance(v *computepb.Instance, zone string) (providers.Instance, bool) {
	tags := tagsOf(v.GetLabels())
	if tags.Request == "" || v.GetName() != nameOf(tags.Request) {
		return providers.Instance{}, false
	}
	zone = cmp.Or(last(v.GetZone()), zone)
	m := machine{typ: last(v.GetMachineType())}
	if cards := v.GetGuestAccelerators(); attaches(m.typ) && len(cards) > 0 {
		m.card, m.cards = last(cards[0].GetAcceleratorType()), int(cards[0].GetAcceleratorCount())
	}
	s := v.GetScheduling()
	kind := providers.OnDemand
	if s.GetProvisioningModel() == "SPOT" || s.GetPreemptible() {
		kind = providers.Spot
	}
	i := providers.Instance{
		Ref:      providers.Ref{ID: v.GetName(), Request: tags.Request, Region: regionOf(zone), Zone: zone},
		Market:   providers.Market{Provider: a.name, Region: regionOf(zone), Zone: zone, Type: m.String(), Kind: kind},
		State:    stateOf(v.GetStatus()),
		Message:  v.GetStatusMessage(),
		Tags:     tags,
		Launched: parseTime(v.GetCreationTimestamp()),
		End:      parseTime(v.GetResourceStatus().GetScheduling().GetTerminationTimestamp()),
	}
	switch v.GetStatus() {
	case "TERMINATED", "STOPPED":
		// It is off, and its disk is billed until it is deleted.
		i.Cause = providers.CauseGuest
	}
	if run := s.GetMaxRunDuration().GetSeconds(); i.End.IsZero() && run > 0 && !i.Launched.IsZero() {
		i.End = i.Launched.Add(time.Duration(run) * time.Second)
	}
	for _, n := range v.GetNetworkInterfaces() {
		if i.Address == "" {
			i.Address = n.GetNetworkIP()
		}
		for _, c := range n.GetAccessConfigs() {
			if c.GetNatIP() != "" {
				i.Address = c.GetNatIP()
			}
		}
	}
	return i, true
}

// policyOf is the placement policy that a machine bears, "" without one.
func policyOf(v *computepb.Instance) string {
	for _, p := range v.GetResourcePolicies() {
		if strings.HasPrefix(last(p), namePrefix) {
			return last(p)
		}
	}
	return ""
}

func stateOf(status string) providers.InstanceState {
	switch status {
	case "PENDING", "PROVISIONING", "STAGING":
		return providers.Pending
	case "RUNNING", "REPAIRING":
		return providers.Running
	case "STOPPING", "PENDING_STOP", "DEPROVISIONING", "SUSPENDING", "SUSPENDED", "TERMINATED", "STOPPED":
		return providers.Stopping
	default:
		return providers.StateStrange
	}
}
