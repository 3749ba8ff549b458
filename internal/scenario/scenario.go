// Package scenario holds the kinds of work that the broker knows, as data: what
// each needs of a GPU, by which figure GPUs are compared for it, and what is
// assumed when a job does not say.
//
// A profile's requirements are facts of the work and can only be tightened: an
// encoder farm never runs on a GPU without encoders. Its assumptions hold until
// the job asks for the same attribute itself, so that a job that names AMD GPUs
// is not held to CUDA. The profiles are the files in profiles/.
package scenario

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"gpubroker/internal/gpu"
	"gpubroker/internal/nearest"
	"gpubroker/internal/quantity"
	"gpubroker/internal/yamlfile"
)

// Interruptible says when work of a kind may run on machines that can be taken
// away, unless the job says otherwise.
type Interruptible string

// When work may be interrupted.
const (
	Auto           Interruptible = "auto"            // with a checkpoint, or when its tasks are short
	WithCheckpoint Interruptible = "with-checkpoint" // only with a checkpoint
	Never          Interruptible = "never"
)

// General is the profile of a job that names none.
const General = "general"

// Requirements are what a job or a profile asks of a GPU, by attribute.
type Requirements gpu.Requirements

// Profile is one kind of work.
type Profile struct {
	Name  string `json:"name"`
	Title string `json:"title" required:"true" doc:"one line for lists"`
	Doc   string `json:"doc" required:"true" doc:"why it asks what it asks"`
	// FigureName is the attribute by which GPUs are compared: work per hour is
	// taken to grow with it.
	FigureName    string            `json:"figure" required:"true" doc:"attribute that governs the speed"`
	Require       Requirements      `json:"require,omitzero" doc:"what every GPU for this work must have"`
	Assume        Requirements      `json:"assume,omitzero" doc:"what it must have unless the job asks for the attribute itself"`
	Fabric        bool              `json:"fabric,omitzero" doc:"from two GPUs on, a full fabric among those of a machine"`
	RDMA          bool              `json:"rdma,omitzero" doc:"from two machines on, RDMA between them"`
	Interruptible Interruptible     `json:"interruptible" required:"true" enum:"auto,with-checkpoint,never" doc:"when it may run on machines that can be taken away"`
	Checkpoint    quantity.Duration `json:"checkpoint,omitzero" doc:"interval of saves where nothing better is known"`
	Slots         int               `json:"slots,omitzero" min:"1" max:"64" doc:"tasks that share a GPU by default"`
}

//go:embed profiles
var files embed.FS

// Builtin returns the profiles built into the program. They are parsed once; a
// broken file is a fault of the build and panics.
var Builtin = sync.OnceValue(func() *Set {
	s, err := load(files)
	if err != nil {
		panic("scenario: built-in profiles: " + err.Error())
	}
	return s
})

// Set is a set of profiles. It is immutable.
type Set struct{ profiles []Profile }

func load(fs embed.FS) (*Set, error) {
	entries, err := fs.ReadDir("profiles")
	if err != nil {
		return nil, err
	}
	s := &Set{}
	for _, e := range entries {
		name := path.Join("profiles", e.Name())
		text, err := fs.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var p Profile
		d := yamlfile.Parse(name, text)
		d.Decode(&p)
		if a, ok := gpu.FindAttribute(p.FigureName); d.Has("figure") && (!ok || a.Kind != gpu.Number) {
			d.Errorf("figure", nearest.Hint(p.FigureName, gpu.AttributeNames()), "%q is no attribute with a number", p.FigureName)
		}
		if err := d.Err(); err != nil {
			return nil, err
		}
		p.Name = strings.TrimSuffix(e.Name(), ".yaml")
		p.Slots = cmp.Or(p.Slots, 1)
		s.profiles = append(s.profiles, p)
	}
	return s, nil
}

// All returns the profiles by name.
func (s *Set) All() []Profile { return slices.Clone(s.profiles) }

// Names lists the profiles' names.
func (s *Set) Names() []string {
	var names []string
	for _, p := range s.profiles {
		names = append(names, p.Name)
	}
	return names
}

// Find returns the profile of a name; "" is the general one.
func (s *Set) Find(name string) (Profile, bool) {
	if name == "" {
		name = General
	}
	i := slices.IndexFunc(s.profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, false
	}
	return s.profiles[i], true
}

// Check returns why a GPU is not for this work, as far as the work alone says.
func (p Profile) Check(f gpu.Fact) []gpu.Failure { return p.CheckJob(f, nil) }

