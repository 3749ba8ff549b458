package azure

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources/v3"

	"gpubroker/providers"
)

// launchSpan is how long a group without a machine is taken for a launch that is
// still under way. A launch has a minute (managed.Timeouts).
const launchSpan = 3 * time.Minute

// group is a machine's resource group.
type group struct {
	name, location string
	tags           map[string]string // by lower-case name
	deleting       bool
}

func groupOf(g *armresources.ResourceGroup) (group, bool) {
	if g == nil || g.Name == nil || g.Location == nil {
		return group{}, false
	}
	out := group{name: *g.Name, location: strings.ToLower(*g.Location), tags: read(g.Tags)}
	if g.Properties != nil && g.Properties.ProvisioningState != nil {
		out.deleting = strings.EqualFold(*g.Properties.ProvisioningState, "Deleting")
	}
	return out, true
}

// found is what there is of a machine: its group, and the VM where there is one.
type found struct {
	group
	vm *armcompute.VirtualMachine
}

// started reports whether there has been a machine.
func (f found) started() bool { return f.tags[tagStarted] != "" }

// ours reports whether a group bears our owner tag and is of the request.
func (a *Adapter) ours(g group, request string) bool {
	t := providers.TagsOf(g.tags)
	return t.Owner != "" && (a.owner == "" || t.Owner == a.owner) && t.Request == request
}

// errForeign says that the name is taken.
var errForeign = errors.New("the resource group of that name bears other tags than ours")

// look finds the group of a request and the VM in it. Without a group it is
// NotFound; a group of that name that is not ours is no machine of ours.
func (a *Adapter) look(ctx context.Context, op, target, request string) (found, error) {
	name := nameOf(request)
	res, err := a.cloud.groups.Get(ctx, name, nil)
	if err != nil {
		return found{}, a.failure(ctx, op, target, err)
	}
	g, ok := groupOf(&res.ResourceGroup)
	switch {
	case !ok:
		return found{}, a.errorf(op, target, providers.Unavailable, providers.NotCreated, "the answer holds no resource group")
	case a.ours(g, request):
		vm, err := a.vm(ctx, op, target, g.name)
		return found{g, vm}, err
	case providers.TagsOf(g.tags).Owner != "":
		return found{}, a.complete(op, target, &providers.Error{Code: providers.NotFound, Outcome: providers.NotCreated, Target: name, Err: errForeign})
	}
	return a.untagged(ctx, op, target, request, g)
}

// untagged is a group of our name that bears nobody's tags: somebody has replaced
// them, and the machine in it goes on being paid for. The machine bears the same
// tags; where it does not tell either, nobody knows whose it is.
func (a *Adapter) untagged(ctx context.Context, op, target, request string, g group) (found, error) {
	vm, err := a.vm(ctx, op, target, g.name)
	if err != nil {
		return found{}, err
	}
	if vm != nil {
		own := group{g.name, g.location, read(vm.Tags), g.deleting}
		if a.ours(own, request) {
			return found{own, vm}, nil
		}
	}
	return found{}, a.errorf(op, target, providers.InvalidRequest, providers.NotCreated,
		"resource group %s has lost its tags, so it is not known to be ours: give it back %s, or delete it", g.name, providers.TagOwner)
}

// vm returns the VM of a group with its instance view, nil for none.
func (a *Adapter) vm(ctx context.Context, op, target, name string) (*armcompute.VirtualMachine, error) {
	res, err := a.cloud.vms.Get(ctx, name, name, &armcompute.VirtualMachinesClientGetOptions{Expand: new(armcompute.InstanceViewTypesInstanceView)})
	switch {
	case err == nil && (res.Properties == nil || res.Name == nil):
		return nil, a.errorf(op, target, providers.Unavailable, providers.OutcomeUnknown, "the answer holds no virtual machine")
	case err == nil:
		return &res.VirtualMachine, nil
	case isCode(err, "ResourceNotFound"), isCode(err, "NotFound"):
		return nil, nil
	}
	return nil, a.failure(ctx, op, target, err)
}

// isCode reports whether a call failed with a 404 of that code: a bare 404 may be
// a wrong address.
func isCode(err error, code string) bool {
	said, ok := errors.AsType[*azcore.ResponseError](err)
	return ok && said.StatusCode == http.StatusNotFound && said.ErrorCode == code
}

