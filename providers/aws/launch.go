package aws

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"gpubroker/internal/money"
	"gpubroker/providers"
)

// Launch rents the machine of a request id: one call of RunInstances, whose
// client token is the request id.
func (a *Adapter) Launch(ctx context.Context, req providers.LaunchRequest) (providers.Instance, error) {
	got, err := a.run(ctx, clientToken(req.Request), req.UserData, req.Tags.Map(), []providers.LaunchRequest{req})
	if err != nil {
		return providers.Instance{}, err
	}
	return got[0].Instance, got[0].Err
}

// clientToken is a request id as EC2 takes it: at most 64 ASCII characters.
func clientToken(request string) string {
	if len(request) <= 64 && !strings.ContainsFunc(request, func(r rune) bool { return r < '!' || r > '~' }) {
		return request
	}
	sum := sha256.Sum256([]byte(request))
	return hex.EncodeToString(sum[:])
}

// run rents machines for requests of one market in one call. Its error is that of
// all of them.
func (a *Adapter) run(ctx context.Context, token, script string, tags map[string]string, reqs []providers.LaunchRequest) (_ []providers.LaunchAnswer, err error) {
	first := reqs[0]
	target := first.Market.String()
	for i, r := range reqs {
		if !a.asked.begin(r.Request, token, first.Market) {
			for _, begun := range reqs[:i] {
				a.asked.end(begun.Request, &providers.Error{Outcome: providers.NotCreated})
			}
			return nil, a.complete("launch", target, &providers.Error{
				Code: providers.Conflict, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown,
				Message: "request " + r.Request + " was asked for in another market or call before",
			})
		}
	}
	answers := make([]providers.LaunchAnswer, len(reqs))
	defer func() {
		for i, r := range reqs {
			if err != nil {
				a.asked.end(r.Request, err)
			} else {
				a.asked.end(r.Request, answers[i].Err)
			}
		}
	}()
	c, err := a.in("launch", target, first.Market.Region)
	if err != nil {
		return nil, err
	}
	in, err := a.order(ctx, c, token, script, tags, first)
	if err != nil {
		return nil, err
	}
	in.MinCount, in.MaxCount = aws.Int32(1), aws.Int32(int32(len(reqs)))
	out, err := call(ctx, a, "launch", target, c.ec2.RunInstances, in)
	if err != nil {
		if first.Group != "" && providers.OutcomeOf(err) == providers.NotCreated {
			a.ungroup(ctx, c, "launch", groupName(first.Group))
		}
		return nil, err
	}
	for i := range answers {
		answers[i].Err = a.refuse("launch", target, providers.NoCapacity, providers.ScopeOffer, "EC2 made %d of the %d machines asked for", len(out.Instances), len(reqs))
	}
	if len(out.Instances) == 0 || len(out.Instances) > len(reqs) {
		return nil, a.strange("launch", target, "the answer holds %d machines, asked for were %d", len(out.Instances), len(reqs))
	}
	for _, i := range out.Instances {
		at := int(aws.ToInt32(i.AmiLaunchIndex))
		if at < 0 || at >= len(reqs) || aws.ToString(i.InstanceId) == "" {
			return nil, a.strange("launch", target, "the answer is about machine %q, number %d", aws.ToString(i.InstanceId), at)
		}
		if answers[at].Err == nil {
			return nil, a.strange("launch", target, "the answer gives several machines the number %d", at)
		}
		made := a.instance(c.region, i)
		asked(&made, reqs[at].Market)
		if made.Ref.Request == "" { // tags may be stored later than the machine
			made.Tags = reqs[at].Tags
		}
		made.Ref.Request, made.Tags.Request = reqs[at].Request, reqs[at].Request
		answers[at] = providers.LaunchAnswer{Instance: made}
	}
	a.keepEnds(ctx, c, reqs, answers)
	return answers, nil
}

// asked fills in what an answer to a launch leaves unsaid by what was asked for.
func asked(made *providers.Instance, m providers.Market) {
	if made.Market.Zone == "" {
		made.Market.Zone, made.Ref.Zone = m.Zone, m.Zone
	}
	if made.Market.Type == "" {
		made.Market.Type = m.Type
	}
	// Nothing but the word spot says what was bought; EC2 gives what was asked for or
	// refuses.
	made.Market.Kind = m.Kind
	if made.State == providers.StateStrange {
		made.State = providers.Pending
	}
}

