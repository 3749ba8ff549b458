package gcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"time"

	"gpubroker/internal/quantity"
	"gpubroker/providers"
)

// Settings are an account's part of the configuration: one project.
type Settings struct {
	Project     string `json:"project"`
	Credentials string `json:"credentials,omitempty"` // reference to a key file's text: "file:/etc/gpubroker/gcp.json"; default Application Default Credentials

	Regions  []string          `json:"regions,omitempty"`  // default all
	Families []string          `json:"families,omitempty"` // of machine types; default DefaultFamilies
	Image    string            `json:"image,omitempty"`    // default one with NVIDIA's driver, or Debian on machines without a GPU
	Disk     *quantity.Size    `json:"disk,omitempty"`     // boot disk of each machine; default 100GiB
	Network  providers.Network `json:"network,omitzero"`   // subnet takes a subnetwork's name, or its whole path
	Tags     map[string]string `json:"tags,omitempty"`     // labels on everything that is made
	MaxRun   quantity.Duration `json:"max_run,omitempty"`  // the longest life of a machine, at which Google deletes it; default 24h

	// ServiceAccount is the machines' own. With one they delete themselves when
	// their lease ends; it needs compute.instances.delete.
	ServiceAccount string `json:"service_account,omitempty"`

	Endpoint        string `json:"endpoint,omitempty"`         // of every API, for emulators and proxies
	BillingEndpoint string `json:"billing_endpoint,omitempty"` // of Cloud Billing alone
	Anonymous       bool   `json:"anonymous,omitempty"`        // no credentials, for emulators
}

// DefaultFamilies are the machine families that are offered where none are named:
// all with GPUs, and what is common without one.
func DefaultFamilies() []string {
	return []string{"a2", "a3", "a4", "g2", "g4", "n1", "e2", "n2", "c3"}
}

const (
	computeHost = "https://compute.googleapis.com"
	billingHost = "https://cloudbilling.googleapis.com"
	managerHost = "https://cloudresourcemanager.googleapis.com"
)

const (
	gib         = 1 << 30
	defaultDisk = 100 * gib
	defaultRun  = 24 * time.Hour
	// The least and the most of maxRunDuration
	// (cloud.google.com/compute/docs/instances/limit-vm-runtime, "Restrictions").
	shortestRun = 30 * time.Second
	longestRun  = 120 * 24 * time.Hour
)

// The images used where none is set.
const (
	imageGPU = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
	imageCPU = "projects/debian-cloud/global/images/family/debian-12"
)

// Descriptor is Google Cloud's entry in the list of built-in adapters.
func Descriptor() providers.Descriptor {
	return providers.Descriptor{Type: "gcp", Title: "Google Cloud", Open: open}
}

func open(_ context.Context, name string, raw json.RawMessage, env providers.Env) (providers.Provider, error) {
	var s Settings
	if err := providers.DecodeSettings(name, raw, &s); err != nil {
		return nil, err
	}
	access := Access{Owner: env.Owner, Log: env.Log}
	if s.Credentials != "" {
		var err error
		if access.Credentials, err = env.Read(name, "credentials", s.Credentials); err != nil {
			return nil, err
		}
	}
	return New(name, s, access)
}

// Access is what is not in the settings' text.
type Access struct {
	Credentials string       // a service account's key file; "" means Application Default Credentials
	Owner       string       // List shows this owner's machines alone
	Client      *http.Client // nil means one of the adapter's own
	Log         *slog.Logger // nil discards
}

var (
	projectID  = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$`)
	familyName = regexp.MustCompile(`^[a-z][a-z0-9]*$`)
)

func (s Settings) check() error {
	switch {
	case !projectID.MatchString(s.Project):
		return fmt.Errorf("project %q: want a project's id, such as my-project-123", s.Project)
	case s.Anonymous && s.Endpoint == "":
		return errors.New("anonymous: goes with endpoint alone; Google's own API wants credentials")
	case s.Anonymous && s.Credentials != "":
		return errors.New("anonymous and credentials: give one of them")
	case s.disk() < 10*gib:
		return fmt.Errorf("disk %s: want 10GiB at least", quantity.Size(s.disk()))
	case s.maxRun() < 10*time.Minute || s.maxRun() > longestRun:
		return fmt.Errorf("max_run %s: want 10m to %s, which is Google's limit", quantity.Duration(s.maxRun()), quantity.Duration(longestRun))
	}
	for _, f := range s.Families {
		if !familyName.MatchString(f) {
			return fmt.Errorf("families: %q: want the first part of machine types' names, such as g2", f)
		}
	}
	for key, value := range s.Tags {
		if !labelKey.MatchString(key) || !labelValue.MatchString(value) {
			return fmt.Errorf("tags: %s: %q: labels have lower-case letters, digits, dashes and underscores, 63 at most, and keys begin with a letter", key, value)
		}
	}
	return nil
}

func (s Settings) disk() int64 {
	if s.Disk == nil {
		return defaultDisk
	}
	return s.Disk.Bytes()
}

func (s Settings) maxRun() time.Duration { return cmp.Or(s.MaxRun.Std(), defaultRun) }

func (s Settings) families() []string {
	if len(s.Families) == 0 {
		return DefaultFamilies()
	}
	return s.Families
}

// wants reports whether a region is one of those that the settings name.
func (s Settings) wants(region string) bool {
	return len(s.Regions) == 0 || slices.Contains(s.Regions, region)
}
