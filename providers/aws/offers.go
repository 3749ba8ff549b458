package aws

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Offers returns the GPU types, and those of the settings, in every zone that has
// them: on demand at the list price, on spot at the zone's.
func (a *Adapter) Offers(ctx context.Context, scope providers.Scope) ([]providers.Offer, error) {
	regions := a.regions
	if scope.Region != "" {
		if a.clients[scope.Region] == nil {
			return nil, nil
		}
		regions = []string{scope.Region}
	}
	var mu sync.Mutex
	var out []providers.Offer
	err := a.each(ctx, regions, func(ctx context.Context, c *clients) error {
		offers, err := a.regionOffers(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		out = append(out, offers...)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(x, y providers.Offer) int { return x.Compare(y.Market) })
	return out, nil
}

func (a *Adapter) regionOffers(ctx context.Context, c *clients) ([]providers.Offer, error) {
	shapes, usages, err := a.shapes(ctx, c)
	if err != nil {
		return nil, err
	}
	places, err := a.offerings(ctx, c)
	if err != nil {
		return nil, err
	}
	list, err := a.listPrices(ctx, c.region)
	if err != nil {
		return nil, err
	}
	beside, err := a.sidePrices(ctx, "offers", c.region)
	if err != nil {
		return nil, err
	}
	spot, err := a.spotPrices(ctx, c, shapes)
	if err != nil {
		return nil, err
	}
	seen := time.Now().UTC()
	var out []providers.Offer
	unpriced := map[string]bool{}
	for _, p := range places {
		shape, ok := shapes[p.typ]
		if !ok {
			continue
		}
		shape.Disk = a.set.disk()
		for _, kind := range usages[p.typ] {
			compute, source := list[p.typ], "AWS Price List"
			if kind == providers.Spot {
				compute, source = spot[p], "EC2 spot price history"
			}
			if compute == 0 { // nothing is sold there at this time
				if kind == providers.OnDemand {
					unpriced[p.typ] = true
				}
				continue
			}
			parts := a.parts(compute, beside, shape.Disk)
			out = append(out, providers.Offer{
				Market: providers.Market{Provider: a.name, Region: c.region, Zone: p.zone, Type: p.typ, Kind: kind},
				Shape:  shape, Price: total(parts), Parts: parts, Currency: money.USD, Seen: seen, Source: source + beside.how,
			})
		}
	}
	var lines []string
	if len(unpriced) > 0 {
		lines = []string{c.region + ": instance types without an on-demand price: " + strings.Join(slices.Sorted(maps.Keys(unpriced)), ", ")}
	}
	if a.Note(c.region, lines...) && len(unpriced) > 0 {
		a.log.InfoContext(ctx, "instance types without an on-demand price are left out", "provider", a.name, "region", c.region, "count", len(unpriced))
	}
	return out, nil
}

// spot is a type in a zone.
type spot struct{ zone, typ string }

// offered is the filter on instance types: all GPUs stand in the families g…
// and p… (EC2 instance types guide, "Accelerated computing").
func (a *Adapter) offered() []types.Filter {
	return []types.Filter{{Name: aws.String("instance-type"), Values: append([]string{"g*", "p*"}, a.set.Types...)}}
}

// shapes are what the region's types are, and how each is bought.
func (a *Adapter) shapes(ctx context.Context, c *clients) (map[string]providers.Shape, map[string][]providers.Kind, error) {
	shapes, usages := map[string]providers.Shape{}, map[string][]providers.Kind{}
	in := &ec2.DescribeInstanceTypesInput{Filters: a.offered(), MaxResults: aws.Int32(100)}
	for {
		page, err := call(ctx, a, "offers", c.region, c.ec2.DescribeInstanceTypes, in)
		if err != nil {
			return nil, nil, err
		}
		for _, t := range page.InstanceTypes {
			name := string(t.InstanceType)
			if t.GpuInfo == nil && !slices.Contains(a.set.Types, name) {
				continue
			}
			shapes[name] = shapeOf(t)
			usages[name] = kinds(t.SupportedUsageClasses)
		}
		if next, err := a.next("offers", c.region, in.NextToken, page.NextToken); err != nil || next == nil {
			return shapes, usages, err
		}
		in.NextToken = page.NextToken
	}
}

// next is the token of the following page; nil after the last. Some lists end
// with an empty token instead of none.
func (a *Adapter) next(op, target string, last, token *string) (*string, error) {
	switch {
	case aws.ToString(token) == "":
		return nil, nil
	case aws.ToString(token) == aws.ToString(last):
		return nil, a.strange(op, target, "page %q names itself as the next", *token)
	}
	return token, nil
}

// kinds are how a type is bought. Where nobody says, its prices do.
func kinds(classes []types.UsageClassType) []providers.Kind {
	if len(classes) == 0 {
		return []providers.Kind{providers.OnDemand, providers.Spot}
	}
	var out []providers.Kind
	if slices.Contains(classes, types.UsageClassTypeOnDemand) {
		out = append(out, providers.OnDemand)
	}
	if slices.Contains(classes, types.UsageClassTypeSpot) {
		out = append(out, providers.Spot)
	}
	return out
}

// shapeOf reads an instance type. A share of a GPU has the count 0 and says its
// size elsewhere.
func shapeOf(t types.InstanceTypeInfo) providers.Shape {
	s := providers.Shape{Arch: "amd64"}
	if t.VCpuInfo != nil {
		s.VCPU = float64(aws.ToInt32(t.VCpuInfo.DefaultVCpus))
	}
	if t.MemoryInfo != nil {
		s.Memory = aws.ToInt64(t.MemoryInfo.SizeInMiB) << 20
	}
	if t.ProcessorInfo != nil && slices.Contains(t.ProcessorInfo.SupportedArchitectures, types.ArchitectureTypeArm64) {
		s.Arch = "arm64"
	}
	if t.NetworkInfo != nil {
		for _, card := range t.NetworkInfo.NetworkCards {
			s.NetworkBps += int64(aws.ToFloat64(card.BaselineBandwidthInGbps) * 1e9)
		}
	}
	if t.GpuInfo == nil {
		return s
	}
	var names []string
	memory := int32(0)
	for _, g := range t.GpuInfo.Gpus {
		n := float64(aws.ToInt32(g.Count))
		if n == 0 {
			n = float64(aws.ToInt32(g.LogicalGpuCount)) * aws.ToFloat64(g.GpuPartitionSize)
		}
		s.GPUs += n
		if name := aws.ToString(g.Name); !slices.Contains(names, name) {
			names = append(names, name)
		}
		if g.MemoryInfo != nil {
			memory = aws.ToInt32(g.MemoryInfo.SizeInMiB)
			s.GPUMemory = int64(memory) << 20
		}
	}
	s.GPUName = strings.Join(names, ", ")
	if len(names) == 1 {
		// What no table knows stays visible under its own name.
		if id, err := gpu.Builtin().Identify("aws", string(t.InstanceType), names[0], int(memory)); err == nil {
			s.GPU = id
		}
	}
	return s
}

// offerings are the zones that have each type. Local Zones and Wavelength are
// left out: their prices stand elsewhere.
func (a *Adapter) offerings(ctx context.Context, c *clients) ([]spot, error) {
	var out []spot
	in := &ec2.DescribeInstanceTypeOfferingsInput{LocationType: types.LocationTypeAvailabilityZone, Filters: a.offered(), MaxResults: aws.Int32(1000)}
	for {
		page, err := call(ctx, a, "offers", c.region, c.ec2.DescribeInstanceTypeOfferings, in)
		if err != nil {
			return nil, err
		}
		for _, o := range page.InstanceTypeOfferings {
			if zone := aws.ToString(o.Location); len(zone) == len(c.region)+1 && strings.HasPrefix(zone, c.region) {
				out = append(out, spot{zone, string(o.InstanceType)})
			}
		}
		if next, err := a.next("offers", c.region, in.NextToken, page.NextToken); err != nil || next == nil {
			return out, err
		}
		in.NextToken = page.NextToken
	}
}

// historyLook is how far back the spot price history is read; the answer begins
// with the prices of that moment.
const historyLook = time.Hour

// spotPrices are the newest price of each type in each zone.
func (a *Adapter) spotPrices(ctx context.Context, c *clients, shapes map[string]providers.Shape) (map[spot]money.Rate, error) {
	out, when := map[spot]money.Rate{}, map[spot]time.Time{}
	in := &ec2.DescribeSpotPriceHistoryInput{
		StartTime: aws.Time(time.Now().Add(-historyLook)), ProductDescriptions: []string{"Linux/UNIX"}, MaxResults: aws.Int32(1000),
	}
	for t := range shapes {
		in.InstanceTypes = append(in.InstanceTypes, types.InstanceType(t))
	}
	if len(in.InstanceTypes) == 0 {
		return out, nil
	}
	slices.Sort(in.InstanceTypes)
	for {
		page, err := call(ctx, a, "offers", c.region, c.ec2.DescribeSpotPriceHistory, in)
		if err != nil {
			return nil, err
		}
		for _, p := range page.SpotPriceHistory {
			key, at := spot{aws.ToString(p.AvailabilityZone), string(p.InstanceType)}, aws.ToTime(p.Timestamp)
			// What was asked for need not be repeated; a price that is missing is none.
			if p.ProductDescription != types.RIProductDescriptionLinuxUnix && p.ProductDescription != "" || at.Before(when[key]) || p.SpotPrice == nil {
				continue
			}
			price, err := money.RateOf(aws.ToString(p.SpotPrice))
			if err != nil {
				return nil, a.strange("offers", c.region, "spot price of %s in %s: %v", key.typ, key.zone, err)
			}
			out[key], when[key] = price, at
		}
		if next, err := a.next("offers", c.region, in.NextToken, page.NextToken); err != nil || next == nil {
			return out, err
		}
		in.NextToken = page.NextToken
	}
}