// instances says what a group and its VM mean to the broker.
//
// A machine that Azure has taken, or could not place, leaves its group behind, in
// which an address may go on billing. It is Terminated, with the cause, so that its
// work goes on elsewhere at once; its record stays until Terminate has removed the
// group (Capabilities.Beside). A group that no record need stand for, since its
// launch never came to a machine or since it is past its delete-at, is beside that a
// live machine of its request: so the broker ends that too. Once a group is being
// deleted nothing is left to ask for.
func (a *Adapter) instances(f found) []providers.Instance {
	tags := providers.TagsOf(f.tags)
	market, _ := a.market(f.tags[tagMarket])
	if f.vm != nil {
		market = a.marketOf(f.vm, market)
	}
	created := moment(f.tags[tagCreated])
	i := providers.Instance{
		Ref:    providers.Ref{ID: f.name, Request: tags.Request, Region: market.Region, Zone: market.Zone},
		Market: market, Tags: tags, Launched: created,
	}
	if f.vm != nil && f.vm.Properties.TimeCreated != nil {
		i.Launched = f.vm.Properties.TimeCreated.UTC()
	}
	switch {
	case f.vm != nil:
		a.fromVM(&i, f)
	case !f.started() && !f.deleting && time.Since(created) < launchSpan:
		i.State = providers.Pending
	default:
		i.State = providers.Terminated
		i.Cause, i.Message = gone(f, market.Kind)
	}
	if i.State != providers.Terminated {
		return []providers.Instance{i}
	}
	// Azure keeps no record of when: it is over by now. What never was cost nothing.
	i.Ended = time.Now().UTC()
	if f.vm == nil && !f.started() {
		i.Ended = i.Launched
	}
	if f.deleting || f.started() && time.Now().Before(tags.DeleteAt) {
		return []providers.Instance{i}
	}
	rest := providers.Instance{
		Ref: i.Ref, Market: market, Tags: tags, Launched: i.Launched,
		State: providers.Stopping, Message: "what a machine left behind; its resource group is to be deleted",
	}
	rest.Ref.ID = remainsOf(f.name)
	return []providers.Instance{i, rest}
}

// gone says why a group holds no machine.
func gone(f found, kind providers.Kind) (providers.Cause, string) {
	switch {
	case f.started() && f.deleting:
		return providers.CauseUser, ""
	case f.started() && kind == providers.Spot:
		return providers.CausePreempted, "the VM is gone from its resource group: Azure evicted it"
	case f.started():
		return providers.CauseUnknown, "the VM is gone from its resource group"
	default:
		return providers.CauseError, "no machine was made: the launch did not get that far"
	}
}

// fromVM reads a VM's state. List has no instance view, and so no power states.
func (a *Adapter) fromVM(i *providers.Instance, f found) {
	power, why := "", ""
	if view := f.vm.Properties.InstanceView; view != nil {
		for _, s := range view.Statuses {
			if s == nil || s.Code == nil {
				continue
			}
			if p, ok := strings.CutPrefix(*s.Code, "PowerState/"); ok {
				power = strings.ToLower(p)
			} else if s.Message != nil {
				why = strings.TrimPrefix(*s.Code, "ProvisioningState/failed/") + ": " + *s.Message
			}
		}
	}
	state := ""
	if s := f.vm.Properties.ProvisioningState; s != nil {
		state = strings.ToLower(*s)
	}
	// learn.microsoft.com/azure/virtual-machines/states-billing
	switch {
	case f.deleting:
		i.State, i.Cause = providers.Stopping, providers.CauseUser
	case state == "deleting" && i.Market.Kind == providers.Spot:
		i.State, i.Cause = providers.Stopping, providers.CausePreempted
	case state == "deleting":
		i.State = providers.Stopping
	case power == "deallocated":
		i.State, i.Message = providers.Terminated, "the VM was deallocated from outside"
	case power == "stopped", power == "stopping":
		// Its hardware is kept for it, and billed.
		i.State, i.Cause, i.Message = providers.Stopping, providers.CauseGuest, "the VM shut itself down; it is billed until it is deleted"
	case power == "deallocating":
		i.State = providers.Stopping
	case state == "failed" && power == "":
		i.State, i.Cause, i.Message = providers.Terminated, providers.CauseError, a.line(why)
	case state == "creating", state == "" && power == "starting":
		i.State = providers.Pending
	case state == "" && power == "running", state == "succeeded", state == "updating", state == "migrating", state == "failed":
		i.State = providers.Running
	default:
		i.State = providers.StateStrange
	}
}

// marketOf reads where a VM was bought; what it does not say is as it was asked for.
func (a *Adapter) marketOf(vm *armcompute.VirtualMachine, asked providers.Market) providers.Market {
	m := providers.Market{Provider: a.name, Region: asked.Region, Zone: "", Type: asked.Type, Kind: providers.OnDemand}
	if vm.Location != nil {
		m.Region = strings.ToLower(strings.ReplaceAll(*vm.Location, " ", ""))
	}
	if len(vm.Zones) > 0 && vm.Zones[0] != nil {
		m.Zone = *vm.Zones[0]
	}
	if h := vm.Properties.HardwareProfile; h != nil && h.VMSize != nil {
		m.Type = string(*h.VMSize)
		if strings.EqualFold(m.Type, asked.Type) {
			m.Type = asked.Type
		}
	}
	if p := vm.Properties.Priority; p != nil && *p != armcompute.VirtualMachinePriorityTypesRegular {
		m.Kind = providers.Spot
	}
	return m
}
