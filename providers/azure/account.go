package azure

import (
	"context"
	"net/http"
	"path"
	"slices"
	"strings"

	"gpubroker/providers"
)

// Quotas returns the limits of cores and machines in the account's regions: the
// one of spot, the one of all else, and that of each family of sizes that is
// offered (learn.microsoft.com/azure/virtual-machines/quotas). Without regions in
// the settings there are too many to ask for, and the answer is empty.
func (a *Adapter) Quotas(ctx context.Context) ([]providers.Quota, error) {
	if err := a.alive(ctx, "quotas", ""); err != nil {
		return nil, err
	}
	out := []providers.Quota{}
	for _, region := range a.set.Regions {
		sizes, err := a.listSizes(ctx, region)
		if err != nil {
			return nil, a.failure(ctx, "quotas", region, err)
		}
		families := map[string][]string{}
		for _, s := range sizes {
			families[strings.ToLower(s.family)] = append(families[strings.ToLower(s.family)], s.name)
		}
		for pages := a.cloud.usage.NewListPager(region, nil); pages.More(); {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, a.failure(ctx, "quotas", region, err)
			}
			if page.Value == nil {
				return nil, a.errorf("quotas", region, providers.Unavailable, "", "the answer holds no list")
			}
			for _, u := range page.Value {
				if u == nil || u.Name == nil || u.Limit == nil || u.CurrentValue == nil {
					continue
				}
				q := providers.Quota{Name: text(u.Name.Value), Region: region, Unit: "vcpu", Limit: float64(max(*u.Limit, 0)), Used: float64(max(*u.CurrentValue, 0))}
				switch lower := strings.ToLower(q.Name); {
				case lower == "lowprioritycores":
					q.Kind = providers.Spot
				case lower == "cores":
					q.Kind = providers.OnDemand
				case lower == "virtualmachines":
					q.Unit = "machine"
				case families[lower] != nil:
					q.Kind, q.Types = providers.OnDemand, slices.Sorted(slices.Values(families[lower]))
				default:
					continue
				}
				out = append(out, q)
			}
			if err := a.sameHost(page.NextLink, "quotas"); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// Permissions returns what the account's application must be allowed to do.
func (a *Adapter) Permissions() []string {
	need := []string{
		"Microsoft.Resources/subscriptions/resourceGroups/read",
		"Microsoft.Resources/subscriptions/resourceGroups/write",
		"Microsoft.Resources/subscriptions/resourceGroups/delete",
		"Microsoft.Compute/virtualMachines/read",
		"Microsoft.Compute/virtualMachines/write",
		"Microsoft.Compute/skus/read",
		"Microsoft.Compute/locations/usages/read",
		"Microsoft.Network/networkInterfaces/read",
		"Microsoft.Network/networkInterfaces/write",
		"Microsoft.Network/networkInterfaces/join/action",
		"Microsoft.Network/virtualNetworks/subnets/join/action",
	}
	if !a.set.Network.Private {
		need = append(need, "Microsoft.Network/publicIPAddresses/read", "Microsoft.Network/publicIPAddresses/write", "Microsoft.Network/publicIPAddresses/join/action")
	}
	if a.set.Network.Subnet == "" {
		need = append(need,
			"Microsoft.Network/virtualNetworks/read", "Microsoft.Network/virtualNetworks/write",
			"Microsoft.Network/networkSecurityGroups/read", "Microsoft.Network/networkSecurityGroups/write", "Microsoft.Network/networkSecurityGroups/join/action")
	}
	if *a.set.SelfEnd {
		need = append(need, "Microsoft.Authorization/roleAssignments/write")
	}
	if a.set.ConsoleLog {
		need = append(need, "Microsoft.Compute/virtualMachines/retrieveBootDiagnosticsData/action")
	}
	return need
}

// Preflight asks what the application may do in the subscription and names all
// that is missing.
func (a *Adapter) Preflight(ctx context.Context) error {
	if err := a.alive(ctx, "preflight", ""); err != nil {
		return err
	}
	var granted []permission
	for next := a.cloud.base + "/providers/Microsoft.Authorization/permissions"; next != ""; {
		var page struct {
			Value []permission `json:"value"`
			Next  string       `json:"nextLink"`
		}
		if err := a.cloud.call(ctx, http.MethodGet, next, authorizationVersion, nil, &page); err != nil {
			return a.failure(ctx, "preflight", "", err)
		}
		granted = append(granted, page.Value...)
		if err := a.sameHost(&page.Next, "preflight"); err != nil {
			return err
		}
		next = page.Next
	}
	var missing []string
	for _, action := range a.Permissions() {
		if !slices.ContainsFunc(granted, func(p permission) bool { return p.allows(action) }) {
			missing = append(missing, action)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	e := a.errorf("preflight", "", providers.Unauthorized, "", "")
	e.Message = "missing permissions on subscription " + a.set.Subscription + ": " + strings.Join(missing, ", ") + "; see the role in docs/providers.md"
	return e
}

// permission is what one role assignment grants
// (learn.microsoft.com/azure/role-based-access-control/role-definitions).
type permission struct {
	Actions    []string `json:"actions"`
	NotActions []string `json:"notActions"`
}

func (p permission) allows(action string) bool {
	matches := func(pattern string) bool {
		// A star stands for any words, slashes too.
		flat := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "/", ".") }
		ok, err := path.Match(flat(pattern), flat(action))
		return err == nil && ok
	}
	return slices.ContainsFunc(p.Actions, matches) && !slices.ContainsFunc(p.NotActions, matches)
}
