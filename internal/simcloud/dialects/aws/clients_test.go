package aws_test

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/simcloud"
	"gpubroker/internal/simcloud/dialects/aws"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

const key = "AKIAIOSFODNN7EXAMPLE"

func world(t *testing.T, edit func(*simcloud.Config)) *simcloud.World {
	t.Helper()
	cfg := aws.Default(1)
	cfg.Tokens.API, cfg.Dialect = key, aws.Dialect()
	if edit != nil {
		edit(&cfg)
	}
	w, err := simcloud.New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// client is somebody else's program that speaks to AWS, set to speak to a world.
type client struct {
	t    *testing.T
	path string
	args []string
	url  string
}

func newClient(t *testing.T, w *simcloud.World, path string, args ...string) client {
	t.Helper()
	server := httptest.NewServer(simcloud.Dialected(w))
	t.Cleanup(server.Close)
	return client{t, path, args, server.URL}
}

func (c client) run(args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(c.t.Context(), c.path, append(c.args, args...)...)
	home := c.t.TempDir()
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "AWS_ACCESS_KEY_ID=" + key, "AWS_SECRET_ACCESS_KEY=secret", "AWS_DEFAULT_REGION=us-east-1",
		"AWS_MAX_ATTEMPTS=1", "AWS_PAGER=", "AWS_EC2_METADATA_DISABLED=true", "ENDPOINT=" + c.url,
	}
	var out, fail bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &fail
	err = cmd.Run()
	return out.String(), fail.String(), err
}

// awsCLI is Debian's: what else is called aws may be another.
func awsCLI(t *testing.T) string {
	t.Helper()
	path := "/usr/bin/aws"
	if _, err := os.Stat(path); err != nil {
		t.Skip("the AWS command line of Debian is not there: apt-get install awscli")
	}
	return path
}

