package aws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/scheduler"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Adapter is one account. It is safe for concurrent use.
type Adapter struct {
	name    string
	set     Settings
	owner   string
	log     *slog.Logger
	secrets []string
	regions []string
	clients map[string]*clients
	pricing *pricing.Client
	asked   guard
	providers.LeftOut

	mu    sync.Mutex
	sides map[string]sides  // by region, as last seen
	roots map[string]string // root devices by image, which never change
}

// clients are those of a region.
type clients struct {
	region    string
	ec2       *ec2.Client
	ssm       *ssm.Client
	sqs       *sqs.Client
	quotas    *servicequotas.Client
	scheduler *scheduler.Client
}

// rolling is an account whose machines AWS ends, and listening one that hears of
// interruptions: the abilities are there only where the settings make them work.
type (
	rolling   struct{ *Adapter }
	listening struct{ *Adapter }
	both      struct {
		rolling
		listen listening
	}
)

// Interruptions streams warnings.
func (b both) Interruptions(ctx context.Context) (<-chan providers.Notice, error) {
	return b.listen.Interruptions(ctx)
}

// New opens an account. It makes no call; the context bounds the reading of the
// SDK's own configuration files.
func New(ctx context.Context, name string, s Settings, access Access) (providers.Provider, error) {
	if name == "" {
		return nil, errors.New("provider: the name is missing")
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	load := []func(*config.LoadOptions) error{
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		config.WithAppID("gpubroker"),
	}
	if len(s.Regions) > 0 {
		load = append(load, config.WithRegion(s.Regions[0]))
	}
	if s.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(s.Profile))
	}
	if access.AccessKey != "" {
		load = append(load, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(access.AccessKey, access.SecretKey, access.SessionToken)))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("provider %s: AWS configuration: %w", name, err)
	}
	cfg.HTTPClient = newTransport(cmp.Or(access.Client, ownClient(cfg.HTTPClient)))
	if len(s.Regions) == 0 {
		if cfg.Region == "" {
			return nil, fmt.Errorf("provider %s: no region: name some under regions, such as [us-east-1]", name)
		}
		s.Regions = []string{cfg.Region}
	}
	a := &Adapter{
		name: name, set: s, owner: access.Owner, log: access.Log, regions: slices.Clone(s.Regions),
		secrets: []string{access.AccessKey, access.SecretKey, access.SessionToken},
		clients: map[string]*clients{}, sides: map[string]sides{}, roots: map[string]string{},
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.connect(cfg)
	switch {
	case s.EndRole != "" && s.Queue != "":
		return both{rolling{a}, listening{a}}, nil
	case s.EndRole != "":
		return rolling{a}, nil
	case s.Queue != "":
		return listening{a}, nil
	}
	return a, nil
}

// connect makes the clients of every region.
func (a *Adapter) connect(cfg aws.Config) {
	// What the settings say goes before the SDK's own configuration.
	at := func(service string, base **string) {
		if address := cmp.Or(a.set.Endpoints[service], a.set.Endpoint); address != "" {
			*base = aws.String(address)
		}
	}
	if a.set.RoleARN != "" {
		asker := sts.NewFromConfig(cfg, func(o *sts.Options) { at("sts", &o.BaseEndpoint) })
		cfg.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(asker, a.set.RoleARN, func(o *stscreds.AssumeRoleOptions) {
			o.RoleSessionName = "gpubroker"
		}))
	}
	for _, region := range a.regions {
		here := cfg.Copy()
		here.Region = region
		a.clients[region] = &clients{
			region:    region,
			ec2:       ec2.NewFromConfig(here, func(o *ec2.Options) { at("ec2", &o.BaseEndpoint) }),
			ssm:       ssm.NewFromConfig(here, func(o *ssm.Options) { at("ssm", &o.BaseEndpoint) }),
			sqs:       sqs.NewFromConfig(here, func(o *sqs.Options) { at("sqs", &o.BaseEndpoint) }),
			quotas:    servicequotas.NewFromConfig(here, func(o *servicequotas.Options) { at("servicequotas", &o.BaseEndpoint) }),
			scheduler: scheduler.NewFromConfig(here, func(o *scheduler.Options) { at("scheduler", &o.BaseEndpoint) }),
		}
	}
	prices := cfg.Copy()
	// Pricing is served in us-east-1, eu-central-1 and ap-south-1 alone
	// (docs.aws.amazon.com/general/latest/gr/billing.html).
	prices.Region = cmp.Or(a.set.PricingRegion, "us-east-1")
	a.pricing = pricing.NewFromConfig(prices, func(o *pricing.Options) { at("pricing", &o.BaseEndpoint) })
}

// Name is the account's name.
func (a *Adapter) Name() string { return a.name }

// Capabilities are EC2's rules.
func (a *Adapter) Capabilities() providers.Capabilities {
	c := providers.Capabilities{
		Kinds: []providers.Kind{providers.Spot, providers.OnDemand},
		// Two minutes (EC2 user guide, "Spot Instance interruption notices").
		Notice:       2 * time.Minute,
		NoticeSource: providers.NoticeMetadata,
		// Linux by the second, a minute at least (aws.amazon.com/ec2/pricing/on-demand).
		Billing: money.Billing{Unit: time.Second, Minimum: time.Minute},
		// The state pending is not billed (EC2 user guide, "Instance lifecycle").
		BillsBoot:    false,
		PriceBound:   true,
		TagsAtLaunch: true,
		LaunchToken:  true,
		// The API is eventually consistent without a bound; clients are told to back
		// off for some minutes (EC2 developer guide, "Eventual consistency").
		ListLag:   2 * time.Minute,
		SelfEnd:   providers.EndGuest,
		EndAction: providers.EndPoweroff,
		// Billing ends with the state shutting-down, at once (EC2 user guide, "Instance
		// lifecycle"); the guest's timer looks every two seconds and then shuts down.
		StopTime: 30 * time.Second,
		// Until the agent calls in: the GPU base image with its drivers, seen as one
		// to two minutes.
		BootTime: 2 * time.Minute,
		// Before base64 (EC2 user guide, "User data").
		UserDataLimit: userDataLimit,
		Metadata:      providers.MetadataEC2,
		Reach:         a.set.Network.Reach(a.set.Endpoint),
	}
	if a.set.EndRole != "" {
		c.SelfEnd = providers.EndRolling
		c.Beside = true // the schedule stays until its time
		// A one-time schedule is invoked within 60 s of its time (EventBridge Scheduler
		// user guide, "Schedule types").
		c.StopTime = 90 * time.Second
	}
	if a.set.Queue != "" {
		c.NoticeSource = providers.NoticeEvents
	}
	return c
}

// userDataLimit is EC2's, in bytes.
const userDataLimit = 16 << 10

// each calls do for every region at once, at most eight at a time, and returns
// the first error; the others' calls end with it.
func (a *Adapter) each(ctx context.Context, regions []string, do func(ctx context.Context, c *clients) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	slots := make(chan struct{}, 8)
	for _, region := range regions {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := do(ctx, a.clients[region]); err != nil {
				once.Do(func() { first = err; cancel() })
			}
		})
	}
	wg.Wait()
	return first
}

// in returns a region's clients.
func (a *Adapter) in(op, target, region string) (*clients, error) {
	if c := a.clients[region]; c != nil {
		return c, nil
	}
	return nil, a.refuse(op, target, providers.InvalidRequest, providers.ScopeRegion, "region %q is not among the account's regions; add it to regions", region)
}
