package spec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"gpubroker/internal/geo"
	"gpubroker/internal/gpu"
	"gpubroker/internal/nearest"
	"gpubroker/internal/quantity"
	"gpubroker/internal/reason"
	"gpubroker/internal/sizing"
)

// Model is a language model and what is done with it: the memory that the GPUs of
// a task must have follows from it.
type Model struct {
	Parameters quantity.Count  `json:"parameters" required:"true" doc:"parameters of the model: 70B"`
	Method     string          `json:"method,omitzero" enum:"full,full-bf16,lora,qlora-8bit,qlora-4bit,qlora-2bit,inference" doc:"what is done with it; default: the scenario's"`
	Context    quantity.Tokens `json:"context,omitzero" doc:"tokens of a sequence: 8k"`
	Batch      int             `json:"batch,omitzero" min:"1" max:"65536" doc:"sequences at once, over all GPUs of a task; default 1"`
	Layers     int             `json:"layers,omitzero" min:"1" max:"10000" doc:"layers; makes the count of activations and cache exact"`
	Hidden     int             `json:"hidden,omitzero" min:"1" max:"1000000" doc:"hidden size"`
	Heads      int             `json:"heads,omitzero" min:"1" max:"10000" doc:"attention heads"`
	KVHeads    int             `json:"kv_heads,omitzero" min:"1" max:"10000" doc:"heads whose keys and values are kept; default: all"`
}

// Video is a stream of video.
type Video struct {
	Codec      string  `json:"codec,omitzero" enum:"h264,hevc,av1" meant:"h265=hevc,h.265=hevc,x265=hevc,avc=h264,h.264=h264,x264=h264" doc:"codec; default h264"`
	Preset     string  `json:"preset,omitzero" enum:"p1,p2,p3,p4,p5,p6,p7" doc:"of the encoder: p1 is fast, p7 is slow; default p5"`
	Resolution string  `json:"resolution,omitzero" doc:"1080p, 4k or 1920x1080; default 1080p"`
	FPS        float64 `json:"fps,omitzero" min:"1" max:"1000" doc:"frames per second; default 30"`
	Streams    int     `json:"streams,omitzero" min:"1" max:"10000" doc:"streams that one task handles at once, each at its own speed; default: the files of a task, as fast as they go"`
}

// Users are people with a picture each: a game or a desktop.
type Users struct {
	Count      int               `json:"count" required:"true" min:"1" max:"100000" doc:"users at once"`
	Memory     quantity.Size     `json:"memory,omitzero" above:"zero" doc:"frame buffer of each; default 8GiB"`
	Resolution string            `json:"resolution,omitzero" doc:"1080p, 4k or 1920x1080"`
	FPS        float64           `json:"fps,omitzero" min:"1" max:"1000" doc:"frames per second; default 60 where a resolution is given"`
	Codec      string            `json:"codec,omitzero" enum:"h264,hevc,av1" meant:"h265=hevc,h.265=hevc,x265=hevc,avc=h264,h.264=h264,x264=h264" doc:"codec of their streams; default h264"`
	Preset     string            `json:"preset,omitzero" enum:"p1,p2,p3,p4,p5,p6,p7" doc:"of the encoder; default p3"`
	MaxRTT     quantity.Duration `json:"max_rtt,omitzero" above:"zero" doc:"longest way to the machine and back: 20ms"`
	From       []string          `json:"from,omitempty" single:"true" doc:"where they are: regions of a cloud, or areas such as eu-west"`
}

// Runtime is what the software is built for.
type Runtime struct {
	CUDA string `json:"cuda,omitzero" doc:"releases of CUDA that will do: \">=12.4\""`
	ROCm string `json:"rocm,omitzero" doc:"releases of ROCm that will do: \">=6.2\""`
}

// defaultFrame is the frame buffer of a user of whom nothing is said: 8 to 16 GB are
// what workstations of design work are given.
const defaultFrame = 8 * gpu.GiB

// sized is the model as package sizing has it.
func (j *Job) sized() sizing.Model {
	m := j.Model
	method := sizing.Method(m.Method)
	if method == "" {
		method = sizing.Method(j.Profile().Method)
	}
	return sizing.Model{
		Parameters: float64(m.Parameters), Method: method, Precision: sizing.Precision(j.Precision),
		Context: int(m.Context), Batch: m.Batch, Layers: m.Layers, Hidden: m.Hidden, Heads: m.Heads, KVHeads: m.KVHeads,
	}
}

