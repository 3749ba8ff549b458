package cli

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/market"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/scheduler"
)

// decision is a choice that people of the field would make, with what must hold
// whatever prices do.
type decision struct {
	title string
	spec  string // what differs from a job with a command
	sets  []string
	first []string // begins the GPUs of the best options, in order
	never []string // GPUs that it may not be given at any price
	may   []string // GPUs that it may be given
	kinds []providers.Kind
	types []string // begins the types of machines of all options
	// notTypes are in no type of an option.
	notTypes []string
	none     bool   // nothing fits
	fault    string // the spec is refused with it
	why      string // a reason that is counted
}

var large = "providers: [aws, azure, gcp]"

var decisions = []decision{
	{
		title: "An HEVC encode farm at AWS: L4, then T4; A100 and the like have no encoder",
		spec:  "scenario: transcode\ntasks: {count: 200}\nencode: {codec: hevc, preset: p5}\nresources: {providers: aws, regions: us-east-1}",
		first: []string{"l4", "l4", "l4", "t4"}, never: compute, why: "video encoders (NVENC or VCN) on its GPU",
	},
	{
		title: "FP64 with ECC where ROCm will do: MI300X",
		spec:  "scenario: fp64\nruntime: {cuda: \">=12.4\", rocm: \">=6.2\"}\nresources: {gpu_count: 8, " + large + "}",
		first: []string{"mi300x"}, never: slowFP64,
	},
	{
		title: "FP64 with ECC on CUDA: V100, H100, H200 or A100, never B300, L4, T4 or GeForce",
		spec:  "scenario: fp64\nruntime: {cuda: \">=12.4\"}\nresources: {gpu_count: 8, " + large + "}",
		never: slices.Concat(slowFP64, []string{"mi"}), may: []string{"h100-sxm-80gb", "h200-sxm-141gb"}, why: "TFLOPS in FP64, wanted 4",
	},
	{
		title: "GROMACS in mixed precision: FP32 for the money, L40S at AWS, L4 at Google",
		spec:  "scenario: md\nresources: {" + large + "}", first: []string{"l40s"}, may: []string{"l4", "a100-sxm-40gb", "h100-sxm-80gb"},
	},
	{
		title: "The same where any card will do: GeForce",
		spec:  "scenario: md\nresources: {require: {ecc: false}}", first: []string{"rtx-"}, may: []string{"rtx-4090"},
	},
	{
		title: "QLoRA of 70 B on one GPU: a 48 GB card is not enough",
		spec:  "scenario: qlora\nmodel: {parameters: 70B}\nresources: {gpu: [l40s, a6000, a100-80gb, h100], gpu_count: 1, " + large + "}",
		first: []string{"h100", "h100"}, never: []string{"l40s", "rtx-a6000"}, may: []string{"a100-any-80gb", "h100-sxm-80gb"}, why: "the model needs 48 GB on each GPU",
	},
	{
		title: "QLoRA of 70 B on L40S: two of them",
		spec:  "scenario: qlora\nmodel: {parameters: 70B}\nresources: {gpu: l40s, " + large + "}",
		first: []string{"l40s"}, why: "wanted 2",
	},
	{
		title: "QLoRA of 14 B: a T4 has no bf16, L4 or A10 is the safe answer",
		spec:  "scenario: qlora\nmodel: {parameters: 14B}\nresources: {gpu: [t4, l4, a10], " + large + "}",
		first: []string{"l4"}, never: []string{"t4"}, may: []string{"l4", "a10"}, why: "bf16 on its GPU (t4): no",
	},
	{
		title: "The same with FP16 accepted: a T4 fits",
		spec:  "scenario: qlora\nmodel: {parameters: 14B}\nprecision: fp16\nresources: {gpu: [t4, l4, a10], " + large + "}",
		may:   []string{"t4", "l4", "a10"},
	},
	{
		title: "Full tuning of 7 B: two of 80 GB, or one MI300X or H200",
		spec:  "scenario: llm-train\nmodel: {parameters: 7B}\nruntime: {cuda: \">=12.4\", rocm: \">=6.2\"}\nresources: {gpu: [a100-80gb, h100, h200, mi300x]}",
		may:   []string{"mi300x", "h200-sxm-141gb", "a100-sxm-80gb", "h100-sxm-80gb"}, first: []string{"mi300x"},
	},
	{
		title: "Pre-training on 64 GPUs: whole machines with a fabric, joined by RDMA",
		spec:  "scenario: llm-train\nnodes: 8\nresources: {gpu_count: 8}\ncheckpoint: {interval: 15m}",
		never: []string{"h100-nvl", "h100-pcie", "a100-pcie", "l40s", "a10", "t4"}, may: []string{"h100-sxm-80gb", "a100-sxm-80gb", "h200-sxm-141gb"},
		types: []string{"p4d", "p4de", "p5", "p5en", "p6", "a3-ultra", "a4-", "Standard_ND96"}, notTypes: []string{"noIB", "p5.4xlarge", "Standard_NC", "a2-", "a3-high", "a3-mega"},
		why: "RDMA between such machines: no",
	},
	{
		title: "Two of an MI300X octet: no fabric",
		spec:  "scenario: llm-train\nresources: {gpu: mi300x, gpu_count: 2}", none: true, why: "a full fabric (NVLink, Infinity Fabric) among 2 GPUs of its mi300x: no",
	},
	{
		title: "All eight of them: the whole fabric",
		spec:  "scenario: llm-train\nresources: {gpu: mi300x, gpu_count: 8}", first: []string{"mi300x"},
	},
	{
		title: "Inference in FP8: not on A100, A10 or T4",
		spec:  "scenario: llm-serve\nmodel: {parameters: 8B, context: 8k, batch: 16}\nprecision: fp8\nresources: {" + large + "}",
		never: []string{"a100", "a10", "a10g", "t4", "v100", "a30"}, may: []string{"h100-sxm-80gb", "l40s"}, why: "FP8 on its GPU",
	},
	{
		title: "The same in INT8: an A100 will do",
		spec:  "scenario: llm-serve\nmodel: {parameters: 8B, context: 8k, batch: 16}\nprecision: int8\nresources: {" + large + "}",
		may:   []string{"a100-any-80gb", "h100-sxm-80gb"}, never: []string{"v100"},
	},
	{
		title: "In FP4: Blackwell alone",
		spec:  "scenario: llm-serve\nmodel: {parameters: 8B, context: 8k, batch: 16}\nprecision: fp4\nresources: {" + large + "}",
		never: []string{"h100", "h200", "l4", "l40s", "a100"}, may: []string{"rtx-pro-6000-se"}, why: "FP4 on its GPU",
	},
	{
		title: "Desks of 8 GB for people in Western Europe: near first, then the price of a seat",
		spec:  "scenario: vdi\nusers: {count: 20, memory: 8GiB, max_rtt: 25ms, from: eu-west}",
		never: slices.Concat(compute, []string{"rtx-3", "rtx-4090", "rtx-5090"}), kinds: []providers.Kind{providers.OnDemand}, why: "away from users in eu-west, wanted 25ms at most",
	},
	{title: "A card that there is not", spec: "scenario: gaming\nresources: {gpu: RTX 5900}", fault: `no GPU is named "RTX 5900"; did you mean "rtx-5090"`},
	{title: "A memory that the card has not", spec: "resources: {gpu: MI300X 80GB}", fault: `there is no "MI300X 80GB": mi300x has 192 GB only`},
	{title: "A name that three cards bear", spec: "scenario: vdi\nresources: {gpu: RTX 6000}", fault: `"RTX 6000" means different GPUs to different providers; which one, "quadro-rtx-6000", "rtx-6000-ada" or "rtx-pro-6000"?`},
	{
		title: "Resident inference: never on spot",
		spec:  "scenario: llm-serve\nmodel: {parameters: 8B, context: 8k, batch: 16}\nresources: {" + large + "}",
		kinds: []providers.Kind{providers.OnDemand}, why: "spot capacity is not for work that cannot be interrupted",
	},
	{
		title: "Its burst part: on spot",
		spec:  "scenario: llm-batch\ntasks: {count: 40}\nmodel: {parameters: 8B, context: 8k, batch: 16}\nresources: {" + large + "}",
		kinds: []providers.Kind{providers.Spot, providers.OnDemand},
	},
}

