package rightsize

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/reason"
)

// When a bottleneck is named.
const (
	// minWaited is the share of the time from which on a GPU's waiting is worth
	// money to mend.
	minWaited = 0.3
	// fullCPU is when processors count as the limit: threads that wait for each
	// other leave some of them free.
	fullCPU = 0.9
	// fullDisk: a disk that works all of the time may still take more at once, so
	// that less is no evidence.
	fullDisk = 0.95
	// fullNetwork: what is left are the headers of its protocols, and slow starts.
	fullNetwork = 0.8
	// minAgree is the share of the work that must show the same bottleneck.
	minAgree = 0.8
)

// Advice is what is said of a job that is done. Without notes there is nothing to
// say.
type Advice struct {
	Clear bool          `json:"clear" doc:"the evidence carries an advice; there may be nothing to better"`
	Why   reason.Reason `json:"why,omitzero" doc:"why it does not"`

	Attempts int           `json:"attempts" doc:"that were looked at"`
	Samples  int           `json:"samples" doc:"looks at them, one every 5 s"`
	Busy     time.Duration `json:"busy" doc:"how long commands ran, over all attempts"`

	Sizes   []Size          `json:"sizes,omitempty" doc:"what one task used, had, and would have been content with"`
	Waited  *Waited         `json:"waited,omitempty"`
	Instead *Instead        `json:"instead,omitempty"`
	Notes   []reason.Reason `json:"notes,omitempty" doc:"the same in sentences, with the evidence"`
}

// Size is one resource of one task.
type Size struct {
	Name   string  `json:"name" enum:"vcpu,memory,gpu_memory,gpus"`
	Used   float64 `json:"used" doc:"bytes at the peak, vCPUs in 95 of 100 looks, GPUs that worked"`
	Had    float64 `json:"had"`
	Enough float64 `json:"enough"`
}

// Waited says what the GPUs waited for.
type Waited struct {
	Share float64 `json:"share" doc:"of the time in which nothing ran on the GPU, 0 to 1"`
	For   string  `json:"for" enum:"cpu,disk,network"`
	Full  float64 `json:"full" doc:"how full that was meanwhile, 0 to 1"`
}

// Advise says what the evidence carries. offers are machines that the job may use
// as it stands; lesser are those that it may use if it asks for ask instead, and
// may be empty.
func (e *Evidence) Advise(offers, lesser []Machine, ask Ask) Advice {
	a := Advice{Clear: e.why.IsZero(), Why: e.why, Attempts: len(e.attempts), Samples: e.samples, Busy: e.busy}
	if !a.Clear || e.main == nil {
		return a
	}
	note := func(code reason.Code, args ...any) { a.Notes = append(a.Notes, reason.New(code, args...)) }
	threads, memory, gpuMemory := e.had(e.main)
	if n := e.enough.GPUMemory; n > 0 {
		a.Sizes = append(a.Sizes, Size{"gpu_memory", float64(e.used.GPUMemory), float64(gpuMemory), float64(n)})
		if little(n, gpuMemory) {
			note("size_gpu_memory", "used", e.used.GPUMemory, "had", gpuMemory, "enough", n)
		}
	}
	if n := e.enough.VCPU; n > 0 {
		a.Sizes = append(a.Sizes, Size{"vcpu", e.vcpu, threads, float64(n)})
		if little(n, threads) {
			note("size_vcpu", "used", short(e.vcpu), "had", short(threads), "enough", n)
		}
	}
	if n := e.enough.Memory; n > 0 {
		a.Sizes = append(a.Sizes, Size{"memory", float64(e.used.Memory), float64(memory), float64(n)})
		if little(n, memory) {
			note("size_memory", "used", e.used.Memory, "had", memory, "enough", n)
		}
	}
	if n := int(e.job.GPUs); e.idle > 0 && e.idle < n {
		a.Sizes = append(a.Sizes, Size{"gpus", float64(n - e.idle), e.job.GPUs, float64(n - e.idle)})
		note("size_idle_gpus", "idle", e.idle, "gpus", n, "enough", n-e.idle)
	}
	if a.Waited = e.waited(); a.Waited != nil {
		note(reason.Code("size_waited_"+a.Waited.For), "share", percent(a.Waited.Share), "full", percent(a.Waited.Full))
	}
	a.Instead = e.instead(offers, nil)
	if ask != (Ask{}) {
		if l := e.instead(lesser, &ask); l != nil && (a.Instead == nil || l.Saved > a.Instead.Saved) {
			a.Instead = l
		}
	}
	if i := a.Instead; i != nil {
		a.Notes = append(a.Notes, i.note())
	}
	if len(a.Notes) > 0 {
		note("size_evidence", "attempts", a.Attempts, "samples", a.Samples, "busy", span(a.Busy))
	}
	return a
}

