package azure

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources/v3"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Capabilities are Azure's rules.
func (a *Adapter) Capabilities() providers.Capabilities {
	c := providers.Capabilities{
		Kinds: []providers.Kind{providers.Spot, providers.OnDemand},
		// "a minimum of 30 seconds' notice", best effort
		// (learn.microsoft.com/azure/virtual-machines/spot-vms, …/linux/scheduled-events).
		Notice:       30 * time.Second,
		NoticeSource: providers.NoticeMetadata,
		Metadata:     providers.MetadataAzure,
		// By the second (azure.microsoft.com/pricing/details/virtual-machines/linux);
		// "Starting" is billed (learn.microsoft.com/azure/virtual-machines/states-billing).
		Billing:   money.Billing{Unit: time.Second},
		BillsBoot: true,
		// billingProfile.maxPrice, for spot (learn.microsoft.com/azure/virtual-machines/spot-vms#pricing).
		PriceBound: true,
		// The group bears the tags before anything is in it, and its name is the request's.
		TagsAtLaunch: true,
		LaunchToken:  true,
		// Lists of a subscription are answered from Resource Manager's cache, which
		// has been seen to lag by seconds; a minute is assumed.
		ListLag: time.Minute,
		SelfEnd: providers.EndNone,
		// An evicted machine leaves its address, network and group.
		Beside: true,
		// A group with a VM is deleted within minutes; the VM, which costs the most, goes first.
		StopTime: 5 * time.Minute,
		// GPU images take two to four minutes to their first script.
		BootTime: 3 * time.Minute,
		// learn.microsoft.com/azure/virtual-machines/custom-data: 64 KB, before base64.
		UserDataLimit: userDataLimit,
		Reach:         a.set.Network.Reach(a.set.Endpoint),
	}
	if *a.set.SelfEnd {
		c.SelfEnd, c.EndAction, c.EndScript = providers.EndGuest, providers.EndAPI, endScript(a.set)
	}
	return c
}

// userDataLimit is the longest custom data in bytes, decoded.
const userDataLimit = 65535

// alive is the error of a call whose context has ended before it began.
func (a *Adapter) alive(ctx context.Context, op, target string) error {
	if ctx.Err() == nil {
		return nil
	}
	return a.complete(op, target, rest.Transport(context.Cause(ctx), false))
}

// Terminate deletes the machine's group, and with it all that was made for it. It
// does not wait: nil means that Azure has accepted it. The group is looked at
// first, since what bears its name may be somebody else's.
func (a *Adapter) Terminate(ctx context.Context, ref providers.Ref) error {
	if err := a.alive(ctx, "terminate", ref.String()); err != nil {
		return err
	}
	name := nameOf(ref.Request)
	res, err := a.cloud.groups.Get(ctx, name, nil)
	if err != nil {
		return a.failure(ctx, "terminate", ref.String(), err)
	}
	g, ok := groupOf(&res.ResourceGroup)
	switch {
	case !ok:
		return a.errorf("terminate", ref.String(), providers.Unavailable, "", "the answer holds no resource group")
	case ref.ID != "" && ref.ID != name && ref.ID != remainsOf(name), !a.ours(g, ref.Request) && providers.TagsOf(g.tags).Owner != "":
		return a.errorf("terminate", ref.String(), providers.NotFound, "", "no machine of ours")
	case g.deleting:
		return nil
	case !a.ours(g, ref.Request):
		if _, err := a.untagged(ctx, "terminate", ref.String(), ref.Request, g); err != nil {
			return err
		}
	}
	return a.failure(ctx, "terminate", ref.String(), a.deleteGroup(ctx, name))
}

// deleteGroup asks for a group's end. The VM in it is not asked to shut down, which
// would be billed (learn.microsoft.com/rest/api/resources/resource-groups/delete).
func (a *Adapter) deleteGroup(ctx context.Context, name string) error {
	var res *http.Response
	_, err := a.cloud.groups.BeginDelete(policy.WithCaptureResponse(ctx, &res), name, &armresources.ResourceGroupsClientBeginDeleteOptions{
		ForceDeletionTypes: new("Microsoft.Compute/virtualMachines"),
	})
	return accepted(res, err)
}

// accepted leaves out what the SDK says of an answer that it could not follow to
// the end of its operation: nobody here does.
func accepted(res *http.Response, err error) error {
	if res != nil && res.StatusCode >= 200 && res.StatusCode <= 299 {
		return nil
	}
	return err
}

