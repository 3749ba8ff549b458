package aws

import (
	"context"
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	sqtypes "github.com/aws/aws-sdk-go-v2/service/servicequotas/types"

	"gpubroker/providers"
)

// bucket is a limit of EC2 that counts vCPUs of some families.
type bucket struct {
	kind     providers.Kind
	families *regexp.Regexp // of instance types
}

// buckets are EC2's limits by their codes (EC2 instance types guide, "Instance
// type quotas").
func buckets() map[string]bucket {
	standard := regexp.MustCompile(`^[acdhimrtz]\d`)
	graphics := regexp.MustCompile(`^(g|gr|vt)\d`)
	return map[string]bucket{
		"L-1216C47A": {providers.OnDemand, standard},
		"L-DB2E81BA": {providers.OnDemand, graphics},
		"L-417A185B": {providers.OnDemand, regexp.MustCompile(`^p\d`)},
		"L-34B43A08": {providers.Spot, standard},
		"L-3819A6DF": {providers.Spot, graphics},
		"L-7212CCBC": {providers.Spot, regexp.MustCompile(`^p[234]`)},
		"L-C4BD4855": {providers.Spot, regexp.MustCompile(`^p5`)},
	}
}

// Quotas returns the limits on vCPUs of the families that are offered, and what
// every running machine of the account takes of them.
func (a *Adapter) Quotas(ctx context.Context) ([]providers.Quota, error) {
	var mu sync.Mutex
	var out []providers.Quota
	err := a.each(ctx, a.regions, func(ctx context.Context, c *clients) error {
		here, err := a.regionQuotas(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		out = append(out, here...)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(x, y providers.Quota) int { return strings.Compare(x.Region+x.Name, y.Region+y.Name) })
	return out, nil
}

func (a *Adapter) regionQuotas(ctx context.Context, c *clients) ([]providers.Quota, error) {
	limits, err := a.limits(ctx, c)
	if err != nil {
		return nil, err
	}
	places, err := a.offerings(ctx, c)
	if err != nil {
		return nil, err
	}
	running, err := a.find(ctx, c, "quotas", c.region, where("instance-state-name", "pending", "running"))
	if err != nil {
		return nil, err
	}
	var out []providers.Quota
	for code, b := range buckets() {
		q, ok := limits[code]
		if !ok {
			continue
		}
		quota := providers.Quota{Name: aws.ToString(q.QuotaName), Region: c.region, Kind: b.kind, Unit: "vcpu", Limit: aws.ToFloat64(q.Value)}
		for _, p := range places {
			if b.families.MatchString(p.typ) && !slices.Contains(quota.Types, p.typ) {
				quota.Types = append(quota.Types, p.typ)
			}
		}
		if len(quota.Types) == 0 {
			continue // none of it is offered, and no types would mean all
		}
		slices.Sort(quota.Types)
		for _, i := range running {
			spot := i.InstanceLifecycle == types.InstanceLifecycleTypeSpot
			if spot == (b.kind == providers.Spot) && b.families.MatchString(string(i.InstanceType)) && i.CpuOptions != nil {
				quota.Used += float64(aws.ToInt32(i.CpuOptions.CoreCount) * aws.ToInt32(i.CpuOptions.ThreadsPerCore))
			}
		}
		out = append(out, quota)
	}
	return out, nil
}

func (a *Adapter) limits(ctx context.Context, c *clients) (map[string]sqtypes.ServiceQuota, error) {
	out := map[string]sqtypes.ServiceQuota{}
	in := &servicequotas.ListServiceQuotasInput{ServiceCode: aws.String("ec2"), MaxResults: aws.Int32(100)}
	for {
		page, err := call(ctx, a, "quotas", c.region, c.quotas.ListServiceQuotas, in)
		if err != nil {
			return nil, err
		}
		for _, q := range page.Quotas {
			out[aws.ToString(q.QuotaCode)] = q
		}
		if next, err := a.next("quotas", c.region, in.NextToken, page.NextToken); err != nil || next == nil {
			return out, err
		}
		in.NextToken = page.NextToken
	}
}

// Scores returns EC2's spot placement scores of regions for so many machines. It
// needs a permission of its own, and EC2 bounds how many questions an account
// asks in a day.
func (a *Adapter) Scores(ctx context.Context, instanceType string, regions []string, machines int) ([]providers.Score, error) {
	if len(regions) == 0 {
		regions = a.regions
	}
	var out []providers.Score
	in := &ec2.GetSpotPlacementScoresInput{
		InstanceTypes: []string{instanceType}, RegionNames: regions, TargetCapacity: aws.Int32(int32(max(machines, 1))), SingleAvailabilityZone: aws.Bool(false),
		MaxResults: aws.Int32(1000),
	}
	for {
		page, err := call(ctx, a, "scores", instanceType, a.clients[a.regions[0]].ec2.GetSpotPlacementScores, in)
		if err != nil {
			return nil, err
		}
		for _, s := range page.SpotPlacementScores {
			out = append(out, providers.Score{Region: aws.ToString(s.Region), Of10: int(aws.ToInt32(s.Score))})
		}
		if next, err := a.next("scores", instanceType, in.NextToken, page.NextToken); err != nil || next == nil {
			return out, err
		}
		in.NextToken = page.NextToken
	}
}

// Console returns what EC2 has kept of a machine's console: at most 64 KiB.
func (a *Adapter) Console(ctx context.Context, ref providers.Ref) ([]byte, error) {
	if ref.ID == "" || ref.Region == "" {
		found, _, err := a.locate(ctx, "console", ref)
		if err != nil {
			return nil, err
		}
		ref = found.Ref
	}
	c, err := a.in("console", ref.String(), ref.Region)
	if err != nil {
		return nil, err
	}
	// Latest is known to Nitro machines alone; all with GPUs of g4dn and later are.
	out, err := call(ctx, a, "console", ref.String(), c.ec2.GetConsoleOutput, &ec2.GetConsoleOutputInput{InstanceId: aws.String(ref.ID), Latest: aws.Bool(true)})
	if err != nil {
		return nil, err
	}
	text, err := base64.StdEncoding.DecodeString(aws.ToString(out.Output))
	if err != nil {
		return nil, a.strange("console", ref.String(), "the console is not base64: %v", err)
	}
	return text, nil
}
