package aws

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// sample reads a recorded answer of AWS (../shared/api-samples says where each is
// from).
func sample(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "api-samples", "aws", name))
	if err != nil {
		t.Skipf("the samples are not there: %v", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func TestRecordedInstanceTypes(t *testing.T) {
	var recorded struct{ InstanceTypes []types.InstanceTypeInfo }
	sample(t, "ec2-describe-instance-types-gpu.json", &recorded)
	if len(recorded.InstanceTypes) < 70 {
		t.Fatalf("%d types", len(recorded.InstanceTypes))
	}
	for _, info := range recorded.InstanceTypes {
		name := string(info.InstanceType)
		s := shapeOf(info)
		if got := s.Arch == "arm64"; arm(name) != got {
			t.Errorf("%s: Arm by its name %t, by its processor %t", name, arm(name), got)
		}
		if got := info.GpuInfo != nil; withGPU(name) != got {
			t.Errorf("%s: a GPU by its name %t, by its facts %t", name, withGPU(name), got)
		}
		if info.GpuInfo == nil {
			continue
		}
		known, ok := gpu.Builtin().InstanceType("aws", name)
		if s.GPU == "" || s.GPUs <= 0 || s.GPUMemory <= 0 || s.VCPU <= 0 || s.Memory <= 0 || s.NetworkBps <= 0 {
			t.Errorf("%s: %+v", name, s)
		}
		if ok && (known.GPU != s.GPU || known.GPUs.Or(s.GPUs) != s.GPUs) {
			t.Errorf("%s: %v × %s, the facts say %v × %s", name, s.GPUs, s.GPU, known.GPUs, known.GPU)
		}
	}
}

func TestArmByName(t *testing.T) {
	for name, want := range map[string]bool{
		"g5g.xlarge": true, "c7g.large": true, "c6gn.4xlarge": true, "im4gn.large": true, "p6e-gb200.36xlarge": true, "hpc7g.16xlarge": true,
		"g5.xlarge": false, "g4dn.xlarge": false, "g6e.xlarge": false, "gr6.4xlarge": false, "p5en.48xlarge": false, "p6-b200.48xlarge": false,
		"u-6tb1.56xlarge": false, "m7i-flex.large": false,
	} {
		if arm(name) != want {
			t.Errorf("%s: %t", name, arm(name))
		}
	}
}

func TestRecordedPrices(t *testing.T) {
	var file struct {
		Products map[string]json.RawMessage
		Terms    struct{ OnDemand map[string]json.RawMessage }
	}
	sample(t, "pricing-offer-file-excerpt.json", &file)
	want := map[string]struct {
		unit string
		rate money.Rate
	}{"M6UGCCQ3CDJQAA37": {"GB-Mo", 80_000_000}, "9ZEEN7WWWQKAG292": {"Hrs", 12_240_000_000}}
	for sku, w := range want {
		whole, err := json.Marshal(map[string]any{"product": file.Products[sku], "terms": map[string]any{"OnDemand": file.Terms.OnDemand[sku]}})
		if err != nil {
			t.Fatal(err)
		}
		var e entry
		if err := json.Unmarshal(whole, &e); err != nil {
			t.Fatal(err)
		}
		if rate, ok, err := e.price(w.unit); err != nil || !ok || rate != w.rate {
			t.Errorf("%s: %s, %t, %v; want %s", sku, rate, ok, err, w.rate)
		}
		if _, ok, _ := e.price("Gigabytes"); ok {
			t.Errorf("%s has a price in another unit", sku)
		}
	}
}

func TestRecordedEvents(t *testing.T) {
	var recorded map[string]json.RawMessage
	sample(t, "eventbridge-ec2-events.json", &recorded)
	for name, want := range map[string]providers.Notice{
		"spot-itn-event":                 {Kind: providers.NoticePreempt, At: time.Unix(120, 0).UTC()},
		"rebalance-recommendation-event": {Kind: providers.NoticeRebalance},
		"ec2-state-change-event":         {},
		"scheduled-change-event":         {},
	} {
		var e event
		if err := json.Unmarshal(recorded[name], &e); err != nil && want.Kind != "" {
			t.Errorf("%s: %v", name, err)
		}
		if n, ok := e.notice(); n != want || ok != (want.Kind != "") {
			t.Errorf("%s: %+v, %t", name, n, ok)
		}
	}
}

func TestDiskRate(t *testing.T) {
	for _, c := range []struct {
		month money.Rate
		bytes int64
		want  money.Rate
	}{{80_000_000, 90 << 30, 10_000_000}, {80_000_000, 100 << 30, 11_111_112}, {80_000_000, 1, 111_112}, {0, 1 << 40, 0}} {
		if got := diskRate(c.month, c.bytes); got != c.want {
			t.Errorf("%d bytes at %s a month: %s, want %s", c.bytes, c.month, got, c.want)
		}
	}
}

// What ended a machine is read from EC2's own words.
func TestCauses(t *testing.T) {
	a := &Adapter{name: "aws"}
	end := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		code, words string
		tags        []types.Tag
		cause       providers.Cause
		ended       time.Time
	}{
		{"Client.UserInitiatedShutdown", "User initiated (2026-01-02 02:59:59 GMT)", tags(tagEnd, "1767322800"), providers.CauseUser, end.Add(-time.Second)},
		{"Client.UserInitiatedShutdown", "User initiated (2026-01-02 03:00:41 GMT)", tags(tagEnd, "1767322800"), providers.CauseExpired, end.Add(41 * time.Second)},
		{"Client.UserInitiatedShutdown", "User initiated (2026-01-02 03:00:41 GMT)", nil, providers.CauseUser, end.Add(41 * time.Second)},
		{"Server.SpotInstanceTermination", "Service initiated (2026-01-02 03:00:00 GMT)", tags(tagEnd, "1767322800"), providers.CausePreempted, end},
		{"Client.InstanceInitiatedShutdown", "", nil, providers.CauseGuest, time.Time{}},
		{"Server.InternalError", "Server.InternalError", nil, providers.CauseError, time.Time{}},
		{"Server.OfTomorrow", "what is this", nil, providers.CauseUnknown, time.Time{}},
	} {
		got := a.instance("us-east-1", types.Instance{
			State: &types.InstanceState{Name: types.InstanceStateNameTerminated}, StateReason: &types.StateReason{Code: aws.String(c.code)},
			StateTransitionReason: aws.String(c.words), Tags: c.tags,
		})
		if got.Cause != c.cause || !got.Ended.Equal(c.ended) {
			t.Errorf("%s, %q: %q at %v; want %q at %v", c.code, c.words, got.Cause, got.Ended, c.cause, c.ended)
		}
	}
}

func tags(key, value string) []types.Tag {
	return []types.Tag{{Key: aws.String(key), Value: aws.String(value)}}
}