// order is the call for a request. What it asks beforehand creates nothing,
// save a placement group, which costs nothing and goes with the last machine.
func (a *Adapter) order(ctx context.Context, c *clients, token, script string, tags map[string]string, req providers.LaunchRequest) (*ec2.RunInstancesInput, error) {
	target, set := req.Market.String(), a.set.place(c.region)
	disk := max(a.set.disk(), req.Disk)
	in := &ec2.RunInstancesInput{
		InstanceType: types.InstanceType(req.Market.Type), ClientToken: aws.String(token),
		// A shutdown from within, by the guest's own timer, ends the bill.
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
		// Version 2 alone, and not from containers' networks.
		MetadataOptions: &types.InstanceMetadataOptionsRequest{
			HttpTokens: types.HttpTokensStateRequired, HttpEndpoint: types.InstanceMetadataEndpointStateEnabled, HttpPutResponseHopLimit: aws.Int32(1),
		},
		Placement: &types.Placement{AvailabilityZone: aws.String(req.Market.Zone)},
		UserData:  aws.String(packed(providers.WithProxy(script, a.set.Network.Proxy))),
	}
	if p := a.set.InstanceProfile; p != "" {
		in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: aws.String(p)}
		if strings.HasPrefix(p, "arn:") {
			in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Arn: aws.String(p)}
		}
	}
	for _, kind := range []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume} {
		in.TagSpecifications = append(in.TagSpecifications, types.TagSpecification{ResourceType: kind, Tags: a.tags(tags)})
	}
	if req.Market.Kind == providers.Spot {
		if err := a.spotOrder(ctx, in, disk, req); err != nil {
			return nil, err
		}
	}
	id, root, err := a.image(ctx, c, target, set.Image, req.Market.Type)
	if err != nil {
		return nil, err
	}
	in.ImageId = aws.String(id)
	in.BlockDeviceMappings = []types.BlockDeviceMapping{{DeviceName: aws.String(root), Ebs: &types.EbsBlockDevice{
		VolumeSize: aws.Int32(int32(gibs(disk))), VolumeType: types.VolumeTypeGp3, DeleteOnTermination: aws.Bool(true),
	}}}
	return in, a.place(ctx, c, in, set, req)
}

// spotOrder asks for spot with the bound: that of the whole machine less its disk
// and address, in the six decimals that EC2's prices have.
func (a *Adapter) spotOrder(ctx context.Context, in *ec2.RunInstancesInput, disk int64, req providers.LaunchRequest) error {
	options := &types.SpotMarketOptions{
		SpotInstanceType: types.SpotInstanceTypeOneTime, InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorTerminate,
	}
	in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot, SpotOptions: options}
	if req.PriceMax == 0 {
		return nil
	}
	s, err := a.sidesOf(ctx, req.Market.Region)
	if err != nil {
		return before(err)
	}
	bound := req.PriceMax - total(a.parts(0, s, disk))
	bound -= bound % 1000
	// EC2 takes no bound of a thousandth or less (RunInstances, SpotOptions.MaxPrice).
	if bound <= money.Rate(money.Unit/1000) {
		return a.refuse("launch", req.Market.String(), providers.PriceTooLow, providers.ScopeOffer, "the bound %s leaves %s for the machine beside its disk and address", req.PriceMax, bound)
	}
	options.MaxPrice = aws.String(bound.String())
	return nil
}

// tags are ours and the settings', in order.
func (a *Adapter) tags(ours map[string]string) []types.Tag {
	all := map[string]string{"Name": "gpubroker"}
	maps.Copy(all, a.set.Tags)
	maps.Copy(all, ours)
	var out []types.Tag
	for _, k := range slices.Sorted(maps.Keys(all)) {
		out = append(out, types.Tag{Key: aws.String(k), Value: aws.String(all[k])})
	}
	return out
}

// packed is a script as EC2 takes it; cloud-init unpacks gzip.
func packed(script string) string {
	data := []byte(script)
	if len(data) > userDataLimit {
		data = zip(script)
	}
	return base64.StdEncoding.EncodeToString(data)
}

// zip gives the same bytes for the same text: the client token needs it.
func zip(s string) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = w.Write([]byte(s))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil { // a buffer takes everything
		return []byte(s)
	}
	return b.Bytes()
}

// place fills in where the machine stands: its subnet, its network cards and its
// placement group.
func (a *Adapter) place(ctx context.Context, c *clients, in *ec2.RunInstancesInput, set Regional, req providers.LaunchRequest) error {
	target := req.Market.String()
	subnet, err := a.subnet(ctx, c, target, set.Subnet, req.Market.Zone)
	if err != nil {
		return err
	}
	fast := int32(0)
	if req.Group != "" {
		cards, cluster, err := a.fastNetwork(ctx, c, target, req.Market.Type)
		if err != nil {
			return err
		}
		if fast = cards; cluster {
			if err := a.group(ctx, c, target, req); err != nil {
				return err
			}
			in.Placement.GroupName = aws.String(groupName(req.Group))
		}
	}
	if subnet == "" && fast == 0 && !a.set.Network.Private {
		in.SecurityGroupIds = set.SecurityGroups
		return nil // the zone's default subnet, which gives public addresses
	}
	card := types.InstanceNetworkInterfaceSpecification{
		DeviceIndex: aws.Int32(0), AssociatePublicIpAddress: aws.Bool(!a.set.Network.Private), Groups: set.SecurityGroups, DeleteOnTermination: aws.Bool(true),
	}
	if subnet != "" {
		card.SubnetId = aws.String(subnet)
	}
	if fast > 0 {
		card.InterfaceType = aws.String("efa")
	}
	in.NetworkInterfaces = []types.InstanceNetworkInterfaceSpecification{card}
	if !a.set.Network.Private {
		return nil // a machine with several cards can have no public address
	}
	for n := int32(1); n < fast; n++ {
		more := card
		more.DeviceIndex, more.NetworkCardIndex, more.AssociatePublicIpAddress = aws.Int32(1), aws.Int32(n), nil
		in.NetworkInterfaces = append(in.NetworkInterfaces, more)
	}
	in.NetworkInterfaces[0].NetworkCardIndex = aws.Int32(0)
	if len(in.NetworkInterfaces) > 1 {
		in.NetworkInterfaces[0].AssociatePublicIpAddress = nil
	}
	return nil
}

