package scheduler

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gpubroker/internal/gpu"
	"gpubroker/internal/reason"
	"gpubroker/providers"
)

// Memo keeps what a pass worked out for the next ones. The zero Memo is ready;
// a warm and an empty one give the same plan.
type Memo struct {
	revision uint64
	fits     map[string][]fit // by needs, one for each shape
}

// fit is what is decided once per needs and shape.
type fit struct {
	slots  int     // tasks that one machine runs at once; 0 when it does not fit
	figure float64 // governing figure of one task's share; 0 when unknown
	why    reason.Reason
}

// Key is equal for needs that every shape answers alike.
func (n *Needs) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%g|%d|%v|%s|%g|%d|%d|%s|", n.GPUs, n.Slots, n.GPU, n.Figure, n.VCPU, n.Memory, n.Disk, n.Arch)
	names := make([]string, 0, len(n.Require))
	for name := range n.Require {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%s=%v|", name, n.Require[name])
	}
	return b.String()
}

// SlotKey says how a machine is cut for these needs: tasks with the same key
// share a machine.
func (n *Needs) SlotKey() string {
	return fmt.Sprintf("gpus=%g slots=%d vcpu=%g memory=%d disk=%d", n.GPUs, max(1, n.Slots), n.VCPU, n.Memory, n.Disk)
}

func (m *Memo) fitsFor(s *Snapshot, n *Needs) []fit {
	if m.fits == nil || m.revision != s.Catalog.Revision {
		m.fits, m.revision = map[string][]fit{}, s.Catalog.Revision
	}
	key := n.key()
	if f, ok := m.fits[key]; ok {
		return f
	}
	out := make([]fit, len(s.Catalog.Shapes))
	for i := range s.Catalog.Shapes {
		out[i] = fitShape(s.Facts, n, &s.Catalog.Shapes[i].Shape)
	}
	m.fits[key] = out
	return out
}

func no(code reason.Code, want, have any) fit {
	return fit{why: reason.New(code, "want", want, "have", have)}
}

// fitShape decides whether a task fits a machine of that shape, and how many do.
// What the shape does not say is unknown, and meets no need.
func fitShape(facts *gpu.Table, n *Needs, s *providers.Shape) fit {
	out := fit{slots: math.MaxInt32, figure: 1}
	if n.Arch != "" && s.Arch != "" && n.Arch != s.Arch {
		return no("arch", n.Arch, s.Arch)
	}
	if n.GPUs > 0 {
		if s.GPUs <= 0 {
			return no("no_gpu", n.GPUs, 0)
		}
		if s.GPU == "" {
			return no("gpu_unknown", strings.Join(n.GPU, ","), s.GPUName)
		}
		if len(n.GPU) > 0 && !slices.Contains(n.GPU, s.GPU) {
			return no("gpu_other", strings.Join(n.GPU, ","), s.GPU)
		}
		f, known := facts.Lookup(s.GPU)
		if !known && (len(n.Require) > 0 || n.Figure != "") {
			return no("gpu_unknown", strings.Join(n.GPU, ","), s.GPU)
		}
		if failures := facts.Check(f, n.Require); len(failures) > 0 {
			return no(reason.Code(failures[0].Code), failures[0].Want, failures[0].Have)
		}
		if s.GPUs < n.GPUs {
			return no("gpu_count", n.GPUs, s.GPUs)
		}
		share := n.GPUs
		if n.Slots > 1 {
			share = n.GPUs / float64(n.Slots)
		}
		out.slots = int(s.GPUs/share + 1e-9)
		if n.Figure != "" {
			out.figure = figure(facts, f, n.Figure) * share
		}
	} else if s.GPUs > 0 && len(n.GPU) == 0 && n.Figure == "" {
		// A CPU task may run on a GPU machine; its price decides.
		out.slots = math.MaxInt32
	}
	if n.VCPU > 0 {
		if s.VCPU < n.VCPU {
			return no("vcpu", n.VCPU, unknownIfZero(s.VCPU))
		}
		out.slots = min(out.slots, int(s.VCPU/n.VCPU+1e-9))
	}
	if n.Memory > 0 {
		if s.Memory < n.Memory {
			return no("memory", n.Memory, unknownIfZero(float64(s.Memory)))
		}
		out.slots = min(out.slots, int(s.Memory/n.Memory))
	}
	if n.Disk > 0 && s.Disk > 0 {
		if s.Disk < n.Disk {
			return no("disk", n.Disk, s.Disk)
		}
		out.slots = min(out.slots, int(s.Disk/n.Disk))
	}
	if out.slots == math.MaxInt32 {
		out.slots = max(1, int(s.VCPU))
	}
	return out
}

func unknownIfZero(f float64) any {
	if f == 0 {
		return "unknown"
	}
	return f
}

// figure returns the attribute's number for one GPU, or 0 when it is unknown.
func figure(facts *gpu.Table, f gpu.Fact, name string) float64 {
	a, ok := gpu.FindAttribute(name)
	if !ok {
		return 0
	}
	return facts.Value(f, a).Number.Or(0)
}

// Tally counts the reasons that ruled offers out.
type tally struct {
	counts map[reason.Code]*Count
}

func (t *tally) add(why reason.Reason, offers int) {
	if offers == 0 {
		return
	}
	if t.counts == nil {
		t.counts = map[reason.Code]*Count{}
	}
	c := t.counts[why.Code]
	if c == nil {
		c = &Count{Code: why.Code, Sample: why}
		t.counts[why.Code] = c
	}
	c.Offers += offers
}

func (t *tally) sorted() []Count {
	out := make([]Count, 0, len(t.counts))
	for _, c := range t.counts {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b Count) int {
		if a.Offers != b.Offers {
			return b.Offers - a.Offers
		}
		return strings.Compare(string(a.Code), string(b.Code))
	})
	return out
}
