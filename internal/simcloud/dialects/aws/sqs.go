package aws

import (
	"crypto/md5" //nolint:gosec // SQS gives each body's MD5, and clients check it
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// queue holds what EventBridge has sent it and nobody has deleted.
type queue struct {
	after    int64 // the last notice of the world that was taken over
	received int
	messages []*message
}

type message struct {
	id, body, handle string
	visible          time.Time // hidden until then
}

// visibility is how long a received message is hidden by default.
const visibility = 30 * time.Second

// sqsIn are the parameters of the calls of SQS.
type sqsIn struct {
	QueueName, ReceiptHandle string
	QueueURL                 string `json:"QueueUrl"`
	MaxNumberOfMessages      int
	WaitTimeSeconds          int
	VisibilityTimeout        *int
	Entries                  []sqsEntry
}

// sqsEntry is one of a batch.
type sqsEntry struct {
	ID            string `json:"Id"`
	ReceiptHandle string
}

// sqs makes a call in either protocol: nodes are the answer of the old one.
func (q *request) sqs(op string, effect func(in sqsIn) (any, []node, error)) {
	var in sqsIn
	if q.query {
		in = q.sqsForm()
		q.serve(simcloud.Call{Op: op}, func(time.Duration, bool) ([]node, error) {
			_, nodes, err := effect(in)
			return nodes, err
		})
		return
	}
	q.serveJSON(&in, simcloud.Call{Op: op}, func(time.Duration) (any, error) {
		v, _, err := effect(in)
		return v, err
	})
}

func (q *request) sqsForm() sqsIn {
	number := func(name string) int {
		n, err := strconv.Atoi(q.form.Get(name))
		if err != nil {
			return 0
		}
		return n
	}
	in := sqsIn{
		QueueName: q.form.Get("QueueName"), QueueURL: q.form.Get("QueueUrl"), ReceiptHandle: q.form.Get("ReceiptHandle"),
		MaxNumberOfMessages: number("MaxNumberOfMessages"), WaitTimeSeconds: number("WaitTimeSeconds"),
	}
	if s := q.form.Get("VisibilityTimeout"); s != "" {
		in.VisibilityTimeout = new(number("VisibilityTimeout"))
	}
	for n := 1; ; n++ {
		key := fmt.Sprintf("DeleteMessageBatchRequestEntry.%d.", n)
		if q.form.Get(key+"Id") == "" {
			return in
		}
		in.Entries = append(in.Entries, sqsEntry{q.form.Get(key + "Id"), q.form.Get(key + "ReceiptHandle")})
	}
}

func (q *request) getQueueURL() {
	q.sqs("about", func(in sqsIn) (any, []node, error) {
		if in.QueueName == "" || strings.HasPrefix(in.QueueName, "no-") {
			return nil, nil, q.noQueue()
		}
		scheme := "http://"
		if q.r.TLS != nil {
			scheme = "https://"
		}
		url := scheme + q.r.Host + "/" + account + "/" + in.QueueName
		return map[string]string{"QueueUrl": url}, []node{tx("QueueUrl", url)}, nil
	})
}

func (q *request) noQueue() error {
	if q.query {
		return errorf(http.StatusBadRequest, "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist for this wsdl version.")
	}
	return errorf(http.StatusBadRequest, "com.amazonaws.sqs#QueueDoesNotExist", "The specified queue does not exist.")
}

func (q *request) getQueueAttributes() {
	q.sqs("about", func(in sqsIn) (any, []node, error) {
		arn := "arn:aws:sqs:" + q.region + ":" + account + ":" + path.Base(in.QueueURL)
		return map[string]any{"Attributes": map[string]string{"QueueArn": arn}}, []node{el("Attribute", tx("Name", "QueueArn"), tx("Value", arn))}, nil
	})
}

func (q *request) queue(in sqsIn) *queue {
	key := name{q.region, path.Base(in.QueueURL)}
	if q.queues[key] == nil {
		q.queues[key] = &queue{}
	}
	return q.queues[key]
}

func (q *request) receiveMessage() {
	q.sqs("events", func(in sqsIn) (any, []node, error) {
		deadline := q.w.Now().Add(time.Duration(in.WaitTimeSeconds) * time.Second)
		hide := visibility
		if in.VisibilityTimeout != nil {
			hide = time.Duration(*in.VisibilityTimeout) * time.Second
		}
		for {
			after, got, next := q.take(in, min(max(in.MaxNumberOfMessages, 1), 10), hide)
			now := q.w.Now()
			if len(got) > 0 || !now.Before(deadline) {
				return messages(got)
			}
			wait := deadline.Sub(now)
			if !next.IsZero() {
				wait = min(wait, next.Sub(now))
			}
			if _, err := q.w.Notices(q.r.Context(), after, max(wait, time.Millisecond)); err != nil {
				return nil, nil, err
			}
		}
	})
}

// take takes over the world's new notices and receives what is visible. next is
// when a hidden message is seen again.
func (q *request) take(in sqsIn, most int, hide time.Duration) (after int64, got []message, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.queue(in)
	news, err := q.w.Notices(q.r.Context(), u.after, 0)
	if err == nil {
		u.after = news.Next
		for _, n := range news.Notices {
			if n.Region == q.region {
				u.messages = append(u.messages, &message{id: fmt.Sprintf("message-%d", n.Seq), body: q.event(n)})
			}
		}
	}
	now := q.w.Now()
	for _, m := range u.messages {
		switch {
		case m.visible.After(now):
			if next.IsZero() || m.visible.Before(next) {
				next = m.visible
			}
		case len(got) < most:
			u.received++
			m.visible, m.handle = now.Add(hide), fmt.Sprintf("handle-%d", u.received)
			got = append(got, *m)
		}
	}
	return u.after, got, next
}

// event is a notice as EventBridge writes it.
func (q *request) event(n simapi.Notice) string {
	id := InstanceID(n.Machine)
	kind, detail := "EC2 Instance Rebalance Recommendation", map[string]string{"instance-id": id}
	if n.Kind == providers.NoticePreempt {
		kind = "EC2 Spot Instance Interruption Warning"
		detail["instance-action"] = "terminate"
	}
	return string(encode(map[string]any{
		"version": "0", "id": fmt.Sprintf("1e5527d7-bb36-4607-3370-%012x", n.Seq), "detail-type": kind, "source": "aws.ec2", "account": account,
		"time": q.w.Now().UTC().Format("2006-01-02T15:04:05Z"), "region": n.Region,
		"resources": []string{"arn:aws:ec2:" + n.Zone + ":instance/" + id}, "detail": detail,
	}))
}

func messages(got []message) (any, []node, error) {
	type wire struct {
		ID                             string `json:"MessageId"`
		ReceiptHandle, MD5OfBody, Body string
	}
	var list []wire
	var nodes []node
	for _, m := range got {
		sum := md5.Sum([]byte(m.body))
		digest := hex.EncodeToString(sum[:])
		list = append(list, wire{m.id, m.handle, digest, m.body})
		nodes = append(nodes, el("Message", tx("MessageId", m.id), tx("ReceiptHandle", m.handle), tx("MD5OfBody", digest), tx("Body", m.body)))
	}
	if len(list) == 0 {
		return json.RawMessage("{}"), nodes, nil
	}
	return map[string]any{"Messages": list}, nodes, nil
}

func (q *request) remove(in sqsIn, handle string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.queue(in)
	for i, m := range u.messages {
		if m.handle == handle {
			u.messages = append(u.messages[:i:i], u.messages[i+1:]...)
			return
		}
	}
}

func (q *request) deleteMessage() {
	q.sqs("about", func(in sqsIn) (any, []node, error) {
		q.remove(in, in.ReceiptHandle)
		return struct{}{}, nil, nil
	})
}

func (q *request) deleteMessageBatch() {
	q.sqs("about", func(in sqsIn) (any, []node, error) {
		type entry struct {
			ID string `json:"Id"`
		}
		done := []entry{}
		var nodes []node
		for _, e := range in.Entries {
			q.remove(in, e.ReceiptHandle)
			done = append(done, entry{e.ID})
			nodes = append(nodes, el("DeleteMessageBatchResultEntry", tx("Id", e.ID)))
		}
		return map[string]any{"Successful": done, "Failed": []entry{}}, nodes, nil
	})
}
