package scheduler

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/reason"
	"gpubroker/internal/sizing"
	"gpubroker/providers"
)

// memoLimit bounds what a Memo keeps: fits of a needs and a shape.
const memoLimit = 1 << 20

// Memo keeps what a pass worked out for the next ones. The zero Memo is ready;
// a warm and an empty one give the same plan. It is not safe for concurrent use.
type Memo struct {
	catalog *Catalog
	facts   *gpu.Table
	fits    map[string]*fitSet // by needs
	asks    map[string]*ask    // by what is asked of GPUs
	size    int
	stays   map[string]stay // by attempt
}

// ask is what needs ask of GPUs, with the verdict on each model.
type ask struct {
	gpus      []string
	demand    sizing.Demand
	require   gpu.Requirements
	runtime   gpu.Runtime
	figure    string
	attribute gpu.Attribute
	reference float64 // figure of the fastest model that may be used; 1 where none governs
	verdicts  map[string]*verdict
}

// verdict is what is decided once per model of GPU.
type verdict struct {
	code       reason.Code // "" when it may be used
	want, have string
	fact       gpu.Fact
	figure     float64 // governing figure of one GPU, or of all that a task takes where they follow from its demand; 1 where none governs
	memory     float64 // nominal, of one GPU, in GiB; 0 unknown
	gpus       float64 // that a task takes by its demand; 0 where it has none
	seats      int     // that one GPU carries; 0 where tasks are no seats
	most       int     // seats that one machine serves; 0 means no limit
}

// fitSet is what is decided once per needs and catalog.
type fitSet struct {
	ask  *ask
	fits []fitted
	// order lists fits by the least that a unit of work can cost there, for each
	// of kinds; byGPU is the same with a list for each GPU, offers how many there are.
	order  [len(kinds)][]ranked
	byGPU  [len(kinds)][]ranks
	offers [len(kinds)]int
	// fastest is the greatest figure of a fit, slowest the least.
	fastest, slowest float64
	unfit            []Count // offers of shapes that do not fit
}

// fitted is a shape that fits.
type fitted struct {
	shape  int32
	slots  int32   // tasks that one machine runs at once
	figure float64 // of one GPU
}

// ranked is a fit with its least price per slot and unit of the figure.
type ranked struct {
	fit   int32
	least float64
}

// SlotKey says how a machine is cut for these needs: tasks with the same key
// share a machine.
func (n *Needs) SlotKey() string {
	var room [96]byte
	b := append(room[:0], "gpus="...)
	b = strconv.AppendFloat(b, n.GPUs, 'g', -1, 64)
	if !n.Demand.IsZero() {
		b = fmt.Appendf(b, " demand=%v", n.Demand)
	}
	b = append(b, " slots="...)
	b = strconv.AppendInt(b, int64(max(1, n.Slots)), 10)
	b = append(b, " vcpu="...)
	b = strconv.AppendFloat(b, n.VCPU, 'g', -1, 64)
	b = append(b, " memory="...)
	b = strconv.AppendInt(b, n.Memory, 10)
	b = append(b, " disk="...)
	b = strconv.AppendInt(b, n.Disk, 10)
	if n.Alone {
		b = append(b, " alone"...)
	}
	if n.gang() {
		b = strconv.AppendInt(append(b, " nodes="...), int64(n.Nodes), 10)
	}
	return string(b)
}

func appendWords(b []byte, words []string) []byte {
	for _, w := range words {
		b = append(append(b, w...), 0)
	}
	return append(b, 1)
}

// appendAsk is equal for needs that every GPU answers alike.
func (n *Needs) appendAsk(b []byte) []byte {
	if n.GPUs <= 0 {
		return append(b, '-')
	}
	b = appendWords(b, n.GPU)
	b = append(append(b, n.Figure...), 1)
	if !n.Demand.IsZero() || !n.Runtime.IsZero() {
		b = fmt.Appendf(b, "%v%v", n.Demand, n.Runtime)
	}
	var room [8]string
	names := room[:0]
	for name := range n.Require {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		b = append(append(append(append(b, name...), '='), n.Require[name].String()...), 0)
	}
	return append(b, 1)
}

