package gcp

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	compute "cloud.google.com/go/compute/apiv1"

	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// Adapter is one project. It is safe for concurrent use.
type Adapter struct {
	name  string
	owner string
	set   Settings
	log   *slog.Logger

	instances  *compute.InstancesClient
	operations *compute.ZoneOperationsClient
	disks      *compute.DisksClient
	projects   *compute.ProjectsClient
	policies   *compute.ResourcePoliciesClient
	api        *rest.Client // Compute Engine too, for its lists
	billing    *rest.Client
	manager    *rest.Client

	turns turns
	seen  memory

	// LeftOut holds machine types without a price, and prices of GPUs that no
	// machine type brings.
	providers.LeftOut
}

// Name is the account's name.
func (a *Adapter) Name() string { return a.name }

// Capabilities are Google's rules as its documentation states them.
func (a *Adapter) Capabilities() providers.Capabilities {
	c := providers.Capabilities{
		Kinds: []providers.Kind{providers.Spot, providers.OnDemand},
		// "Compute Engine … sends a preemption notice … 30 seconds", best effort
		// (cloud.google.com/compute/docs/instances/spot#preemption-process).
		Notice:       30 * time.Second,
		NoticeSource: providers.NoticeMetadata,
		Metadata:     providers.MetadataGCE,
		// Per second with a minute at least, GPUs too
		// (cloud.google.com/compute/vm-instance-pricing#billingmodel).
		Billing: money.Billing{Unit: time.Second, Minimum: time.Minute},
		// PROVISIONING and STAGING are free
		// (cloud.google.com/compute/docs/instances/instance-lifecycle).
		BillsBoot: false,
		// Spot prices move on their own, at most once a day; there is no bid
		// (cloud.google.com/compute/docs/instances/spot#pricing).
		PriceBound:   false,
		TagsAtLaunch: true, // labels of instances.insert
		LaunchToken:  true, // its requestId, and the name in the zone
		// An instance is not found until its insert has begun to run; Google states
		// no bound, so this is ours.
		ListLag: time.Minute,
		// scheduling.maxRunDuration with DELETE; it cannot be changed while the
		// machine runs (cloud.google.com/compute/docs/instances/limit-vm-runtime).
		SelfEnd:     providers.EndFixed,
		LongestLife: a.set.maxRun(),
		// A guest that powers off leaves a TERMINATED instance whose disk is billed
		// on; so the machine stops its tasks, or deletes itself by the API.
		EndAction: providers.EndStopTasks,
		// Before a machine is cut off its system has 120 s to shut down, 30 s on
		// spot, and is billed (API, scheduling.skipGuestOsShutdown); half a minute
		// more is ours for the call itself.
		StopTime: 150 * time.Second,
		// Half a minute to boot, and the image's first start with its GPU driver; a
		// guess of ours.
		BootTime: 90 * time.Second,
		// "Each metadata value: 256 KB" (cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations).
		UserDataLimit: 256<<10 - 1024, // what a proxy's lines add
		Reach:         a.set.Network.Reach(a.set.Endpoint),
	}
	if a.set.ServiceAccount != "" {
		c.EndAction, c.EndScript = providers.EndAPI, a.endScript()
	}
	return c
}

// endScript is how a machine deletes itself with its service account's token,
// which shows in no list of processes.
func (a *Adapter) endScript() string {
	base := computeHost
	if a.set.Endpoint != "" {
		base = strings.TrimRight(a.set.Endpoint, "/")
	}
	return fmt.Sprintf(`M="${GPUBROKER_METADATA_URL:-http://169.254.169.254}/computeMetadata/v1"
m() { curl -fsS --noproxy '*' -H 'Metadata-Flavor: Google' "$M/$1"; }
T=$(m instance/service-accounts/default/token | sed -n 's/.*"access_token" *: *"\([^"]*\)".*/\1/p')
Z=$(m instance/zone)
printf 'header = "Authorization: Bearer %%s"\n' "$T" |
  curl -fsS -K - -X DELETE "%s/compute/v1/projects/%s/zones/${Z##*/}/instances/$(m instance/name)"`, base, a.set.Project)
}
