package azure

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources/v3"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Launch makes the resource group of a request, in it what a machine needs, and
// the machine. It returns when Azure has accepted the machine, before it boots.
//
// A machine is only ever made where there is none (If-None-Match). What fails
// takes its group with it. NotCreated means that the machine itself was refused, or
// never asked for; its group may take a moment to go, or be found by List.
func (a *Adapter) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	target := req.Market.String()
	none := providers.Instance{}
	fail := func(e *providers.Error) (providers.Instance, error) { return none, a.complete("launch", target, e) }
	if err := a.alive(ctx, "launch", target); err != nil {
		return none, err
	}
	if req.Disk > a.set.Disk.Bytes() {
		return none, a.errorf("launch", target, providers.InvalidRequest, providers.NotCreated, "a disk of %d bytes is wanted, and the setting disk is %s", req.Disk, a.set.Disk)
	}
	leave, err := a.enter(ctx, req.Request)
	if err != nil {
		return fail(rest.Transport(err, false))
	}
	defer leave()

	f, err := a.look(ctx, "launch", target, req.Request)
	switch {
	case errors.Is(err, errForeign):
		return none, a.errorf("launch", target, providers.InvalidRequest, providers.NotCreated, "resource group %s is not ours: delete it, or name the broker otherwise", nameOf(req.Request))
	case providers.CodeOf(err) == providers.NotFound: // as it should be
	case err != nil:
		return fail(before(err)) // nothing was asked for yet
	case f.vm != nil:
		return a.again(ctx, req, f)
	case f.deleting, f.started():
		return none, a.errorf("launch", target, providers.Conflict, providers.OutcomeUnknown, "this request has had its machine, which is going or gone")
	}

	bound, err := a.computeBound(ctx, req)
	if err != nil {
		return fail(before(err))
	}
	m := &making{a: a, req: req, name: nameOf(req.Request), bound: bound, group: f.group}
	if err := m.prepare(ctx); err != nil {
		return fail(m.undo(ctx, before(a.understand(ctx, err))))
	}
	vm, err := m.machine(ctx)
	if err != nil {
		return fail(m.settle(ctx, a.understand(ctx, err)))
	}
	if err := m.finish(ctx, vm); err != nil {
		e := a.understand(ctx, err)
		e.Outcome = providers.OutcomeUnknown // the machine exists until its group is gone
		return fail(m.undo(ctx, e))
	}
	return a.instances(found{m.group, vm})[0], nil
}

// before makes an error one of a step before the machine was asked for: certainly
// there is none.
func before(err error) *providers.Error {
	e, ok := errors.AsType[*providers.Error](err)
	if !ok {
		e = rest.Transport(err, false)
	}
	e.Outcome = providers.NotCreated
	return e
}

// again answers a launch whose machine is there already, and does what an earlier
// one may have left undone.
func (a *Adapter) again(ctx context.Context, req providers.LaunchRequest, f found) (providers.Instance, error) {
	target := req.Market.String()
	i := a.instances(f)[0]
	if i.Market != req.Market || !i.Live() {
		return providers.Instance{}, a.errorf("launch", target, providers.Conflict, providers.OutcomeUnknown, "the request has the machine %s at %s, %s", i.Ref.ID, i.Market, i.State)
	}
	m := &making{a: a, req: req, name: f.name, group: f.group}
	if err := m.finish(ctx, f.vm); err != nil {
		e := a.understand(ctx, err)
		e.Outcome = providers.OutcomeUnknown
		return providers.Instance{}, a.complete("launch", target, e)
	}
	return i, nil
}

// computeBound is the highest price of the machine alone, in whole 0.00001 as Azure
// takes it (learn.microsoft.com/azure/virtual-machines/spot-vms#pricing): the
// bound without disk and address. 0 is none.
func (a *Adapter) computeBound(ctx context.Context, req providers.LaunchRequest) (money.Rate, error) {
	if req.PriceMax <= 0 || req.Market.Kind != providers.Spot {
		return 0, nil
	}
	beside, err := a.beside(ctx, req.Market.Region)
	if err != nil {
		return 0, err
	}
	const step = money.Rate(money.Unit / 100_000)
	bound := (req.PriceMax - beside.disk - beside.address) / step * step
	if bound <= 0 {
		return 0, a.errorf("launch", req.Market.String(), providers.PriceTooLow, providers.NotCreated, "the bound %s does not pay for disk %s and address %s", req.PriceMax, beside.disk, beside.address)
	}
	return bound, nil
}

// making is a launch under way.
type making struct {
	a     *Adapter
	req   providers.LaunchRequest
	name  string
	bound money.Rate
	group group
	nic   string // its id
}

// prepare makes the group, unless an earlier try did, and what the machine needs.
func (m *making) prepare(ctx context.Context) error {
	if m.group.name == "" {
		if err := m.tag(ctx, mark(m.req, m.a.set.Tags, time.Now())); err != nil {
			return err
		}
	} else if m.group.location != m.req.Market.Region {
		return m.a.errorf("launch", m.req.Market.String(), providers.Conflict, providers.NotCreated, "the request's group is in %s", m.group.location)
	}
	var err error
	m.nic, err = m.network(ctx)
	return err
}

