package schedtest

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/gpu"
	"gpubroker/internal/rates"
	"gpubroker/internal/reason"
	"gpubroker/internal/scenario"
	"gpubroker/internal/sizing"
	"gpubroker/providers"
	"gpubroker/scheduler"
	"gpubroker/scheduler/policy"
)

func (w *World) job(l *line) { w.Groups = append(w.Groups, w.group(l)) }

func (w *World) group(l *line) scheduler.Group {
	g := scheduler.Group{
		ID: l.name, Job: l.name, Project: l.get("project"), Team: l.get("team"), Queue: l.get("queue"), Priority: l.integer("priority", 0),
		Accepted: w.Now.Add(-time.Minute), Since: w.moment(l, "since"), Waiting: l.integer("waiting", 1), Left: l.number("left", 1), Limit: l.integer("limit", -1),
		NotBefore: w.moment(l, "not-before"), Interruptible: !l.flag("steady"), AtRisk: l.span("at-risk", 0), MaxDuration: l.span("max-duration", 0),
		Deadline: w.moment(l, "deadline"), StopAt: w.moment(l, "stop-at"), Opens: w.moment(l, "opens"), Closes: w.moment(l, "closes"),
		Policy: policy.Name(l.get("policy")), SpotAllowed: l.flag("spot-allowed"), OnDemand: l.get("on-demand"), MaxWait: l.span("max-wait", 0), Waits: w.moment(l, "waits"), Tried: l.flag("tried"),
		Own: l.flag("own"),
	}
	if job := l.get("job"); job != "" {
		g.Job = job
	}
	if g.Project == "" {
		g.Project = "media"
	}
	if at := w.moment(l, "accepted"); !at.IsZero() {
		g.Accepted = at
	}
	if by := l.get("held"); by != "" {
		g.Held = reason.New("held", "by", by)
	}
	for _, of := range [...]string{"project " + g.Project, "queue " + g.Queue} {
		if r, ok := w.Rules[of]; ok {
			g.Rules = append(g.Rules, r)
		}
	}
	g.Payer = budget.Payer{Team: g.Team, Project: g.Project}
	if g.Own {
		g.Payer.Job = g.Job
	}
	w.need(&g, l)
	return g
}

func (w *World) need(g *scheduler.Group, l *line) {
	n := &g.Needs
	n.GPUs, n.Slots, n.Nodes = l.number("gpus", 1), l.integer("slots", 0), l.integer("nodes", 0)
	n.VCPU, n.Memory, n.Disk = l.number("vcpu", 0), int64(l.number("memory", 0)*(1<<30)), int64(l.number("disk", 0)*(1<<30))
	n.Arch, n.Providers, n.Regions, n.Zones = l.get("arch"), l.words2("providers"), l.words2("regions"), l.words2("zones")
	for _, k := range l.words2("kinds") {
		n.Kinds = append(n.Kinds, providers.Kind(k))
	}
	n.Near = scheduler.Near{From: l.words2("near"), RTT: l.span("rtt", 0)}
	if m := l.get("max-price"); m != "" {
		n.MaxPrice = rate(m)
	}
	for _, v := range []struct {
		key  string
		into *gpu.Versions
	}{{"cuda", &n.Runtime.CUDA}, {"rocm", &n.Runtime.ROCm}} {
		var ok bool
		if text := l.get(v.key); text != "" {
			if *v.into, ok = gpu.ParseVersions(text); !ok {
				fail("%s names no releases", text)
			}
		}
	}
	n.Demand, n.Fabric, n.RDMA = l.demand(), l.flag("fabric"), l.flag("rdma")
	profile, ok := scenario.Builtin().Find(l.get("scenario"))
	if !ok {
		fail("no scenario %s", l.values["scenario"])
	}
	own := scenario.Requirements{}
	for _, ask := range l.words2("require") {
		key, value, _ := strings.Cut(ask, ":")
		a, ok := gpu.FindAttribute(key)
		if !ok {
			fail("no attribute %s", key)
		}
		want, err := gpu.ParseWant(a, strings.Split(value, ",")...)
		if err != nil {
			fail("%v", err)
		}
		own[key] = want
	}
	for _, name := range l.words2("gpu") {
		ids, err := w.Facts.Resolve(name)
		if err != nil {
			ids = []string{name} // a name that only an offer knows
		}
		n.GPU = append(n.GPU, ids...)
	}
	g.Work = scheduler.Work{Task: l.span("task", 0), Stage: l.span("stage", 0), Source: l.get("source")}
	w.move(g, l)
	if n.GPUs == 0 {
		return
	}
	if !l.flag("anything") { // asks nothing of the GPU, and all are alike
		n.Require, n.Figure = gpu.Requirements(profile.Merge(own)), profile.FigureName
		n.WholeGPU, n.Alone = profile.Share != scenario.Fraction, profile.Share == scenario.WholeMachine
	}
	if on := l.get("on"); on != "" {
		f, known := w.Facts.Lookup(on)
		if !known {
			fail("no GPU %s", on)
		}
		g.Work.Figure, _, _ = profile.Figure(f)
	}
}

