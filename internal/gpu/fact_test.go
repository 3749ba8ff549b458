package gpu

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func lookup(t *testing.T, id string) Fact {
	t.Helper()
	f, ok := Builtin().Lookup(id)
	if !ok {
		t.Fatalf("no facts of %s", id)
	}
	return f
}

func TestUnknownStaysUnknown(t *testing.T) {
	f, ok := Builtin().Lookup("k80")
	if ok || f.Known() || f.ID != "k80" {
		t.Errorf("facts of a GPU without a row: %+v", f)
	}
	if got := f.Memory.String(); got != "unknown" {
		t.Errorf("memory %s", got)
	}
	if n, ok := lookup(t, "b200").Encoders.Get(); ok {
		t.Errorf("the encoders of a B200 are not known, got %d", n)
	}
	if n, ok := lookup(t, "a100-sxm-80gb").Encoders.Get(); !ok || n != 0 {
		t.Errorf("the encoders of an A100 are known to be none, got %d, %v", n, ok)
	}
	for _, failure := range Builtin().Check(f, Requirements{"memory": AtLeast(1), "ecc": HasIt(true), "vendor": OneOf("nvidia")}) {
		if failure.Have != "unknown" {
			t.Errorf("%v", failure)
		}
	}
	b, err := json.Marshal(struct{ A, B Known[int] }{B: Of(0)})
	if err != nil || string(b) != `{"A":null,"B":0}` {
		t.Errorf("%s, %v", b, err)
	}
}

func TestLookupOfAnOpenVariantIsWhatHoldsForAll(t *testing.T) {
	f := lookup(t, "a100-any-80gb")
	if diff := cmp.Diff([]string{"a100-pcie-80gb", "a100-sxm-80gb"}, f.Variants); diff != "" {
		t.Error(diff)
	}
	if f.MemoryBandwidth.Or(0) != 1935 || f.Memory.Or(0) != 80 || f.Encoders != Of(0) {
		t.Errorf("bandwidth %v, memory %v, encoders %v", f.MemoryBandwidth, f.Memory, f.Encoders)
	}
	if f.Form.known || f.Link.known {
		t.Errorf("form %v and link %v differ between the variants", f.Form, f.Link)
	}
	if f := lookup(t, "a100-any"); f.Memory.Or(0) != 40 || len(f.Variants) != 4 {
		t.Errorf("%v %v", f.Memory, f.Variants)
	}
}

func TestFacts(t *testing.T) {
	if got := lookup(t, "l4").MemoryBytes().Or(0); got != 24<<30 {
		t.Errorf("an L4 is sold as 24 GiB, got %d", got)
	}
	// What drivers report, from data/gpus.csv.
	for id, mib := range map[string]int64{"l4": 22888, "a10g": 22888, "l40s": 45776, "b300": 275040, "b200": 183359} {
		if usable := lookup(t, id).UsableMemory().Or(0); usable > mib<<20 || usable < mib<<20*9/10 {
			t.Errorf("%s: usable %d MiB, a driver reports %d", id, usable>>20, mib)
		}
	}
	if v, measured := lookup(t, "mi300x").BF16Effective(); !measured || v.Or(0) != 668 {
		t.Errorf("mi300x: %v, %v", v, measured)
	}
	if v, measured := lookup(t, "l4").BF16Effective(); measured || v.Or(0) >= 121 {
		t.Errorf("l4: %v, %v", v, measured)
	}
	if v := lookup(t, "t4").BF16Peak(); v != Of(0.0) {
		t.Errorf("a T4 has no bf16: %v", v)
	}
	if v := lookup(t, "mi100").BF16Peak(); v.Or(0) != 92.3 {
		t.Errorf("an MI100 does bf16 at half rate: %v", v)
	}
	if v := lookup(t, "t4g").BF16Peak(); v != Of(0.0) {
		t.Errorf("a T4G has no bf16: %v", v)
	}
	if v := Builtin().EncodeFPS(lookup(t, "l4"), "h264", "p5"); v.Or(0) != 582 {
		t.Errorf("l4 encodes %v", v)
	}
	if v := Builtin().EncodeFPS(lookup(t, "h100-sxm-80gb"), "h264", "p5"); v != Of(0.0) {
		t.Errorf("an H100 encodes %v", v)
	}
}

func TestInstanceTypes(t *testing.T) {
	for _, c := range []struct {
		cloud, name  string
		fabric, rdma Known[bool]
	}{
		{"aws", "p5.48xlarge", Of(true), Of(true)},
		{"aws", "g6.12xlarge", Of(false), Of(true)}, // PCIe inside, EFA outside
		{"azure", "Standard_ND96is_noIB_H100_v5", Of(true), Of(false)},
		{"gcp", "a3-highgpu-8g", Of(true), Of(false)}, // TCPX is no RDMA
		{"azure", "Standard_NC48ads_A100_v4", Of(false), Of(false)},
	} {
		it, ok := Builtin().InstanceType(c.cloud, c.name)
		if !ok || it.FullFabric() != c.fabric || it.RDMA != c.rdma {
			t.Errorf("%s %s: %v, link %v, fabric %v, rdma %v", c.cloud, c.name, ok, it.Link, it.FullFabric(), it.RDMA)
		}
	}
	if n := len(Builtin().InstanceTypes("aws")); n != 74 {
		t.Errorf("%d aws types", n)
	}
}

func TestCheck(t *testing.T) {
	table := Builtin()
	for _, c := range []struct {
		id   string
		r    Requirements
		want []string
	}{
		{"l4", Requirements{"memory": AtLeast(24)}, nil},
		{"l4", Requirements{"memory": AtLeast(25), "ecc": HasIt(true)}, []string{"memory: 24, wanted 25 GiB"}},
		{"a100-sxm-80gb", Requirements{"encoders": AtLeast(1), "rt_generation": AtLeast(1)}, []string{"encoders: 0, wanted 1 engines", "rt_generation: 0, wanted 1"}},
		{"t4", Requirements{"fp8": AtLeast(1)}, []string{"fp8: unknown, wanted 1 TFLOPS"}},
		{"rtx-4090", Requirements{"ecc": HasIt(false), "encoders": AtLeast(0)}, nil}, // asks for nothing
		{"rtx-4090", Requirements{"class": OneOf("datacenter", "workstation")}, []string{"class: consumer, wanted datacenter|workstation"}},
		{"mi300x", Requirements{"compute_capability": AtLeast(8)}, nil}, // a CUDA notion
		{"l4", Requirements{"colour": OneOf("green")}, []string{"colour: unknown, wanted green"}},
	} {
		var got []string
		for _, f := range table.Check(lookup(t, c.id), c.r) {
			if f.Code == "" {
				t.Errorf("%s: no code in %v", c.id, f)
			}
			got = append(got, f.String())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s %v: %s", c.id, c.r, diff)
		}
	}
}

func TestWantRoundTrip(t *testing.T) {
	in := Requirements{"memory": AtLeast(24.5), "ecc": HasIt(true), "vendor": OneOf("nvidia", "amd")}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out Requirements
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out, cmp.AllowUnexported(Want{})); diff != "" {
		t.Error(diff)
	}
}