// appendKey is equal for needs that every shape answers alike.
func (n *Needs) appendKey(b []byte) []byte {
	b = n.appendAsk(b)
	for _, f := range [...]float64{n.GPUs, n.VCPU} {
		b = append(strconv.AppendFloat(b, f, 'g', -1, 64), '|')
	}
	b = appendBools(b, n.Fabric, n.RDMA, n.WholeGPU, n.Alone)
	for _, i := range [...]int64{int64(n.Slots), n.Memory, n.Disk, int64(n.nodes())} {
		b = append(strconv.AppendInt(b, i, 10), '|')
	}
	return append(append(b, n.Arch...), 1)
}

func (m *Memo) renew(s *Snapshot) {
	if m.catalog != s.Catalog || m.facts != s.Facts || m.size > memoLimit {
		*m = Memo{catalog: s.Catalog, facts: s.Facts, fits: map[string]*fitSet{}, asks: map[string]*ask{}, stays: map[string]stay{}}
	}
	if len(m.stays) > 2*len(s.Running)+1000 {
		clear(m.stays)
	}
}

// fitsFor decides which shapes fit the needs.
func (m *Memo) fitsFor(s *Snapshot, n *Needs) *fitSet {
	var room [256]byte
	key := n.appendKey(room[:0])
	if f, ok := m.fits[string(key)]; ok {
		return f
	}
	f := newFitSet(m.askFor(s.Facts, n), s, n)
	m.fits[string(key)] = f
	m.size += len(f.fits) + 16
	return f
}

func (m *Memo) askFor(facts *gpu.Table, n *Needs) *ask {
	var room [256]byte
	key := n.appendAsk(room[:0])
	if a, ok := m.asks[string(key)]; ok {
		return a
	}
	a := &ask{gpus: n.GPU, demand: n.Demand, require: n.Require, runtime: n.Runtime, figure: n.Figure, verdicts: map[string]*verdict{}}
	if n.Figure != "" && n.GPUs > 0 {
		a.attribute, _ = gpu.FindAttribute(n.Figure)
		if len(n.GPU) == 1 {
			if f, _ := facts.Lookup(n.GPU[0]); a.figureOf(facts, f) <= 0 {
				a.figure, a.attribute = "", gpu.Attribute{} // nothing to compare
			}
		}
	}
	a.reference = a.fastest(facts)
	m.asks[string(key)] = a
	m.size += 64
	return a
}

func (a *ask) figureOf(facts *gpu.Table, f gpu.Fact) float64 {
	if a.attribute.Name == "" {
		return 0
	}
	return facts.Value(f, a.attribute).Number.Or(0)
}

// fastest is the greatest figure among the models that may be used, rented
// anywhere or not: what a task's length is taken for where nobody says on which
// GPU it was. Every other one is slower, so that nothing is promised too early.
func (a *ask) fastest(facts *gpu.Table) float64 {
	top := 0.0
	if a.attribute.Name != "" {
		for _, f := range facts.All() {
			if v := a.of(facts, f.ID); v.code == "" {
				top = max(top, v.figure)
			}
		}
	}
	if top == 0 {
		return 1
	}
	return top
}

// of judges a model of GPU. An unknown fact meets no need.
func (a *ask) of(facts *gpu.Table, id string) *verdict {
	if v, ok := a.verdicts[id]; ok {
		return v
	}
	v := a.judge(facts, id)
	a.verdicts[id] = &v
	return &v
}

