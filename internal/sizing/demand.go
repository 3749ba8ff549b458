package sizing

import (
	"math"
	"strconv"
	"strings"

	"gpubroker/internal/gpu"
)

// MostGPUs is the largest machine there is.
const MostGPUs = 16

// Demand is what one task asks of GPUs beyond their number: memory that they hold
// together, streams that they encode at once, or a seat. It is comparable, and the
// zero Demand asks for nothing.
type Demand struct {
	Held    int64 // bytes over all GPUs of the task, see [Memory]
	PerGPU  int64 // bytes more on each, from the second on
	Nodes   int   // machines that share Held; 0 and 1 are one
	Streams int   // of Video, at once
	Video   Video
	// FrameBuffer, when not 0, makes a task one user's seat: a share of a GPU with so
	// many bytes, that encodes one stream of Video where that is given.
	FrameBuffer int64
	// GPUs is how many the task takes; 0 leaves it to what it asks for.
	GPUs int
}

// IsZero reports whether nothing is asked for.
func (d Demand) IsZero() bool { return d == Demand{} }

// Seated reports whether a task is a seat.
func (d Demand) Seated() bool { return d.FrameBuffer > 0 }

// Short says what a GPU lacks for a demand: the failure of a constraint, as in
// package gpu. The zero Short is none.
type Short struct{ Code, Want, Have string }

// On is how many GPUs of a model a task takes, or what they lack. A model is split
// over 1, 2, 4, 8 or 16 of them, as tensors are; streams over any number.
func (d Demand) On(t *gpu.Table, f gpu.Fact) (int, Short) {
	n := max(1, d.GPUs)
	if d.Held > 0 {
		usable, ok := f.UsableMemory().Get()
		if !ok {
			return 0, Short{"model_memory", Gigabytes(d.Held), "unknown"}
		}
		most := MostGPUs
		if d.GPUs > 0 {
			most = d.GPUs
		}
		for n < most && d.each(n) > usable {
			n *= 2
		}
		if n = min(n, most); d.each(n) > usable {
			return 0, Short{"model_memory", Gigabytes(d.each(n)), Gigabytes(usable)}
		}
	}
	if d.Streams > 0 {
		each, ok := d.Video.Streams(t, f).Get()
		switch {
		case !ok:
			return 0, Short{"streams", strconv.Itoa(d.Streams), "unknown"}
		case each < 1:
			return 0, Short{"streams", strconv.Itoa(d.Streams), "0"}
		}
		need := int(math.Ceil(float64(d.Streams) / math.Floor(each)))
		if d.GPUs > 0 && need > d.GPUs {
			return 0, Short{"streams", strconv.Itoa(d.Streams), strconv.Itoa(d.GPUs * int(each))}
		}
		n = max(n, need)
	}
	return n, Short{}
}

// each is what each of n GPUs of a machine holds.
func (d Demand) each(n int) int64 {
	return Memory{Total: d.Held, PerGPU: d.PerGPU}.On(n * max(1, d.Nodes))
}

// Seats is how many seats a whole GPU carries, and how many its driver encodes for
// on one machine (0 is no limit), or what it lacks.
func (d Demand) Seats(t *gpu.Table, f gpu.Fact) (seats, cap int, short Short) {
	n, ok := Seats(f, d.FrameBuffer).Get()
	want := strconv.FormatFloat(float64(d.FrameBuffer)/gpu.GiB, 'f', -1, 64)
	switch {
	case !ok:
		return 0, 0, Short{"seats", want, "unknown"}
	case n == 0:
		return 0, 0, Short{"seats", want, "none"}
	}
	if d.Video.FPS > 0 {
		each, ok := d.Video.Streams(t, f).Get()
		switch {
		case !ok:
			return 0, 0, Short{"streams", "1", "unknown"}
		case each < 1:
			return 0, 0, Short{"streams", "1", "0"}
		}
		n, cap = min(n, int(each)), Sessions(f)
	}
	return n, cap, Short{}
}

// Sessions is how many streams the driver of a GPU encodes at once on one machine,
// of GeForce cards 12 from driver 590 on; 0 is no limit, or one that nobody knows.
func Sessions(f gpu.Fact) int {
	word, _, _ := strings.Cut(f.EncoderSessions.Or(""), " ")
	n, err := strconv.Atoi(word)
	if err != nil {
		return 0
	}
	return n
}
