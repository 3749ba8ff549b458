package aws

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"gpubroker/providers"
)

// permission is one that the account's user needs, with a call that tells whether
// it is there and changes nothing.
type permission struct {
	name string
	try  func(ctx context.Context) error
}

// nobody is an instance id that is nobody's.
const nobody = "i-00000000000000000"

// Preflight checks the credentials and every permission, by dry runs and by calls
// about things that are not there. Its error names all that are missing.
func (a *Adapter) Preflight(ctx context.Context) error {
	var missing []string
	check := func(region string, list []permission) error {
		for _, p := range list {
			err := p.try(ctx)
			switch code := said(err); {
			case code == "UnauthorizedOperation" || strings.HasPrefix(code, "AccessDenied") || code == "NotAuthorized":
				missing = append(missing, p.name+" in "+region)
			case providers.CodeOf(err) == providers.Unauthorized || err != nil && code == "":
				return err // nobody gets further with such credentials, or without an answer
			case providers.CodeOf(err) == providers.RateLimited || providers.CodeOf(err) == providers.Unavailable:
				return err
			}
		}
		return nil
	}
	for _, region := range a.regions {
		if err := check(region, a.permissions(a.clients[region])); err != nil {
			return err
		}
	}
	if err := check("every region", []permission{{"pricing:GetProducts", func(ctx context.Context) error {
		_, err := call(ctx, a, "preflight", "", a.pricing.GetProducts, &pricing.GetProductsInput{ServiceCode: aws.String("AmazonEC2"), MaxResults: aws.Int32(1)})
		return err
	}}}); err != nil {
		return err
	}
	if len(missing) > 0 {
		return a.refuse("preflight", "", providers.Unauthorized, providers.ScopeProvider,
			"the credentials lack %s; add them to the policy of the user or role (docs/providers.md has the whole of it)", strings.Join(missing, ", "))
	}
	return a.settings(ctx)
}

// permissions are those of a region.
func (a *Adapter) permissions(c *clients) []permission {
	dry := aws.Bool(true)
	out := []permission{
		{"ec2:DescribeInstanceTypes", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.DescribeInstanceTypes, &ec2.DescribeInstanceTypesInput{DryRun: dry})
			return err
		}},
		{"ec2:DescribeInstanceTypeOfferings", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.DescribeInstanceTypeOfferings, &ec2.DescribeInstanceTypeOfferingsInput{DryRun: dry})
			return err
		}},
		{"ec2:DescribeSpotPriceHistory", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.DescribeSpotPriceHistory, &ec2.DescribeSpotPriceHistoryInput{DryRun: dry})
			return err
		}},
		{"ec2:DescribeInstances", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.DescribeInstances, &ec2.DescribeInstancesInput{DryRun: dry})
			return err
		}},
		{"ec2:DescribeImages", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.DescribeImages, &ec2.DescribeImagesInput{DryRun: dry})
			return err
		}},
		{"ec2:TerminateInstances", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.TerminateInstances, &ec2.TerminateInstancesInput{DryRun: dry, InstanceIds: []string{nobody}})
			return err
		}},
		{"ec2:CreateTags", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.CreateTags, &ec2.CreateTagsInput{
				DryRun: dry, Resources: []string{nobody}, Tags: []types.Tag{{Key: aws.String(tagEnd), Value: aws.String("0")}},
			})
			return err
		}},
		{"ec2:GetConsoleOutput", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.GetConsoleOutput, &ec2.GetConsoleOutputInput{DryRun: dry, InstanceId: aws.String(nobody)})
			return err
		}},
		{"ec2:CreatePlacementGroup", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.CreatePlacementGroup, &ec2.CreatePlacementGroupInput{
				DryRun: dry, GroupName: aws.String(groupName("preflight")), Strategy: types.PlacementStrategyCluster,
			})
			return err
		}},
		{"ec2:DeletePlacementGroup", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.DeletePlacementGroup, &ec2.DeletePlacementGroupInput{DryRun: dry, GroupName: aws.String(groupName("preflight"))})
			return err
		}},
		{"servicequotas:ListServiceQuotas", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.quotas.ListServiceQuotas, &servicequotas.ListServiceQuotasInput{ServiceCode: aws.String("ec2"), MaxResults: aws.Int32(1)})
			return err
		}},
		{"ssm:GetParameter", func(ctx context.Context) error {
			_, _, err := a.image(ctx, c, c.region, a.set.place(c.region).Image, string(dryType))
			return a.asPreflight(err)
		}},
		{"ec2:RunInstances", func(ctx context.Context) error { return a.dryLaunch(ctx, c) }},
	}
	if a.set.place(c.region).Subnet != "" {
		out = append(out, permission{"ec2:DescribeSubnets", func(ctx context.Context) error {
			_, err := call(ctx, a, "preflight", c.region, c.ec2.DescribeSubnets, &ec2.DescribeSubnetsInput{DryRun: dry})
			return err
		}})
	}
	if a.set.EndRole != "" {
		ghost := providers.Ref{ID: nobody, Request: "preflight"}
		out = append(out,
			permission{"scheduler:UpdateSchedule and iam:PassRole of end_role", func(ctx context.Context) error {
				return a.schedule(ctx, c, "preflight", ghost, preflightEnd, false)
			}},
			permission{"scheduler:DeleteSchedule", func(ctx context.Context) error { return a.unschedule(ctx, c, ghost) }})
	}
	return out
}