func (a *ask) judge(facts *gpu.Table, id string) verdict {
	wanted := strings.Join(a.gpus, ", ")
	if len(a.gpus) > 0 && !a.named(facts, id) {
		return verdict{code: "gpu_other", want: wanted, have: id}
	}
	f, known := facts.Lookup(id)
	if !known && (len(a.require) > 0 || a.figure != "" || !a.demand.IsZero() || !a.runtime.IsZero()) {
		return verdict{code: "gpu_unknown", want: wanted, have: id}
	}
	if failures := facts.Check(f, a.require); len(failures) > 0 {
		return verdict{code: reason.Code(failures[0].Code), want: failures[0].Want, have: failures[0].Have}
	}
	if have, ok := a.runtime.Check(f); !ok {
		return verdict{code: "runtime", want: a.runtime.String(), have: have}
	}
	v := verdict{figure: 1, memory: f.Memory.Or(0), fact: f}
	if a.figure != "" {
		value := facts.Value(f, a.attribute).Number
		if v.figure = value.Or(0); v.figure <= 0 && !value.IsZero() {
			return verdict{code: reason.Code(a.attribute.Code), want: "more", have: "0"}
		} else if v.figure <= 0 {
			return verdict{code: "rate_unknown", want: a.figure, have: id}
		}
	}
	var short sizing.Short
	switch d := a.demand; {
	case d.IsZero():
	case d.Seated():
		v.seats, v.most, short = d.Seats(facts, f)
	default:
		var n int
		n, short = d.On(facts, f)
		v.gpus = float64(n)
		if d.GPUs == 0 && a.figure != "" {
			v.figure *= v.gpus // the work is shared by more of the slower ones
		}
	}
	if short.Code != "" {
		return verdict{code: reason.Code(short.Code), want: short.Want, have: short.Have}
	}
	return v
}

// named reports whether a GPU is one of those asked for: itself, or every variant
// that its provider leaves open.
func (a *ask) named(facts *gpu.Table, id string) bool { return namedBy(facts, a.gpus, id) }

func namedBy(facts *gpu.Table, ids []string, id string) bool {
	if slices.Contains(ids, id) {
		return true
	}
	variants := facts.Variants(id)
	return len(variants) > 0 && !slices.ContainsFunc(variants, func(v string) bool { return !slices.Contains(ids, v) })
}

// GPUsOn is how many GPUs of a model one task takes; ok is false where they do not
// meet its demand.
func (n *Needs) GPUsOn(facts *gpu.Table, id string) (count float64, ok bool) {
	if n.Demand.IsZero() || n.Demand.Seated() {
		return n.GPUs, true
	}
	f, _ := facts.Lookup(id)
	on, short := n.Demand.On(facts, f)
	return float64(on), short.Code == ""
}

// FigureOn is the governing figure of what one task takes of a GPU, as
// [Work.Figure] has it; 0 where none governs or it is unknown.
func (n *Needs) FigureOn(facts *gpu.Table, f gpu.Fact) float64 {
	figure := facts.Rate(f, n.Figure)
	if n.Demand.IsZero() || n.Demand.Seated() || n.Demand.GPUs > 0 {
		return figure
	}
	count, short := n.Demand.On(facts, f)
	if short.Code != "" {
		return 0
	}
	return figure * float64(count)
}

// gpus is how many GPUs one task takes.
func (n *Needs) gpus(v *verdict) float64 {
	if v.gpus > 0 {
		return v.gpus
	}
	return n.GPUs
}

// share is how much of a GPU one task takes.
func (n *Needs) share(v *verdict) float64 {
	if v.seats > 0 {
		return 1 / float64(v.seats)
	}
	return n.gpus(v) / float64(max(1, n.Slots))
}

// whole is how many GPUs a machine must have for one task: a task that takes a
// share of one GPU is content with a machine that has just that share, unless its
// work needs a whole one.
func (n *Needs) whole(v *verdict) float64 {
	g := n.gpus(v)
	switch {
	case g > 1:
		return g
	case n.WholeGPU:
		return 1
	}
	return n.share(v)
}

// bits forgives the rounding of shares such as 1/3, which clouds write as 0.3333.
const bits = 1e-3

