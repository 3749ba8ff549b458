package azure

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	"gpubroker/providers"
)

// Versions of the calls that have no client in the SDK's modules used here.
const (
	groupsVersion        = "2021-04-01"
	authorizationVersion = "2022-04-01"
)

// permitEnd gives a machine's identity the role that lets it delete its own group.
// It repeats safely: the assignment's name follows from the group's.
func (a *Adapter) permitEnd(ctx context.Context, name, principal string) error {
	scope := a.cloud.base + "/resourceGroups/" + name
	in := map[string]any{"properties": map[string]any{
		"roleDefinitionId": "/subscriptions/" + a.set.Subscription + "/providers/Microsoft.Authorization/roleDefinitions/" + a.set.EndRole,
		"principalId":      principal,
		// Without it a principal that was made a moment ago is not found
		// (learn.microsoft.com/azure/role-based-access-control/troubleshooting).
		"principalType": "ServicePrincipal",
	}}
	err := a.cloud.call(ctx, http.MethodPut, scope+"/providers/Microsoft.Authorization/roleAssignments/"+uuid(scope+principal), authorizationVersion, in, nil)
	if err == nil {
		return nil
	}
	if said, ok := errors.AsType[*azcore.ResponseError](err); ok && said.ErrorCode == "RoleAssignmentExists" {
		return nil
	}
	e := a.understand(ctx, err)
	if e.Code == providers.Unauthorized {
		e.Message = "a machine that cannot end itself is not kept: grant the broker Microsoft.Authorization/roleAssignments/write, or set self_end: false: " + e.Message
	}
	return e
}

// endScript deletes the machine's own resource group, with the token of the
// machine's own identity. Shutting down would not end the bill: a VM that stops
// itself keeps its hardware (learn.microsoft.com/azure/virtual-machines/states-billing).
func endScript(s Settings) string {
	return strings.NewReplacer("@ARM@", s.Endpoint, "@AUDIENCE@", s.Audience, "@VERSION@", groupsVersion).Replace(`M="${GPUBROKER_METADATA_URL:-http://169.254.169.254}/metadata"
get() {
  if command -v curl >/dev/null; then curl -fsS --noproxy '*' --max-time 10 -H Metadata:true "$M/$1"; else wget -q --no-proxy -T 10 -O - --header=Metadata:true "$M/$1"; fi
}
S=$(get 'instance/compute/subscriptionId?api-version=2021-02-01&format=text')
G=$(get 'instance/compute/resourceGroupName?api-version=2021-02-01&format=text')
T=$(get 'identity/oauth2/token?api-version=2018-02-01&resource=@AUDIENCE@' | sed -n 's/.*"access_token" *: *"\([^"]*\)".*/\1/p')
U="@ARM@/subscriptions/$S/resourcegroups/$G?api-version=@VERSION@"
case "$G" in gpubroker-*) ;; *) echo "gpubroker: $G is no group of ours" >&2; exit 1;; esac
if command -v curl >/dev/null; then
  printf 'header = "Authorization: Bearer %s"\n' "$T" | curl -fsS --max-time 30 -X DELETE -K - "$U"
else
  wget -q -T 30 -O - --method=DELETE --header="Authorization: Bearer $T" "$U"
fi`)
}