// dryType is the type whose launch is tried: most regions have it.
const dryType = types.InstanceTypeG4dnXlarge

// dryLaunch tries a launch without launching.
func (a *Adapter) dryLaunch(ctx context.Context, c *clients) error {
	id, _, err := a.image(ctx, c, c.region, a.set.place(c.region).Image, string(dryType))
	if err != nil {
		return nil //nolint:nilerr // it is told under its own name
	}
	out, err := call(ctx, a, "preflight", c.region, c.ec2.RunInstances, &ec2.RunInstancesInput{
		DryRun: aws.Bool(true), ImageId: aws.String(id), InstanceType: dryType, MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeInstance, Tags: a.tags(providers.Tags{
			Owner: a.owner, Request: "preflight",
		}.Map())}},
	})
	if err != nil {
		return err
	}
	// AWS answers every dry run with an error. A server that knows no dry runs has
	// rented a machine now.
	for _, i := range out.Instances {
		_, err = call(ctx, a, "preflight", c.region, c.ec2.TerminateInstances, &ec2.TerminateInstancesInput{InstanceIds: []string{aws.ToString(i.InstanceId)}})
	}
	return err
}

// settings checks what the settings name: images and queues.
func (a *Adapter) settings(ctx context.Context) error {
	for _, region := range a.regions {
		c := a.clients[region]
		for _, typ := range slices.Concat([]string{string(dryType)}, a.set.Types[:min(len(a.set.Types), 1)]) {
			if _, _, err := a.image(ctx, c, region, a.set.place(region).Image, typ); err != nil {
				return a.asPreflight(err)
			}
		}
	}
	if a.set.Queue == "" {
		return nil
	}
	queues, err := listening{a}.queues(ctx)
	if err != nil {
		return a.asPreflight(err)
	}
	for _, q := range queues {
		// What is received is seen again at once.
		if _, err := call(ctx, a, "preflight", q.c.region, q.c.sqs.ReceiveMessage, &sqs.ReceiveMessageInput{QueueUrl: aws.String(q.url), MaxNumberOfMessages: 1, VisibilityTimeout: 0}); err != nil {
			return err
		}
	}
	return nil
}

// asPreflight makes the error of a call that launches and streams make too one of
// the preflight.
func (a *Adapter) asPreflight(err error) error {
	if e, ok := errors.AsType[*providers.Error](err); ok {
		e.Op, e.Outcome = "preflight", ""
	}
	return err
}

// preflightEnd is the end of a schedule that is not there.
var preflightEnd = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