// little reports whether what is enough is clearly less than what there was.
func little[N, H int | int64 | float64](enough N, had H) bool {
	return float64(enough) <= notable*float64(had)
}

func (i *Instead) note() reason.Reason {
	tasks, wasTasks, longer := "", "", ""
	if i.Tasks > 1 || i.WasTasks > 1 {
		tasks, wasTasks = strconv.Itoa(i.Tasks), strconv.Itoa(i.WasTasks)
	}
	if i.Longer >= 0.01 {
		longer = percent(i.Longer)
	}
	return reason.New("size_instead", "market", i.Market, "price", i.Price, "was", i.Was, "tasks", tasks, "was_tasks", wasTasks,
		"saved", i.Saved, "cost", i.Cost, "longer", longer, "ask", i.Ask.String())
}

// String writes it as the keys of a spec; "" for nil.
func (a *Ask) String() string {
	if a == nil {
		return ""
	}
	var parts []string
	if a.VCPU > 0 {
		parts = append(parts, "vcpu: "+strconv.Itoa(a.VCPU))
	}
	for _, s := range []struct {
		key   string
		bytes int64
	}{{"memory", a.Memory}, {"gpu_memory", a.GPUMemory}} {
		switch {
		case s.bytes <= 0:
		case s.bytes%(1<<30) == 0:
			parts = append(parts, fmt.Sprintf("%s: %dGiB", s.key, s.bytes>>30))
		default:
			parts = append(parts, fmt.Sprintf("%s: %dMiB", s.key, s.bytes>>20))
		}
	}
	return strings.Join(parts, ", ")
}

// waited names what nearly all of the work waited for; nil where that is not clear.
func (e *Evidence) waited() *Waited {
	if e.job.GPUs <= 0 {
		return nil
	}
	type sum struct{ busy, share, full float64 }
	var all float64
	found := map[string]*sum{}
	for i := range e.attempts {
		a := &e.attempts[i]
		w := a.Busy.Seconds()
		all += w
		what, full := bottleneck(a)
		if what == "" {
			continue
		}
		s := found[what]
		if s == nil {
			s = &sum{}
			found[what] = s
		}
		s.busy, s.share, s.full = s.busy+w, s.share+w*a.Usage.Waiting.Share, s.full+w*full
	}
	for what, s := range found {
		if s.busy >= minAgree*all {
			return &Waited{Share: s.share / s.busy, For: what, Full: s.full / s.busy}
		}
	}
	return nil
}

// bottleneck is what was full while an attempt's GPUs waited. Processors come
// first: how full they are is known exactly, a disk only by its working time.
func bottleneck(a *Attempt) (what string, full float64) {
	u := a.Usage
	w := u.Waiting
	if w == nil || w.Share < minWaited || !readable(u, u.GPU) {
		return "", 0
	}
	if w.CPU != nil && readable(u, u.CPU) && *w.CPU >= fullCPU {
		return "cpu", *w.CPU
	}
	if w.Disk != nil && readable(u, u.Disk) && *w.Disk >= fullDisk {
		return "disk", *w.Disk
	}
	if link := link(a); w.Network != nil && readable(u, u.Network) && link > 0 && *w.Network >= fullNetwork*link {
		return "network", min(1, *w.Network/link)
	}
	return "", 0
}

// link is what the machine's network takes in bytes per second: what it is rented
// with or what its hardware says, whichever is less; 0 unknown.
func link(a *Attempt) float64 {
	rented, said := float64(a.Machine.Shape.NetworkBps)/8, a.Usage.Link
	if rented > 0 && said > 0 {
		return min(rented, said)
	}
	return max(rented, said)
}

// span shows a length of time without the zeros that time.Duration ends it with.
func span(d time.Duration) string {
	unit := time.Second
	if d >= time.Hour {
		unit = time.Minute
	}
	text := d.Round(unit).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func percent(share float64) string { return strconv.Itoa(int(math.Round(100*share))) + " %" }

// short shows a number with at most two digits behind the point, one from 10 on.
func short(f float64) string {
	digits := 2
	if f >= 10 {
		digits = 1
	}
	text := strconv.FormatFloat(f, 'f', digits, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}