// slots returns how many tasks a machine of that shape runs at once, or why
// none. What the shape does not say is unknown, and meets no need; except for
// the disk, which is attached in the size wanted where none comes with the price.
func (n *Needs) slots(s *providers.Shape, v *verdict) (int, reason.Code) {
	if n.Arch != "" && n.Arch != s.Arch {
		return 0, "arch"
	}
	slots := math.MaxInt32
	if n.GPUs > 0 {
		switch {
		case s.GPUs <= 0:
			return 0, "no_gpu"
		case s.GPU == "":
			return 0, "gpu_unknown"
		case v.code != "":
			return 0, v.code
		case s.GPUs < n.whole(v)*(1-bits):
			return 0, "gpu_count"
		case s.GPUs < 1 && v.memory*s.GPUs < n.Require["memory"].Number-bits:
			return 0, "gpu.memory" // a share of a GPU has a share of its memory
		case n.Fabric && !v.fact.Among(n.gpus(v), s.GPUs, s.Fabric).Or(false):
			return 0, "machine.fabric"
		case n.RDMA && !s.RDMA.Or(false):
			return 0, "machine.rdma"
		}
		slots = int(s.GPUs/n.share(v) + bits)
		if v.most > 0 {
			slots = min(slots, v.most)
		}
		if n.Alone && n.gpus(v) > 1 {
			slots = min(slots, 1)
		}
	}
	if n.VCPU > 0 {
		if s.VCPU < n.VCPU {
			return 0, "vcpu"
		}
		slots = min(slots, int(s.VCPU/n.VCPU+bits))
	}
	if n.Memory > 0 {
		if s.Memory < n.Memory {
			return 0, "memory"
		}
		slots = min(slots, int(s.Memory/n.Memory))
	}
	if n.Disk > 0 && s.Disk > 0 {
		if s.Disk < n.Disk {
			return 0, "disk"
		}
		slots = min(slots, int(s.Disk/n.Disk))
	}
	if slots == math.MaxInt32 { // a CPU task that asks for nothing
		slots = max(1, int(s.VCPU))
	}
	if n.gang() {
		slots = min(slots, 1) // the machine is its own
	}
	return slots, ""
}

// unfit says why a shape does not fit, with its numbers.
func (n *Needs) unfit(code reason.Code, s *providers.Shape, v *verdict) reason.Reason {
	no := func(want, have any) reason.Reason { return reason.New(code, "want", want, "have", have) }
	told := strings.NewReplacer("true", "yes", "false", "no", "|", " or ") // flags and lists, for people
	missing := func(k gpu.Known[bool]) string {
		if k.IsZero() {
			return "unknown"
		}
		return "no"
	}
	known := func(f float64) any {
		if f == 0 {
			return "unknown"
		}
		return f
	}
	switch code {
	case "arch":
		return no(n.Arch, cmp.Or(s.Arch, "unknown"))
	case "no_gpu":
		return reason.New(code)
	case "gpu_other":
		return no(v.want, v.have)
	case "gpu_count":
		why := no(share(n.whole(v)), share(s.GPUs))
		if v.gpus > 0 {
			why.Args["gpu"] = s.GPU // by whose memory, or encoders, the number is
		}
		return why
	case "machine.fabric":
		return reason.New(code, "gpus", n.gpus(v), "gpu", s.GPU, "have", missing(v.fact.Among(n.gpus(v), s.GPUs, s.Fabric)))
	case "machine.rdma":
		return reason.New(code, "have", missing(s.RDMA))
	case "vcpu":
		return no(n.VCPU, known(s.VCPU))
	case "memory":
		return no(gib(n.Memory), cmp.Or(gib(s.Memory), "an unknown amount"))
	case "disk":
		return no(gib(n.Disk), gib(s.Disk))
	case "rate_unknown":
		return reason.New(code, "figure", v.want, "gpu", v.have)
	case "gpu_unknown":
		if s.GPU == "" {
			return reason.New(code, "have", cmp.Or(s.GPUName, "without a name"))
		}
		return reason.New(code, "have", v.have)
	case "gpu.encoders", "gpu.decoders":
		if v.have == "0" {
			return reason.New(code, "gpu", s.GPU, "want", v.want, "have", "none")
		}
	case "gpu.memory":
		if v.code == "" {
			return reason.New(code, "gpu", s.GPU, "want", n.Require["memory"], "have", strconv.FormatFloat(v.memory*s.GPUs, 'f', -1, 64))
		}
	}
	return reason.New(code, "gpu", s.GPU, "want", told.Replace(v.want), "have", told.Replace(v.have))
}

