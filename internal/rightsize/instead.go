package rightsize

import (
	"math"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/providers"
	"gpubroker/queue"
)

// Instead is a machine that would have been enough, with what it would have saved.
type Instead struct {
	Market   providers.Market `json:"market"`
	Shape    providers.Shape  `json:"shape"`
	Price    money.Rate       `json:"price"` // of the whole machine, per hour
	Tasks    int              `json:"tasks"` // of the job that share it
	Was      money.Rate       `json:"was" doc:"price of the machine that most was spent on: what was paid, or today's where that is less"`
	WasTasks int              `json:"was_tasks"`
	Cost     money.Amount     `json:"cost" doc:"of the work that is compared, without boots and idle time"`
	Saved    money.Amount     `json:"saved" doc:"of it, an estimate"`
	Longer   float64          `json:"longer" doc:"by how much longer it would have taken at most, as a share"`
	Ask      *Ask             `json:"ask,omitempty" doc:"what the job would have had to ask for instead of what it did"`
}

// Ask is what a job asks for less of; zero is as it was.
type Ask struct {
	VCPU      int   `json:"vcpu,omitzero"`
	Memory    int64 `json:"memory,omitzero"`     // bytes
	GPUMemory int64 `json:"gpu_memory,omitzero"` // bytes
}

// instead finds the machine that would have saved most; nil where none would.
func (e *Evidence) instead(offers []Machine, ask *Ask) *Instead {
	if !e.whole() {
		return nil
	}
	base := 0.0
	for i := range e.attempts {
		if a := &e.attempts[i]; a.Machine.Market.Kind == e.kind {
			if a.Machine.Price <= 0 {
				return nil // nobody knows what it cost
			}
			base += e.cost(a)
		}
	}
	var best *Instead
	for i := range offers {
		m := &offers[i]
		cost, longer, ok := e.on(m)
		if !ok || base-cost < minSaving*base {
			continue
		}
		total, err := money.FromFloat(base)
		saved, err2 := money.FromFloat(base - cost)
		if err != nil || err2 != nil || saved <= 0 {
			continue
		}
		if best == nil || saved > best.Saved || saved == best.Saved && m.Market.Compare(best.Market) < 0 {
			best = &Instead{
				Market: m.Market, Shape: m.Shape, Price: m.Price, Tasks: e.tasks(m),
				Was: e.main.reference(), WasTasks: e.tasks(&e.main.Machine), Cost: total, Saved: saved, Longer: longer, Ask: ask,
			}
		}
	}
	return best
}

// whole reports whether all is known that a machine is chosen by.
func (e *Evidence) whole() bool {
	if e.main == nil || e.enough.VCPU == 0 || e.enough.Memory == 0 || e.job.GPUs > 0 && e.enough.GPUMemory == 0 {
		return false
	}
	for i := range e.attempts {
		a := &e.attempts[i]
		u := a.Usage
		if !readable(u, u.Network) || e.job.GPUs > 0 && !readable(u, u.GPU) {
			return false
		}
		// A machine that could hold more than the job had to run was shared with other
		// jobs, or paid for by this one alone: only if it was alone is its price known.
		if a.Machine.Slots > e.tasks(&a.Machine) && u.Alone < u.Samples {
			return false
		}
	}
	return true
}

// on is what the work of the kind that is compared would have cost on a machine,
// and by how much longer it would have taken at most; ok is false where it would
// not have done.
func (e *Evidence) on(m *Machine) (cost, longer float64, ok bool) {
	n := e.tasks(m)
	if m.Market.Kind != e.kind || m.Price <= 0 ||
		m.Shape.VCPU < float64(n*e.enough.VCPU) || m.Shape.Memory < int64(n)*e.enough.Memory {
		return 0, 0, false
	}
	for i := range e.attempts {
		a := &e.attempts[i]
		was := &a.Machine.Shape
		if m.Shape.Arch != was.Arch || !e.job.Disk && m.Shape.Disk < was.Disk || !e.network(a, m, n) {
			return 0, 0, false
		}
		stretch := 1.0
		if e.job.GPUs > 0 {
			if stretch, ok = e.stretch(a, m); !ok {
				return 0, 0, false
			}
		}
		longer = max(longer, stretch-1)
		if a.Machine.Market.Kind == e.kind {
			cost += m.Price.Float() * a.Busy.Hours() * stretch / float64(n)
		}
	}
	return cost, longer, longer <= maxLonger-1
}

