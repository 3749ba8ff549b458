package simcloud

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/money"
	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

const file = `
seed: 7
boot: 2s
notice: 30s
billing: {unit: 1s, minimum: 1m}
self_end: fixed
offers:
  - {region: r1, zone: r1a, type: l4x1, kind: spot, price: 0.30, capacity: 2, gpu: l4, gpus: 1, vcpu: 4,
     walk: {every: 15s, percent: 3, low: 70, high: 140}}
  - {region: r1, zone: r1a, type: l4x1, kind: on-demand, price: "0.8048", steps: [{at: 1m, price: 0.9}, {at: 2m, capacity: 0}]}
quotas: [{name: spot, kind: spot, unit: vcpu, limit: 64}]
faults:
  - {op: launch, effect: error_after, nth: 2, match: {zone: r1a}}
  - {op: notice, effect: lose, channel: metadata}
script:
  - {at: 10s, capacity: {match: {kind: spot}, machines: 0}}
  - {on_machine: 3, after: 20s, preempt: {notice: 0s}}
  - {at: 1m, preempt: {longest: true, match: {region: r1}}}
`

func TestParse(t *testing.T) {
	got, err := Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	place := simapi.Place{Region: "r1", Zone: "r1a", Type: "l4x1", Kind: providers.Spot}
	firm := place
	firm.Kind = providers.OnDemand
	want := Config{
		Seed: 7, Currency: "USD", Boot: dur(2 * time.Second), Notice: dur(30 * time.Second),
		Billing: Billing{Unit: dur(time.Second), Minimum: dur(time.Minute)}, Remember: dur(time.Hour), PageSize: 100,
		SelfEnd: providers.EndFixed, EndAction: providers.EndPoweroff,
		Offers: []Offer{
			{
				Place: place, Shape: providers.Shape{GPU: "l4", GPUs: 1, VCPU: 4}, Price: 300_000_000, Capacity: new(2),
				Walk: &Walk{Every: dur(15 * time.Second), Percent: 3, Low: 70, High: 140},
			},
			{Place: firm, Price: 804_800_000, Steps: []Step{{At: dur(time.Minute), Price: new(money.Rate(900_000_000))}, {At: dur(2 * time.Minute), Capacity: new(0)}}},
		},
		Quotas: []Quota{{Name: "spot", Kind: providers.Spot, Unit: "vcpu", Limit: 64}},
		Faults: []simapi.Fault{
			{Op: "launch", Effect: "error_after", Nth: 2, Match: simapi.Place{Zone: "r1a"}},
			{Op: "notice", Effect: "lose", Channel: "metadata"},
		},
		Script: []simapi.Action{
			{At: dur(10 * time.Second), Capacity: &simapi.Capacity{Match: simapi.Place{Kind: providers.Spot}, Machines: new(0)}},
			{OnMachine: 3, After: dur(20 * time.Second), Preempt: &simapi.Preempt{Notice: new(dur(0))}},
			{At: dur(time.Minute), Preempt: &simapi.Preempt{Pick: simapi.Pick{Longest: true, Match: simapi.Place{Region: "r1"}}}},
		},
		Machines: MachineConfig{Isolation: IsolationAuto, Console: 256 << 10},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for name, c := range map[string]Config{"file": got, "default": Default(1)} {
		data, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(data)
		if err != nil {
			t.Fatalf("%s as JSON: %v", name, err)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Errorf("%s as JSON: %s", name, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	base := "offers: [{type: a, kind: spot, price: 1}]\n"
	for text, want := range map[string]string{
		"ofers: []":              "ofers",
		"boot: 5":                "duration",
		"boot: -5s":              "duration",
		"page_size: -1\n" + base: "page_size",
		"offers: [{type: a, kind: spott, price: 1}]":                                 "spott",
		"offers: [{type: a, kind: spot, price: 0}]":                                  "above zero",
		"offers: [{type: a, kind: spot, price: 0.1234567891}]":                       "nine decimals",
		"offers: [{kind: spot, price: 1}]":                                           "type is missing",
		"offers: [{type: a, kind: spot, price: 1}, {type: a, kind: spot, price: 2}]": "twice",
		"offers: [{type: a, kind: spot, price: 1, steps: [{at: 2s}, {at: 1s}]}]":     "before",
		base + "self_end: maybe":                                                     "self_end",
		base + "faults: [{op: launch, effect: explode}]":                             "explode",
		base + "faults: [{op: lunch, effect: error}]":                                "lunch",
		base + "faults: [{op: launch, effect: lose}]":                                "op notice",
		base + "faults: [{op: launch, effect: stale}]":                               "list or offers",
		base + "script: [{at: 1s}]":                                                  "exactly one",
		base + "script: [{at: 1s, price: {}}]":                                       "price or percent",
		base + "quotas: [{name: q, unit: gpus, limit: 1}]":                           "vcpu, gpu or machine",
		base + "machines: {isolation: vm}":                                           "isolation",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestReplay(t *testing.T) {
	counts := "t,a,b\n1000,2,0\n1060,,1\n1120,2,1\n1180,0,1\n"
	prices := "t,a\n1000,0.5\n1060,0.5\n1120,0.75\n"
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := io.WriteString(z, counts)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	r := Replay{Pool: "a", Each: 2, Skip: dur(30 * time.Second), Speed: 10}
	want := []Step{{At: 0, Capacity: new(4)}, {At: dur(15 * time.Second), Capacity: new(0)}}
	for name, in := range map[string]io.Reader{"plain": strings.NewReader(counts), "gzip": &zipped} {
		got, err := r.CapacitySteps(in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	got, err := r.PriceSteps(strings.NewReader(prices))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Step{{At: 0, Price: new(money.Rate(500_000_000))}, {At: dur(9 * time.Second), Price: new(money.Rate(750_000_000))}}, got); diff != "" {
		t.Error(diff)
	}
	for in, want := range map[string]string{
		"t,b\n1,1\n":   `columns t and "a"`,
		"t,a\n1,x\n":   "line 2",
		"t,a\nx,1\n":   "line 2",
		"t,a\n1,-1\n":  "no count",
		"t,a\n1,1,1\n": "wrong number of fields",
	} {
		if _, err := r.CapacitySteps(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

// TestReplayOfARecordedMarket lives five days of a real market.
func TestReplayOfARecordedMarket(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "shared", "traces", "aws-v100x1-2023-02")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("the recorded markets are not here: ", err)
	}
	place := simapi.Place{Region: "us-east-1", Zone: "us-east-1c", Type: "p3.2xlarge", Kind: providers.Spot}
	cfg := Config{
		Seed: 1, Notice: dur(2 * time.Minute),
		Offers: []Offer{{Place: place, Price: 3_060_000_000, Replay: &Replay{
			Capacity: filepath.Join(dir, "s1.avail.csv.gz"), Price: filepath.Join(dir, "s1.price.csv.gz"), Pool: "us-east-1c",
		}}},
	}
	inWorld(t, cfg, nil, func(t *testing.T, w *World) {
		launched, refused := 0, 0
		for i := range 5 * 24 * 12 {
			_, err := w.Launch(simapi.Launch{Place: place, Request: time.Duration(i).String()})
			switch codeOf(err) {
			case "<nil>":
				launched++
			case simapi.CodeCapacity:
				refused++
			default:
				t.Fatal(err)
			}
			time.Sleep(5 * time.Minute)
		}
		taken := 0
		for _, m := range w.Truth() {
			if m.Cause == providers.CausePreempted {
				taken++
			}
		}
		// The record has the pool up for 36 % of the time in 30 stretches.
		if launched < 30 || launched > 60 || refused < 700 || taken < 25 || taken > launched {
			t.Errorf("%d launched, %d refused, %d taken", launched, refused, taken)
		}
		if inv := w.Invoice(); inv.Total < 150*money.Unit/10 || inv.Total > 1000*money.Unit {
			t.Errorf("five days cost %s", inv.Total)
		}
	})
}

func TestTokensAreHidden(t *testing.T) {
	cfg := small()
	cfg.Tokens.API = "hunter2"
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "config", cfg)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "config", cfg, "tokens", cfg.Tokens)
	if strings.Contains(out.String(), "hunter2") {
		t.Error(out.String())
	}
}