// share shows a number of GPUs: a third of one is 0.3333.
func share(gpus float64) string { return strconv.FormatFloat(math.Round(gpus*1e4)/1e4, 'f', -1, 64) }

// gib shows bytes; "" for none.
func gib(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(n)/(1<<30), 'f', -1, 64) + "GiB"
}

func newFitSet(a *ask, s *Snapshot, n *Needs) *fitSet {
	f := &fitSet{ask: a}
	type ruled struct {
		offers int
		shape  *Shape
		v      *verdict
		price  money.Rate
	}
	out := map[reason.Code]*ruled{}
	for i := range s.Catalog.Shapes {
		shape := &s.Catalog.Shapes[i]
		v := a.of(s.Facts, shape.GPU)
		slots, code := n.slots(&shape.Shape, v)
		if code == "" {
			one := fitted{shape: int32(i), slots: int32(slots), figure: 1}
			if n.GPUs > 0 {
				one.figure = v.figure
			}
			f.fits = append(f.fits, one)
			continue
		}
		r := out[code]
		if r == nil {
			r = &ruled{price: math.MaxInt64}
			out[code] = r
		}
		r.offers += len(shape.Spot) + len(shape.OnDemand)
		// The sample is the cheapest, which is the one that people ask about.
		if p := min(firstPrice(shape.Spot), firstPrice(shape.OnDemand)); r.shape == nil || p < r.price {
			r.shape, r.v, r.price = shape, v, p
		}
	}
	for code, r := range out {
		f.unfit = append(f.unfit, Count{Code: code, Offers: r.offers, Sample: n.unfit(code, &r.shape.Shape, r.v)})
	}
	sortCounts(f.unfit)
	for k := range kinds {
		f.sort(s.Catalog, k)
	}
	return f
}

// sort orders the fits by the price of a unit of work at their cheapest offer.
func (f *fitSet) sort(c *Catalog, k int) {
	order := make([]ranked, 0, len(f.fits))
	for i := range f.fits {
		one := &f.fits[i]
		f.fastest = max(f.fastest, one.figure)
		if f.slowest == 0 || one.figure < f.slowest {
			f.slowest = one.figure
		}
		if list := c.Shapes[one.shape].list(k); len(list) > 0 {
			order = append(order, ranked{int32(i), float64(firstPrice(list)) / (float64(one.slots) * one.figure)})
		}
	}
	slices.SortFunc(order, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.least, b.least), cmp.Compare(a.fit, b.fit)) })
	f.order[k] = order
	lists := map[string]int{}
	for _, r := range order {
		one := &f.fits[r.fit]
		shape := &c.Shapes[one.shape]
		id := shape.GPU
		f.offers[k] += len(shape.list(k))
		at, ok := lists[id]
		if !ok {
			at = len(f.byGPU[k])
			lists[id] = at
			f.byGPU[k] = append(f.byGPU[k], ranks{gpu: id, figure: one.figure})
		}
		f.byGPU[k][at].list = append(f.byGPU[k][at].list, r)
	}
}

// firstPrice is the least price of a sorted list that is one.
func firstPrice(list []Offer) money.Rate {
	for i := range list {
		if list[i].Price > 0 {
			return list[i].least
		}
	}
	return math.MaxInt64
}
