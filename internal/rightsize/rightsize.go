// Package rightsize says, once a job is done, what would have been enough for it
// and what that would have saved, and what its GPUs waited for.
//
// It is pure: it looks at what the agents saw ([queue.Usage]), at the machines that
// the attempts ran on, and at what may be rented instead. It promises to say
// nothing that the evidence does not carry:
//
//   - a figure that nobody could read, a run that was short, GPUs whose use cannot
//     be told apart by task, and tasks that failed lead to no advice;
//   - what it calls enough has headroom over the most that was seen, or is what the
//     task had;
//   - it suggests only machines that the caller says the job may use, on which it
//     would have been done in about the same time by the least favourable reading,
//     and for clearly less.
//
// Limits. Peaks between two looks (5 s) are not seen; headroom is for them.
// Programs that take all of a GPU's memory at their start (JAX, vLLM) look as if
// they needed it. A vCPU counts as one wherever it is rented. What it would have
// saved is an estimate at the prices of the day on which it is asked.
package rightsize

import (
	"math"
	"time"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/providers"
	"gpubroker/queue"
)

// When evidence is clear.
const (
	// minBusy and minSamples: a shorter run is mostly start-up, and its peak may not
	// have come yet.
	minBusy    = 5 * time.Minute
	minSamples = 30
	// minCover is the share of the work that must have been looked at: the last
	// look may be a whole interval before the end, so that tasks under a quarter of
	// a minute say nothing.
	minCover = 0.6
	// minReadable is the share of the looks that must have been able to read a
	// figure.
	minReadable = 0.8
	// maxShared is the share of looks in which a GPU may have been another's too.
	maxShared = 0.05
)

// Headroom over what was seen.
const (
	// cpuRoom over the 95th percentile: what is above it costs a twentieth of the
	// time a little.
	cpuRoom = 1.25
	// memoryRoom over the peak, which may lie between two looks. Too little of it
	// kills the task.
	memoryRoom = 1.25
	// gpuMemoryRoom is less: frameworks keep what they once took, so that the peak
	// stays to be seen.
	gpuMemoryRoom = 1.1
	// networkRoom over the 95th percentile.
	networkRoom = 1.25
	// notable is the share of what a task had below which what is enough is worth a
	// word: sizes are sold in steps of two.
	notable = 0.75
)

// When a machine is suggested.
const (
	// minSaving is the share of the cost that must be saved: less is within what
	// prices move in a day.
	minSaving = 0.1
	// maxLonger is by how much longer it may take, by the least favourable reading.
	maxLonger = 1.25
	// modestNetwork is what any machine in a data centre takes, in bytes per second:
	// 400 Mbit/s. Above it the network must be known to suffice.
	modestNetwork = 50e6
)

// Machine is what is rented: one offer, and how many tasks of the job it runs at
// once.
type Machine struct {
	Market providers.Market
	Shape  providers.Shape
	Price  money.Rate // whole machine per hour
	Slots  int
}

// Attempt is one attempt of the job.
type Attempt struct {
	Machine Machine
	Today   money.Rate // what the same type costs there now, by kind; 0 unknown
	Busy    time.Duration
	Usage   *queue.Usage // nil unknown

	Succeeded   bool
	OutOfMemory bool // killed for want of memory
}

// Job is what is asked of the job itself.
type Job struct {
	Width  int     // tasks of it that could run at once
	GPUs   float64 // for each task; 0 for work on the CPU
	Figure string  // attribute of package gpu that governs its speed; "" unknown
	Disk   bool    // it asks for disk itself
}

// Enough is what one task would have been content with; 0 is unknown.
type Enough struct {
	VCPU      int
	Memory    int64 // bytes
	GPUMemory int64 // bytes, of each GPU
}

// Evidence is what the attempts of a job show.
type Evidence struct {
	job      Job
	attempts []Attempt
	facts    *gpu.Table

	why     reason.Reason // why nothing may be said
	samples int
	busy    time.Duration
	kind    providers.Kind // on which most was spent
	main    *Attempt       // on the machine on which most was spent
	enough  Enough
	used    Enough // seen: the 95th percentile of vCPUs, rounded up, and peaks
	vcpu    float64
	idle    int
}

// Measure reads the evidence. attempts are those that ran a command.
func Measure(job Job, attempts []Attempt, facts *gpu.Table) *Evidence {
	e := &Evidence{job: job, facts: facts}
	var covered time.Duration
	succeeded, shared := false, 0
	for _, a := range attempts {
		if a.OutOfMemory {
			e.why = reason.New("size_out_of_memory")
		}
		if a.Busy <= 0 {
			continue
		}
		e.busy += a.Busy
		succeeded = succeeded || a.Succeeded
		if a.Usage == nil {
			continue
		}
		e.attempts = append(e.attempts, a)
		e.samples += a.Usage.Samples
		covered += min(a.Usage.Span, a.Busy)
		shared += a.Usage.Shared
	}
	switch {
	case !e.why.IsZero():
	case !succeeded:
		e.why = reason.New("size_no_success")
	case len(e.attempts) == 0 || covered.Seconds() < minCover*e.busy.Seconds():
		e.why = reason.New("size_unmeasured", "seen", percent(covered.Seconds()/max(1, e.busy.Seconds())))
	case e.busy < minBusy || e.samples < minSamples:
		e.why = reason.New("size_short", "busy", span(e.busy), "samples", e.samples, "want", span(minBusy), "least", minSamples)
	case float64(shared) > maxShared*float64(e.samples):
		e.why = reason.New("size_shared_gpu")
	}
	if e.why.IsZero() {
		e.weigh()
		e.size()
	}
	return e
}

