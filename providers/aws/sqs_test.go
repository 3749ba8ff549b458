package aws_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"gpubroker/internal/simcloud"
	cloud "gpubroker/internal/simcloud/dialects/aws"
	"gpubroker/providers"
)

// TestOtherQueue takes warnings from an SQS server that is not ours.
func TestOtherQueue(t *testing.T) {
	modules, err := filepath.Abs(filepath.Join("..", "..", ".cache", "tools", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	node, err := exec.LookPath("node")
	if _, missing := os.Stat(filepath.Join(modules, "local-aws-sqs")); err != nil || missing != nil {
		t.Skip("an SQS server is not there: apt-get install nodejs npm; npm install --prefix .cache/tools local-aws-sqs@2.0.2")
	}
	cmd := exec.CommandContext(t.Context(), node, "-e", `
		const net = require("net").createServer().listen(0, "127.0.0.1", () => {
			const port = net.address().port;
			net.close(() => require("local-aws-sqs").createSqsServer({port, hostname: "127.0.0.1", emulateQueueCreationLifecycle: false, queues: [{QueueName: "gpubroker"}]})
				.then(() => console.log("http://127.0.0.1:" + port)));
		});`)
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the SQS server does not start")
	}
	cfg, set := cloud.Default(1), settings()
	cfg.ListLag, cfg.Boot, cfg.BootSpan = 0, 0, 0
	w := world(t, cfg, cloud.Dialect())
	api := httptest.NewServer(simcloud.Dialected(w))
	t.Cleanup(api.Close)
	set.Regions, set.Endpoint, set.Endpoints = []string{"us-east-1"}, api.URL, map[string]string{"sqs": lines.Text()}
	a := open(t, set, api.Client())
	made, err := a.Launch(t.Context(), request("r1", t4, 0))
	if err != nil {
		t.Fatal(err)
	}
	queue := sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: sdk.String(lines.Text()), Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
	})
	url, err := queue.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: sdk.String("gpubroker")})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Second)
	// This server answers at once only when as many are there as are asked for.
	bodies := slices.Repeat([]string{"no event at all"}, 8)
	bodies = append(bodies,
		fmt.Sprintf(`{"version":"0","detail-type":"EC2 Instance State-change Notification","source":"aws.ec2","time":%q,"region":"us-east-1","detail":{"instance-id":%q,"state":"running"}}`, now.Format(time.RFC3339), made.Ref.ID),
		fmt.Sprintf(`{"version":"0","detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","time":%q,"region":"us-east-1","detail":{"instance-id":%q,"instance-action":"terminate"}}`, now.Format(time.RFC3339), made.Ref.ID))
	for _, body := range bodies {
		if _, err := queue.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: url.QueueUrl, MessageBody: sdk.String(body)}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := a.(providers.Interrupter).Interruptions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-stream:
		if n.Kind != providers.NoticePreempt || n.Ref != made.Ref || !n.At.Equal(now.Add(2*time.Minute)) {
			t.Errorf("%+v", n)
		}
	case <-time.After(15 * time.Second):
		t.Fatal("no warning came")
	}
	for range 100 {
		got, err := queue.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: url.QueueUrl, AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameAll}})
		if err != nil {
			t.Fatal(err)
		}
		if got.Attributes["ApproximateNumberOfMessages"] == "0" && got.Attributes["ApproximateNumberOfMessagesNotVisible"] == "0" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("messages are left in the queue")
}