func sizedVideo(codec, preset, resolution string, fps float64) (sizing.Video, error) {
	v := sizing.Video{Codec: cmp.Or(codec, "h264"), Preset: preset, FPS: fps}
	var err error
	v.Width, v.Height, err = sizing.ParseResolution(cmp.Or(resolution, "1080p"))
	return v, err
}

// stream is one of the task's streams of encoded video.
func (v *Video) stream() (sizing.Video, error) {
	return sizedVideo(v.Codec, v.Preset, v.Resolution, cmp.Or(v.FPS, 30))
}

// stream is what one user sees; its FPS is 0 where nothing is said of it.
func (u *Users) stream() (sizing.Video, error) {
	if u.Resolution == "" && u.FPS == 0 {
		return sizing.Video{}, nil
	}
	return sizedVideo(u.Codec, cmp.Or(u.Preset, "p3"), u.Resolution, cmp.Or(u.FPS, 60))
}

// Described says that how many GPUs a task takes follows from the work, unless
// the job gives their number.
func (j *Job) Described() bool {
	return j.Model != nil || j.Encode != nil && j.Encode.Streams > 0
}

// Demand is what one task asks of its GPUs by what it does, and how that was worked
// out, for people. The zero Demand is none. The job is a valid one.
func (j *Job) Demand() (d sizing.Demand, notes []reason.Reason) {
	if j.Model != nil {
		m := j.sized()
		if need, err := m.Memory(); err == nil {
			d.Held, d.PerGPU = need.Total, need.PerGPU
			notes = append(notes, reason.New("needs_memory", "parameters", j.Model.Parameters, "method", m.Method, "memory", sizing.Gigabytes(need.Total), "parts", need.Shares(), "assumed", need.Assumed))
		}
	}
	if e := j.Encode; e != nil {
		if v, err := e.stream(); err == nil && e.Streams > 0 {
			d.Streams, d.Video = e.Streams, v
			notes = append(notes, reason.New("needs_streams", "streams", e.Streams, "video", v))
		}
	}
	if u := j.Users; u != nil {
		if v, err := u.stream(); err == nil {
			d.FrameBuffer, d.Video = cmp.Or(u.Memory.Bytes(), defaultFrame), v
			note := reason.New("needs_seats", "users", u.Count, "memory", d.FrameBuffer, "video", v)
			if u.Memory == 0 {
				note = reason.New("needs_seats", "users", u.Count, "memory", d.FrameBuffer, "video", v, "assumed", "users.memory is not given")
			}
			notes = append(notes, note)
		}
	}
	if !d.IsZero() && !d.Seated() {
		d.GPUs, d.Nodes = j.Resources.GPUCount, j.Nodes
	}
	return d, notes
}

// figures are the attributes by which GPUs are compared for arithmetic in a
// precision. Weights of 4-bit integers are computed with in 16 bits; sums of those are
// in 32, which GeForce does at half its rate.
var figures = map[sizing.Precision]string{
	sizing.FP64: "fp64", sizing.FP32: "fp32", sizing.TF32: "tf32", sizing.BF16: "bf16_effective", sizing.FP16: "fp16_fp32",
	sizing.FP8: "fp8", sizing.INT8: "int8", sizing.FP4: "fp4", sizing.INT4: "fp16_fp32",
}

// Figure is the attribute by which GPUs are compared for the job: its scenario's,
// unless the job names a precision or a codec; "" where all are alike, since users
// and live streams take their time on any.
func (j *Job) Figure() string {
	figure := j.Profile().FigureName
	switch {
	case j.Users != nil, j.Encode != nil && j.Encode.Streams > 0:
		return ""
	case j.Encode != nil:
		v, err := j.Encode.stream()
		switch preset := v.Published(); {
		case err != nil, v.Codec == "av1": // of which no rates are published
			return "encoders"
		case preset == "p5":
			return "encode_" + v.Codec
		default:
			return "encode_" + v.Codec + "_" + preset
		}
	case j.Precision != "" && slices.Contains([]string{"fp32", "fp64", "bf16_effective"}, figure):
		return figures[sizing.Precision(j.Precision)]
	}
	return figure
}

