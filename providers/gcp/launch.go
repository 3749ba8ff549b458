package gcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"gpubroker/providers"
)

// look is how long a launch waits to see its operation fail: want of capacity and
// exceeded quotas show there within seconds, and the scheduler has other markets.
const look = 20 * time.Second

// Launch inserts the instance of a request. It returns when Google has made it,
// has refused it, or has not decided within a look; a refusal that comes later is
// what Describe tells.
func (a *Adapter) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	target := req.Market.String()
	none := providers.Instance{}
	refuse := func(e *providers.Error) (providers.Instance, error) {
		return none, a.complete("launch", target, e, false)
	}
	done, err := a.turns.take(ctx, req.Request)
	if err != nil {
		return none, a.failed("launch", target, err, false)
	}
	defer done()
	resource, policy, run, err := a.resource(req)
	if err != nil {
		return refuse(&providers.Error{Code: providers.InvalidRequest, Scope: providers.ScopeFamily, Outcome: providers.NotCreated, Message: err.Error()})
	}
	// The name keeps a second machine out of the zone, but not out of the others.
	before, known := a.seen.get(req.Request)
	found, there, err := a.before(ctx, req, before, known)
	switch {
	case err != nil:
		e := judgeError(err)
		e.Outcome = providers.NotCreated // this call has sent nothing
		if before.open {
			e.Outcome = providers.OutcomeUnknown // and those before it may have
		}
		return refuse(e)
	case there:
		return a.same(req, found)
	}
	now := time.Now().UTC()
	f := facts{req.Market, req.Tags, now, policy.GetName(), before.open, before.refused}
	if policy != nil {
		a.seen.put(req.Request, f)
		if e := a.group(ctx, req.Market.Region, policy); e != nil {
			_ = a.ungroup(ctx, req.Request)
			if e.Outcome = providers.NotCreated; before.open {
				e.Outcome = providers.OutcomeUnknown
			}
			return refuse(e)
		}
	}
	f.open = true
	a.seen.put(req.Request, f)
	op, err := a.instances.Insert(ctx, &computepb.InsertInstanceRequest{
		Project: a.set.Project, Zone: req.Market.Zone, RequestId: new(requestID(req, before.refused)), InstanceResource: resource,
	})
	if err != nil {
		e := judgeError(err)
		if e.Code == providers.Conflict {
			if i, err := a.get(ctx, req.Market.Zone, req.Request); err == nil {
				return a.same(req, i)
			}
		}
		if e.Outcome == providers.NotCreated {
			f.open = false
			a.seen.put(req.Request, f)
			if policy != nil && e.Code == providers.NotFound { // the last of another gang's machines took it along
				e.Code, e.Scope = providers.Unavailable, providers.ScopeOffer
			}
			_ = a.ungroup(ctx, req.Request) // a policy costs nothing
		}
		return refuse(e)
	}
	proto := a.outcome(ctx, req.Market.Zone, op.Proto())
	if e := judgeOperation(proto); e != nil {
		if e.Outcome == providers.NotCreated {
			f.open = false
			f.refused++
			a.seen.put(req.Request, f)
			_ = a.ungroup(ctx, req.Request)
		}
		return refuse(e)
	}
	if proto.GetName() == "" {
		return refuse(&providers.Error{Code: providers.Unavailable, Outcome: providers.OutcomeUnknown, Message: "the answer to the insert is no operation"})
	}
	if known && proto.GetStatus() == computepb.Operation_DONE {
		// The token has brought back an insert of before; its machine may be gone.
		i, err := a.get(ctx, req.Market.Zone, req.Request)
		if e := judgeIf(err); e != nil && e.Code == providers.NotFound {
			return refuse(&providers.Error{Code: providers.Conflict, Scope: providers.ScopeOffer, Outcome: providers.NotCreated, Message: "the request has had its machine, which is gone"})
		} else if e == nil {
			return a.same(req, i)
		}
	}
	if at := parseTime(proto.GetInsertTime()); !at.IsZero() {
		f.launched = at
		a.seen.put(req.Request, f)
	}
	return providers.Instance{
		Ref:    providers.Ref{ID: nameOf(req.Request), Request: req.Request, Region: req.Market.Region, Zone: req.Market.Zone},
		Market: req.Market, State: providers.Pending, Tags: req.Tags, Launched: f.launched, End: f.launched.Add(run),
	}, nil
}

