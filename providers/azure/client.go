package azure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	armruntime "github.com/Azure/azure-sdk-for-go/sdk/azcore/arm/runtime"
	azcloud "github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources/v3"
)

// cloud holds the clients of one subscription. Retries, telemetry and the
// registration of resource providers are off: one call is one call.
type cloud struct {
	base     string
	groups   *armresources.ResourceGroupsClient
	vms      *armcompute.VirtualMachinesClient
	skus     *armcompute.ResourceSKUsClient
	usage    *armcompute.UsageClient
	nics     *armnetwork.InterfacesClient
	ips      *armnetwork.PublicIPAddressesClient
	networks *armnetwork.VirtualNetworksClient
	guards   *armnetwork.SecurityGroupsClient
	raw      runtime.Pipeline // for what has no client
	http     *http.Client
}

func connect(s Settings, access Access) (*cloud, error) {
	once := policy.ClientOptions{
		Cloud: azcloud.Configuration{
			ActiveDirectoryAuthorityHost: s.Login + "/",
			Services:                     map[azcloud.ServiceName]azcloud.ServiceConfiguration{azcloud.ResourceManager: {Endpoint: s.Endpoint, Audience: s.Audience}},
		},
		Retry:     policy.RetryOptions{MaxRetries: -1},
		Telemetry: policy.TelemetryOptions{Disabled: true},
		Transport: plain{access.Client},
	}
	credential, err := signIn(s, access, once)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	opts := &arm.ClientOptions{ClientOptions: once, DisableRPRegistration: true}
	opts.PerRetryPolicies = []policy.Policy{errorInside{}}
	// Emulators on this machine may do without TLS.
	opts.InsecureAllowCredentialWithHTTP = strings.HasPrefix(s.Endpoint, "http://")

	c := &cloud{base: s.Endpoint + "/subscriptions/" + s.Subscription, http: access.Client}
	if c.raw, err = armruntime.NewPipeline("gpubroker", "v1", credential, runtime.PipelineOptions{}, opts); err != nil {
		return nil, err
	}
	resources, err := armresources.NewClientFactory(s.Subscription, credential, opts)
	if err != nil {
		return nil, err
	}
	compute, err := armcompute.NewClientFactory(s.Subscription, credential, opts)
	if err != nil {
		return nil, err
	}
	network, err := armnetwork.NewClientFactory(s.Subscription, credential, opts)
	if err != nil {
		return nil, err
	}
	c.groups = resources.NewResourceGroupsClient()
	c.vms, c.skus, c.usage = compute.NewVirtualMachinesClient(), compute.NewResourceSKUsClient(), compute.NewUsageClient()
	c.nics, c.ips = network.NewInterfacesClient(), network.NewPublicIPAddressesClient()
	c.networks, c.guards = network.NewVirtualNetworksClient(), network.NewSecurityGroupsClient()
	return c, nil
}

// signIn returns the configured credential, else Azure's own chain: environment,
// workload identity, managed identity, az and azd.
func signIn(s Settings, access Access, opts policy.ClientOptions) (azcore.TokenCredential, error) {
	elsewhere := s.Login != defaultLogin
	if access.Secret != "" {
		return azidentity.NewClientSecretCredential(s.Tenant, s.ClientID, access.Secret, &azidentity.ClientSecretCredentialOptions{
			ClientOptions: opts, DisableInstanceDiscovery: elsewhere,
		})
	}
	return azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{
		ClientOptions: opts, DisableInstanceDiscovery: elsewhere, TenantID: s.Tenant,
	})
}

// plain sends requests as they are: no redirect is followed, and nothing but a
// read is sent again by net/http where an idle connection had died.
type plain struct{ client *http.Client }

func (p plain) Do(r *http.Request) (*http.Response, error) {
	own := *p.client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if r.Method != http.MethodGet {
		r.GetBody = nil
	}
	return own.Do(r)
}

// maxAnswer is the longest answer that is looked into for an error, in bytes.
const maxAnswer = 1 << 20

// errorInside makes a success that holds an error a failure: gateways have been
// seen to lose the status. The state of a long-running operation, which has an
// error of its own, is left to its poller.
type errorInside struct{}

func (errorInside) Do(req *policy.Request) (*http.Response, error) {
	res, err := req.Next()
	if err != nil || res.StatusCode > 299 || res.ContentLength > maxAnswer || res.Body == nil {
		return res, err
	}
	head, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		_ = res.Body.Close() // what could be read has been
		return nil, err
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), res.Body), res.Body}
	var inside struct {
		Error  *armError        `json:"error"`
		Status *json.RawMessage `json:"status"`
	}
	if json.Unmarshal(head, &inside) == nil && inside.Error != nil && inside.Error.Code != "" && inside.Status == nil {
		return nil, runtime.NewResponseError(res)
	}
	return res, nil
}

// call makes a request that has no client of its own. in and out may be nil.
func (c *cloud) call(ctx context.Context, method, path, version string, in, out any) error {
	req, err := runtime.NewRequest(ctx, method, path)
	if err != nil {
		return err
	}
	q := req.Raw().URL.Query()
	q.Set("api-version", version)
	req.Raw().URL.RawQuery = q.Encode()
	req.Raw().Header["Accept"] = []string{"application/json"}
	if in != nil {
		if err := runtime.MarshalAsJSON(req, in); err != nil {
			return err
		}
	}
	res, err := c.raw.Do(req) //nolint:bodyclose // the pipeline has read it whole
	if err != nil {
		return err
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return runtime.NewResponseError(res)
	}
	if out == nil {
		return nil
	}
	return runtime.UnmarshalAsJSON(res, out)
}