// fp64Floor is the FP64 rate under which a GPU is not for work in double precision,
// in TFLOPS: consumer and inference cards have under 2, P100 4.7.
const fp64Floor = 4

// engines are what a precision asks of a GPU. All but bf16 itself waive
// bf16, which some scenarios assume.
var engines = map[sizing.Precision]struct {
	attribute string
	want      gpu.Want
}{
	sizing.FP64: {"fp64", gpu.AtLeast(fp64Floor)},
	sizing.TF32: {"compute_capability", gpu.AtLeast(8)},
	sizing.BF16: {"bf16_support", gpu.HasIt(true)},
	sizing.FP8:  {"fp8_support", gpu.HasIt(true)},
	sizing.INT8: {"int8_support", gpu.HasIt(true)},
	sizing.FP4:  {"fp4_support", gpu.HasIt(true)},
}

// asks are what the description of the work asks of a GPU, beside [Job.Demand].
func (j *Job) asks() gpu.Requirements {
	r := gpu.Requirements{}
	if j.Precision != "" && sizing.Precision(j.Precision) != sizing.BF16 {
		r["bf16_support"] = gpu.HasIt(false)
	}
	if e, ok := engines[sizing.Precision(j.Precision)]; ok {
		r[e.attribute] = e.want
	}
	if j.Encode != nil {
		r["encoders"] = gpu.AtLeast(1)
		if j.Encode.Codec == "av1" {
			r["encode_av1"] = gpu.HasIt(true)
		}
	}
	if j.Decode != nil {
		r["decoders"] = gpu.AtLeast(1)
	}
	if vendors := j.Runs().Vendors(); vendors != nil {
		r["vendor"] = gpu.OneOf(vendors...)
	}
	return r
}

// Runs is the runtime that the job is built for.
func (j *Job) Runs() gpu.Runtime {
	var r gpu.Runtime
	if j.Runtime != nil {
		r.CUDA, _ = gpu.ParseVersions(j.Runtime.CUDA)
		r.ROCm, _ = gpu.ParseVersions(j.Runtime.ROCm)
	}
	return r
}

func checkDescribed(j *Job, report reporter, faulty func(string) bool) {
	if !j.NeedsGPU() {
		for _, x := range []struct {
			path  string
			given bool
		}{
			{"model", j.Model != nil},
			{"precision", j.Precision != ""},
			{"encode", j.Encode != nil},
			{"decode", j.Decode != nil},
			{"users", j.Users != nil},
			{"runtime", j.Runtime != nil},
		} {
			if x.given {
				report(x.path, "leave it out, or name a GPU", "the job asks for no GPU (gpu: none)")
			}
		}
		return
	}
	if j.Model != nil && !faulty("model") {
		checkModel(j, report)
	}
	for _, v := range []struct {
		path  string
		video *Video
	}{{"encode", j.Encode}, {"decode", j.Decode}} {
		if v.video == nil || faulty(v.path) {
			continue
		}
		if _, err := v.video.stream(); err != nil {
			reportResolution(v.path, v.video.Resolution, report)
		}
	}
	if e := j.Encode; e != nil && e.Streams > 0 && e.Codec == "av1" {
		report("encode.streams", "leave streams out, or encode hevc", "how many streams of av1 an encoder keeps up with is not published")
	}
	if e := j.Encode; e != nil && e.Streams > 0 && j.Resources.Slots > 1 {
		report("resources.slots", "keep one of them", "encode.streams says how much one task takes of a GPU already")
	}
	if d := j.Decode; d != nil && (d.Preset != "" || d.Streams > 0) {
		report("decode", "leave them to encode", "preset and streams mean nothing for decoding: no rates of decoders are published")
	}
	if j.Users != nil && !faulty("users") {
		checkUsers(j, report)
	}
	checkRuntime(j, report)
}

// fewest parameters of a model: less is a number that lacks its unit.
const fewest = 1000

func reportResolution(path, found string, report reporter) {
	hint := nearest.Hint(found, slices.Sorted(maps.Keys(sizing.Resolutions())))
	report(path+".resolution", hint, "expected 1080p, 4k or 1920x1080, found %q", found)
}

