package azure_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources/v3"

	fake "gpubroker/internal/simcloud/dialects/azure"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// TestFakeSpeaksAzure decodes what the fake answers with the SDK's own structs and
// encodes it again: a field that Azure does not have, or of another type, is lost.
func TestFakeSpeaksAzure(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		if _, err := r.a.Launch(t.Context(), request("r1")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		const sub = "/subscriptions/" + fake.Subscription
		const group = sub + "/resourceGroups/gpubroker-r1"
		for path, into := range map[string]any{
			sub + "/resourcegroups":                  new(armresources.ResourceGroupListResult),
			group:                                    new(armresources.ResourceGroup),
			group + vmPath:                           new(armcompute.VirtualMachine),
			group + vmPath + "?$expand=instanceView": new(armcompute.VirtualMachine),
			group + vmPath + "/instanceView":         new(armcompute.VirtualMachineInstanceView),
			sub + "/providers/Microsoft.Compute/virtualMachines":                    new(armcompute.VirtualMachineListResult),
			group + "/providers/Microsoft.Compute/virtualMachines":                  new(armcompute.VirtualMachineListResult),
			sub + "/providers/Microsoft.Compute/skus":                               new(armcompute.ResourceSKUsResult),
			sub + "/providers/Microsoft.Compute/locations/eastus/usages":            new(armcompute.ListUsagesResult),
			group + "/providers/Microsoft.Network/networkInterfaces/nic":            new(armnetwork.Interface),
			group + "/providers/Microsoft.Network/publicIPAddresses/address":        new(armnetwork.PublicIPAddress),
			group + "/providers/Microsoft.Network/virtualNetworks/network":          new(armnetwork.VirtualNetwork),
			group + "/providers/Microsoft.Network/networkSecurityGroups/no-inbound": new(armnetwork.SecurityGroup),
			group + "/PROVIDERS/microsoft.network/NETWORKSECURITYGROUPS/NO-inbound": new(armnetwork.SecurityGroup),
			strings.ToUpper(sub) + "/RESOURCEGROUPS/GPUBROKER-R1":                   new(armresources.ResourceGroup),
		} {
			status, data := r.get(t, path)
			if status != http.StatusOK {
				t.Errorf("%s: %d %s", path, status, data)
				continue
			}
			if err := json.Unmarshal(data, into); err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			again, err := json.Marshal(into)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if lost := missing(leaves(t, data), leaves(t, again)); len(lost) > 0 {
				t.Errorf("%s: the SDK does not know %v", path, lost)
			}
		}
	})
}

// get makes a call with the adapter's own token.
func (r *rig) get(t testing.TB, path string) (int, []byte) {
	t.Helper()
	if !strings.Contains(path, "api-version") {
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		path += sep + "api-version=2026-04-01"
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range slices.Backward(r.calls) {
		if token := c.header.Get("Authorization"); token != "" {
			req.Header.Set("Authorization", token)
			break
		}
	}
	res, err := r.net.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, data
}

// leaves are the values of a document by their paths; nulls and times' spelling
// aside.
func leaves(t testing.TB, data []byte) map[string]string {
	t.Helper()
	var v any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	var walk func(string, any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				walk(path+"/"+k, x)
			}
		case []any:
			for i, x := range v {
				walk(fmt.Sprintf("%s/%d", path, i), x)
			}
		case nil:
		default:
			s := fmt.Sprint(v)
			if at, err := time.Parse(time.RFC3339Nano, s); err == nil {
				s = at.UTC().Format(time.RFC3339Nano)
			}
			out[path] = s
		}
	}
	walk("", v)
	return out
}

func missing(want, got map[string]string) []string {
	var lost []string
	for k, v := range want {
		if got[k] != v {
			lost = append(lost, k+"="+v)
		}
	}
	sort.Strings(lost)
	return lost
}

// TestFakeRules: what the fake refuses as Azure does.
func TestFakeRules(t *testing.T) {
	inAzure(t, func(t *testing.T, r *rig) {
		if _, err := r.a.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		const sub = "/subscriptions/" + fake.Subscription
		for path, want := range map[string]string{
			"/subscriptions/another/resourcegroups":                                       "404 SubscriptionNotFound",
			sub + "/resourcegroups/nothing":                                               "404 ResourceGroupNotFound",
			sub + "/resourcegroups/nothing/providers/Microsoft.Compute/virtualMachines/v": "404 ResourceGroupNotFound",
			sub + "/resourcegroups?$filter=name%20eq%20'x'":                               "400 InvalidFilterInQueryString",
			sub + "/providers/Microsoft.Storage/storageAccounts":                          "404 InvalidResourceType",
			sub + "/providers/Microsoft.Compute/locations/eastus/operations/none":         "404 OperationNotFound",
			"/api/retail/prices?$filter=armRegionName%20eq%20'EastUS'":                    "200 ",
			"/api/retail/prices?$filter=colour%20eq%20'red'":                              "400 ",
			"/nowhere": "404 InvalidResourceType",
		} {
			status, data := r.get(t, path)
			var body struct {
				Error struct{ Code string }
				Items []any
			}
			_ = json.Unmarshal(data, &body)
			code := body.Error.Code
			if strings.HasPrefix(path, "/api/") {
				code = ""
			}
			if got := fmt.Sprintf("%d %s", status, code); got != want || len(body.Items) > 0 {
				t.Errorf("%s: %s, want %s (%s)", path, got, want, data)
			}
		}
		// Fault by fault, each operation is the one that it says.
		for op, call := range map[string]func() error{
			"list":   func() error { _, err := r.a.List(t.Context()); return err },
			"offers": func() error { _, err := r.a.Offers(t.Context(), providers.Scope{}); return err },
			"quotas": func() error { _, err := r.a.Quotas(t.Context()); return err },
			"about":  func() error { return r.a.Preflight(t.Context()) },
		} {
			addFault(t, r.w, simapi.Fault{Op: op, Effect: simapi.Internal})
			if err := call(); err == nil {
				t.Errorf("a fault of %s hits another call", op)
			}
			if err := call(); err != nil {
				t.Errorf("%s: %v", op, err)
			}
		}
	})
}
