package scenario

import (
	"cmp"
	"embed"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"gpubroker/internal/gpu"
	"gpubroker/internal/nearest"
	"gpubroker/internal/yamlfile"
)

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
		p.Name = strings.TrimSuffix(e.Name(), ".yaml")
		if base, ok := s.Find(p.Extends); ok && p.Extends != "" { // one whose name comes before
			p = p.from(base)
		}
		if d.Err() == nil {
			p.check(d.Errorf)
		}
		if err := d.Err(); err != nil {
			return nil, err
		}
		s.profiles = append(s.profiles, p.withDefaults())
	}
	return s, nil
}

func (p Profile) withDefaults() Profile {
	p.Slots = cmp.Or(p.Slots, 1)
	p.Share = cmp.Or(p.Share, WholeGPU)
	return p
}

// Report records a fault at a key of a profile.
type Report = func(key, hint, format string, args ...any)

// describing are the keys of a spec that may describe the work.
var describing = []string{"model", "precision", "encode", "decode", "users", "runtime", "nodes", "work"}

// check refuses a profile by which nothing could be planned.
func (p Profile) check(report Report) {
	for _, k := range []struct{ key, value, hint string }{
		{"title", p.Title, "one line for lists"},
		{"figure", p.FigureName, "attribute that governs the speed"},
		{"interruptible", string(p.Interruptible), "auto, with-checkpoint or never"},
	} {
		if k.value == "" {
			report(k.key, k.hint, "is missing")
		}
	}
	if a, ok := gpu.FindAttribute(p.FigureName); p.FigureName != "" && (!ok || a.Kind != gpu.Number) {
		report("figure", cmp.Or(nearest.Hint(p.FigureName, gpu.AttributeNames()), "see the list of attributes in docs/spec.md"), "%q is no attribute with a number", p.FigureName)
	}
	for _, key := range slices.Sorted(maps.Keys(p.Why)) {
		if _, ok := gpu.FindAttribute(key); !ok && key != "fabric" && key != "rdma" {
			report("why."+key, nearest.Hint(key, gpu.AttributeNames()), "GPUs have no attribute of this name")
		}
	}
	for i, key := range p.Describe {
		if !slices.Contains(describing, key) {
			report(fmt.Sprintf("describe[%d]", i), cmp.Or(nearest.Hint(key, describing), "known: "+strings.Join(describing, ", ")), "no key %q of a spec describes the work", key)
		}
	}
	for _, f := range gpu.Builtin().All() {
		if len(p.Check(f)) == 0 {
			return
		}
	}
	report("require", `run "gpubroker gpus" for what there is`, "no GPU known meets all of this")
}

// All returns the profiles: those built in by name, then the others.
func (s *Set) All() []Profile { return slices.Clone(s.profiles) }

// Names lists the profiles' names.
func (s *Set) Names() []string {
	var names []string
	for _, p := range s.profiles {
		names = append(names, p.Name)
	}
	return names
}

// Find returns the profile of a name, or of another name that only it has; "" is
// the general one.
func (s *Set) Find(name string) (Profile, bool) {
	if found := s.Meanings(cmp.Or(name, General)); len(found) == 1 {
		return found[0], true
	}
	return Profile{}, false
}

// Meanings returns the profile of a name, or all that it is another name of.
func (s *Set) Meanings(name string) (found []Profile) {
	for _, p := range s.profiles {
		if p.Name == name {
			return []Profile{p}
		}
		if slices.Contains(p.Aliases, name) {
			found = append(found, p)
		}
	}
	return found
}

