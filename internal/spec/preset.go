package spec

import (
	"cmp"
	_ "embed"
	"maps"
	"slices"
	"sync"

	"gpubroker/internal/scenario"
	"gpubroker/internal/yamlfile"
)

// Preset is what is known of a program that people run unmodified.
type Preset struct {
	Title      string      `json:"title" required:"true"`
	Note       string      `json:"note"`
	Checkpoint *Checkpoint `json:"checkpoint"` // nil: the program has no saves
	Progress   *Progress   `json:"progress"`
}

//go:embed presets.yaml
var presetsYAML []byte

// Presets returns the presets by name. The map must not be changed.
var Presets = sync.OnceValue(func() map[string]Preset {
	var file struct {
		Presets map[string]Preset `json:"presets" required:"true"`
	}
	d := yamlfile.Parse("presets.yaml", presetsYAML)
	d.Decode(&file)
	if err := d.Err(); err != nil {
		panic("spec: built-in presets: " + err.Error())
	}
	return file.Presets
})

// PresetNames lists the presets.
func PresetNames() []string { return slices.Sorted(maps.Keys(Presets())) }

// Profile returns the job's scenario as it was when the job was read. A job that
// names none has the general one, and so has one whose scenario is not known.
func (j *Job) Profile() scenario.Profile {
	if j.profile != nil {
		return *j.profile
	}
	p, ok := scenario.Builtin().Find(j.Scenario)
	if !ok {
		p, _ = scenario.Builtin().Find(scenario.General)
	}
	return p
}

// Unresolved says that the job names a scenario which its reader did not know, and
// left to others.
func (j *Job) Unresolved() bool { return j.unresolved }

// WithDefaults returns a copy of the job in which everything that its preset,
// its scenario and the broker's own defaults bring is filled in. What a queue
// brings (window, priority, project limits) is not.
func (j *Job) WithDefaults() *Job {
	out := *j
	profile := j.Profile()
	preset := Presets()[j.Preset]
	if j.Checkpoint != nil || preset.Checkpoint != nil {
		var c Checkpoint
		if j.Checkpoint != nil {
			c = *j.Checkpoint
		}
		if p := preset.Checkpoint; p != nil {
			c.Dir = cmp.Or(c.Dir, p.Dir)
			c.StopSignal = cmp.Or(c.StopSignal, p.StopSignal)
			if c.Complete == nil && c.Quiesce == 0 {
				c.Complete, c.Quiesce = p.Complete, p.Quiesce
			}
			if c.Append == nil {
				c.Append = p.Append
			}
		}
		c.StopSignal = cmp.Or(c.StopSignal, "SIGTERM")
		if c.Complete == nil && c.Quiesce == 0 {
			c.Complete = &Complete{}
		}
		c.Keep = cmp.Or(c.Keep, 3)
		out.Checkpoint = &c
	}
	if j.Progress == nil && preset.Progress != nil {
		out.Progress = new(*preset.Progress)
	}
	if j.Deadline != nil {
		out.AfterDeadline = cmp.Or(j.AfterDeadline, "continue")
	}
	r := &out.Resources
	if !j.NeedsGPU() {
		r.GPUCount = 0
	} else {
		if !j.Described() {
			r.GPUCount = cmp.Or(r.GPUCount, 1)
		}
		if r.Slots == 0 && r.GPUCount == 1 && j.Users == nil && !j.Described() {
			r.Slots = profile.Slots
		}
	}
	r.Slots = cmp.Or(r.Slots, 1)
	r.VCPU = cmp.Or(r.VCPU, 1)
	if j.Outputs != nil {
		out.Outputs = new(*j.Outputs)
		out.Outputs.OnExists = cmp.Or(out.Outputs.OnExists, "fail")
	}
	retry := Retry{}
	if j.Retry != nil {
		retry = *j.Retry
	}
	out.Retry = &retry
	spot := Spot{}
	if j.Spot != nil {
		spot = *j.Spot
	}
	spot.Policy, spot.OnDemand = cmp.Or(spot.Policy, "auto"), cmp.Or(spot.OnDemand, "auto")
	out.Spot = &spot
	return &out
}

// Interruption says whether work may run on machines that can be taken away.
type Interruption string

// What interruption means for a job.
const (
	Resumes   Interruption = "resumes"    // from its last checkpoint
	StartOver Interruption = "start-over" // allowed, from the beginning: worth it when tasks are short
	Forbidden Interruption = "forbidden"
)

// Interruption says what a lost machine means for the job, from its
// checkpoint, its spot policy and its scenario.
func (j *Job) Interruption() Interruption {
	policy := ""
	if j.Spot != nil {
		policy = j.Spot.Policy
	}
	saves := j.Checkpoint != nil || Presets()[j.Preset].Checkpoint != nil
	kind := j.Profile().Interruptible
	switch {
	case policy == "never", policy != "always" && kind == scenario.Never:
		return Forbidden
	case saves:
		return Resumes
	case policy != "always" && kind == scenario.WithCheckpoint:
		return Forbidden
	}
	return StartOver
}
