// Package azure is the adapter for Microsoft Azure.
//
// It implements [providers.Provider], Quotas, Preflight, Scores and Console, and
// the public price list ([providers.Descriptor].Public).
//
// # API
//
// Azure Resource Manager through azure-sdk-for-go: armcompute v8.4.0
// (2026-04-01; SKUs 2021-07-01), armnetwork v9.0.0, armresources v3.0.1; by REST:
// Microsoft.Authorization 2022-04-01 and spot placement scores 2025-06-05. Retail
// Prices 2023-01-01-preview. Metadata service 2021-02-01, scheduled events
// 2020-07-01. The SDK's retries and its registration of resource providers are off.
//
// # What a machine is
//
// One resource group for each request, gpubroker-REQUEST, which bears the tags
// before anything is in it; in it the VM of the same name, its disk, its network
// interface, its public address, and without a subnet of the account's own a network
// with a security group that lets nothing in. They are made together and end
// together: to end a machine is to delete its group. The VM is made with
// If-None-Match, so a request never has two. Spot machines have the eviction policy
// Delete and the bound, without disk and address, as their maximum price.
//
// What the broker is told:
//
//	group            VM                    machine
//	young            none yet              pending
//	there            Creating              pending
//	there            Succeeded             running
//	there            shut itself down      stopping: billed until it is deleted
//	there            Failed, not running   terminated (error), with Azure's words
//	there            evicted               terminated (preempted)
//	there            never made            terminated (error)
//	being deleted    there                 stopping
//	being deleted    none                  terminated
//	gone             -                     not_found
//
// A machine that is terminated while its group is there has left things that may be
// billed: an address, a disk, a network. Its record closes when Terminate has deleted
// the group. What no record need stand for, a group whose launch never came to a
// machine or one past its delete-at, List shows as a second machine of the request
// too, NAME:remains, which is stopping: the broker ends it as it ends every machine
// that it does not know. Azure does not say when a VM went: Ended is when it was seen
// gone.
//
// # Permissions
//
// A custom role for the broker's application, assigned at the subscription
// (az role definition create --role-definition @role.json). Preflight names what is
// missing.
//
//	{
//	  "Name": "gpubroker",
//	  "Description": "Rents machines and ends them",
//	  "AssignableScopes": ["/subscriptions/SUBSCRIPTION"],
//	  "Actions": [
//	    "Microsoft.Authorization/permissions/read",
//	    "Microsoft.Authorization/roleAssignments/write",
//	    "Microsoft.Compute/locations/placementScores/generate/action",
//	    "Microsoft.Compute/locations/usages/read",
//	    "Microsoft.Compute/skus/read",
//	    "Microsoft.Compute/virtualMachines/read",
//	    "Microsoft.Compute/virtualMachines/write",
//	    "Microsoft.Compute/virtualMachines/retrieveBootDiagnosticsData/action",
//	    "Microsoft.Insights/eventtypes/values/read",
//	    "Microsoft.Network/networkInterfaces/join/action",
//	    "Microsoft.Network/networkInterfaces/read",
//	    "Microsoft.Network/networkInterfaces/write",
//	    "Microsoft.Network/networkSecurityGroups/join/action",
//	    "Microsoft.Network/networkSecurityGroups/read",
//	    "Microsoft.Network/networkSecurityGroups/write",
//	    "Microsoft.Network/publicIPAddresses/join/action",
//	    "Microsoft.Network/publicIPAddresses/read",
//	    "Microsoft.Network/publicIPAddresses/write",
//	    "Microsoft.Network/virtualNetworks/read",
//	    "Microsoft.Network/virtualNetworks/subnets/join/action",
//	    "Microsoft.Network/virtualNetworks/write",
//	    "Microsoft.Resources/subscriptions/resourceGroups/delete",
//	    "Microsoft.Resources/subscriptions/resourceGroups/read",
//	    "Microsoft.Resources/subscriptions/resourceGroups/write"
//	  ]
//	}
//
// roleAssignments/write is for SelfEnd alone; limit it by a condition to the one role
// below, or leave it out and set self_end: false. The role that machines get on
// their own group is Contributor unless end_role names another; this is enough:
//
//	{
//	  "Name": "gpubroker-end",
//	  "Description": "A machine may delete its own resource group",
//	  "AssignableScopes": ["/subscriptions/SUBSCRIPTION"],
//	  "Actions": [
//	    "Microsoft.Resources/subscriptions/resourceGroups/read",
//	    "Microsoft.Resources/subscriptions/resourceGroups/delete"
//	  ]
//	}
//
// # Set-up
//
//  1. Register the resource providers once: az provider register -n Microsoft.Compute,
//     and Microsoft.Network.
//  2. Make the roles above and an application: az ad sp create-for-rbac --name
//     gpubroker --role gpubroker --scopes /subscriptions/SUBSCRIPTION. Its password
//     is the client secret. Without tenant, client_id and client_secret, Azure's own
//     chain is used: environment, workload identity, managed identity, az login.
//  3. Ask for quota: lowPriorityCores for spot, and the family of each size for the
//     rest, in each region.
//  4. Name the regions. Without, every refresh of the offers reads all of them.
//
// A configuration:
//
//	providers:
//	  - name: azure
//	    type: azure
//	    settings:
//	      subscription: 00000000-0000-0000-0000-000000000000
//	      tenant: 00000000-0000-0000-0000-000000000000
//	      client_id: 00000000-0000-0000-0000-000000000000
//	      client_secret: env:AZURE_CLIENT_SECRET
//	      regions: [eastus, westeurope]
//
// Every host can be another: endpoint (ARM), login (authority, https only), prices,
// and audience for ARM's tokens.
//
// # Who ends a machine
//
// SelfEnd is guest, through the machine's own identity: at its lease's end it
// deletes its own resource group with a token from its metadata service. A VM that
// only shuts down keeps its hardware and goes on billing
// (https://learn.microsoft.com/azure/virtual-machines/states-billing). The cap
// therefore holds while the machine's system runs: a machine whose kernel has died,
// or which cannot reach Resource Manager, is ended by the broker alone. The role is
// given right after Azure has accepted the machine; a launch that cannot give it
// takes the machine back, and one that is cut off between the two (a killed broker)
// leaves a machine that only the broker ends. With self_end: false SelfEnd is none.
//
// # Quirks
//
//   - Spot prices stand only as the suffix " Spot" of skuName and meterName; " Low
//     Priority" is another product; Windows and Cloud Services show in productName
//     alone; DevTestConsumption repeats rows; a Reservation row gives the price of the
//     term although its unit is "1 Hour"
//     (https://learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices).
//   - A size whose rows give two prices in a region is left out; so is one without a row.
//   - A disk's meter is per month of 730 hours; "Disk Mount" is for shared disks. Where
//     the list has no disk of a region, twice the price of East US stands in, and
//     Source says so.
//   - The spot price is one for all zones of a region. Zone numbers are the
//     subscription's own (https://learn.microsoft.com/azure/reliability/availability-zones-overview).
//   - A quota is refused as OperationNotAllowed with 409
//     (https://github.com/Azure/karpenter-provider-azure/issues/192), capacity as
//     SkuNotAvailable at once or as AllocationFailed after the machine was accepted.
//   - The capability GPUs is 1 for NVadsA10_v5 sizes with a sixth of an A10, and absent
//     for others that have a share: package gpu's facts come first.
//   - The first call of scheduled events can take two minutes to switch them on
//     (https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events); an
//     eviction gives 30 s at most, and sometimes none.
//   - Machines of one group are put into a proximity placement group where proximity
//     names one of the region. InfiniBand needs a scale set or an availability set
//     (https://learn.microsoft.com/azure/virtual-machines/setup-infiniband), which the
//     adapter does not make.
//   - Azure has no API that says what one machine has cost: Cost Management lags by a
//     day and more. The activity log says from when to when a machine was there, some
//     minutes late; its price is the one that was seen.
package azure