func judgeIf(err error) *providers.Error {
	if err == nil {
		return nil
	}
	return judgeError(err)
}

// before looks for the machine of a request that is launched now: where it was
// launched by this process, else everywhere.
func (a *Adapter) before(ctx context.Context, req providers.LaunchRequest, f facts, known bool) (providers.Instance, bool, error) {
	if !known {
		return a.search(ctx, req.Request)
	}
	i, err := a.get(ctx, f.market.Zone, req.Request)
	if e := judgeIf(err); e != nil && e.Code == providers.NotFound {
		if f.open && f.market != req.Market && time.Since(f.launched) < a.Capabilities().ListLag {
			return i, false, &providers.Error{Code: providers.Conflict, Scope: providers.ScopeOffer, Message: "the request is being launched in " + f.market.String()}
		}
		return i, false, nil
	}
	return i, err == nil, err
}

// same answers with the machine that a request has already, or with a conflict
// when that is in another market.
func (a *Adapter) same(req providers.LaunchRequest, i providers.Instance) (providers.Instance, error) {
	if i.Market == req.Market {
		return i, nil
	}
	return providers.Instance{}, a.complete("launch", req.Market.String(), &providers.Error{
		Code: providers.Conflict, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown,
		Message: "request " + req.Request + " has a machine in " + i.Market.String(),
	}, false)
}

// outcome holds one call open until the operation is over, for a look at most. An
// operation that cannot be looked at stays as it is.
func (a *Adapter) outcome(ctx context.Context, zone string, op *computepb.Operation) *computepb.Operation {
	if op.GetStatus() == computepb.Operation_DONE || op.GetName() == "" {
		return op
	}
	ctx, cancel := context.WithTimeout(ctx, look)
	defer cancel()
	later, err := a.operations.Wait(ctx, &computepb.WaitZoneOperationRequest{Project: a.set.Project, Zone: zone, Operation: op.GetName()})
	if err != nil || later.GetName() != op.GetName() {
		return op
	}
	return later
}

// resource is the instance that a request asks for, the policy of its group, and
// how long it may run.
func (a *Adapter) resource(req providers.LaunchRequest) (*computepb.Instance, *computepb.ResourcePolicy, time.Duration, error) {
	m, err := parseMachine(req.Market.Type)
	if err != nil {
		return nil, nil, 0, err
	}
	zone := req.Market.Zone
	if zone == "" || regionOf(zone) != req.Market.Region {
		return nil, nil, 0, fmt.Errorf("zone %q is not in region %q", zone, req.Market.Region)
	}
	labels, err := a.labels(req.Tags)
	if err != nil {
		return nil, nil, 0, err
	}
	run, err := a.run(req)
	if err != nil {
		return nil, nil, 0, err
	}
	f, ok := familyOf(m.typ)
	if !ok {
		f.disk = "pd-balanced"
	}
	hasGPU := m.cards > 0 || len(f.gpu) > 0
	image := a.set.Image
	if image == "" {
		image = imageCPU
		if hasGPU {
			image = imageGPU
		}
	}
	size := a.set.disk()
	if req.Disk > 0 {
		size = req.Disk
	}
	out := &computepb.Instance{
		Name:        new(nameOf(req.Request)),
		Description: new("rented by gpubroker"),
		MachineType: new("zones/" + zone + "/machineTypes/" + m.typ),
		Labels:      labels,
		Metadata:    &computepb.Metadata{Items: []*computepb.Items{{Key: new("startup-script"), Value: new(providers.WithProxy(req.UserData, a.set.Network.Proxy))}}},
		Disks: []*computepb.AttachedDisk{{
			Boot: new(true), AutoDelete: new(true),
			InitializeParams: &computepb.AttachedDiskInitializeParams{
				SourceImage: new(image), DiskSizeGb: new((size + gib - 1) / gib), DiskType: new("zones/" + zone + "/diskTypes/" + f.disk), Labels: labels,
			},
		}},
		NetworkInterfaces: []*computepb.NetworkInterface{a.nic(req.Market.Region)},
		Scheduling: &computepb.Scheduling{
			ProvisioningModel:         new("STANDARD"),
			InstanceTerminationAction: new("DELETE"),
			MaxRunDuration:            &computepb.Duration{Seconds: new(int64((run + time.Second - 1) / time.Second))},
			AutomaticRestart:          new(false), // it would run the work a second time
			OnHostMaintenance:         new("TERMINATE"),
		},
	}
	if req.Market.Kind == providers.Spot {
		out.Scheduling.ProvisioningModel = new("SPOT")
	}
	if m.cards > 0 {
		out.GuestAccelerators = []*computepb.AcceleratorConfig{{AcceleratorType: new("zones/" + zone + "/acceleratorTypes/" + m.card), AcceleratorCount: new(int32(m.cards))}}
	}
	if s := a.set.ServiceAccount; s != "" {
		out.ServiceAccounts = []*computepb.ServiceAccount{{Email: new(s), Scopes: scopes}}
	}
	var policy *computepb.ResourcePolicy
	if req.Group != "" && f.compactPossible {
		policy = a.policy(req.Group)
		out.ResourcePolicies = []string{"projects/" + a.set.Project + "/regions/" + req.Market.Region + "/resourcePolicies/" + policy.GetName()}
	}
	return out, policy, run, nil
}