// subnet finds that of a zone among those that the settings name; "" is the
// zone's default. With several, the one with the most free addresses.
func (a *Adapter) subnet(ctx context.Context, c *clients, target, names, zone string) (string, error) {
	if names == "" {
		return "", nil
	}
	in := &ec2.DescribeSubnetsInput{Filters: []types.Filter{{Name: aws.String("availability-zone"), Values: []string{zone}}}}
	if tag, ok := strings.CutPrefix(names, "tag:"); ok {
		key, value, _ := strings.Cut(tag, "=")
		in.Filters = append(in.Filters, types.Filter{Name: aws.String("tag:" + key), Values: []string{value}})
	} else {
		ids := strings.FieldsFunc(names, func(r rune) bool { return r == ',' || r == ' ' })
		in.Filters = append(in.Filters, types.Filter{Name: aws.String("subnet-id"), Values: ids})
	}
	out, err := call(ctx, a, "launch", target, c.ec2.DescribeSubnets, in)
	if err != nil {
		return "", before(err)
	}
	if len(out.Subnets) == 0 {
		return "", a.refuse("launch", target, providers.Unsupported, providers.ScopeOffer, "the account has no subnet %q in %s; add one to network.subnet", names, zone)
	}
	best := slices.MaxFunc(out.Subnets, func(x, y types.Subnet) int {
		return int(aws.ToInt32(x.AvailableIpAddressCount)) - int(aws.ToInt32(y.AvailableIpAddressCount))
	})
	return aws.ToString(best.SubnetId), nil
}

// fastNetwork is how many network cards with EFA a type has, and whether its
// machines can stand in a cluster.
func (a *Adapter) fastNetwork(ctx context.Context, c *clients, target, typ string) (cards int32, cluster bool, err error) {
	in := &ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{types.InstanceType(typ)}}
	out, err := call(ctx, a, "launch", target, c.ec2.DescribeInstanceTypes, in)
	if err != nil {
		return 0, false, before(err)
	}
	for _, t := range out.InstanceTypes {
		if n := t.NetworkInfo; n != nil && aws.ToBool(n.EfaSupported) {
			cards = max(aws.ToInt32(n.MaximumNetworkCards), 1)
			if n.EfaInfo != nil && aws.ToInt32(n.EfaInfo.MaximumEfaInterfaces) > 0 {
				cards = aws.ToInt32(n.EfaInfo.MaximumEfaInterfaces)
			}
		}
		if p := t.PlacementGroupInfo; p != nil {
			cluster = slices.Contains(p.SupportedStrategies, types.PlacementGroupStrategyCluster)
		}
	}
	return cards, cluster, nil
}

// groupName is the placement group of machines that stand close together.
func groupName(group string) string { return "gpubroker-" + group }

// group makes the placement group if it is not there.
func (a *Adapter) group(ctx context.Context, c *clients, target string, req providers.LaunchRequest) error {
	ours := req.Tags
	ours.Request = ""
	_, err := call(ctx, a, "launch", target, c.ec2.CreatePlacementGroup, &ec2.CreatePlacementGroupInput{
		GroupName: aws.String(groupName(req.Group)), Strategy: types.PlacementStrategyCluster,
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypePlacementGroup, Tags: a.tags(ours.Map())}},
	})
	if said(err) == "InvalidPlacementGroup.Duplicate" {
		return nil
	}
	if err != nil {
		return before(err)
	}
	return nil
}

// ungroup deletes a placement group without machines. One with machines stays,
// and so does one that cannot be deleted now: groups cost nothing.
func (a *Adapter) ungroup(ctx context.Context, c *clients, op, name string) {
	_, err := call(ctx, a, op, name, c.ec2.DeletePlacementGroup, &ec2.DeletePlacementGroupInput{GroupName: aws.String(name)})
	switch said(err) {
	case "InvalidPlacementGroup.InUse", "InvalidPlacementGroup.Unknown": // others of the gang live, or another was faster
	default:
		if err != nil {
			a.log.WarnContext(ctx, "a placement group was left behind", "provider", a.name, "group", name, "err", err)
		}
	}
}