// Why says why a name leads to no profile, and what to write instead.
func (s *Set) Why(name string) (message, hint string) {
	if several := s.Meanings(name); len(several) > 1 {
		var ask []string
		for _, p := range several {
			ask = append(ask, fmt.Sprintf("%q (%s)", p.Name, p.Title))
		}
		return fmt.Sprintf("%q is said of several scenarios", name), "write " + strings.Join(ask, " or ")
	}
	var all, near []string
	for _, p := range s.profiles {
		all = append(append(all, p.Name), p.Aliases...)
	}
	for _, n := range nearest.Of(name, all, 4) {
		for _, p := range s.Meanings(n) {
			if !slices.Contains(near, p.Name) && len(near) < 2 {
				near = append(near, p.Name)
			}
		}
	}
	return fmt.Sprintf("there is no scenario %q", name), cmp.Or(nearest.Ask(near), "known: "+strings.Join(s.Names(), ", "))
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// With returns the set with an owner's own profiles after its own, filled in from
// what they extend. report is told every fault with the profile's place in own;
// what is faulty is left out.
func (s *Set) With(own []Profile, report func(i int, key, hint, format string, args ...any)) *Set {
	all := &Set{profiles: slices.Clone(s.profiles)}
	for i, p := range own {
		faults := 0
		fault := func(key, hint, format string, args ...any) {
			faults++
			report(i, key, hint, format, args...)
		}
		all.checkNames(&p, fault)
		if p.Extends != "" {
			base, ok := all.Find(p.Extends)
			if !ok {
				message, hint := all.Why(p.Extends)
				fault("extends", hint, "%s above it", message)
				continue
			}
			if name, need := base.Loosened(p.Require); name != "" {
				fault("require."+name, "leave it out, or ask for more", "asks for less than %s requires, which is %s", base.Name, need)
			}
			p = p.from(base)
		}
		p.check(fault)
		if faults == 0 {
			all.profiles = append(all.profiles, p.withDefaults())
		}
	}
	return all
}

func (s *Set) checkNames(p *Profile, report Report) {
	if !nameForm.MatchString(p.Name) {
		report("name", "small letters, digits, dots and hyphens, at most 63", "expected a name, found %q", p.Name)
	}
	for i, name := range append([]string{p.Name}, p.Aliases...) {
		key := "name"
		if i > 0 {
			key = fmt.Sprintf("aliases[%d]", i-1)
		}
		for _, other := range s.Meanings(name) {
			if other.Name == name {
				report(key, "take another name, with extends: "+name, "there is a scenario %q already", name)
			} else {
				report(key, "take another name", "%q is another name of the scenario %q", name, other.Name)
			}
			break
		}
	}
}

// from fills in what a profile leaves to the one that it extends. What that one
// requires can only be tightened.
func (p Profile) from(base Profile) Profile {
	p.Title, p.Doc = cmp.Or(p.Title, base.Title), cmp.Or(p.Doc, base.Doc)
	p.Metric = cmp.Or(p.Metric, base.Metric)
	if p.FigureName != "" && p.FigureName != base.FigureName {
		p.Metric = ""
	}
	p.FigureName = cmp.Or(p.FigureName, base.FigureName)
	require := maps.Clone(p.Require)
	if require == nil {
		require = Requirements{}
	}
	for name, need := range base.Require {
		require[name] = tighter(need, require[name])
	}
	p.Require = require
	p.Assume = over(base.Assume, p.Assume)
	p.Why = over(base.Why, p.Why)
	p.Fabric, p.RDMA = p.Fabric || base.Fabric, p.RDMA || base.RDMA
	p.Interruptible = cmp.Or(p.Interruptible, base.Interruptible)
	p.Checkpoint, p.Slots, p.Share = cmp.Or(p.Checkpoint, base.Checkpoint), cmp.Or(p.Slots, base.Slots), cmp.Or(p.Share, base.Share)
	if p.Prefer == nil {
		p.Prefer = base.Prefer
	}
	if p.Describe == nil {
		p.Describe = base.Describe
	}
	if p.Sources == nil {
		p.Sources = base.Sources
	}
	p.Method = cmp.Or(p.Method, base.Method)
	p.PlansOnly, p.Example = cmp.Or(p.PlansOnly, base.PlansOnly), cmp.Or(p.Example, base.Example)
	return p
}

// over lays one map over another.
func over[M ~map[string]V, V any](below, above M) M {
	if len(below) == 0 {
		return above
	}
	out := maps.Clone(below)
	maps.Copy(out, above)
	return out
}