const decisionsGolden = "testdata/decisions.golden"

// The choices that people of the field would make, against the offers that are
// built in: what must hold is asserted, and the text is reviewed.
func TestDecisions(t *testing.T) {
	m, newest := market.Snapshot()
	now := newest.Add(12 * time.Hour)
	a := &app{Wiring: Wiring{Now: func() time.Time { return now }}}
	offers := m.Offers()
	var out bytes.Buffer
	fmt.Fprintf(&out, "Decisions against the snapshot of %s.\ngo test ./internal/cli -run Decisions -update writes this anew; look at what changed.\n", newest.Format(time.DateOnly))
	for _, x := range decisions {
		fmt.Fprintf(&out, "\n%s\n", x.title)
		for line := range strings.SplitSeq(x.spec, "\n") {
			fmt.Fprintf(&out, "  | %s\n", line)
		}
		text := []byte("name: job\n" + x.spec + "\nrun: {command: [work]}\n")
		j, err := spec.Parse("job.yaml", text, x.sets...)
		if x.fault != "" {
			faults, _ := errors.AsType[spec.Errors](err)
			if len(faults) != 1 || !strings.Contains(faults[0].Error(), x.fault) {
				t.Errorf("%s: %v, want %s", x.title, err, x.fault)
				continue
			}
			fmt.Fprintf(&out, "  %s\n", faults[0].Error())
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", x.title, err)
		}
		p, _, err := a.planAlone(t.Context(), j, ".", offers, 10)
		if err != nil {
			t.Fatalf("%s: %v", x.title, err)
		}
		if x.none != (len(p.Options) == 0) {
			t.Errorf("%s: %d options", x.title, len(p.Options))
		}
		for i, o := range p.Options {
			if i < len(x.first) && !strings.HasPrefix(o.Shape.GPU, x.first[i]) {
				t.Errorf("%s: choice %d is %s, want %s", x.title, i+1, o.Shape.GPU, x.first[i])
			}
			if x.types != nil && !slices.ContainsFunc(x.types, func(s string) bool { return strings.HasPrefix(o.Market.Type, s) }) ||
				slices.ContainsFunc(x.notTypes, func(s string) bool { return strings.Contains(o.Market.Type, s) }) {
				t.Errorf("%s: on %s", x.title, o.Market)
			}
			if x.kinds != nil && !slices.Contains(x.kinds, o.Market.Kind) {
				t.Errorf("%s: %s", x.title, o.Market)
			}
		}
		if len(x.kinds) > 0 && len(p.Options) > 0 && p.Options[0].Market.Kind != x.kinds[0] {
			t.Errorf("%s: the best is %s, want %s", x.title, p.Options[0].Market.Kind, x.kinds[0])
		}
		j, _ = spec.Parse("job.yaml", text, x.sets...)
		usable := usableGPUs(t, j, offers, now)
		for _, id := range usable {
			if i := slices.IndexFunc(x.never, func(n string) bool { return begins(id, n) }); i >= 0 {
				t.Errorf("%s: may be given %s", x.title, id)
			}
		}
		for _, id := range x.may {
			if !slices.Contains(usable, id) {
				t.Errorf("%s: may not be given %s", x.title, id)
			}
		}
		if x.why != "" && !slices.ContainsFunc(p.Reasons, func(c scheduler.Count) bool { return strings.Contains(c.Sample.String(), x.why) }) {
			t.Errorf("%s: no reason says %q", x.title, x.why)
		}
		out.WriteString(told(p, usable))
	}
	golden(t, decisionsGolden, out.String())
}
