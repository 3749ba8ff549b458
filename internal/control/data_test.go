package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/egress"
	"gpubroker/internal/money"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// bucket is a source that knows sizes and holds nothing.
type bucket struct {
	spec.Source
	bytes map[string]int64
}

func (b bucket) Weigh(_ context.Context, location string) (int64, error) {
	n, ok := b.bytes[location]
	if !ok {
		return 0, errors.New("no such object")
	}
	return n, nil
}

func TestWhatTasksFetchIsWeighed(t *testing.T) {
	b := &Broker{}
	at := bucket{bytes: map[string]int64{"s3://in/a": 10, "s3://in/b": 30, "s3://models/m": 500}}
	var both, more sample
	both.add("s3://in/a")
	both.add("s3://in/b")
	more.add("s3://in/a")
	more.add("s3://in/gone")
	job := &spec.Job{Inputs: []spec.Input{{From: "s3://models/m", To: "m"}, {From: "s3://models/{{stem}}", To: "x"}}}
	for _, c := range []struct {
		name   string
		of     *sample
		source spec.Source
		want   []queue.Data
	}{
		{"known", &both, at, []queue.Data{
			{What: "inputs", From: "s3://in/", Bytes: 20}, {What: "inputs", From: "s3://models/m", Bytes: 500}, {What: "inputs", From: "s3://models/", Unknown: true},
		}},
		{"one is gone", &more, at, []queue.Data{
			{What: "inputs", From: "s3://in/", Unknown: true}, {What: "inputs", From: "s3://models/m", Bytes: 500}, {What: "inputs", From: "s3://models/", Unknown: true},
		}},
		{"a source without sizes", &both, at.Source, []queue.Data{
			{What: "inputs", From: "s3://in/", Unknown: true}, {What: "inputs", From: "s3://models/m", Unknown: true}, {What: "inputs", From: "s3://models/", Unknown: true},
		}},
	} {
		if d := cmp.Diff(c.want, b.weigh(t.Context(), job, c.of, c.source)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

// TestASampleIsSpreadEvenly: however many inputs there are, those that are kept
// come from the whole sequence, and are not too many.
func TestASampleIsSpreadEvenly(t *testing.T) {
	for _, n := range []int{0, 1, sampled, sampled + 1, 10*sampled + 7, 1_000_000} {
		var s sample
		for i := range n {
			s.add(fmt.Sprint(i))
		}
		if len(s.kept) > sampled || len(s.kept) < min(n, sampled/2) {
			t.Errorf("%d of %d are kept", len(s.kept), n)
		}
		for i, at := range s.kept {
			if at != fmt.Sprint(i*s.every) {
				t.Fatalf("of %d, number %d is %s with a step of %d", n, i, at, s.every)
			}
		}
		if n > 0 && (len(s.kept)+1)*s.every < n {
			t.Errorf("the last of %d that is kept is %s", n, s.kept[len(s.kept)-1])
		}
	}
}

func TestPlacesOfStores(t *testing.T) {
	buckets := BucketsAt("s3", "", "eu-central-1")
	b := &Broker{set: Settings{Buckets: buckets, Locations: []Location{
		{Prefix: "s3://footage", At: egress.Place{Cloud: "aws", Region: "us-east-1"}},
		{Prefix: "s3://footage/eu", At: egress.Place{Cloud: "aws", Region: "eu-west-1"}},
		{Prefix: "/mnt/nas", At: egress.Place{Cloud: "gcp", Region: "us-east1"}},
		{Prefix: "s3://plain"},
	}}}
	for address, want := range map[string]egress.Place{
		"s3://footage/in/a.mov":        {Cloud: "aws", Region: "us-east-1"},
		"s3://footage/eu/{{stem}}.mp4": {Cloud: "aws", Region: "eu-west-1"},
		"s3://plain/x":                 {Cloud: "aws", Region: "eu-central-1"},
		"gs://other/x":                 {Cloud: "gcp"},
		"azblob://other/x":             {Cloud: "azure"},
		"/srv/x":                       {Cloud: egress.OnPremises},
		"clips/a.mov":                  {Cloud: egress.OnPremises},
	} {
		if got := b.placeOf(address); got != want {
			t.Errorf("%s lies at %s, want %s", address, got, want)
		}
	}
	if at := BucketsAt("s3", "https://s3.example.org", "eu")["s3"]; at != (egress.Place{}) {
		t.Errorf("a store of one's own lies at %s", at)
	}
	if at := ObjectsAt("s3://gpubroker/prod", buckets); at.Region != "eu-central-1" {
		t.Errorf("the broker's objects lie at %s", at)
	}
}

// TestAPlanShowsWhatMovingCosts: a spec with inputs, outputs and saves, planned
// alone, has its bytes on the way and its saves in the cost, and says what it does
// not know.
func TestAPlanShowsWhatMovingCosts(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model.bin"), make([]byte, 3_000_000), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := spec.Parse("job.yaml", []byte(`
name: train
value_of_time: 2 USD
resources: {gpu: l4}
work: {time: 10h, on: l4}
inputs: [{from: model.bin, to: model.bin}]
outputs: {to: "s3://done/{{index}}/", from: out/, size: 100GB}
checkpoint: {dir: ckpt, interval: 30m, size: 9GB}
run: {command: [train]}
`))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 5, 22, 0, 0, 0, time.UTC)
	offer := providers.Offer{
		Market: providers.Market{Provider: "aws", Region: "us-east-1", Zone: "a", Type: "g6.xlarge", Kind: providers.OnDemand},
		Shape:  providers.Shape{GPU: "l4", GPUName: "L4", GPUs: 1, VCPU: 4, Memory: 16 << 30, NetworkBps: 1_000_000_000}, Price: money.Rate(money.Unit), Currency: money.USD, Seen: now,
	}
	caps := providers.Capabilities{Kinds: []providers.Kind{providers.OnDemand}, SelfEnd: providers.EndRolling, Billing: money.Billing{Unit: time.Second}, BootTime: 2 * time.Minute}
	snap, err := Alone(t.Context(), j, spec.Local{Dir: dir}, scheduler.NewCatalog(1, []providers.Offer{offer}),
		map[string]scheduler.Provider{"aws": {Capabilities: caps, Cloud: "aws"}}, scheduler.Settings{Lease: time.Hour, Idle: 2 * time.Minute}, now)
	if err != nil {
		t.Fatal(err)
	}
	e, _ := scheduler.Explain(snap, nil, snap.Groups[0].ID)
	if len(e.Options) == 0 {
		t.Fatalf("no option: %v", e.Reasons)
	}
	got := e.Options[0].Cost
	// 19 saves of 9 GB at 1 Gbit/s are 19 × 72 s, 1368 s; each leaves AWS for the
	// broker's own machine at 0.09 a GB. Fetching is 0.024 s, sending 800 s.
	want := scheduler.Parts{Boot: 33333333, Work: 10 * money.Unit, Saves: 380_000_000, Staging: 222228888, Egress: 15_390_000_000, Idle: 33333333}
	for _, c := range []struct {
		name      string
		got, want money.Amount
	}{
		{"boot", got.Boot, want.Boot},
		{"work", got.Work, want.Work},
		{"saves", got.Saves, want.Saves},
		{"staging", got.Staging, want.Staging},
		{"egress", got.Egress, want.Egress},
		{"idle", got.Idle, want.Idle},
	} {
		if c.got.Round(4) != c.want.Round(4) {
			t.Errorf("%s: %s, want %s", c.name, c.got, c.want)
		}
	}
	if got.Waiting < 21*money.Unit || got.Waiting > 22*money.Unit {
		t.Errorf("ten and a half hours at 2 USD are worth %s", got.Waiting)
	}
	if n := e.Options[0].Notes; len(n) != 1 || n[0].Code != "egress_unknown" { // the bucket's region
		t.Errorf("notes %v", n)
	}
}
