package aws

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"

	"gpubroker/internal/quantity"
	"gpubroker/providers"
)

// Settings are an account's part of the configuration.
type Settings struct {
	Regions []string `json:"regions,omitempty"` // default: that of the profile or of AWS_REGION

	// Credentials: none of these means the SDK's standard chain.
	Profile      string `json:"profile,omitempty"`
	AccessKey    string `json:"access_key,omitempty"`    // reference: "env:KEY_ID"
	SecretKey    string `json:"secret_key,omitempty"`    // reference
	SessionToken string `json:"session_token,omitempty"` // reference
	RoleARN      string `json:"role_arn,omitempty"`      // assumed with whatever credentials there are

	// Image is an id ("ami-…") or the name of an SSM parameter that holds one.
	// Default: AWS's GPU base image, and Ubuntu on machines without a GPU.
	Image           string            `json:"image,omitempty"`
	Network         providers.Network `json:"network,omitzero"`          // subnet: ids in any zones, comma-separated, or "tag:KEY=VALUE"
	SecurityGroups  []string          `json:"security_groups,omitempty"` // ids; default: the network's own
	InstanceProfile string            `json:"instance_profile,omitempty"`
	Disk            quantity.Size     `json:"disk,omitempty"`  // gp3 root disk; default 100GiB
	Types           []string          `json:"types,omitempty"` // instance types without a GPU that are offered too
	Tags            map[string]string `json:"tags,omitempty"`  // on everything created

	// EndRole is the ARN of a role that EventBridge Scheduler assumes to terminate
	// machines at their lease's end. Without it machines end themselves.
	EndRole       string `json:"end_role,omitempty"`
	ScheduleGroup string `json:"schedule_group,omitempty"` // default "default"

	// Queue is the SQS queue to which EventBridge rules send EC2's warnings: a name,
	// the same in every region, or the URL of one for all. Without it, the
	// machines' metadata service alone warns.
	Queue string `json:"queue,omitempty"`

	// ByRegion replaces image, subnet and security groups where regions differ.
	ByRegion map[string]Regional `json:"by_region,omitempty"`

	PricingRegion string            `json:"pricing_region,omitempty"` // where Pricing is asked; default us-east-1
	Endpoint      string            `json:"endpoint,omitempty"`       // base URL of every service
	Endpoints     map[string]string `json:"endpoints,omitempty"`      // of single ones: ec2, pricing, sqs, ssm, servicequotas, scheduler
}

// Regional is what differs between regions.
type Regional struct {
	Image          string   `json:"image,omitempty"`
	Subnet         string   `json:"subnet,omitempty"`
	SecurityGroups []string `json:"security_groups,omitempty"`
}

const defaultDisk = 100 << 30

// services are those that have endpoints of their own.
func services() []string {
	return []string{"ec2", "pricing", "scheduler", "servicequotas", "sqs", "ssm", "sts"}
}