// TestCommandLine drives the fake with the AWS command line.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	path := awsCLI(t)
	w := world(t, func(c *simcloud.Config) { c.PageSize, c.ListLag, c.Boot = 3, 0, 0 })
	cli := newClient(t, w, path)
	call := func(into any, args ...string) {
		t.Helper()
		stdout, stderr, err := cli.run(append([]string{"--endpoint-url", cli.url, "--output", "json"}, args...)...)
		if err != nil {
			t.Fatalf("aws %s: %v: %s", strings.Join(args, " "), err, stderr)
		}
		if into != nil {
			if err := json.Unmarshal([]byte(stdout), into); err != nil {
				t.Fatalf("aws %s: %v: %s", strings.Join(args, " "), err, stdout)
			}
		}
	}
	refused := func(code string, args ...string) {
		t.Helper()
		_, stderr, err := cli.run(append([]string{"--endpoint-url", cli.url}, args...)...)
		if err == nil || !strings.Contains(stderr, "("+code+")") {
			t.Errorf("aws %s: %v, %s; want %s", strings.Join(args, " "), err, stderr, code)
		}
	}

	var types struct {
		InstanceTypes []struct {
			InstanceType string
			GpuInfo      struct{ Gpus []struct{ Count int } }
		}
	}
	call(&types, "ec2", "describe-instance-types", "--filters", "Name=instance-type,Values=g*,p*")
	if len(types.InstanceTypes) != 7 {
		t.Errorf("%d types with GPUs over several pages, want 7", len(types.InstanceTypes))
	}
	var history struct {
		SpotPriceHistory []struct{ SpotPrice, InstanceType, AvailabilityZone string }
	}
	call(&history, "ec2", "describe-spot-price-history", "--instance-types", "g4dn.xlarge", "p5.48xlarge", "--product-descriptions", "Linux/UNIX")
	if len(history.SpotPriceHistory) != 6 {
		t.Errorf("%d prices over several pages, want 2 types in 3 zones", len(history.SpotPriceHistory))
	}
	var products struct{ PriceList []string }
	call(&products, "pricing", "get-products", "--service-code", "AmazonEC2", "--region", "us-east-1", "--filters",
		"Type=TERM_MATCH,Field=regionCode,Value=us-west-2", "Type=TERM_MATCH,Field=instanceType,Value=p5.48xlarge")
	if len(products.PriceList) != 7 {
		t.Errorf("%d products of a type, want 7", len(products.PriceList))
	}
	var made struct {
		Instances []struct {
			ID                             string `json:"InstanceId"`
			InstanceLifecycle, ClientToken string
			State                          struct{ Name string }
			Tags                           []struct{ Key, Value string }
		}
	}
	order := []string{
		"ec2", "run-instances", "--image-id", aws.OwnImage("us-east-1"), "--instance-type", "g4dn.xlarge", "--client-token", "token-1",
		"--placement", "AvailabilityZone=us-east-1a", "--user-data", "#!/bin/sh",
		"--instance-market-options", "MarketType=spot,SpotOptions={MaxPrice=0.5}", "--tag-specifications", "ResourceType=instance,Tags=[{Key=who,Value=me}]",
	}
	call(&made, order...)
	first := made.Instances[0]
	if first.InstanceLifecycle != "spot" || first.ClientToken != "token-1" || len(first.Tags) != 1 || first.Tags[0].Value != "me" {
		t.Errorf("%+v", first)
	}
	call(&made, order...)
	if made.Instances[0].ID != first.ID {
		t.Error("the same client token made two machines")
	}
	refused("IdempotentParameterMismatch", append(order, "--ebs-optimized")...)
	var seen struct {
		Reservations []struct {
			Instances []struct {
				ID          string `json:"InstanceId"`
				StateReason struct{ Code string }
				State       struct{ Name string }
			}
		}
	}
	call(&seen, "ec2", "describe-instances", "--filters", "Name=tag:who,Values=m?", "Name=instance-state-name,Values=pending,running")
	if len(seen.Reservations) != 1 || seen.Reservations[0].Instances[0].ID != first.ID {
		t.Errorf("%+v", seen)
	}
	if _, err := w.Do(simapi.Action{Preempt: &simapi.Preempt{}}); err != nil {
		t.Fatal(err)
	}
	var queue struct {
		URL string `json:"QueueUrl"`
	}
	call(&queue, "sqs", "get-queue-url", "--queue-name", "mine")
	var got struct {
		Messages []struct{ Body, ReceiptHandle string }
	}
	call(&got, "sqs", "receive-message", "--queue-url", queue.URL)
	if len(got.Messages) != 1 || !strings.Contains(got.Messages[0].Body, `"detail-type":"EC2 Spot Instance Interruption Warning"`) {
		t.Fatalf("%+v", got)
	}
	call(nil, "sqs", "delete-message", "--queue-url", queue.URL, "--receipt-handle", got.Messages[0].ReceiptHandle)
	call(nil, "ec2", "terminate-instances", "--instance-ids", first.ID)
	time.Sleep(600 * time.Millisecond)
	call(&seen, "ec2", "describe-instances", "--instance-ids", first.ID)
	if i := seen.Reservations[0].Instances[0]; i.State.Name != "terminated" || i.StateReason.Code != "Client.UserInitiatedShutdown" {
		t.Errorf("%+v", i)
	}
}

// TestBoto drives the fake with boto3 through a script of ours.
func TestBoto(t *testing.T) {
	t.Parallel()
	python := "/usr/bin/python3"
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import boto3").CombinedOutput(); err != nil {
		t.Skipf("boto3 of Debian is not there: apt-get install python3-boto3 (%v %s)", err, out)
	}
	w := world(t, func(c *simcloud.Config) { c.PageSize, c.ListLag, c.Boot = 2, 0, 0 })
	script := filepath.Join("testdata", "boto.py")
	if _, err := os.ReadFile(script); err != nil { // so that go test sees it change
		t.Fatal(err)
	}
	c := newClient(t, w, python, script)
	stdout, stderr, err := c.run(aws.OwnImage("us-east-1"))
	if err != nil {
		t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	if !strings.Contains(stdout, "all well") {
		t.Errorf("%s%s", stdout, stderr)
	}
	for _, m := range w.Truth() {
		if m.State != providers.Terminated && m.State != providers.Stopping {
			t.Errorf("%s is %s", m.ID, m.State)
		}
	}
}
