package spec

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"strings"

	"gpubroker/internal/nearest"
	"gpubroker/internal/scenario"
	"gpubroker/internal/yamlfile"
)

// Errors are all faults of a spec, with their places, for people and programs.
type Errors = yamlfile.Errors

// Error is one fault of a spec.
type Error = yamlfile.Error

// Reader reads specs under a set of scenarios.
type Reader struct {
	Scenarios *scenario.Set // nil means those built in
	// Open lets a job name a scenario that the set does not have, for whoever the
	// job is handed on to: see [Job.Unresolved].
	Open bool
	// Accepted is for jobs that were accepted once: like Open, and what scenarios
	// and GPUs say of them by now is not asked again.
	Accepted bool
}

// Parse reads a spec under the built-in scenarios, see [Reader.Parse].
func Parse(name string, text []byte, sets ...string) (*Job, error) {
	return Reader{}.Parse(name, text, sets...)
}

// Decode reads a canonical form, see [Reader.Decode].
func Decode(canonical []byte) (*Job, error) { return Reader{}.Decode(canonical) }

// Parse reads a spec. name is how errors call the file; sets are overrides as
// in --set: "resources.slots=4". The error is an [Errors] with all faults.
func (r Reader) Parse(name string, text []byte, sets ...string) (*Job, error) {
	return r.finish(yamlfile.Parse(name, text), sets)
}

// FromCommand makes a job of a command line, for submitting without a file.
// Flags become sets: --gpu l4 is "resources.gpu=l4". The job is named after
// the program unless a set names it.
func (r Reader) FromCommand(args []string, sets ...string) (*Job, error) {
	command := &yamlfile.Node{Kind: yamlfile.List}
	for _, a := range args {
		a = strings.ToValidUTF8(a, "\uFFFD")
		command.Items = append(command.Items, &yamlfile.Node{Kind: yamlfile.Scalar, Quoted: true, Text: a})
	}
	name := "command"
	if len(args) > 0 {
		name = strings.Map(func(r rune) rune {
			if strings.ContainsRune(nameLetters, r) {
				return r
			}
			return '-'
		}, path.Base(args[0]))
		name = strings.Trim(name, "-._")
	}
	if name == "" {
		name = "command"
	}
	entry := func(key string, v *yamlfile.Node) yamlfile.Entry { return yamlfile.Entry{Key: key, Value: v} }
	root := &yamlfile.Node{Kind: yamlfile.Map, Entries: []yamlfile.Entry{
		entry("name", &yamlfile.Node{Kind: yamlfile.Scalar, Quoted: true, Text: name[:min(len(name), 60)]}),
		entry("run", &yamlfile.Node{Kind: yamlfile.Map, Entries: []yamlfile.Entry{entry("command", command)}}),
	}}
	return r.finish(yamlfile.New("command line", strings.Join(args, " "), root), sets)
}

func (r Reader) finish(d *yamlfile.Doc, sets []string) (*Job, error) {
	for _, s := range sets {
		d.Set("--set", s)
	}
	var j Job
	d.Decode(&j)
	if d.Root != nil && d.Root.Kind == yamlfile.Map { // else it is no spec, and one error says so
		j.hoistPreset(d.Errorf)
		j.resolveScenario(r, d.Errorf)
		check(&j, d.Errorf, d.Faulty)
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	j.normalise()
	return &j, nil
}

// resolveScenario finds the job's profile, and names it by its first name.
func (j *Job) resolveScenario(r Reader, report reporter) {
	set := r.Scenarios
	if set == nil {
		set = scenario.Builtin()
	}
	p, ok := set.Find(j.Scenario)
	switch {
	case ok:
		j.profile, j.lenient = &p, r.Accepted
		if j.Scenario != "" {
			j.Scenario = p.Name
		}
	case r.Open && len(set.Meanings(j.Scenario)) == 0, r.Accepted:
		j.unresolved = true
	default:
		message, hint := set.Why(j.Scenario)
		report("scenario", hint, "%s", message)
	}
}

// hoistPreset moves a preset that stands under checkpoint to the top: there is
// one place from here on.
func (j *Job) hoistPreset(report reporter) {
	c := j.Checkpoint
	if c == nil || c.Preset == "" {
		return
	}
	switch _, known := Presets()[c.Preset]; {
	case !known:
		report("checkpoint.preset", cmp.Or(nearest.Hint(c.Preset, PresetNames()), "known: "+strings.Join(PresetNames(), ", ")), "there is no preset %q", c.Preset)
	case j.Preset != "" && j.Preset != c.Preset:
		report("checkpoint.preset", "name it in one place", "preset is %q at the top and %q here", j.Preset, c.Preset)
	default:
		j.Preset = c.Preset
	}
	c.Preset = ""
	if reflect.ValueOf(*c).IsZero() {
		j.Checkpoint = nil
	}
}

// normalise makes two ways to write nothing the same.
func (j *Job) normalise() {
	if j.Resources.Require != nil && len(j.Resources.Require) == 0 {
		j.Resources.Require = nil
	}
	if len(j.Run.Env) == 0 {
		j.Run.Env = nil
	}
	if len(j.Secrets) == 0 {
		j.Secrets = nil
	}
	if len(j.Inputs) == 0 {
		j.Inputs = nil
	}
	for _, s := range []*[]string{&j.Resources.GPU, &j.Resources.Providers, &j.Resources.Regions, &j.Resources.Zones} {
		if len(*s) == 0 {
			*s = nil
		}
	}
	if j.Retry != nil && len(j.Retry.OnlyExitCodes) == 0 {
		j.Retry.OnlyExitCodes = nil
	}
}

// Canonical returns the job as JSON, the same bytes for the same job: sorted
// maps, exact quantities, nothing that was left out. [Decode] reads it.
func (j *Job) Canonical() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(j); err != nil {
		panic(fmt.Sprintf("spec: a valid job cannot be written: %v", err)) // no type of it can fail
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Digest identifies the content of the job: two jobs with one digest ask for the
// same. It is the SHA-256 of the canonical form, in hex.
func (j *Job) Digest() string {
	sum := sha256.Sum256(j.Canonical())
	return hex.EncodeToString(sum[:])
}

// Decode reads a canonical form under the same rules as Parse; the error is an
// [Errors] with all faults.
func (r Reader) Decode(canonical []byte) (*Job, error) {
	return r.finish(yamlfile.ParseJSON("job", canonical), nil)
}

// Schema returns the JSON Schema of a job spec, for editors.
func Schema() ([]byte, error) {
	b, err := yamlfile.Schema(Job{}, "urn:gpubroker:job", "gpubroker job spec")
	if err != nil {
		return nil, fmt.Errorf("spec: schema of %v: %w", reflect.TypeFor[Job](), err)
	}
	return b, nil
}