var (
	regionName = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-\d+$`)
	roleName   = regexp.MustCompile(`^arn:aws[a-z-]*:iam::\d{12}:role/.+$`)
)

// Descriptor is AWS's entry in the list of built-in adapters. There is no feed
// of public prices: AWS publishes them as files of hundreds of megabytes for each
// region, and those of spot to accounts alone.
func Descriptor() providers.Descriptor {
	return providers.Descriptor{Type: "aws", Title: "Amazon EC2", Open: open}
}

func open(ctx context.Context, name string, raw json.RawMessage, env providers.Env) (providers.Provider, error) {
	var s Settings
	if err := providers.DecodeSettings(name, raw, &s); err != nil {
		return nil, err
	}
	access := Access{Owner: env.Owner, Log: env.Log}
	for _, ref := range []struct {
		key, value string
		into       *string
	}{{"access_key", s.AccessKey, &access.AccessKey}, {"secret_key", s.SecretKey, &access.SecretKey}, {"session_token", s.SessionToken, &access.SessionToken}} {
		if ref.value == "" {
			continue
		}
		secret, err := env.Read(name, ref.key, ref.value)
		if err != nil {
			return nil, err
		}
		*ref.into = secret
	}
	return New(ctx, name, s, access)
}

// Access is what is not in the settings' text.
type Access struct {
	AccessKey, SecretKey, SessionToken string // the secrets themselves; empty means the standard chain

	Owner  string       // List shows this owner's machines alone; "" shows every owner's
	Client *http.Client // nil means one of the adapter's own
	Log    *slog.Logger // nil discards
}

// check returns every fault of the settings.
func (s Settings) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, r := range s.Regions {
		switch {
		case !regionName.MatchString(r):
			bad("regions: %q is no region; write for example us-east-1", r)
		case slices.Contains(s.Regions[:i], r):
			bad("regions: %s stands twice", r)
		}
	}
	for r := range s.ByRegion {
		if len(s.Regions) > 0 && !slices.Contains(s.Regions, r) {
			bad("by_region: %s is not among the regions", r)
		}
	}
	if (s.AccessKey == "") != (s.SecretKey == "") {
		bad("access_key and secret_key go together")
	}
	for key, arn := range map[string]string{"end_role": s.EndRole, "role_arn": s.RoleARN} {
		if arn != "" && !roleName.MatchString(arn) {
			bad("%s %q: want a role's ARN such as arn:aws:iam::123456789012:role/gpubroker-end", key, arn)
		}
	}
	if s.Disk < 0 || s.Disk > 0 && s.Disk.Bytes() < 1<<30 {
		bad("disk %s: want 1GiB or more", s.Disk)
	}
	for key, value := range s.Tags {
		if strings.HasPrefix(key, "gpubroker-") || strings.HasPrefix(strings.ToLower(key), "aws:") || key == "" || len(key) > 128 || len(value) > 256 {
			bad("tags: %q: keys have at most 128 characters, values 256, and gpubroker-… and aws:… are taken", key)
		}
	}
	if len(s.Tags) > 10 {
		bad("tags: %d of them; at most 10", len(s.Tags))
	}
	for _, t := range s.Types {
		if !strings.Contains(t, ".") || strings.ContainsAny(t, "*?") {
			bad("types: %q is no instance type; write for example c7i.2xlarge", t)
		}
	}
	endpoints := maps.Clone(s.Endpoints)
	for service := range endpoints {
		if !slices.Contains(services(), service) {
			bad("endpoints: %q: want one of %s", service, strings.Join(services(), ", "))
		}
	}
	if endpoints == nil {
		endpoints = map[string]string{}
	}
	endpoints["endpoint"] = s.Endpoint
	for service, address := range endpoints {
		if u, err := url.Parse(address); address != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil) {
			bad("endpoint of %s: want a URL such as http://127.0.0.1:8700", service)
		}
	}
	return errors.Join(errs...)
}

func (s Settings) disk() int64 {
	if s.Disk == 0 {
		return defaultDisk
	}
	return s.Disk.Bytes()
}

// place is what holds in a region.
func (s Settings) place(region string) Regional {
	p := Regional{Image: s.Image, Subnet: s.Network.Subnet, SecurityGroups: s.SecurityGroups}
	own := s.ByRegion[region]
	if own.Image != "" {
		p.Image = own.Image
	}
	if own.Subnet != "" {
		p.Subnet = own.Subnet
	}
	if len(own.SecurityGroups) > 0 {
		p.SecurityGroups = own.SecurityGroups
	}
	return p
}

// ownClient is the HTTP client of an account that was given none: the SDK's, with
// what its own configuration says of certificates.
func ownClient(of aws.HTTPClient) *http.Client {
	t := http.DefaultTransport
	if b, ok := of.(*awshttp.BuildableClient); ok {
		own := b.GetTransport()
		own.TLSHandshakeTimeout, own.MaxIdleConnsPerHost, own.IdleConnTimeout = 5*time.Second, 16, time.Minute
		own.DialContext = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext
		t = own
	}
	return &http.Client{Transport: t}
}