// CheckJob returns why a GPU is not for a job of this kind that asks for more.
func (p Profile) CheckJob(f gpu.Fact, own Requirements) []gpu.Failure {
	return gpu.Builtin().Check(f, gpu.Requirements(p.Merge(own)))
}

// Merge joins what a job asks for with what the work needs: the job's word
// stands in for an assumption, and a requirement can only be tightened.
func (p Profile) Merge(own Requirements) Requirements {
	all := maps.Clone(p.Assume)
	if all == nil {
		all = Requirements{}
	}
	maps.Copy(all, own)
	for name, need := range p.Require {
		all[name] = tighter(need, all[name])
	}
	return all
}

// tighter joins two wants on one attribute.
func tighter(need, own gpu.Want) gpu.Want {
	if len(need.Words) > 0 && len(own.Words) > 0 {
		both := slices.DeleteFunc(slices.Clone(own.Words), func(w string) bool { return !slices.Contains(need.Words, w) })
		return gpu.OneOf(both...) // none left: nothing can meet both
	}
	need.Number = max(need.Number, own.Number)
	need.Flag = need.Flag || own.Flag
	return need
}

// CheckPlacement returns why machines are not for this work although their GPU
// is: gpus per machine, machines, whether all GPUs of a machine share a full
// fabric, and whether the machines reach each other by RDMA. Unknown is a
// failure where the work needs it.
func (p Profile) CheckPlacement(gpus, machines int, fabric, rdma gpu.Known[bool]) []gpu.Failure {
	var failures []gpu.Failure
	if p.Fabric && gpus > 1 && !fabric.Or(false) {
		failures = append(failures, gpu.Failure{Code: "machine.fabric", Attribute: "fabric", Want: "true", Have: fabric.String()})
	}
	if p.RDMA && machines > 1 && !rdma.Or(false) {
		failures = append(failures, gpu.Failure{Code: "machine.rdma", Attribute: "rdma", Want: "true", Have: rdma.String()})
	}
	return failures
}

// Figure returns the governing figure of a GPU for this work. ok is false when
// it is unknown: such a GPU has no modelled rate.
func (p Profile) Figure(f gpu.Fact) (value float64, unit string, ok bool) {
	a, found := gpu.FindAttribute(p.FigureName)
	if !found {
		return 0, "", false
	}
	value, ok = gpu.Builtin().Value(f, a).Number.Get()
	return value, a.Unit, ok && value > 0
}

// DecodeYAML reads attributes with their wants: {fp64: 4, ecc: true, vendor: amd}.
func (r *Requirements) DecodeYAML(c yamlfile.Cursor) {
	if c.Node.Kind != yamlfile.Map {
		c.Errorf("for example {memory_bandwidth: 1000, ecc: true}", "expected GPU attributes, found %s", c.Node.Kind)
		return
	}
	*r = Requirements{}
	for _, e := range c.Node.Entries {
		a, ok := gpu.FindAttribute(e.Key)
		if !ok {
			hint := nearest.Hint(e.Key, gpu.AttributeNames())
			c.KeyErrorf(e, cmp.Or(hint, "see the list of attributes in docs/spec.md"), "GPUs have no attribute of this name")
			continue
		}
		value := c.Value(e)
		if value.Node.Kind == yamlfile.Null || value.Node.Kind == yamlfile.Map {
			value.Errorf("", "expected a value, found %s", value.Node.Kind)
			continue
		}
		words := value.Words()
		w, err := gpu.ParseWant(a, words...)
		if v, ok := errors.AsType[*gpu.ValueError](err); ok {
			value.Errorf(v.Hint, "expected %s, found %q", v.Expected, v.Value)
			continue
		}
		(*r)[e.Key] = w
	}
}

// JSONSchema lists the attributes for editors.
func (Requirements) JSONSchema() map[string]any {
	properties := map[string]any{}
	for _, a := range gpu.Attributes() {
		s := map[string]any{"description": strings.TrimSpace(fmt.Sprintf("%s %s", a.Doc, unit(a)))}
		switch a.Kind {
		case gpu.Number:
			s["type"], s["minimum"] = "number", 0
		case gpu.Flag:
			s["type"] = "boolean"
		default:
			item := map[string]any{"type": "string"}
			if len(a.Values) > 0 {
				item["enum"] = a.Values
			}
			s["anyOf"] = []any{item, map[string]any{"type": "array", "items": item}}
		}
		properties[a.Name] = s
	}
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}

func unit(a gpu.Attribute) string {
	if a.Unit == "" {
		return ""
	}
	return "(" + a.Unit + ")"
}