// Kind is the kind of capacity that most was spent on: what is suggested is
// compared with that. It is "" where nothing may be said.
func (e *Evidence) Kind() providers.Kind { return e.kind }

// Enough is what one task would have been content with.
func (e *Evidence) Enough() Enough { return e.enough }

// tasks is how many tasks of the job share a machine.
func (e *Evidence) tasks(m *Machine) int { return max(1, min(m.Slots, e.job.Width)) }

// reference is what the attempt's machine is compared at: what was paid, or what it
// costs now where that is less, so that nothing is called saved that only the
// market gave.
func (a *Attempt) reference() money.Rate {
	if a.Today > 0 {
		return min(a.Machine.Price, a.Today)
	}
	return a.Machine.Price
}

// cost is what the attempt's work cost, in currency units.
func (e *Evidence) cost(a *Attempt) float64 {
	return a.reference().Float() * a.Busy.Hours() / float64(e.tasks(&a.Machine))
}

// weigh finds where most was spent.
func (e *Evidence) weigh() {
	kinds := map[providers.Kind]float64{}
	markets := map[providers.Market]float64{}
	for i := range e.attempts {
		a := &e.attempts[i]
		kinds[a.Machine.Market.Kind] += e.cost(a)
		markets[a.Machine.Market] += e.cost(a)
	}
	e.kind = providers.OnDemand
	if kinds[providers.Spot] > kinds[providers.OnDemand] {
		e.kind = providers.Spot
	}
	for i := range e.attempts {
		a := &e.attempts[i]
		if a.Machine.Market.Kind != e.kind {
			continue
		}
		if e.main == nil || markets[a.Machine.Market] > markets[e.main.Machine.Market] ||
			markets[a.Machine.Market] == markets[e.main.Machine.Market] && a.Machine.Market.Compare(e.main.Machine.Market) < 0 {
			e.main = a
		}
	}
}

// size works out what would have been enough for every attempt.
func (e *Evidence) size() {
	e.idle = math.MaxInt
	vcpu, memory, gpuMemory := true, true, e.job.GPUs > 0
	for i := range e.attempts {
		a := &e.attempts[i]
		u := a.Usage
		if u.GPU == nil {
			e.idle = 0
		}
		e.idle = min(e.idle, u.Idle)
		threads, bytes, onGPU := e.had(a)
		if vcpu = vcpu && readable(u, u.CPU) && threads > 0; vcpu {
			e.vcpu = max(e.vcpu, u.CPU.P95)
			e.enough.VCPU = max(e.enough.VCPU, int(min(math.Ceil(u.CPU.P95*cpuRoom), math.Ceil(threads))), 1)
		}
		if memory = memory && readable(u, u.Memory) && bytes > 0; memory {
			e.used.Memory = max(e.used.Memory, int64(u.Memory.Max))
			e.enough.Memory = max(e.enough.Memory, min(roundUp(u.Memory.Max*memoryRoom), bytes))
		}
		if gpuMemory = gpuMemory && readable(u, u.GPUMemory) && onGPU > 0; gpuMemory {
			e.used.GPUMemory = max(e.used.GPUMemory, int64(u.GPUMemory.Max))
			e.enough.GPUMemory = max(e.enough.GPUMemory, min(roundUp(u.GPUMemory.Max*gpuMemoryRoom), onGPU))
		}
	}
	if !vcpu {
		e.enough.VCPU, e.vcpu = 0, 0
	}
	if !memory {
		e.enough.Memory, e.used.Memory = 0, 0
	}
	if !gpuMemory {
		e.enough.GPUMemory, e.used.GPUMemory = 0, 0
	}
}

// readable reports whether a figure stands for nearly all looks.
func readable(u *queue.Usage, f *queue.Figure) bool {
	return f != nil && float64(f.N) >= minReadable*float64(u.Samples-u.Shared)
}

// had is what one task had of its machine: CPU threads, memory, and memory of each
// GPU; 0 is unknown.
func (e *Evidence) had(a *Attempt) (threads float64, memory, gpuMemory int64) {
	n := e.tasks(&a.Machine)
	threads = a.Machine.Shape.VCPU
	if threads == 0 {
		threads = a.Usage.CPUs
	}
	gpuMemory = a.Usage.GPUSize
	if gpuMemory == 0 {
		gpuMemory = a.Machine.Shape.GPUMemory
	}
	return threads / float64(n), a.Machine.Shape.Memory / int64(n), gpuMemory
}

// roundUp rounds bytes up to whole GiB, and below 4 GiB to quarters.
func roundUp(bytes float64) int64 {
	step := int64(1 << 30)
	if bytes < 4<<30 {
		step = 1 << 28
	}
	n := int64(math.Ceil(bytes))
	return (n + step - 1) / step * step
}