// network reports whether a machine's network takes what the attempt's machine was
// seen to move, for as many tasks as it runs.
func (e *Evidence) network(a *Attempt, m *Machine, tasks int) bool {
	need := a.Usage.Network.P95 * networkRoom * math.Ceil(float64(tasks)/float64(e.tasks(&a.Machine)))
	if was := a.Machine.Shape.NetworkBps; was > 0 && m.Shape.NetworkBps >= was && tasks <= e.tasks(&a.Machine) {
		return true
	}
	return need <= modestNetwork || need <= float64(m.Shape.NetworkBps)/8
}

// stretch is how much longer an attempt would have taken on another GPU at most: as
// if nothing ran beside the GPU's work (Amdahl's law), and that were as much slower
// as the figure in which the other GPU is worst: of memory, of FP32 and of matrices,
// and the one that governs work of its kind. ok is false where the program might not
// run there, or nobody knows.
func (e *Evidence) stretch(a *Attempt, m *Machine) (float64, bool) {
	id, other := a.Machine.Shape.GPU, m.Shape.GPU
	if id == "" || other == "" {
		return 0, false
	}
	if id == other && a.Machine.Shape.GPUs >= 1 && m.Shape.GPUs >= 1 {
		return 1, true
	}
	was, known := e.facts.Lookup(id)
	now, known2 := e.facts.Lookup(other)
	// With more GPUs than one their link counts as well; of a share of a GPU nobody
	// knows the speed.
	if !known || !known2 || len(e.facts.Variants(id)) != 1 || e.job.GPUs != 1 || m.Shape.GPUs < 1 || a.Machine.Shape.GPUs < 1 {
		return 0, false
	}
	if !runs(was, now) || !codes(a.Usage, was, now) {
		return 0, false
	}
	if room, ok := now.UsableMemory().Get(); !ok || room < e.enough.GPUMemory {
		return 0, false
	}
	slower := 1.0
	figures := []string{"memory_bandwidth", "fp32", "bf16"}
	if !was.BF16.Or(true) {
		figures[2] = "fp16"
	}
	if e.job.Figure != "" {
		figures = append(figures, e.job.Figure)
	}
	for _, name := range figures {
		r, ok := e.ratio(name, was, now)
		if !ok {
			return 0, false
		}
		slower = max(slower, r)
	}
	busy := min(1, a.Usage.GPU.Mean/100)
	return 1 - busy + busy*slower, true
}

// ratio is how much slower a GPU is by one figure. A figure that the first one
// does not have cannot have governed.
func (e *Evidence) ratio(name string, was, now gpu.Fact) (float64, bool) {
	attribute, ok := gpu.FindAttribute(name)
	if !ok || attribute.Kind != gpu.Number {
		return 0, false
	}
	x, known := e.facts.Value(was, attribute).Number.Get()
	y, known2 := e.facts.Value(now, attribute).Number.Get()
	switch {
	case known && x <= 0:
		return 1, true
	case !known || !known2 || y <= 0:
		return 0, false
	}
	return x / y, true
}

// runs reports whether what ran on one GPU runs on another: the same vendor, and no
// less of CUDA, or the same target of AMD's.
func runs(was, now gpu.Fact) bool {
	vendor, ok := was.Vendor.Get()
	if v, ok2 := now.Vendor.Get(); !ok || !ok2 || v != vendor {
		return false
	}
	if c, ok := was.ComputeCapability.Get(); ok {
		return now.ComputeCapability.Or(0) >= c
	}
	target, ok := was.Target.Get()
	return ok && now.Target.Or("") == target
}

// codes reports whether a GPU encodes and decodes no worse, if the attempt did.
func codes(u *queue.Usage, was, now gpu.Fact) bool {
	for _, c := range []struct {
		seen     *queue.Figure
		was, now gpu.Known[int]
	}{{u.Encoder, was.Encoders, now.Encoders}, {u.Decoder, was.Decoders, now.Decoders}} {
		n, known := c.was.Get()
		if known && n == 0 || c.seen != nil && c.seen.Max == 0 {
			continue // it has none, or it was not used
		}
		if !known || c.seen == nil || c.now.Or(0) < n {
			return false
		}
	}
	return true
}