// tag makes or changes the group.
func (m *making) tag(ctx context.Context, tags map[string]*string) error {
	res, err := m.a.cloud.groups.CreateOrUpdate(ctx, m.name, armresources.ResourceGroup{Location: new(m.req.Market.Region), Tags: tags}, nil)
	if err != nil {
		return err
	}
	g, ok := groupOf(&res.ResourceGroup)
	if !ok {
		return fmt.Errorf("the answer about resource group %s cannot be understood", m.name)
	}
	m.group = g
	m.group.name = m.name
	return nil
}

// machine asks for the VM and returns it as Azure has accepted it.
func (m *making) machine(ctx context.Context) (*armcompute.VirtualMachine, error) {
	params, err := m.virtualMachine()
	if err != nil {
		return nil, before(&providers.Error{Code: providers.InvalidRequest, Err: err})
	}
	var res *http.Response
	_, err = m.a.cloud.vms.BeginCreateOrUpdate(policy.WithCaptureResponse(ctx, &res), m.name, m.name, params, &armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions{IfNoneMatch: new("*")})
	if err := accepted(res, err); err != nil {
		return nil, err
	}
	data, err := runtime.Payload(res)
	if err != nil {
		return nil, err
	}
	vm := new(armcompute.VirtualMachine)
	if err := json.Unmarshal(data, vm); err == nil && vm.Name != nil && vm.Properties != nil {
		return vm, nil
	}
	// Accepted without the machine itself: it may be had at its own address.
	vm, err = m.a.vm(ctx, "launch", m.req.Market.String(), m.name)
	switch {
	case err != nil:
		e := m.a.understand(ctx, err)
		e.Outcome = providers.OutcomeUnknown
		return nil, e
	case vm == nil:
		return nil, fmt.Errorf("the answer about the new VM %s cannot be understood, and it is not there yet", m.name)
	}
	return vm, nil
}

// virtualMachine is the request's body.
func (m *making) virtualMachine() (armcompute.VirtualMachine, error) {
	set, market := m.a.set, m.req.Market
	image, err := imageOf(set.Image)
	if err != nil {
		return armcompute.VirtualMachine{}, err
	}
	tier, _ := tierFor(set.Disk.Bytes()) // checked with the settings
	key := set.SSHKey
	if key == "" {
		if key, err = nobodysKey(); err != nil {
			return armcompute.VirtualMachine{}, err
		}
	}
	tags := mark(m.req, set.Tags, time.Now())
	delete(tags, tagCreated)
	vm := armcompute.VirtualMachine{
		Location: new(market.Region), Tags: tags,
		Properties: &armcompute.VirtualMachineProperties{
			HardwareProfile: &armcompute.HardwareProfile{VMSize: new(armcompute.VirtualMachineSizeTypes(market.Type))},
			StorageProfile: &armcompute.StorageProfile{
				ImageReference: image,
				OSDisk: &armcompute.OSDisk{
					CreateOption: new(armcompute.DiskCreateOptionTypesFromImage), DeleteOption: new(armcompute.DiskDeleteOptionTypesDelete),
					DiskSizeGB: new(tier.gib), Caching: new(armcompute.CachingTypesReadOnly),
					ManagedDisk: &armcompute.ManagedDiskParameters{StorageAccountType: new(armcompute.StorageAccountTypes(set.DiskType))},
				},
			},
			OSProfile: &armcompute.OSProfile{
				AdminUsername: new("gpubroker"), ComputerName: new(m.name),
				CustomData: new(base64.StdEncoding.EncodeToString([]byte(providers.WithProxy(m.req.UserData, set.Network.Proxy)))),
				LinuxConfiguration: &armcompute.LinuxConfiguration{
					DisablePasswordAuthentication: new(true),
					SSH:                           &armcompute.SSHConfiguration{PublicKeys: []*armcompute.SSHPublicKey{{Path: new("/home/gpubroker/.ssh/authorized_keys"), KeyData: &key}}},
				},
			},
			NetworkProfile: &armcompute.NetworkProfile{NetworkInterfaces: []*armcompute.NetworkInterfaceReference{{
				ID:         &m.nic,
				Properties: &armcompute.NetworkInterfaceReferenceProperties{Primary: new(true), DeleteOption: new(armcompute.DeleteOptionsDelete)},
			}}},
			DiagnosticsProfile: &armcompute.DiagnosticsProfile{BootDiagnostics: &armcompute.BootDiagnostics{Enabled: new(set.ConsoleLog)}},
		},
	}
	if market.Zone != "" {
		vm.Zones = []*string{new(market.Zone)}
	}
	if market.Kind == providers.Spot {
		price := -1.0 // no bound but the on-demand price
		if m.bound > 0 {
			price = m.bound.Float()
		}
		vm.Properties.Priority = new(armcompute.VirtualMachinePriorityTypesSpot)
		vm.Properties.EvictionPolicy = new(armcompute.VirtualMachineEvictionPolicyTypesDelete)
		vm.Properties.BillingProfile = &armcompute.BillingProfile{MaxPrice: &price}
	}
	if id := set.Proximity[market.Region]; m.req.Group != "" && id != "" {
		vm.Properties.ProximityPlacementGroup = &armcompute.SubResource{ID: &id}
	}
	if *set.SelfEnd {
		vm.Identity = &armcompute.VirtualMachineIdentity{Type: new(armcompute.ResourceIdentityTypeSystemAssigned)}
	}
	return vm, nil
}

