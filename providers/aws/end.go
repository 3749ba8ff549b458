package aws

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/scheduler"
	"github.com/aws/aws-sdk-go-v2/service/scheduler/types"

	"gpubroker/providers"
)

// terminateTarget has EventBridge Scheduler call TerminateInstances
// (EventBridge Scheduler user guide, "Universal targets").
const terminateTarget = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"

var scheduleChars = regexp.MustCompile(`^[0-9a-zA-Z_.-]{1,50}$`)

// scheduleName is the schedule of a request: at most 64 characters of letters,
// digits, dash, dot and underscore.
func scheduleName(request string) string {
	if !scheduleChars.MatchString(request) {
		sum := sha256.Sum256([]byte(request))
		request = hex.EncodeToString(sum[:20])
	}
	return "gpubroker-" + request
}

// keepEnds makes the schedules of new machines and notes their ends, in one call
// for all with the same end. A machine whose schedule could not be made has no
// End: it ends itself at its lease's end, and the next MoveEnd makes the schedule.
func (a *Adapter) keepEnds(ctx context.Context, c *clients, reqs []providers.LaunchRequest, answers []providers.LaunchAnswer) {
	if a.set.EndRole == "" {
		return
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	kept := map[time.Time][]string{}
	for i := range answers {
		made := &answers[i].Instance
		if answers[i].Err != nil || !made.Live() || reqs[i].End.IsZero() {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			end := whole(reqs[i].End)
			made.End = time.Time{}
			err := a.schedule(ctx, c, "launch", made.Ref, end, true)
			if said(err) == "ConflictException" { // this launch has been here before
				err = a.schedule(ctx, c, "launch", made.Ref, end, false)
			}
			if err != nil {
				a.log.WarnContext(ctx, "a machine's end could not be scheduled; it ends itself until the end is moved", "provider", a.name, "machine", made.Ref.ID, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			made.End = end
			kept[end] = append(kept[end], made.Ref.ID)
		})
	}
	wg.Wait()
	for end, ids := range kept {
		if err := a.noteEnd(ctx, c, "launch", ids, end); err != nil {
			a.log.WarnContext(ctx, "an end that is scheduled could not be noted", "provider", a.name, "machines", len(ids), "err", err)
		}
	}
}

// whole is a moment as schedules have them, in whole seconds: the next one, so
// that an end is never before the one asked for. The stop time holds the rest.
func whole(t time.Time) time.Time {
	return t.UTC().Add(time.Second - time.Nanosecond).Truncate(time.Second)
}

// schedule makes a machine's schedule, or changes it.
func (a *Adapter) schedule(ctx context.Context, c *clients, op string, ref providers.Ref, end time.Time, create bool) error {
	input, err := json.Marshal(struct{ InstanceIds []string }{[]string{ref.ID}})
	if err != nil {
		return a.refuse(op, ref.String(), providers.InvalidRequest, providers.ScopeOffer, "%v", err)
	}
	name, at := aws.String(scheduleName(ref.Request)), aws.String("at("+end.Format("2006-01-02T15:04:05")+")")
	exactly := &types.FlexibleTimeWindow{Mode: types.FlexibleTimeWindowModeOff}
	target := &types.Target{
		Arn: aws.String(terminateTarget), RoleArn: aws.String(a.set.EndRole), Input: aws.String(string(input)),
		RetryPolicy: &types.RetryPolicy{MaximumRetryAttempts: aws.Int32(20), MaximumEventAgeInSeconds: aws.Int32(3600)},
	}
	var group *string
	if a.set.ScheduleGroup != "" {
		group = aws.String(a.set.ScheduleGroup)
	}
	if create {
		_, err = call(ctx, a, op, ref.String(), c.scheduler.CreateSchedule, &scheduler.CreateScheduleInput{
			Name: name, GroupName: group, ScheduleExpression: at, ScheduleExpressionTimezone: aws.String("UTC"), FlexibleTimeWindow: exactly,
			Target: target, ActionAfterCompletion: types.ActionAfterCompletionDelete, Description: aws.String("ends a machine of gpubroker"),
			// The SDK would draw one of its own, and a repeat would then pass for new.
			ClientToken: aws.String(scheduleName(ref.Request)[10:] + strconv.FormatInt(end.Unix(), 36)),
		})
		return err
	}
	_, err = call(ctx, a, op, ref.String(), c.scheduler.UpdateSchedule, &scheduler.UpdateScheduleInput{
		Name: name, GroupName: group, ScheduleExpression: at, ScheduleExpressionTimezone: aws.String("UTC"), FlexibleTimeWindow: exactly,
		Target: target, ActionAfterCompletion: types.ActionAfterCompletionDelete, Description: aws.String("ends a machine of gpubroker"),
	})
	return err
}

// noteEnd writes an end to machines' tags, from which lists read it.
func (a *Adapter) noteEnd(ctx context.Context, c *clients, op string, ids []string, end time.Time) error {
	_, err := call(ctx, a, op, ids[0], c.ec2.CreateTags, &ec2.CreateTagsInput{Resources: ids, Tags: []ec2types.Tag{
		{Key: aws.String(tagEnd), Value: aws.String(strconv.FormatInt(end.Unix(), 10))},
	}})
	return err
}

// MoveEnd moves the schedule that ends a machine, and makes one that is missing.
func (r rolling) MoveEnd(ctx context.Context, ref providers.Ref, end time.Time) error {
	a, end := r.Adapter, whole(end)
	if ref.ID == "" || ref.Region == "" {
		found, _, err := a.locate(ctx, "move_end", ref)
		if err != nil {
			return err
		}
		ref = found.Ref
	}
	c, err := a.in("move_end", ref.String(), ref.Region)
	if err != nil {
		return err
	}
	err = a.schedule(ctx, c, "move_end", ref, end, false)
	if said(err) == "ResourceNotFoundException" {
		found, _, lost := a.locate(ctx, "move_end", ref)
		switch {
		case lost != nil:
			return lost
		case !found.Live():
			return a.refuse("move_end", ref.String(), providers.NotFound, providers.ScopeOffer, "the machine is terminated")
		}
		err = a.schedule(ctx, c, "move_end", ref, end, true)
	}
	if err != nil {
		return err
	}
	return a.noteEnd(ctx, c, "move_end", []string{ref.ID}, end)
}

// unschedule deletes a machine's schedule; one that is not there is no error.
func (a *Adapter) unschedule(ctx context.Context, c *clients, ref providers.Ref) error {
	in := &scheduler.DeleteScheduleInput{Name: aws.String(scheduleName(ref.Request))}
	if a.set.ScheduleGroup != "" {
		in.GroupName = aws.String(a.set.ScheduleGroup)
	}
	_, err := call(ctx, a, "terminate", ref.String(), c.scheduler.DeleteSchedule, in)
	if providers.CodeOf(err) == providers.NotFound {
		return nil
	}
	return err
}
