package agent

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"gpubroker/queue"
)

// Times of the looks at what attempts use, and of telling it.
const (
	lookEvery  = 5 * time.Second
	usageEvery = time.Minute
)

// Used is what a command and everything that it started have used. nil is unknown.
type Used struct {
	CPU    *time.Duration // of processor time, since its start
	Memory *int64         // bytes in use now
}

// A Metered [Process] says what it uses.
type Metered interface {
	// Used reads it. It may be called at any time; after the end all is unknown.
	Used() Used
}

// meter looks at what attempts use while their commands run. It does nothing while
// there are none.
type meter struct {
	every    time.Duration
	report   time.Duration // how often a running attempt's usage is told
	proc     string        // where proc is mounted
	sys      string        // where sysfs is mounted
	dir      string        // of the workspaces
	openGPUs func(context.Context) gpuReader
	tell     func(*attempt, *queue.Usage)
	log      *slog.Logger

	wake chan struct{}
	mu   sync.Mutex
	on   map[*attempt]*watched
}

// watched is an attempt whose command runs.
type watched struct {
	process Metered
	devices []int
	at      time.Time     // of the last look
	cpu     time.Duration // as of then
	told    time.Time
	tally   tally
}

// gpuReader reads the GPUs of the machine.
type gpuReader interface {
	// read returns what is known by now, by device number.
	read() map[int]gpuNow
	close()
}

// gpuNow is one GPU at one moment; nil is unknown.
type gpuNow struct {
	busy, encoder, decoder *float64 // percent
	used, size             *float64 // bytes
}

func newMeter(dir string, log *slog.Logger, tell func(*attempt, *queue.Usage)) *meter {
	m := &meter{
		every: lookEvery, report: usageEvery, proc: "/proc", sys: "/sys", dir: dir, log: log, tell: tell,
		wake: make(chan struct{}, 1), on: map[*attempt]*watched{},
	}
	m.openGPUs = func(ctx context.Context) gpuReader { return openGPUs(ctx, m.sys, m.every, m.log) }
	return m
}

// watch looks at an attempt from the start of its command on.
func (m *meter) watch(t *attempt, p Process, devices []int) {
	metered, _ := p.(Metered) // else processor time and memory are unknown
	now := time.Now()
	m.mu.Lock()
	m.on[t] = &watched{process: metered, devices: devices, at: now, told: now, tally: tally{gpus: len(devices), ran: map[int]bool{}}}
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// done ends the looks at an attempt and returns their sum, nil when there was none.
func (m *meter) done(t *attempt) *queue.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.on[t]
	delete(m.on, t)
	if w == nil {
		return nil
	}
	return w.tally.usage()
}

// run looks until the context ends.
func (m *meter) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		m.look(ctx)
	}
}

