// Package scenario holds the kinds of work that the broker knows, as data: what
// each needs of a GPU, by which figure GPUs are compared for it, and what is
// assumed when a job does not say.
//
// A profile's requirements are facts of the work and can only be tightened: an
// encoder farm never runs on a GPU without encoders. Its assumptions hold until
// the job asks for the same attribute itself, so that a job that names AMD GPUs
// is not held to CUDA. What it prefers is advice: the cost to finish decides.
//
// The profiles are the files in profiles/; a broker's configuration may add its
// own ([Set.With]).
package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

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
	Name    string   `json:"name" doc:"what jobs call it"`
	Aliases []string `json:"aliases,omitempty" single:"true" doc:"other names that jobs may call it by; one of several profiles is asked back"`
	Extends string   `json:"extends,omitzero" doc:"scenario whose profile holds where this one says nothing; what that one requires can only be tightened"`
	Title   string   `json:"title" doc:"one line for lists"`
	Doc     string   `json:"doc,omitzero" doc:"what it is"`
	// FigureName is the attribute by which GPUs are compared: work per hour is
	// taken to grow with it.
	FigureName    string            `json:"figure" doc:"attribute that governs the speed"`
	Metric        string            `json:"metric,omitzero" doc:"what machines are compared by, in words"`
	Require       Requirements      `json:"require,omitzero" doc:"what every GPU for this work must have"`
	Assume        Requirements      `json:"assume,omitzero" doc:"what it must have unless the job asks for the attribute itself"`
	Fabric        bool              `json:"fabric,omitzero" doc:"from two GPUs on, a full fabric among those of a machine"`
	RDMA          bool              `json:"rdma,omitzero" doc:"from two machines on, RDMA between them"`
	Why           map[string]string `json:"why,omitempty" doc:"why it asks for an attribute, for fabric or for rdma"`
	Prefer        []Preference      `json:"prefer,omitempty" doc:"what is better to have; advice for people, the cost to finish decides"`
	Interruptible Interruptible     `json:"interruptible" enum:"auto,with-checkpoint,never" doc:"when it may run on machines that can be taken away"`
	Checkpoint    quantity.Duration `json:"checkpoint,omitzero" above:"zero" doc:"interval of saves where nothing better is known"`
	Slots         int               `json:"slots,omitzero" min:"1" max:"64" doc:"tasks that share a GPU by default"`
	Share         Share             `json:"share,omitzero" enum:"gpu,fraction,machine" doc:"least that a task is given: gpu (default), fraction (a machine with a share of a GPU will do), machine (from two GPUs on, the machine alone)"`
	Method        string            `json:"method,omitzero" enum:"full,full-bf16,lora,qlora-8bit,qlora-4bit,qlora-2bit,inference" doc:"what is done with a model, unless the job says"`
	Describe      []string          `json:"describe,omitempty" single:"true" doc:"keys of a spec that describe the work"`
	PlansOnly     string            `json:"plans_only,omitzero" doc:"what of it is planned and not run, in a sentence"`
	Example       string            `json:"example,omitzero" doc:"spec in examples/"`
	Sources       []string          `json:"sources,omitempty" single:"true" doc:"where the figures come from"`
}

// Share is the least that a task is given.
type Share string

// The least that a task is given.
const (
	WholeGPU     Share = "gpu"
	Fraction     Share = "fraction" // of a GPU: vGPU or MIG
	WholeMachine Share = "machine"  // from two GPUs on
)

// Preference is something that is better to have.
type Preference struct {
	What string `json:"what" required:"true" doc:"what is better"`
	Why  string `json:"why" required:"true" doc:"what it gains"`
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

// Loosened is the first requirement by name of which own asks for less, which would
// do nothing: [Profile.Merge] keeps it. It is "" when there is none.
func (p Profile) Loosened(own Requirements) (name string, need gpu.Want) {
	for _, name := range slices.Sorted(maps.Keys(own)) {
		need, required := p.Require[name]
		if required && own[name].String() != need.String() && tighter(need, own[name]).String() == need.String() {
			return name, need
		}
	}
	return "", gpu.Want{}
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