// finish lets the machine delete its own group, and marks the group as one that has
// had its machine.
func (m *making) finish(ctx context.Context, vm *armcompute.VirtualMachine) error {
	if *m.a.set.SelfEnd {
		if principal(vm) == "" { // it may come a moment after the machine
			var err error
			if vm, err = m.a.vm(ctx, "launch", m.req.Market.String(), m.name); err != nil {
				return err
			}
		}
		if principal(vm) == "" {
			return &providers.Error{Code: providers.Unavailable, Message: "Azure gave the machine no identity, so it could not end itself; where there are none, set self_end: false"}
		}
		if err := m.a.permitEnd(ctx, m.name, principal(vm)); err != nil {
			return err
		}
	}
	if m.group.tags[tagStarted] != "" {
		return nil
	}
	tags := mark(m.req, m.a.set.Tags, time.Now())
	if made := m.group.tags[tagCreated]; made != "" {
		tags[tagCreated] = &made
	}
	tags[tagStarted] = new(seconds(time.Now()))
	return m.tag(ctx, tags)
}

// principal is who a VM is in Entra, "" for nobody.
func principal(vm *armcompute.VirtualMachine) string {
	if vm == nil || vm.Identity == nil {
		return ""
	}
	return text(vm.Identity.PrincipalID)
}

// settle looks what has become of a machine that was asked for, where that is not
// known, and undoes what there is no use for.
func (m *making) settle(ctx context.Context, e *providers.Error) *providers.Error {
	if ctx.Err() != nil {
		return e
	}
	if e.Outcome == providers.NotCreated {
		return m.undo(ctx, e)
	}
	vm, err := m.a.vm(ctx, "launch", m.name, m.name)
	switch {
	case err != nil:
		m.a.log.WarnContext(ctx, "it is not known whether a machine was made", "machine", m.name, "error", err)
	case vm == nil:
		// It may yet come, and goes with its group then: the outcome stays unknown.
		return m.undo(ctx, e)
	default:
		if err := m.finish(ctx, vm); err != nil {
			m.a.log.WarnContext(ctx, "a machine whose launch was cut off cannot end itself", "machine", m.name, "error", err)
		}
	}
	return e
}

// undo asks for the end of the group. Where that fails, List shows what is left.
func (m *making) undo(ctx context.Context, e *providers.Error) *providers.Error {
	if m.group.name == "" || ctx.Err() != nil {
		return e
	}
	if err := m.a.deleteGroup(ctx, m.name); err != nil {
		m.a.log.WarnContext(ctx, "the resource group of a failed launch stays for now", "group", m.name, "error", m.a.failure(ctx, "terminate", m.name, err))
	}
	return e
}

// imageOf reads "publisher:offer:sku:version", or the id of an image: a managed or
// gallery image, or one of a community or shared gallery.
func imageOf(image string) (*armcompute.ImageReference, error) {
	switch lower := strings.ToLower(image); {
	case strings.HasPrefix(lower, "/subscriptions/"):
		return &armcompute.ImageReference{ID: &image}, nil
	case strings.HasPrefix(lower, "/communitygalleries/"):
		return &armcompute.ImageReference{CommunityGalleryImageID: &image}, nil
	case strings.HasPrefix(lower, "/sharedgalleries/"):
		return &armcompute.ImageReference{SharedGalleryImageID: &image}, nil
	}
	part := strings.Split(image, ":")
	if len(part) != 4 || part[0] == "" || part[1] == "" || part[2] == "" || part[3] == "" {
		return nil, fmt.Errorf("%q: want publisher:offer:sku:version or an image's resource id", image)
	}
	return &armcompute.ImageReference{Publisher: &part[0], Offer: &part[1], SKU: &part[2], Version: &part[3]}, nil
}

// nobodysKey is a public SSH key whose private half is thrown away: Azure wants
// one, and nobody is to sign in (RFC 8709 is its form).
func nobodysKey() (string, error) {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	const kind = "ssh-ed25519"
	blob := binary.BigEndian.AppendUint32(nil, uint32(len(kind)))
	blob = append(blob, kind...)
	blob = binary.BigEndian.AppendUint32(blob, uint32(len(public)))
	return kind + " " + base64.StdEncoding.EncodeToString(append(blob, public...)), nil
}