// rate reads what was measured of a job's class: the job, a type of machine with its
// shape, how long a task took, how often and how long ago.
func (w *World) rate(l *line) {
	at := slices.IndexFunc(w.Groups, func(g scheduler.Group) bool { return g.ID == l.name })
	if at < 0 {
		fail("no job %s before its rates", l.name)
	}
	o := rates.Observation{Machine: rates.Machine{Type: l.rest()}, Done: l.number("done", 1), At: w.Now.Add(-l.span("ago", 0))}
	s := l.shape()
	o.GPU, o.GPUs, o.VCPU = s.GPU, s.GPUs, s.VCPU
	var shelf rates.Shelf
	if old := w.Groups[at].Work.Rates; old != nil {
		shelf = rates.Shelf{*old}
	}
	for _, busy := range l.words2("busy") {
		o.Busy = span(busy)
		for range l.integer("n", 1) {
			shelf, _ = shelf.Learn(l.name, o)
		}
	}
	w.Groups[at].Work.Rates = shelf.Find(l.name)
}

// move reads what each task moves, in GB (10^9 bytes) and where the store is:
// in=30@aws/us-east-1, out=?@on-premises, keep=2@gcp/europe-west4 for each save.
func (w *World) move(g *scheduler.Group, l *line) {
	for _, f := range []scheduler.Flow{{What: "inputs", Way: scheduler.Fetch}, {What: "outputs", Way: scheduler.Send}, {What: "checkpoint", Way: scheduler.Keep}} {
		s := l.get(map[scheduler.Way]string{scheduler.Fetch: "in", scheduler.Send: "out", scheduler.Keep: "keep"}[f.Way])
		if s == "" {
			continue
		}
		size, at, _ := strings.Cut(s, "@")
		f.At.Cloud, f.At.Region, _ = strings.Cut(at, "/")
		if f.Unknown = size == "?"; !f.Unknown {
			gb, err := strconv.ParseFloat(size, 64)
			if err != nil {
				fail("%s is no size in GB", size)
			}
			f.Bytes = int64(gb * 1e9)
		}
		g.Work.Flows = append(g.Work.Flows, f)
	}
	every := l.span("every", 0)
	g.Work.Saves = scheduler.Saves{On: l.flag("saves") || every > 0, Every: every, Time: l.span("save", 0)}
	if v := l.get("value"); v != "" {
		g.Value = rate(v)
	}
}

func (w *World) running(l *line) {
	r := scheduler.Running{Attempt: l.name, Machine: l.get("machine"), Since: w.Now.Add(-10 * time.Minute), Useful: !l.flag("starting"), Stops: l.flag("stops"), StopAt: w.moment(l, "ends")}
	r.Group = w.group(l)
	r.Group.Waiting, r.Moves, r.Unsaved, r.Beside = 1, l.flag("moves"), l.span("unsaved", 0), l.words2("beside")
	w.Snapshot.Running = append(w.Snapshot.Running, r)
}

// demand reads what a job's tasks hold (holds=48 and per-gpu=1.5, in GB), encode
// (streams=40 video=hevc:p5:1080p:30) or are (seat=8, in GiB).
func (l *line) demand() (d sizing.Demand) {
	d.Held, d.PerGPU = int64(l.number("holds", 0)*1e9), int64(l.number("per-gpu", 0)*1e9)
	d.Streams, d.FrameBuffer = l.integer("streams", 0), int64(l.number("seat", 0)*(1<<30))
	if v := l.get("video"); v != "" {
		parts := strings.Split(v, ":")
		var err error
		d.Video.Codec, d.Video.Preset = parts[0], parts[1]
		if d.Video.Width, d.Video.Height, err = sizing.ParseResolution(parts[2]); err != nil {
			fail("%v", err)
		}
		d.Video.FPS = float64(span(parts[3] + "ns"))
	}
	if !d.IsZero() && !d.Seated() {
		d.GPUs = l.integer("gpus", 0)
	}
	return d
}
