package aws

import (
	"context"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"gpubroker/providers"
)

// event is what EventBridge sends of EC2 (EventBridge events reference, "Amazon
// EC2").
type event struct {
	Kind   string `json:"detail-type"`
	Source string `json:"source"`
	Time   moment `json:"time"`
	Region string `json:"region"`
	Detail struct {
		Instance string `json:"instance-id"`
		Action   string `json:"instance-action"`
	} `json:"detail"`
}

// moment is a time, the zero one where it is in no form that is known: a warning
// counts without it too.
type moment struct{ time.Time }

func (m *moment) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		return nil
	}
	m.Time, _ = time.Parse(time.RFC3339, text)
	return nil
}

// interruption is how long after the warning a spot machine is taken (EC2 user
// guide, "Spot Instance interruption notices").
const interruption = 2 * time.Minute

// notice reads an event; ok is false for one that warns of nothing.
func (e event) notice() (n providers.Notice, ok bool) {
	switch {
	case e.Source != "aws.ec2" || e.Detail.Instance == "":
		return n, false
	case e.Kind == "EC2 Spot Instance Interruption Warning":
		n.Kind = providers.NoticePreempt
		if !e.Time.IsZero() {
			n.At = e.Time.UTC().Add(interruption)
		}
	case e.Kind == "EC2 Instance Rebalance Recommendation":
		n.Kind = providers.NoticeRebalance
	default:
		return n, false
	}
	return n, true
}

// queued is a queue with the client of its region.
type queued struct {
	c   *clients
	url string
}

// Interruptions streams the warnings that EventBridge sends to the queues. The
// channel is closed when ctx ends or a call fails; a warning leaves its queue only
// when it has been taken from the channel, so whoever opens again misses none.
func (l listening) Interruptions(ctx context.Context) (<-chan providers.Notice, error) {
	queues, err := l.queues(ctx)
	if err != nil {
		return nil, err
	}
	out := make(chan providers.Notice)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, q := range queues {
		wg.Go(func() {
			defer cancel() // a broken queue is a broken stream
			l.drain(ctx, q, out)
		})
	}
	go func() {
		wg.Wait()
		cancel()
		close(out)
	}()
	return out, nil
}

// queues are one in each region by its name, or the one of a URL.
func (l listening) queues(ctx context.Context) ([]queued, error) {
	if strings.Contains(l.set.Queue, "://") {
		region := l.regions[0]
		if u, err := url.Parse(l.set.Queue); err == nil {
			for part := range strings.SplitSeq(u.Hostname(), ".") {
				if l.clients[part] != nil {
					region = part
				}
			}
		}
		return []queued{{l.clients[region], l.set.Queue}}, nil
	}
	var mu sync.Mutex
	var out []queued
	err := l.each(ctx, l.regions, func(ctx context.Context, c *clients) error {
		got, err := call(ctx, l.Adapter, "interruptions", c.region, c.sqs.GetQueueUrl, &sqs.GetQueueUrlInput{QueueName: aws.String(l.set.Queue)})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		out = append(out, queued{c, aws.ToString(got.QueueUrl)})
		return nil
	})
	return out, err
}

// drain passes a queue's warnings on until ctx ends or a call fails.
func (l listening) drain(ctx context.Context, q queued, out chan<- providers.Notice) {
	for ctx.Err() == nil {
		got, err := call(ctx, l.Adapter, "interruptions", q.c.region, q.c.sqs.ReceiveMessage, &sqs.ReceiveMessageInput{
			QueueUrl: aws.String(q.url), MaxNumberOfMessages: 10, WaitTimeSeconds: 20, VisibilityTimeout: 20,
		})
		if err == nil && len(got.Messages) > 0 {
			err = l.pass(ctx, q, got.Messages, out)
		}
		if err != nil {
			if ctx.Err() == nil {
				l.log.WarnContext(ctx, "the stream of interruptions ended", "provider", l.name, "region", q.c.region, "err", err)
			}
			return
		}
	}
}

// pass hands over what messages warn of, for machines of ours, and deletes the
// messages.
func (l listening) pass(ctx context.Context, q queued, messages []sqstypes.Message, out chan<- providers.Notice) error {
	byRegion := map[string][]string{}
	notices := map[string][]providers.Notice{}
	young := map[string]string{} // receipt handles by machine: one that is new may not be found yet
	for _, m := range messages {
		var e event
		if err := json.Unmarshal([]byte(aws.ToString(m.Body)), &e); err != nil {
			l.log.WarnContext(ctx, "a message in the queue is no event of EventBridge", "provider", l.name, "message", aws.ToString(m.MessageId), "err", err)
			continue
		}
		if e.Region == "" {
			e.Region = q.c.region
		}
		n, ok := e.notice()
		if !ok || l.clients[e.Region] == nil {
			continue
		}
		byRegion[e.Region] = append(byRegion[e.Region], e.Detail.Instance)
		notices[e.Detail.Instance] = append(notices[e.Detail.Instance], n)
		if time.Since(e.Time.Time) < l.Capabilities().ListLag {
			young[e.Detail.Instance] = aws.ToString(m.ReceiptHandle)
		}
	}
	for region, ids := range byRegion {
		slices.Sort(ids)
		found, err := l.find(ctx, l.clients[region], "interruptions", region, l.ours(), where("instance-id", slices.Compact(ids)...))
		if err != nil {
			return err
		}
		for _, i := range found {
			one := l.instance(region, i)
			delete(young, one.Ref.ID)
			if one.Ref.Request == "" {
				continue
			}
			for _, n := range notices[one.Ref.ID] {
				n.Ref = one.Ref
				select {
				case out <- n:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		}
	}
	in := &sqs.DeleteMessageBatchInput{QueueUrl: aws.String(q.url)}
	left := slices.Collect(maps.Values(young))
	for n, m := range messages {
		if slices.Contains(left, aws.ToString(m.ReceiptHandle)) {
			continue // it is received again
		}
		in.Entries = append(in.Entries, sqstypes.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(n)), ReceiptHandle: m.ReceiptHandle})
	}
	if len(in.Entries) == 0 {
		return nil
	}
	// One that stays is received again, and passed on again.
	_, err := call(ctx, l.Adapter, "interruptions", q.c.region, q.c.sqs.DeleteMessageBatch, in)
	return err
}
