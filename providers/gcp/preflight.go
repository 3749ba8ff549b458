package gcp

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Permissions are the least that an account needs, as doc.go shows them.
func Permissions() []string {
	return []string{
		"compute.acceleratorTypes.list", "compute.disks.create", "compute.disks.delete", "compute.disks.list", "compute.disks.setLabels",
		"compute.globalOperations.list", "compute.instances.create", "compute.instances.delete", "compute.instances.get",
		"compute.instances.getSerialPortOutput", "compute.instances.list", "compute.instances.setLabels", "compute.instances.setMetadata",
		"compute.machineTypes.list", "compute.projects.get", "compute.regions.list", "compute.resourcePolicies.create",
		"compute.resourcePolicies.delete", "compute.resourcePolicies.use", "compute.subnetworks.use", "compute.subnetworks.useExternalIp",
		"compute.zoneOperations.get", "compute.zoneOperations.list",
	}
}

// needed are the permissions that these settings make use of.
func (s Settings) needed() []string {
	out := Permissions()
	if s.Network.Private {
		out = slices.DeleteFunc(out, func(p string) bool { return p == "compute.subnetworks.useExternalIp" })
	}
	if s.ServiceAccount != "" {
		out = append(out, "compute.instances.setServiceAccount")
	}
	return out
}

// Preflight checks the credentials, the project, every permission, and that the
// catalog can be read. It names each permission that is missing.
func (a *Adapter) Preflight(ctx context.Context) error {
	if _, err := a.projects.Get(ctx, &computepb.GetProjectRequest{Project: a.set.Project}); err != nil {
		return a.failed("preflight", a.set.Project, err, false)
	}
	need := a.set.needed()
	var got struct {
		Permissions []string `json:"permissions"`
	}
	err := a.manager.Do(ctx, rest.Call{
		Op: "preflight", Target: a.set.Project, Method: http.MethodPost, Path: "/v1/projects/" + a.set.Project + ":testIamPermissions",
		In: map[string][]string{"permissions": need}, Out: &got,
	})
	switch code := providers.CodeOf(err); {
	case err != nil && a.set.Endpoint != "" && (code == providers.Unknown || code == providers.NotFound || code == providers.Unsupported):
		// An emulator of Compute Engine need not be one of Resource Manager.
	case err != nil:
		return a.failed("preflight", a.set.Project, err, false)
	default:
		missing := slices.DeleteFunc(need, func(p string) bool { return slices.Contains(got.Permissions, p) })
		if len(missing) > 0 {
			return a.complete("preflight", a.set.Project, &providers.Error{
				Code: providers.Unauthorized, Scope: providers.ScopeProvider,
				Message: "permissions are missing: " + strings.Join(missing, ", "),
			}, false)
		}
	}
	err = a.billing.Do(ctx, rest.Call{Op: "preflight", Target: "cloudbilling", Path: "/v1/services/" + service + "/skus", Query: map[string][]string{"pageSize": {"1"}, "fields": {"skus(skuId)"}}})
	if err != nil {
		return a.failed("preflight", "cloudbilling", err, false)
	}
	return nil
}