// look looks as long as there is something to look at.
func (m *meter) look(ctx context.Context) {
	var gpus gpuReader
	opened := false
	defer func() {
		if gpus != nil {
			gpus.close()
		}
	}()
	machine := newMachineReader(m.proc, m.sys, m.dir)
	tick := time.NewTicker(m.every)
	defer tick.Stop()
	for {
		some, onGPU := m.watching()
		if !some {
			return
		}
		if onGPU && !opened {
			gpus, opened = m.openGPUs(ctx), true
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var devices map[int]gpuNow
		if gpus != nil {
			devices = gpus.read()
		}
		m.add(machine.read(time.Now()), devices)
	}
}

func (m *meter) watching() (some, onGPU bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.on {
		some, onGPU = true, onGPU || len(w.devices) > 0
	}
	return some, onGPU
}

// add adds one look to every attempt that runs.
func (m *meter) add(machine machineNow, gpus map[int]gpuNow) {
	m.mu.Lock()
	now := maps.Clone(m.on)
	m.mu.Unlock()
	used := map[*attempt]Used{} // read without the lock: there may be many processes
	for t, w := range now {
		if w.process != nil {
			used[t] = w.process.Used()
		}
	}
	at := time.Now()
	looks := map[*attempt]*glance{}
	busy, known := 0.0, true // CPU threads that all attempts keep busy
	for t, w := range now {
		g := &glance{span: at.Sub(w.at), alone: len(now) == 1, machineNow: machine}
		looks[t] = g
		u := used[t]
		if u.Memory != nil {
			g.memory = new(float64(*u.Memory))
		}
		if u.CPU == nil || g.span <= 0 {
			known = false
			continue
		}
		// What a child used shows up a moment later in its parent's books.
		threads := max(0, (*u.CPU-w.cpu).Seconds()/g.span.Seconds())
		g.cpu = &threads
		busy += threads
	}
	for t, w := range now {
		g := looks[t]
		if known && g.cpus > 0 {
			g.load = new(min(1, busy/g.cpus))
		}
		for other, o := range now {
			g.shared = g.shared || other != t && meet(o.devices, w.devices)
		}
		if !g.shared {
			for _, n := range w.devices {
				g.gpus = append(g.gpus, numbered{n, gpus[n]})
			}
		}
	}
	tell := map[*attempt]*queue.Usage{}
	m.mu.Lock()
	for t, g := range looks {
		w := m.on[t]
		if w == nil || g.span < m.every/2 {
			continue // it has ended, or began just now
		}
		w.at = at
		if c := used[t].CPU; c != nil {
			w.cpu = max(w.cpu, *c)
		}
		w.tally.add(g)
		if at.Sub(w.told) >= m.report {
			w.told = at
			tell[t] = w.tally.usage()
		}
	}
	m.mu.Unlock()
	for t, u := range tell {
		m.tell(t, u)
	}
}

// meet reports whether two attempts use one GPU.
func meet(a, b []int) bool {
	return slices.ContainsFunc(a, func(n int) bool { return slices.Contains(b, n) })
}

// machineNow is the machine at one moment; nil and 0 are unknown.
type machineNow struct {
	cpus    float64  // threads that commands may use
	disk    *float64 // percent of the time since the last look in which it worked
	network *float64 // bytes per second since the last look
	link    float64  // bytes per second
}

// glance is one look at one attempt.
type glance struct {
	machineNow
	span          time.Duration
	alone, shared bool
	cpu, memory   *float64
	load          *float64 // share of the machine's threads that all attempts keep busy
	gpus          []numbered
}

type numbered struct {
	n int
	gpuNow
}

// tally sums up looks at one attempt in a fixed size.
type tally struct {
	samples, alone, shared int
	span                   time.Duration
	gpus                   int
	ran                    map[int]bool // by device: something was seen to run there, or nobody can say
	cpus, link             float64
	size                   float64

	cpu, memory, gpu, gpuMemory, encoder, decoder, disk, network series
	waited                                                       mean // over looks
	waitCPU, waitDisk, waitNetwork                               mean // over waiting
}

// idleGPU is the load in percent up to which nothing runs on a GPU: a driver
// reports a moment of its own now and then.
const idleGPU = 1

func (y *tally) add(g *glance) {
	y.samples++
	y.span += g.span
	if g.alone {
		y.alone++
	}
	y.cpus, y.link = g.cpus, g.link
	y.cpu.add(g.cpu, unitThreads)
	y.memory.add(g.memory, unitBytes)
	y.disk.add(g.disk, unitPercent)
	y.network.add(g.network, unitRate)
	if g.shared {
		y.shared++
		return
	}
	if len(g.gpus) == 0 {
		return
	}
	var busy, used, encoder, decoder *float64
	sum, all, memory := 0.0, true, true
	for _, d := range g.gpus {
		if d.busy == nil {
			all = false
		} else {
			sum += *d.busy
		}
		if d.busy == nil || *d.busy > idleGPU {
			y.ran[d.n] = true
		}
		memory = memory && d.used != nil
		used, encoder, decoder = most(used, d.used), most(encoder, d.encoder), most(decoder, d.decoder)
		if d.size != nil && (y.size == 0 || *d.size < y.size) {
			y.size = *d.size
		}
	}
	if all {
		busy = new(sum / float64(len(g.gpus)))
	}
	if !memory {
		used = nil
	}
	y.gpu.add(busy, unitPercent)
	y.gpuMemory.add(used, unitBytes)
	y.encoder.add(encoder, unitPercent)
	y.decoder.add(decoder, unitPercent)
	if busy == nil {
		return
	}
	idle := 1 - min(1, *busy/100)
	y.waited.add(&idle, 1)
	y.waitCPU.add(g.load, idle)
	if g.disk != nil {
		y.waitDisk.add(new(*g.disk/100), idle)
	}
	y.waitNetwork.add(g.network, idle)
}

// most is the greater of two; what is unknown is less than anything.
func most(a, b *float64) *float64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// usage is the sum so far, nil when nothing was seen.
func (y *tally) usage() *queue.Usage {
	if y.samples == 0 {
		return nil
	}
	u := &queue.Usage{
		Samples: y.samples, Span: y.span, Alone: y.alone, CPUs: y.cpus, Link: y.link,
		CPU: y.cpu.figure(unitThreads), Memory: y.memory.figure(unitBytes),
		GPUs: y.gpus, Shared: y.shared, GPU: y.gpu.figure(unitPercent), GPUMemory: y.gpuMemory.figure(unitBytes), GPUSize: int64(y.size),
		Encoder: y.encoder.figure(unitPercent), Decoder: y.decoder.figure(unitPercent),
		Disk: y.disk.figure(unitPercent), Network: y.network.figure(unitRate),
	}
	if u.GPU != nil {
		u.Idle = max(0, y.gpus-len(y.ran))
	}
	if share := y.waited.value(); share != nil {
		u.Waiting = &queue.Waiting{Share: *share, CPU: y.waitCPU.value(), Disk: y.waitDisk.value(), Network: y.waitNetwork.value()}
	}
	return u
}

// mean is a weighted mean.
type mean struct{ sum, weight float64 }

func (m *mean) add(v *float64, weight float64) {
	if v != nil {
		m.sum, m.weight = m.sum+*v*weight, m.weight+weight
	}
}

// value is nil where there was nothing to weigh.
func (m *mean) value() *float64 {
	if m.weight <= 0 {
		return nil
	}
	return new(round(m.sum/m.weight, false))
}

// A series counts values in steps of a sixteenth of an octave (4.4 %) over a unit,
// so that its size is fixed and its 95th percentile at most a step too high.
const (
	stepsPerOctave = 16
	octaves        = 24

	unitPercent = 0.1
	unitThreads = 0.001
	unitBytes   = 1 << 20
	unitRate    = 1 << 10
)

type series struct {
	n        int
	sum, max float64
	steps    []uint32 // made with the first value
}

func (s *series) add(v *float64, unit float64) {
	if v == nil || !(*v >= 0 && *v <= math.MaxInt64) {
		return
	}
	if s.steps == nil {
		s.steps = make([]uint32, stepsPerOctave*octaves+1)
	}
	s.n++
	s.sum += *v
	s.max = max(s.max, *v)
	at := 0
	if *v > unit {
		at = min(int(math.Ceil(math.Log2(*v/unit)*stepsPerOctave)), len(s.steps)-1)
	}
	s.steps[at]++
}

func (s *series) figure(unit float64) *queue.Figure {
	if s.n == 0 {
		return nil
	}
	f := &queue.Figure{N: s.n, Mean: round(s.sum/float64(s.n), false), Max: round(s.max, true)}
	f.P95 = f.Max
	want, seen := (s.n*95+99)/100, 0
	for at, n := range s.steps[:len(s.steps)-1] {
		if seen += int(n); seen >= want {
			f.P95 = min(f.Max, round(unit*math.Exp2(float64(at)/stepsPerOctave), true))
			break
		}
	}
	f.Mean = min(f.Mean, f.Max)
	return f
}

// round leaves four digits, so that what is sent and kept is short.
func round(v float64, up bool) float64 {
	const smallest = 1e-300 // under it numbers have no four digits
	if math.Abs(v) < smallest {
		return v
	}
	if up {
		step := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-3)
		v = math.Ceil(v/step-1e-6) * step
	}
	short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 3, 64), 64)
	if err != nil {
		return v
	}
	return short
}
