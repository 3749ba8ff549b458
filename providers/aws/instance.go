package aws

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"gpubroker/providers"
)

// Tags beside those of [providers.Tags].
const (
	tagEnd   = "gpubroker-end"    // when the schedule ends it, Unix seconds; once there is a schedule
	tagBatch = "gpubroker-batch-" // with a number: the request ids of one call, by launch index
)

// ended reads when a machine's end began from the words of its transition: "User
// initiated (2026-01-02 03:04:05 GMT)".
var ended = regexp.MustCompile(`\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)`)

// instance is an EC2 instance in the contract's words.
func (a *Adapter) instance(region string, i types.Instance) providers.Instance {
	tags := map[string]string{}
	for _, t := range i.Tags {
		tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	zone := ""
	if i.Placement != nil {
		zone = aws.ToString(i.Placement.AvailabilityZone)
	}
	kind := providers.OnDemand
	if i.InstanceLifecycle == types.InstanceLifecycleTypeSpot || aws.ToString(i.SpotInstanceRequestId) != "" {
		kind = providers.Spot
	}
	out := providers.Instance{
		Market:   providers.Market{Provider: a.name, Region: region, Zone: zone, Type: string(i.InstanceType), Kind: kind},
		State:    stateOf(i.State),
		Tags:     providers.TagsOf(tags),
		Launched: aws.ToTime(i.LaunchTime).UTC(),
		Address:  aws.ToString(i.PublicIpAddress),
	}
	if out.Address == "" {
		out.Address = aws.ToString(i.PrivateIpAddress)
	}
	if out.Tags.Request == "" {
		out.Tags.Request = batched(tags, int(aws.ToInt32(i.AmiLaunchIndex)))
	}
	out.Ref = providers.Ref{ID: aws.ToString(i.InstanceId), Request: out.Tags.Request, Region: region, Zone: zone}
	if s, err := strconv.ParseInt(tags[tagEnd], 10, 64); err == nil {
		out.End = time.Unix(s, 0).UTC()
	}
	if out.State == providers.Stopping || out.State == providers.Terminated {
		a.why(&out, i)
	}
	return out
}

func stateOf(s *types.InstanceState) providers.InstanceState {
	if s == nil {
		return providers.StateStrange
	}
	switch s.Name {
	case types.InstanceStateNamePending:
		return providers.Pending
	case types.InstanceStateNameRunning:
		return providers.Running
	case types.InstanceStateNameShuttingDown, types.InstanceStateNameStopping, types.InstanceStateNameStopped:
		return providers.Stopping // a stopped machine pays for its disk
	case types.InstanceStateNameTerminated:
		return providers.Terminated
	default:
		return providers.StateStrange
	}
}

// causes are EC2's reasons (API reference, StateReason). Price and capacity have
// one code in common.
func causes() map[string]providers.Cause {
	return map[string]providers.Cause{
		"Server.SpotInstanceTermination":      providers.CausePreempted,
		"Server.SpotInstanceShutdown":         providers.CausePreempted,
		"Client.UserInitiatedShutdown":        providers.CauseUser,
		"Client.InstanceInitiatedShutdown":    providers.CauseGuest,
		"Client.InstanceTerminated":           providers.CauseUser,
		"Server.InsufficientInstanceCapacity": providers.CauseError,
		"Server.InternalError":                providers.CauseError,
		"Server.ScheduledStop":                providers.CauseError,
		"Client.InternalError":                providers.CauseError,
		"Client.VolumeLimitExceeded":          providers.CauseError,
		"Client.InvalidSnapshot.NotFound":     providers.CauseError,
	}
}

// why fills in when and why a machine ended. A schedule ends it by the same call
// as a person: what came after the schedule's time was the schedule.
func (a *Adapter) why(out *providers.Instance, i types.Instance) {
	if i.StateReason != nil {
		out.Cause = causes()[aws.ToString(i.StateReason.Code)]
		out.Message = a.line(aws.ToString(i.StateReason.Message))
	}
	m := ended.FindStringSubmatch(aws.ToString(i.StateTransitionReason))
	if m == nil {
		return
	}
	at, err := time.Parse(time.DateTime, m[1])
	if err != nil {
		return
	}
	if out.Cause == providers.CauseUser && !out.End.IsZero() && !at.Before(out.End) {
		out.Cause = providers.CauseExpired
	}
	if out.State == providers.Terminated {
		// The words have whole seconds, the launch may have parts of one.
		if at.Before(out.Launched) {
			at = out.Launched
		}
		out.Ended = at
	}
}

// batched is the request id of a machine that was launched with others.
func batched(tags map[string]string, index int) string {
	for n := 0; ; n++ {
		value, ok := tags[tagBatch+strconv.Itoa(n)]
		if !ok {
			return ""
		}
		ids := strings.Fields(value)
		if index < len(ids) {
			return ids[index]
		}
		index -= len(ids)
	}
}

// find reads the machines that fit filters, page by page, in one region.
func (a *Adapter) find(ctx context.Context, c *clients, op, target string, filters ...types.Filter) ([]types.Instance, error) {
	var out []types.Instance
	in := &ec2.DescribeInstancesInput{Filters: filters, MaxResults: aws.Int32(1000)}
	for {
		page, err := call(ctx, a, op, target, c.ec2.DescribeInstances, in)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Reservations {
			out = append(out, r.Instances...)
		}
		if next, err := a.next(op, target, in.NextToken, page.NextToken); err != nil || next == nil {
			return out, err
		}
		in.NextToken = page.NextToken
	}
}

func where(name string, values ...string) types.Filter {
	return types.Filter{Name: aws.String(name), Values: values}
}

// ours is the filter of machines that bear our owner tag.
func (a *Adapter) ours() types.Filter {
	if a.owner == "" {
		return where("tag-key", providers.TagOwner)
	}
	return where("tag:"+providers.TagOwner, a.owner)
}

// owns reports whether a machine bears our owner tag: not every server filters as
// it is asked to.
func (a *Adapter) owns(i providers.Instance) bool { return a.owner == "" || i.Tags.Owner == a.owner }

// List returns the machines with our owner tag in every region.
func (a *Adapter) List(ctx context.Context) ([]providers.Instance, error) {
	var mu sync.Mutex
	out := []providers.Instance{}
	err := a.each(ctx, a.regions, func(ctx context.Context, c *clients) error {
		found, err := a.find(ctx, c, "list", c.region, a.ours())
		mu.Lock()
		defer mu.Unlock()
		for _, i := range found {
			if one := a.instance(c.region, i); one.Ref.Request != "" && a.owns(one) {
				out = append(out, one)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(x, y providers.Instance) int { return strings.Compare(x.Ref.ID, y.Ref.ID) })
	return out, nil
}

// Describe returns a machine as it is now.
func (a *Adapter) Describe(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	i, _, err := a.locate(ctx, "describe", ref)
	return i, err
}

// locate finds a machine by its id, else by its request id: in its region, or in
// every region when that is not known.
func (a *Adapter) locate(ctx context.Context, op string, ref providers.Ref) (providers.Instance, string, error) {
	regions := a.regions
	if ref.Region != "" {
		if _, err := a.in(op, ref.String(), ref.Region); err != nil {
			return providers.Instance{}, "", err
		}
		regions = []string{ref.Region}
	}
	var mu sync.Mutex
	var found []located
	err := a.each(ctx, regions, func(ctx context.Context, c *clients) error {
		here, err := a.look(ctx, c, op, ref)
		mu.Lock()
		defer mu.Unlock()
		found = append(found, here...)
		return err
	})
	if err != nil {
		return providers.Instance{}, "", err
	}
	if len(found) == 0 {
		return providers.Instance{}, "", a.refuse(op, ref.String(), providers.NotFound, providers.ScopeOffer, "EC2 has no such machine in %s", strings.Join(regions, ", "))
	}
	// The one that lives, should there be several.
	best := slices.MaxFunc(found, func(x, y located) int {
		switch {
		case x.Live() == y.Live():
			return x.Launched.Compare(y.Launched)
		case x.Live():
			return 1
		}
		return -1
	})
	return best.Instance, best.group, nil
}

// located is a machine with its placement group.
type located struct {
	providers.Instance
	group string
}

// look finds a machine in one region. One that was launched with others has its
// request id in a list, among which it is looked for last.
func (a *Adapter) look(ctx context.Context, c *clients, op string, ref providers.Ref) ([]located, error) {
	var found []types.Instance
	var err error
	if ref.ID != "" {
		var out *ec2.DescribeInstancesOutput
		out, err = call(ctx, a, op, ref.String(), c.ec2.DescribeInstances, &ec2.DescribeInstancesInput{InstanceIds: []string{ref.ID}})
		if providers.CodeOf(err) == providers.NotFound {
			return nil, nil
		}
		if err == nil {
			for _, r := range out.Reservations {
				found = append(found, r.Instances...)
			}
		}
	} else {
		found, err = a.find(ctx, c, op, ref.String(), a.ours(), where("tag:"+providers.TagRequest, ref.Request))
		if err == nil && len(found) == 0 {
			found, err = a.find(ctx, c, op, ref.String(), a.ours(), where("tag-key", tagBatch+"0"))
		}
	}
	if err != nil {
		return nil, err
	}
	var out []located
	for _, i := range found {
		one := located{Instance: a.instance(c.region, i)}
		if i.Placement != nil {
			one.group = aws.ToString(i.Placement.GroupName)
		}
		if ref.ID != "" && one.Ref.ID == ref.ID || ref.ID == "" && one.Ref.Request == ref.Request && a.owns(one.Instance) {
			out = append(out, one)
		}
	}
	return out, nil
}

// Terminate ends a machine. Once it is certainly gone, what stood beside it goes
// too: its schedule, and its placement group when it was the last of it.
func (a *Adapter) Terminate(ctx context.Context, ref providers.Ref) error {
	if ref.ID == "" || ref.Region == "" {
		found, _, err := a.locate(ctx, "terminate", ref)
		if err != nil {
			return err
		}
		ref = found.Ref
	}
	c, err := a.in("terminate", ref.String(), ref.Region)
	if err != nil {
		return err
	}
	out, err := call(ctx, a, "terminate", ref.String(), c.ec2.TerminateInstances, &ec2.TerminateInstancesInput{InstanceIds: []string{ref.ID}})
	switch {
	case providers.CodeOf(err) == providers.NotFound && a.asked.young(ref.Request, a.Capabilities().ListLag):
		return a.refuse("terminate", ref.String(), providers.Unavailable, providers.ScopeOffer, "EC2 does not know the machine, which was launched a moment ago; ask again")
	case providers.CodeOf(err) == providers.NotFound: // long over, and forgotten
	case err != nil:
		return err
	case len(out.TerminatingInstances) != 1 || aws.ToString(out.TerminatingInstances[0].InstanceId) != ref.ID:
		return a.strange("terminate", ref.String(), "the answer is about %d machines, or another", len(out.TerminatingInstances))
	default:
		a.asked.ending(ref.Request)
		// Only a machine that was over before has an end that is certain.
		was := out.TerminatingInstances[0].PreviousState
		if was == nil {
			was = out.TerminatingInstances[0].CurrentState
		}
		if stateOf(was) != providers.Terminated {
			return nil
		}
	}
	if err := a.tidy(ctx, c, ref); err != nil {
		if providers.Reactions()[providers.CodeOf(err)].Retry || providers.CodeOf(err) == providers.Canceled {
			return err // the next call finds it
		}
		// None of it costs money, and the schedule deletes itself.
		a.log.WarnContext(ctx, "something of a machine that is gone was left behind", "provider", a.name, "machine", ref.String(), "err", err)
	}
	return a.refuse("terminate", ref.String(), providers.NotFound, providers.ScopeOffer, "the machine is terminated")
}

// tidy removes what stood beside a machine that is gone.
func (a *Adapter) tidy(ctx context.Context, c *clients, ref providers.Ref) error {
	if a.set.EndRole != "" {
		if err := a.unschedule(ctx, c, ref); err != nil {
			return err
		}
	}
	_, group, err := a.locate(ctx, "terminate", ref)
	if err != nil || !strings.HasPrefix(group, groupName("")) {
		if providers.CodeOf(err) == providers.NotFound {
			return nil
		}
		return err
	}
	a.ungroup(ctx, c, "terminate", group)
	return nil
}