// nic is the machine's network interface.
func (a *Adapter) nic(region string) *computepb.NetworkInterface {
	n := &computepb.NetworkInterface{Network: new("global/networks/default")}
	if s := a.set.Network.Subnet; s != "" {
		n.Network = nil
		if !strings.Contains(s, "/") {
			s = "projects/" + a.set.Project + "/regions/" + region + "/subnetworks/" + s
		}
		n.Subnetwork = new(s)
	}
	if !a.set.Network.Private {
		n.AccessConfigs = []*computepb.AccessConfig{{Type: new("ONE_TO_ONE_NAT"), Name: new("External NAT")}}
	}
	return n
}

// run is how long a machine may run until Google deletes it.
func (a *Adapter) run(req providers.LaunchRequest) (time.Duration, error) {
	run := req.Life
	if !req.End.IsZero() {
		run = time.Until(req.End)
	}
	switch {
	case run == 0:
		run = a.set.maxRun()
	case run < shortestRun:
		return 0, fmt.Errorf("a machine that ends in %s: Google takes %s at least", run.Round(time.Second), shortestRun)
	}
	return min(run, longestRun), nil
}

// group makes the placement policy of a group unless it is there.
func (a *Adapter) group(ctx context.Context, region string, p *computepb.ResourcePolicy) *providers.Error {
	_, err := a.policies.Insert(ctx, &computepb.InsertResourcePolicyRequest{Project: a.set.Project, Region: region, ResourcePolicyResource: p})
	if e := judgeIf(err); e != nil && e.Code != providers.Conflict {
		return e
	}
	return nil
}

// policy places the machines of a group close together. Policies have no labels;
// the owner stands in its description and its name.
func (a *Adapter) policy(group string) *computepb.ResourcePolicy {
	return &computepb.ResourcePolicy{
		Name:                 new("gpubroker-" + short(a.owner+"\x00"+group)),
		Description:          new("gpubroker-owner=" + a.owner),
		GroupPlacementPolicy: &computepb.ResourcePolicyGroupPlacementPolicy{Collocation: new("COLLOCATED")},
	}
}

// ungroup deletes the policy of a machine that is gone, or was never made. The
// group's other machines keep it: Google refuses to delete what is in use. Its error
// is one that another try may not have.
func (a *Adapter) ungroup(ctx context.Context, request string) *providers.Error {
	f, ok := a.seen.get(request)
	if !ok || f.policy == "" {
		return nil
	}
	_, err := a.policies.Delete(ctx, &computepb.DeleteResourcePolicyRequest{Project: a.set.Project, Region: f.market.Region, ResourcePolicy: f.policy})
	if e := judgeIf(err); e != nil && e.Code != providers.NotFound {
		a.log.DebugContext(ctx, "placement policy stays", "policy", f.policy, "region", f.market.Region, "error", e)
		if e.Scope == providers.ScopeProvider && (providers.Reactions()[e.Code].Retry || e.Code == providers.Canceled) {
			return e
		}
		return nil
	}
	f.policy = ""
	a.seen.put(request, f)
	return nil
}