// Describe returns a machine. Azure forgets one with its group.
func (a *Adapter) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	if err := a.alive(ctx, "describe", ref.String()); err != nil {
		return providers.Instance{}, err
	}
	f, err := a.look(ctx, "describe", ref.String(), ref.Request)
	if err != nil {
		return providers.Instance{}, err
	}
	for _, i := range a.instances(f) {
		if ref.ID == "" || ref.ID == i.Ref.ID {
			return i, nil
		}
	}
	return providers.Instance{}, a.errorf("describe", ref.String(), providers.NotFound, "", "no machine of ours has this id")
}

// List returns the machine of every group that bears an owner tag, of our owner
// alone where one is named, and what is left where there is none and nobody is
// known to see to it.
func (a *Adapter) List(ctx context.Context) ([]providers.Instance, error) {
	if err := a.alive(ctx, "list", ""); err != nil {
		return nil, err
	}
	groups, err := a.listGroups(ctx)
	if err != nil {
		return nil, err
	}
	out := []providers.Instance{}
	if len(groups) == 0 {
		return out, nil
	}
	vms, err := a.listVMs(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		f := found{g, vms[strings.ToLower(g.name)]}
		// That a machine is missing from the list, or failed, is looked at in the
		// machine itself: lists lag, and the broker acts upon it.
		if f.vm == nil && !f.deleting || f.vm != nil && provisioning(f.vm) == "failed" {
			if f.vm, err = a.vm(ctx, "list", g.name, g.name); providers.CodeOf(err) == providers.NotFound {
				continue // the group went meanwhile
			}
			if err != nil {
				return nil, err
			}
		}
		out = append(out, a.instances(f)...)
	}
	return out, nil
}

func provisioning(vm *armcompute.VirtualMachine) string {
	if vm.Properties == nil || vm.Properties.ProvisioningState == nil {
		return ""
	}
	return strings.ToLower(*vm.Properties.ProvisioningState)
}

func (a *Adapter) listGroups(ctx context.Context) ([]group, error) {
	filter := "tagName eq '" + providers.TagOwner + "'"
	if a.owner != "" {
		filter += " and tagValue eq '" + strings.ReplaceAll(a.owner, "'", "''") + "'"
	}
	var out []group
	for pages := a.cloud.groups.NewListPager(&armresources.ResourceGroupsClientListOptions{Filter: &filter}); pages.More(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, a.failure(ctx, "list", "", err)
		}
		if page.Value == nil {
			return nil, a.errorf("list", "", providers.Unavailable, "", "the answer holds no list")
		}
		for _, raw := range page.Value {
			g, ok := groupOf(raw)
			if !ok {
				return nil, a.errorf("list", "", providers.Unavailable, "", "a resource group has no name or no location")
			}
			if t := providers.TagsOf(g.tags); a.ours(g, t.Request) && t.Request != "" && strings.EqualFold(g.name, nameOf(t.Request)) {
				g.name = nameOf(t.Request)
				out = append(out, g)
			}
		}
		if err := a.sameHost(page.NextLink, "list"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// listVMs returns the VMs of the subscription whose group is named as they are.
func (a *Adapter) listVMs(ctx context.Context) (map[string]*armcompute.VirtualMachine, error) {
	out := map[string]*armcompute.VirtualMachine{}
	for pages := a.cloud.vms.NewListAllPager(nil); pages.More(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, a.failure(ctx, "list", "", err)
		}
		if page.Value == nil {
			return nil, a.errorf("list", "", providers.Unavailable, "", "the answer holds no list")
		}
		for _, vm := range page.Value {
			if vm == nil || vm.Name == nil || vm.ID == nil || vm.Properties == nil {
				return nil, a.errorf("list", "", providers.Unavailable, "", "a virtual machine has no name, id or properties")
			}
			path := strings.Split(strings.ToLower(*vm.ID), "/")
			if at := slices.Index(path, "resourcegroups"); at >= 0 && at+1 < len(path) && path[at+1] == strings.ToLower(*vm.Name) {
				out[path[at+1]] = vm
			}
		}
		if err := a.sameHost(page.NextLink, "list"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// sameHost refuses a link to another host: the credential would go with it.
func (a *Adapter) sameHost(link *string, op string) error {
	if link == nil || *link == "" || strings.HasPrefix(strings.ToLower(*link), strings.ToLower(a.set.Endpoint)+"/") || sameOrigin(*link, a.set.Endpoint) {
		return nil
	}
	return a.errorf(op, "", providers.Unavailable, "", "a link to the next page leads to another host than %s", a.set.Endpoint)
}
