package queue

import (
	"math"
	"time"
)

// Usage is what one attempt used of its machine, as its agent saw it in looks at
// regular moments while the command ran. Its size is bounded whatever the length
// of the run. A figure that could not be read is nil: unknown, never 0.
type Usage struct {
	Samples int           `json:"samples"`        // looks taken
	Span    time.Duration `json:"span"`           // the part of Busy that they stand for
	Alone   int           `json:"alone,omitzero"` // looks at which no other attempt ran on the machine

	CPUs   float64 `json:"cpus,omitzero"`    // CPU threads that the machine lets commands use; 0 unknown
	CPU    *Figure `json:"cpu,omitempty"`    // CPU threads busy
	Memory *Figure `json:"memory,omitempty"` // bytes, reclaimable file cache not counted

	GPUs int `json:"gpus,omitzero"` // GPUs that the attempt was given
	Idle int `json:"idle,omitzero"` // of them, those on which nothing was ever seen to run
	// Shared counts looks at which another attempt used one of the same GPUs. They
	// are not in the figures of the GPU, which cannot be told apart by attempt.
	Shared    int     `json:"shared,omitzero"`
	GPU       *Figure `json:"gpu,omitempty"`        // percent of time in which a GPU ran anything, mean of its GPUs
	GPUMemory *Figure `json:"gpu_memory,omitempty"` // bytes, on the fullest of its GPUs
	GPUSize   int64   `json:"gpu_size,omitzero"`    // bytes, memory of the smallest of them; 0 unknown
	Encoder   *Figure `json:"encoder,omitempty"`    // percent, of the busiest of its GPUs
	Decoder   *Figure `json:"decoder,omitempty"`

	// Disk and Network are the whole machine's: an upper bound of the attempt's own.
	Disk    *Figure `json:"disk,omitempty"`    // percent of time in which the workspace's disk worked
	Network *Figure `json:"network,omitempty"` // bytes per second, of the busier direction
	Link    float64 `json:"link,omitzero"`     // bytes per second that the machine's network takes; 0 unknown

	Waiting *Waiting `json:"waiting,omitempty"`
}

// Figure sums up what the looks saw of one figure.
type Figure struct {
	N    int     `json:"n"` // looks that could read it
	Mean float64 `json:"mean"`
	P95  float64 `json:"p95"` // 95 of 100 looks saw no more; at most 5 % above the true one
	Max  float64 `json:"max"`
}

// Waiting says what else was busy while the attempt's GPUs waited. Each look
// counts by the share of its time in which they did.
type Waiting struct {
	Share   float64  `json:"share"`             // of the time, 0 to 1
	CPU     *float64 `json:"cpu,omitempty"`     // share of the machine's CPU threads that its attempts kept busy, 0 to 1
	Disk    *float64 `json:"disk,omitempty"`    // share of the time in which the disk worked, 0 to 1
	Network *float64 `json:"network,omitempty"` // bytes per second
}

// Plausible reports whether the figures can be so: none is negative, and none
// contradicts another. They come from a machine that the broker does not control.
func (u *Usage) Plausible() bool {
	if u.Samples <= 0 || u.Span <= 0 || u.Alone < 0 || u.Alone > u.Samples || u.Shared < 0 || u.Shared > u.Samples ||
		u.Idle < 0 || u.Idle > u.GPUs || u.GPUSize < 0 || !amount(u.CPUs) || !amount(u.Link) {
		return false
	}
	for _, f := range []*Figure{u.CPU, u.Memory, u.GPU, u.GPUMemory, u.Encoder, u.Decoder, u.Disk, u.Network} {
		if f == nil {
			continue
		}
		if f.N <= 0 || f.N > u.Samples || !amount(f.Mean) || !amount(f.P95) || !amount(f.Max) || f.Mean > f.Max || f.P95 > f.Max {
			return false
		}
	}
	for _, f := range []*Figure{u.GPU, u.Encoder, u.Decoder, u.Disk} {
		if f != nil && f.Max > 100 {
			return false
		}
	}
	w := u.Waiting
	return w == nil || share(&w.Share) && (w.CPU == nil || share(w.CPU)) && (w.Disk == nil || share(w.Disk)) && (w.Network == nil || amount(*w.Network))
}

func amount(f float64) bool { return f >= 0 && f <= math.MaxInt64 }

func share(f *float64) bool { return *f >= 0 && *f <= 1 }