func checkModel(j *Job, report reporter) {
	m := j.sized()
	switch {
	case m.Method == "" && j.unresolved:
		return // its scenario may say it, and is looked up by whoever has it
	case m.Method == "":
		report("model.method", "write for example method: lora, or name a scenario that says it", "what is done with the model is missing")
		return
	case j.Resources.Slots > 1:
		report("resources.slots", "leave slots out", "a model has its GPUs for itself")
	case m.Parameters < fewest:
		report("model.parameters", fmt.Sprintf("did you mean %q?", j.Model.Parameters.String()+"B"), "no model has only %s parameters", j.Model.Parameters)
		return
	case m.Precision == sizing.INT4 && m.Method != sizing.Infer:
		report("precision", "leave it out; method: qlora-4bit keeps the weights in 4 bits", "nothing is trained in 4-bit integers, and model.method is %s", m.Method)
	case m.KVHeads > 0 && m.Heads == 0:
		report("model.kv_heads", "add heads, for example heads: 32", "of how many heads is missing")
	case m.KVHeads > m.Heads:
		report("model.kv_heads", "", "%d is more than the %d heads", m.KVHeads, m.Heads)
	case (m.Layers > 0) != (m.Hidden > 0):
		report("model", "give both, or neither", "layers and hidden go together")
	}
	if _, err := m.Memory(); err != nil {
		report("model", "", "%v", err)
	}
}

func checkUsers(j *Job, report reporter) {
	u := j.Users
	if _, err := u.stream(); err != nil {
		reportResolution("users", u.Resolution, report)
	}
	for _, x := range []struct {
		path  string
		given bool
	}{
		{"tasks", j.Tasks != nil},
		{"model", j.Model != nil},
		{"encode", j.Encode != nil},
		{"nodes", j.Nodes != 0},
		{"resources.slots", j.Resources.Slots != 0},
		{"resources.gpu_count", j.Resources.GPUCount != 0},
		{"work", j.Work != nil},
	} {
		if x.given {
			report(x.path, "leave it out", "each of the users is a seat, and this says something else")
		}
	}
	for i, name := range u.From {
		if !geo.Known(name) {
			report(fmt.Sprintf("users.from[%d]", i), cmp.Or(nearest.Hint(name, geo.Names()), "name a cloud's region, a country, or an area such as eu-west"), "there is no place %q", name)
		}
	}
	switch {
	case u.MaxRTT > 0 && len(u.From) == 0:
		report("users.max_rtt", "add from: [eu-west]", "from where is missing")
	case u.MaxRTT == 0 && len(u.From) > 0:
		report("users.from", "add max_rtt: 20ms", "how far is missing")
	case u.MaxRTT > 0 && (u.MaxRTT.Std() < time.Millisecond || u.MaxRTT.Std() > time.Second):
		report("users.max_rtt", "", "expected 1ms to 1s, found %v", u.MaxRTT)
	}
}

func checkRuntime(j *Job, report reporter) {
	r := j.Runtime
	if r == nil {
		return
	}
	for _, v := range []struct{ path, text string }{{"runtime.cuda", r.CUDA}, {"runtime.rocm", r.ROCm}} {
		if _, ok := gpu.ParseVersions(v.text); v.text != "" && !ok {
			report(v.path, `write for example ">=12.4", or ">=12.4 <13"`, "%q names no releases", v.text)
		}
	}
	if r.CUDA == "" && r.ROCm == "" {
		report("runtime", `for example {cuda: ">=12.4"}`, "expected %s", nearest.Or([]string{"cuda", "rocm"}))
	}
}

// lacks says why a GPU is not for the work that the job describes; "" when it is.
func (j *Job) lacks(f gpu.Fact) string {
	if have, ok := j.Runs().Check(f); !ok {
		return fmt.Sprintf("runtime: %s, wanted %s", have, j.Runs())
	}
	d, _ := j.Demand()
	var short sizing.Short
	switch {
	case d.IsZero():
		return ""
	case d.Seated():
		_, _, short = d.Seats(gpu.Builtin(), f)
	default:
		_, short = d.On(gpu.Builtin(), f)
	}
	if short.Code == "" {
		return ""
	}
	return reason.New(reason.Code(short.Code), "want", short.Want, "have", short.Have).String()
}
