package rightsize_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/rightsize"
	"gpubroker/providers"
	"gpubroker/queue"
)

const gib = 1 << 30

func rate(t interface{ Fatal(...any) }, s string) money.Rate {
	r, err := money.RateOf(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func machine(t interface{ Fatal(...any) }, name, gpuID string, vcpu float64, memory int64, price string) rightsize.Machine {
	m := rightsize.Machine{
		Market: providers.Market{Provider: "aws", Region: "us-east-1", Type: name, Kind: providers.Spot},
		Shape:  providers.Shape{GPU: gpuID, VCPU: vcpu, Memory: memory * gib, Arch: "amd64"},
		Price:  rate(t, price), Slots: 1,
	}
	if gpuID != "" {
		m.Shape.GPUs = 1
	}
	return m
}

func flat(n int, v float64) *queue.Figure { return &queue.Figure{N: n, Mean: v, P95: v, Max: v} }

// usage is an hour of a task that uses little of an l40s with 16 vCPUs.
func usage() *queue.Usage {
	const n = 720
	return &queue.Usage{
		Samples: n, Span: time.Hour, Alone: n, CPUs: 16,
		CPU: &queue.Figure{N: n, Mean: 2, P95: 3.1, Max: 9}, Memory: &queue.Figure{N: n, Mean: 8 * gib, P95: 9 * gib, Max: 9 * gib},
		GPUs: 1, GPU: &queue.Figure{N: n, Mean: 8, P95: 30, Max: 90}, GPUMemory: &queue.Figure{N: n, Mean: 9 * gib, P95: 9.1 * gib, Max: 9.1 * gib}, GPUSize: 48 * gib,
		Encoder: flat(n, 0), Decoder: flat(n, 0), Disk: flat(n, 3), Network: flat(n, 1e6),
		Waiting: &queue.Waiting{Share: 0.92, CPU: new(0.2), Disk: new(0.03), Network: new(1e6)},
	}
}

func attempt(t interface{ Fatal(...any) }) rightsize.Attempt {
	return rightsize.Attempt{Machine: machine(t, "g6e.4xlarge", "l40s", 16, 128, "1.2"), Busy: 10 * time.Hour, Usage: usage(), Succeeded: true}
}

func tenHours(u *queue.Usage) *queue.Usage { u.Span = 10 * time.Hour; return u }

var oneGPU = rightsize.Job{Width: 1, GPUs: 1, Figure: "fp32"}

func notes(a rightsize.Advice) string {
	var b strings.Builder
	for _, n := range a.Notes {
		b.WriteString(n.String() + "\n")
	}
	if !a.Clear {
		b.WriteString("unclear: " + a.Why.String() + "\n")
	}
	return b.String()
}

const sizes = `GPU memory: 9.1 GiB of 48 GiB at the peak; 11 GiB would have been enough
CPU: 3.1 of 16 vCPUs in 95 of 100 looks; 4 would have been enough
memory: 9.0 GiB of 128 GiB at the peak; 12 GiB would have been enough
`

const evidence = "seen in 720 looks at 1 attempt, over 10h of work\n"

func TestAdvice(t *testing.T) {
	small := machine(t, "g6.xlarge", "l4", 4, 16, "0.4")
	for _, c := range []struct {
		name   string
		job    func(*rightsize.Job)
		change func(*rightsize.Attempt)
		offer  func(*rightsize.Machine)
		ask    rightsize.Ask
		want   string
	}{
		{
			// 8 % of the time on a GPU that is at most 3.02 times slower: 16 % longer.
			name: "a smaller machine",
			want: sizes + "aws/us-east-1 g6.xlarge spot at 0.40/h instead of 1.20/h would have saved about 7.35 of 12.00, in up to 16 % more time (estimate)\n" + evidence,
		},
		{
			name: "if the job asked for less", ask: rightsize.Ask{VCPU: 4, Memory: 12 * gib},
			want: sizes + "aws/us-east-1 g6.xlarge spot at 0.40/h instead of 1.20/h would have saved about 7.35 of 12.00, in up to 16 % more time, if the job asked for vcpu: 4, memory: 12GiB (estimate)\n" + evidence,
		},
		{
			name: "the market has fallen since", change: func(a *rightsize.Attempt) { a.Today = rate(t, "0.45") },
			want: sizes + evidence, // 0.40 is no saving to speak of against 0.45
		},
		{
			name: "it would take too long", change: func(a *rightsize.Attempt) { a.Usage.GPU.Mean = 60 },
			want: sizes + evidence,
		},
		{
			name: "dearer", offer: func(m *rightsize.Machine) { m.Price = rate(t, "1.3") },
			want: sizes + evidence,
		},
		{
			name: "hardly cheaper", offer: func(m *rightsize.Machine) { m.Shape.GPU, m.Price = "l40s", rate(t, "1.1") },
			want: sizes + evidence,
		},
		{
			name: "cheaper by more than a tenth", offer: func(m *rightsize.Machine) { m.Shape.GPU, m.Price = "l40s", rate(t, "1.07") },
			want: sizes + "aws/us-east-1 g6.xlarge spot at 1.07/h instead of 1.20/h would have saved about 1.30 of 12.00 (estimate)\n" + evidence,
		},
		{
			name: "another kind", offer: func(m *rightsize.Machine) { m.Market.Kind = providers.OnDemand },
			want: sizes + evidence,
		},
		{
			name: "too few vCPUs", offer: func(m *rightsize.Machine) { m.Shape.VCPU = 3 },
			want: sizes + evidence,
		},
		{
			name: "unknown memory", offer: func(m *rightsize.Machine) { m.Shape.Memory = 0 },
			want: sizes + evidence,
		},
		{
			name: "other processors", offer: func(m *rightsize.Machine) { m.Shape.Arch = "arm64" },
			want: sizes + evidence,
		},
		{
			name: "less CUDA", offer: func(m *rightsize.Machine) { m.Shape.GPU = "t4" },
			want: sizes + evidence,
		},
		{
			name: "another vendor", offer: func(m *rightsize.Machine) { m.Shape.GPU = "mi300x" },
			want: sizes + evidence,
		},
		{
			name: "a GPU that nobody knows", offer: func(m *rightsize.Machine) { m.Shape.GPU = "l4-super" },
			want: sizes + evidence,
		},
		{
			name: "its encoders were used", change: func(a *rightsize.Attempt) { a.Usage.Encoder = flat(720, 40) },
			want: sizes + evidence, // the l40s has three, the l4 two
		},
		{
			name: "nobody knows whether they were", change: func(a *rightsize.Attempt) { a.Usage.Encoder = nil },
			want: sizes + evidence,
		},
		{
			name: "less disk", change: func(a *rightsize.Attempt) { a.Machine.Shape.Disk = 100 * gib },
			want: sizes + evidence,
		},
		{
			name: "less disk, and the job says how much", change: func(a *rightsize.Attempt) { a.Machine.Shape.Disk = 100 * gib }, job: func(j *rightsize.Job) { j.Disk = true },
			want: sizes + "aws/us-east-1 g6.xlarge spot at 0.40/h instead of 1.20/h would have saved about 7.35 of 12.00, in up to 16 % more time (estimate)\n" + evidence,
		},
		{
			name: "a busy network", change: func(a *rightsize.Attempt) { a.Usage.Network = flat(720, 200e6) },
			want: sizes + evidence,
		},
		{
			name: "a busy network that suffices", change: func(a *rightsize.Attempt) { a.Usage.Network = flat(720, 200e6) }, offer: func(m *rightsize.Machine) { m.Shape.NetworkBps = 5e9 },
			want: sizes + "aws/us-east-1 g6.xlarge spot at 0.40/h instead of 1.20/h would have saved about 7.35 of 12.00, in up to 16 % more time (estimate)\n" + evidence,
		},
		{
			name: "a machine that others used too", change: func(a *rightsize.Attempt) { a.Machine.Slots, a.Usage.Alone = 4, 700 },
			want: sizes + evidence,
		},
		{
			name: "unknown GPU memory", change: func(a *rightsize.Attempt) { a.Usage.GPUMemory = nil },
			want: strings.SplitN(sizes, "\n", 2)[1] + evidence,
		},
		{
			name: "unknown all", change: func(a *rightsize.Attempt) { a.Usage = &queue.Usage{Samples: 720, Span: 10 * time.Hour} },
			want: "",
		},
		{
			name: "the CPUs are the limit", change: func(a *rightsize.Attempt) {
				a.Usage.CPU = flat(720, 15.7)
				a.Usage.GPU.Mean = 39
				a.Usage.Waiting = &queue.Waiting{Share: 0.61, CPU: new(0.98), Disk: new(1.0)}
			},
			want: "GPU memory: 9.1 GiB of 48 GiB at the peak; 11 GiB would have been enough\n" +
				"memory: 9.0 GiB of 128 GiB at the peak; 12 GiB would have been enough\n" +
				"the GPU waited 61 % of the time, and the CPUs were at 98 % meanwhile: more vCPUs per GPU\n" + evidence,
		},
		{
			name: "the disk is the limit", change: func(a *rightsize.Attempt) {
				a.Usage.Waiting = &queue.Waiting{Share: 0.5, CPU: new(0.3), Disk: new(0.97), Network: new(1e6)}
			}, offer: func(m *rightsize.Machine) { m.Price = rate(t, "9") },
			want: sizes + "the GPU waited 50 % of the time, and the disk worked 97 % of that: a faster disk, or inputs that are read once\n" + evidence,
		},
		{
			name: "the network is the limit", change: func(a *rightsize.Attempt) {
				a.Machine.Shape.NetworkBps = 10e9
				a.Usage.Link = 3e9
				a.Usage.Waiting = &queue.Waiting{Share: 0.5, CPU: new(0.3), Disk: new(0.1), Network: new(1.2e9)}
			}, offer: func(m *rightsize.Machine) { m.Price = rate(t, "9") },
			want: sizes + "the GPU waited 50 % of the time, and the network was at 96 % meanwhile: inputs nearer to the machine, or a faster network\n" + evidence,
		},
		{
			name: "a link that nobody knows", change: func(a *rightsize.Attempt) {
				a.Usage.Waiting = &queue.Waiting{Share: 0.5, CPU: new(0.3), Disk: new(0.1), Network: new(1.2e9)}
			}, offer: func(m *rightsize.Machine) { m.Price = rate(t, "9") },
			want: sizes + evidence,
		},
		{
			name: "it hardly waited", change: func(a *rightsize.Attempt) { a.Usage.Waiting = &queue.Waiting{Share: 0.29, CPU: new(1.0)} }, offer: func(m *rightsize.Machine) { m.Price = rate(t, "9") },
			want: sizes + evidence,
		},
		{
			name: "idle GPUs", job: func(j *rightsize.Job) { j.GPUs = 4 }, change: func(a *rightsize.Attempt) { a.Machine.Shape.GPUs, a.Usage.GPUs, a.Usage.Idle = 4, 4, 3 },
			want: sizes + "nothing ever ran on 3 of 4 GPUs; gpu_count: 1 would have been enough\n" + evidence,
		},
		{name: "short", change: func(a *rightsize.Attempt) { a.Busy, a.Usage.Span = 4*time.Minute, 4*time.Minute }, want: "unclear: 4m of work, seen in 720 looks, say too little; 5m and 30 looks are needed\n"},
		{name: "few looks", change: func(a *rightsize.Attempt) { a.Usage.Samples = 29 }, want: "unclear: 10h of work, seen in 29 looks, say too little; 5m and 30 looks are needed\n"},
		{name: "not looked at", change: func(a *rightsize.Attempt) { a.Usage = nil }, want: "unclear: its use of the machines was seen for 0 % of its work only\n"},
		{name: "hardly looked at", change: func(a *rightsize.Attempt) { a.Usage.Span = 5 * time.Hour }, want: "unclear: its use of the machines was seen for 50 % of its work only\n"},
		{name: "shared", change: func(a *rightsize.Attempt) { a.Usage.Shared = 100 }, want: "unclear: its tasks shared GPUs, whose use cannot be told apart\n"},
		{name: "failed", change: func(a *rightsize.Attempt) { a.Succeeded = false }, want: "unclear: no task of it succeeded\n"},
		{name: "killed", change: func(a *rightsize.Attempt) { a.OutOfMemory = true }, want: "unclear: a task was killed for want of memory\n"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			job, a, offer := oneGPU, attempt(t), small
			tenHours(a.Usage)
			if c.job != nil {
				c.job(&job)
			}
			if c.change != nil {
				c.change(&a)
			}
			if c.offer != nil {
				c.offer(&offer)
			}
			e := rightsize.Measure(job, []rightsize.Attempt{a}, gpu.Builtin())
			offers := []rightsize.Machine{a.Machine, offer}
			var got rightsize.Advice
			if c.ask != (rightsize.Ask{}) {
				got = e.Advise(offers[:1], offers, c.ask)
			} else {
				got = e.Advise(offers, nil, c.ask)
			}
			if diff := cmp.Diff(c.want, notes(got)); diff != "" {
				t.Error(diff)
			}
			if _, err := json.Marshal(got); err != nil {
				t.Error(err)
			}
		})
	}
}

// What is enough has headroom, and is at most what there was.
func TestEnough(t *testing.T) {
	for _, c := range []struct {
		threads, memory, gpuMemory float64 // GiB
		want                       rightsize.Enough
	}{
		{0, 0.1, 0.1, rightsize.Enough{VCPU: 1, Memory: gib / 4, GPUMemory: gib / 4}},
		{3.2, 8, 10, rightsize.Enough{VCPU: 4, Memory: 10 * gib, GPUMemory: 11 * gib}},
		{3.3, 8.1, 10.1, rightsize.Enough{VCPU: 5, Memory: 11 * gib, GPUMemory: 12 * gib}},
		{15.9, 127, 47.9, rightsize.Enough{VCPU: 16, Memory: 128 * gib, GPUMemory: 48 * gib}},
	} {
		a := attempt(t)
		tenHours(a.Usage)
		a.Usage.CPU, a.Usage.Memory, a.Usage.GPUMemory = flat(720, c.threads), flat(720, c.memory*gib), flat(720, c.gpuMemory*gib)
		if diff := cmp.Diff(c.want, rightsize.Measure(oneGPU, []rightsize.Attempt{a}, gpu.Builtin()).Enough()); diff != "" {
			t.Errorf("%+v:\n%s", c, diff)
		}
	}
}

// Work on the CPU is sized as well.
func TestCPUJob(t *testing.T) {
	a := attempt(t)
	tenHours(a.Usage)
	a.Machine = machine(t, "c7i.4xlarge", "", 16, 32, "0.71")
	a.Usage.GPU, a.Usage.GPUMemory, a.Usage.Waiting, a.Usage.GPUs = nil, nil, nil, 0
	e := rightsize.Measure(rightsize.Job{Width: 1}, []rightsize.Attempt{a}, gpu.Builtin())
	if diff := cmp.Diff(rightsize.Enough{VCPU: 4, Memory: 12 * gib}, e.Enough()); diff != "" {
		t.Error(diff)
	}
	got := e.Advise([]rightsize.Machine{machine(t, "c7i.xlarge", "", 4, 8, "0.18"), machine(t, "m7i.xlarge", "", 4, 16, "0.2")}, nil, rightsize.Ask{})
	want := `CPU: 3.1 of 16 vCPUs in 95 of 100 looks; 4 would have been enough
memory: 9.0 GiB of 32 GiB at the peak; 12 GiB would have been enough
aws/us-east-1 m7i.xlarge spot at 0.20/h instead of 0.71/h would have saved about 5.10 of 7.10 (estimate)
` + evidence
	if diff := cmp.Diff(want, notes(got)); diff != "" {
		t.Error(diff)
	}
}

// Tasks that share a machine share its price, there as here.
func TestSharedMachines(t *testing.T) {
	a := attempt(t)
	tenHours(a.Usage)
	a.Machine = machine(t, "p4d.24xlarge", "a100-sxm-40gb", 96, 1152, "12")
	a.Machine.Shape.GPUs, a.Machine.Slots, a.Usage.Alone, a.Usage.GPUSize = 8, 8, 0, 40*gib
	l4 := machine(t, "g6.xlarge", "l4", 4, 16, "0.8")
	e := rightsize.Measure(rightsize.Job{Width: 32, GPUs: 1}, []rightsize.Attempt{a, a}, gpu.Builtin())
	got := e.Advise([]rightsize.Machine{l4}, nil, rightsize.Ask{})
	// Memory is 5.2 times slower, and 8 % of the time goes there: 33 % longer is too long.
	if got.Instead != nil {
		t.Errorf("%+v", got.Instead)
	}
	for _, one := range []*rightsize.Attempt{&a} {
		one.Usage.GPU.Mean = 4
	}
	got = e.Advise([]rightsize.Machine{l4}, nil, rightsize.Ask{})
	if i := got.Instead; i == nil || i.WasTasks != 8 || i.Tasks != 1 || i.Cost.String() != "30.00" || i.Saved > 15*money.Unit || i.Saved < 11*money.Unit {
		t.Errorf("%+v", i)
	}
	if !strings.Contains(notes(got), "g6.xlarge spot at 0.80/h for 1 task instead of 12.00/h for 8 tasks would have saved") {
		t.Error(notes(got))
	}
}

// Work that waited for different things has no one bottleneck, and the largest of
// its tasks is what must fit.
func TestSpread(t *testing.T) {
	one, other := attempt(t), attempt(t)
	tenHours(one.Usage)
	tenHours(other.Usage)
	one.Usage.Waiting = &queue.Waiting{Share: 0.6, CPU: new(0.99)}
	other.Usage.Waiting = &queue.Waiting{Share: 0.6, CPU: new(0.2), Disk: new(0.99)}
	other.Usage.Memory = flat(720, 60*gib)
	e := rightsize.Measure(rightsize.Job{Width: 2, GPUs: 1}, []rightsize.Attempt{one, other}, gpu.Builtin())
	got := e.Advise(nil, nil, rightsize.Ask{})
	if got.Waited != nil || e.Enough().Memory != 75*gib {
		t.Errorf("waited %+v, memory %d", got.Waited, e.Enough().Memory/gib)
	}
	other.Busy = 2 * time.Hour
	other.Usage.Span = 2 * time.Hour
	e = rightsize.Measure(rightsize.Job{Width: 2, GPUs: 1}, []rightsize.Attempt{one, other}, gpu.Builtin())
	if w := e.Advise(nil, nil, rightsize.Ask{}).Waited; w == nil || w.For != "cpu" {
		t.Errorf("five sixths of the work waited for the CPUs: %+v", w)
	}
}

// Whatever was seen: a suggestion has room for all of it, costs less, and needs
// every figure; nothing depends on the order of attempts and offers.
func TestSuggestionsHold(t *testing.T) {
	facts := gpu.Builtin()
	gpus := []string{"l40s", "l4", "h100-sxm-80gb", "a100-sxm-80gb", "t4", "no-such"}
	suggested := 0
	rapid.Check(t, func(t *rapid.T) {
		figure := func(name string, most float64) *queue.Figure {
			if rapid.IntRange(0, 40).Draw(t, name+" unknown") == 40 {
				return nil
			}
			v := []float64{rapid.Float64Range(0, most).Draw(t, name), most * float64(rapid.IntRange(0, 20).Draw(t, name+" p95")) / 20, most * float64(rapid.IntRange(0, 20).Draw(t, name+" max")) / 20}
			return &queue.Figure{N: 100, Mean: min(v[0], v[1], v[2]), P95: min(v[1], v[2]), Max: v[2]}
		}
		draw := func(kind providers.Kind) rightsize.Machine {
			m := machine(t, rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "type"), rapid.SampledFrom(gpus).Draw(t, "gpu"),
				float64(rapid.SampledFrom([]int{64, 32, 16, 8, 4, 0}).Draw(t, "vcpu")), int64(rapid.SampledFrom([]int{256, 64, 32, 16, 8, 0}).Draw(t, "memory")), "1")
			m.Price = money.Rate(rapid.SampledFrom([]int64{1e9, 2e9, 3e8, 4e9, 1e8, 0}).Draw(t, "price"))
			m.Slots = rapid.SampledFrom([]int{1, 1, 1, 2, 4}).Draw(t, "slots")
			m.Shape.GPUs = float64(m.Slots)
			m.Market.Kind = kind
			return m
		}
		kinds := []providers.Kind{providers.Spot, providers.OnDemand}
		job := rightsize.Job{Width: rapid.IntRange(1, 8).Draw(t, "width"), GPUs: 1, Figure: rapid.SampledFrom([]string{"", "fp32", "memory_bandwidth"}).Draw(t, "figure")}
		first := draw(rapid.SampledFrom(kinds).Draw(t, "kind"))
		if rapid.IntRange(0, 9).Draw(t, "likely") > 0 { // that there is something to save
			first.Shape.GPU, first.Shape.VCPU, first.Shape.Memory, first.Price = "l40s", 64, 256*gib, 4e9
		}
		var attempts []rightsize.Attempt
		for range rapid.IntRange(1, 3).Draw(t, "attempts") {
			a := rightsize.Attempt{Machine: first, Busy: time.Hour, Succeeded: true}
			if rapid.IntRange(0, 4).Draw(t, "other machine") == 4 {
				a.Machine = draw(rapid.SampledFrom(kinds).Draw(t, "other kind"))
			}
			a.Usage = &queue.Usage{
				Samples: 100, Span: time.Hour, Alone: rapid.SampledFrom([]int{100, 100, 100, 0}).Draw(t, "alone"), GPUs: 1, GPUSize: rapid.SampledFrom([]int64{0, 24 * gib, 80 * gib}).Draw(t, "size"),
				CPU: figure("cpu", 12), Memory: figure("memory", 24*gib), GPU: figure("gpu", 30), GPUMemory: figure("gpu memory", 24*gib),
				Encoder: flat(100, 0), Decoder: flat(100, 0), Network: figure("network", 60e6),
			}
			attempts = append(attempts, a)
		}
		var offers []rightsize.Machine
		for range rapid.IntRange(10, 30).Draw(t, "offers") {
			offers = append(offers, draw(rapid.SampledFrom(kinds).Draw(t, "offer kind")))
		}
		e := rightsize.Measure(job, attempts, facts)
		got := e.Advise(offers, nil, rightsize.Ask{})
		i := got.Instead
		if i == nil {
			return
		}
		suggested++
		if i.Saved <= 0 || i.Saved > i.Cost || i.Longer < 0 || i.Longer > 0.25 {
			t.Fatalf("saves %v of %v, %g longer", i.Saved, i.Cost, i.Longer)
		}
		found := false
		for k := range offers {
			found = found || offers[k].Market == i.Market && offers[k].Price == i.Price && offers[k].Shape == i.Shape
		}
		if !found || i.Market.Kind != e.Kind() {
			t.Fatalf("%v was not offered", i.Market)
		}
		n := float64(i.Tasks)
		for _, a := range attempts {
			u := a.Usage
			if u.CPU == nil || u.Memory == nil || u.GPU == nil || u.GPUMemory == nil || u.Network == nil {
				t.Fatalf("a figure is unknown, and yet it suggests %v", i.Market)
			}
			k := float64(max(1, min(a.Machine.Slots, job.Width)))
			if need := min(u.CPU.P95*1.25, a.Machine.Shape.VCPU/k); i.Shape.VCPU < n*need {
				t.Fatalf("%g vCPUs for %g tasks, each needs %g", i.Shape.VCPU, n, need)
			}
			if need := min(u.Memory.Max*1.25, float64(a.Machine.Shape.Memory)/k); float64(i.Shape.Memory) < n*need-n {
				t.Fatalf("%d bytes for %g tasks, each needs %g", i.Shape.Memory, n, need)
			}
			f, _ := facts.Lookup(i.Shape.GPU)
			if i.Shape.GPU != a.Machine.Shape.GPU && float64(f.UsableMemory().Or(0)) < min(u.GPUMemory.Max*1.1, float64(u.GPUSize)) {
				t.Fatalf("%s for %g bytes", i.Shape.GPU, u.GPUMemory.Max)
			}
		}
		for l, r := 0, len(offers)-1; l < r; l, r = l+1, r-1 {
			offers[l], offers[r] = offers[r], offers[l]
		}
		for l, r := 0, len(attempts)-1; l < r; l, r = l+1, r-1 {
			attempts[l], attempts[r] = attempts[r], attempts[l]
		}
		again := rightsize.Measure(job, attempts, facts).Advise(offers, nil, rightsize.Ask{})
		if again.Instead == nil || again.Instead.Market != i.Market || again.Instead.Saved.Round(6) != i.Saved.Round(6) {
			t.Fatalf("in another order: %+v, was %+v", again.Instead, i)
		}
	})
	t.Logf("%d suggestions", suggested)
	if suggested < 1 && !testing.Short() { // which draws too few
		t.Errorf("%d suggestions were made: this test sees nothing", suggested)
	}
}
