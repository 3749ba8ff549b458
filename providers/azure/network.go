package azure

import (
	"context"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
)

// pollEvery is how often an operation is looked at; the least that the SDK takes.
const pollEvery = time.Second

// wait follows an operation to its end.
func wait[T any](ctx context.Context, p *runtime.Poller[T], err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return p.PollUntilDone(ctx, &runtime.PollUntilDoneOptions{Frequency: pollEvery})
}

// The names of what stands in a machine's group.
const (
	addressName = "address"
	networkName = "network"
	guardName   = "no-inbound"
	nicName     = "nic"
)

// network makes the machine's interface and what it needs, and returns its id: a
// public address unless the network is private, and without a subnet of the
// account's own a network for this machine alone. Nothing is let in: a standard
// address is closed until a security group opens it.
func (m *making) network(ctx context.Context) (string, error) {
	where := new(m.req.Market.Region)
	tags := mark(m.req, m.a.set.Tags, time.Now())
	delete(tags, tagCreated)
	var address *armnetwork.PublicIPAddress
	var guard *armnetwork.SecurityGroup
	subnet := m.a.set.Network.Subnet

	var wg sync.WaitGroup
	var failed [3]error
	if !m.a.set.Network.Private {
		wg.Go(func() {
			var p *runtime.Poller[armnetwork.PublicIPAddressesClientCreateOrUpdateResponse]
			p, failed[0] = m.a.cloud.ips.BeginCreateOrUpdate(ctx, m.name, addressName, armnetwork.PublicIPAddress{
				Location: where, Tags: tags, SKU: &armnetwork.PublicIPAddressSKU{Name: new(armnetwork.PublicIPAddressSKUNameStandard)},
				Properties: &armnetwork.PublicIPAddressPropertiesFormat{
					PublicIPAllocationMethod: new(armnetwork.IPAllocationMethodStatic), PublicIPAddressVersion: new(armnetwork.IPVersionIPv4),
					DeleteOption: new(armnetwork.DeleteOptionsDelete),
				},
			}, nil)
			var got armnetwork.PublicIPAddressesClientCreateOrUpdateResponse
			got, failed[0] = wait(ctx, p, failed[0])
			address = &armnetwork.PublicIPAddress{ID: m.id(got.ID, "publicIPAddresses", addressName)}
		})
	}
	if subnet == "" {
		wg.Go(func() {
			var p *runtime.Poller[armnetwork.SecurityGroupsClientCreateOrUpdateResponse]
			p, failed[1] = m.a.cloud.guards.BeginCreateOrUpdate(ctx, m.name, guardName, armnetwork.SecurityGroup{
				Location: where, Tags: tags, Properties: &armnetwork.SecurityGroupPropertiesFormat{},
			}, nil)
			var got armnetwork.SecurityGroupsClientCreateOrUpdateResponse
			got, failed[1] = wait(ctx, p, failed[1])
			guard = &armnetwork.SecurityGroup{ID: m.id(got.ID, "networkSecurityGroups", guardName)}
		})
		wg.Go(func() {
			var p *runtime.Poller[armnetwork.VirtualNetworksClientCreateOrUpdateResponse]
			p, failed[2] = m.a.cloud.networks.BeginCreateOrUpdate(ctx, m.name, networkName, armnetwork.VirtualNetwork{
				Location: where, Tags: tags,
				Properties: &armnetwork.VirtualNetworkPropertiesFormat{
					AddressSpace: &armnetwork.AddressSpace{AddressPrefixes: []*string{new("10.77.0.0/24")}},
					Subnets:      []*armnetwork.Subnet{{Name: new("machines"), Properties: &armnetwork.SubnetPropertiesFormat{AddressPrefix: new("10.77.0.0/24")}}},
				},
			}, nil)
			var got armnetwork.VirtualNetworksClientCreateOrUpdateResponse
			got, failed[2] = wait(ctx, p, failed[2])
			subnet = *m.id(got.ID, "virtualNetworks", networkName) + "/subnets/machines"
		})
	}
	wg.Wait()
	// One is enough to know: the first keeps its code.
	for _, err := range failed {
		if err != nil {
			return "", err
		}
	}
	p, err := m.a.cloud.nics.BeginCreateOrUpdate(ctx, m.name, nicName, armnetwork.Interface{
		Location: where, Tags: tags,
		Properties: &armnetwork.InterfacePropertiesFormat{
			EnableAcceleratedNetworking: new(!m.a.set.PlainNIC), NetworkSecurityGroup: guard,
			IPConfigurations: []*armnetwork.InterfaceIPConfiguration{{
				Name: new("primary"),
				Properties: &armnetwork.InterfaceIPConfigurationPropertiesFormat{
					Subnet: &armnetwork.Subnet{ID: &subnet}, PublicIPAddress: address, PrivateIPAllocationMethod: new(armnetwork.IPAllocationMethodDynamic),
				},
			}},
		},
	}, nil)
	nic, err := wait(ctx, p, err)
	if err != nil {
		return "", err
	}
	return *m.id(nic.ID, "networkInterfaces", nicName), nil
}

// id is a part's, which follows from its name where the answer does not say it.
func (m *making) id(said *string, kind, name string) *string {
	if said != nil && *said != "" {
		return said
	}
	return new("/subscriptions/" + m.a.set.Subscription + "/resourceGroups/" + m.name + "/providers/Microsoft.Network/" + kind + "/" + name)
}
