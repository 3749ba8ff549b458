package gpu

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"gpubroker/internal/nearest"
)

// notGPU stands in the alias file for hardware that is no GPU.
const notGPU = "-"

// NameProblem says why a name does not lead to a GPU.
type NameProblem string

// The ways in which a name can fail.
const (
	Unknown   NameProblem = "unknown"   // no GPU is called so
	Ambiguous NameProblem = "ambiguous" // the words mean different hardware at different providers
	Mismatch  NameProblem = "mismatch"  // the model exists, but not with this memory or form
	NotGPU    NameProblem = "not_gpu"   // known hardware that is no GPU
)

// NameError says that a name leads to no GPU, and which names would.
type NameError struct {
	Name    string
	Problem NameProblem
	// Detail completes the sentence for a mismatch: "mi300x has 192 GB".
	Detail string
	// Suggestions are names that Resolve accepts, the likeliest first.
	Suggestions []string
}

func (e *NameError) Error() string {
	s := e.Message()
	if h := e.Ask(); h != "" {
		s += "; " + h
	}
	return s
}

// Ask turns the suggestions into a question, "" when there are none.
func (e *NameError) Ask() string {
	if e.Problem == Ambiguous && len(e.Suggestions) > 0 {
		return "which one, " + nearest.Or(e.Suggestions) + "?"
	}
	return nearest.Ask(e.Suggestions)
}

// Message is the error without its suggestions.
func (e *NameError) Message() string {
	switch e.Problem {
	case Ambiguous:
		return fmt.Sprintf("%q means different GPUs to different providers", e.Name)
	case Mismatch:
		return fmt.Sprintf("there is no %q: %s", e.Name, e.Detail)
	case NotGPU:
		return fmt.Sprintf("%q is no GPU", e.Name)
	default:
		return fmt.Sprintf("no GPU is named %q", e.Name)
	}
}

// Resolve turns a name that a person writes into canonical ids: an id
// ("h100-sxm-80gb"), a family with or without memory and form ("a100",
// "A100 80GB", "h100-sxm"), or words that mean the same at every provider.
// Case, spaces, underscores and left-out hyphens do not matter. A family
// stands for all its variants. The error is a [*NameError].
func (t *Table) Resolve(name string) ([]string, error) {
	n := normal(name)
	if n == "" {
		return nil, &NameError{Name: name, Problem: Unknown}
	}
	if id, ok := t.canonical(n); ok {
		return []string{id}, nil
	}
	words := strings.Split(n, "-")
	if found, model := t.family(words); len(found) > 0 {
		ids := make([]string, len(found))
		for i, f := range found {
			ids[i] = t.facts[f].ID
		}
		return ids, nil
	} else if model != "" {
		return nil, t.mismatch(name, model)
	}
	meanings := map[string]bool{}
	for _, a := range t.byAlias[n] {
		if a.provider != "mig" && a.provider != "vgpu" { // names of fractions
			meanings[a.canonical] = true
		}
	}
	switch len(meanings) {
	case 0:
		return nil, t.unknown(name, words)
	case 1:
		for m := range meanings {
			if m == notGPU {
				return nil, &NameError{Name: name, Problem: NotGPU}
			}
			return t.expand(m), nil
		}
	}
	e := &NameError{Name: name, Problem: Ambiguous, Suggestions: t.bearing(words)}
	for _, m := range slices.Sorted(maps.Keys(meanings)) {
		for _, id := range t.expand(m) {
			if !slices.Contains(e.Suggestions, id) {
				e.Suggestions = append(e.Suggestions, id)
			}
		}
	}
	e.Suggestions = t.families(e.Suggestions)
	return nil, e
}

// families puts a model in the place of its variants where all of them are there.
func (t *Table) families(ids []string) []string {
	var out []string
	for _, id := range ids {
		name := id
		if f, ok := t.Lookup(id); ok {
			all := t.variantIDs(f.Model)
			if len(all) > 1 && contains(ids, all) {
				name = f.Model
			}
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func (t *Table) variantIDs(model string) []string {
	var ids []string
	for _, f := range t.facts {
		if f.Model == model {
			ids = append(ids, f.ID)
		}
	}
	return ids
}

// ResolveFor turns a provider's own name into canonical ids; the same words can
// mean other hardware elsewhere. Names that the provider's list does not hold
// are read as Resolve does. An id such as a100-any-80gb, where the provider
// leaves the variant open, is returned as it is.
func (t *Table) ResolveFor(provider, name string) ([]string, error) {
	p, n := normal(provider), normal(name)
	a, ok := t.aliases[aliasKey{p, n}]
	if !ok && strings.HasPrefix(n, "standard-") { // Azure sizes: one row per series
		for k, candidate := range t.aliases {
			if match, err := path.Match(k.name, n); k.provider == p && err == nil && match {
				a, ok = candidate, true
			}
		}
	}
	switch {
	case !ok:
		return t.Resolve(name)
	case a.canonical == notGPU:
		return nil, &NameError{Name: name, Problem: NotGPU}
	}
	return strings.Split(a.canonical, "|"), nil
}

// Identify finds the one GPU of an offer from all that a provider says of it:
// the instance type (where its facts are known), else the GPU's name, narrowed
// by the memory it reports in MiB (0 = not said). Reported memory is up to 7 %
// under the nominal. Where the words leave several open it returns their common
// id (a100-any-80gb) if there is one, else an ambiguous [*NameError].
func (t *Table) Identify(provider, instanceType, name string, memoryMiB int) (string, error) {
	if it, ok := t.InstanceType(provider, instanceType); ok && it.GPU != "" {
		return it.GPU, nil
	}
	ids, err := t.ResolveFor(provider, name)
	if err != nil {
		return "", err
	}
	if memoryMiB > 0 {
		var fitting, possible []string
		for _, id := range ids {
			possible = append(possible, t.Variants(id)...)
		}
		for _, id := range possible {
			f, _ := t.Lookup(id)
			if nominal := f.Memory.Or(0) * 1024; float64(memoryMiB) >= 0.925*nominal && float64(memoryMiB) <= 1.03*nominal {
				fitting = append(fitting, id)
			}
		}
		switch {
		case len(fitting) == 0 && len(possible) > 0:
			return "", &NameError{Name: name, Problem: Mismatch, Detail: fmt.Sprintf("none has the %d MiB reported", memoryMiB), Suggestions: possible}
		case len(fitting) > 0 && len(ids) > 1 || len(fitting) == 1:
			ids = fitting
		}
	}
	if len(ids) == 1 {
		return ids[0], nil
	}
	var all []string
	for _, id := range ids {
		all = append(all, t.expand(id)...)
	}
	slices.Sort(all)
	f, _ := t.Lookup(all[0])
	for _, common := range []string{f.Model + "-" + f.Form.Or("") + "-any", fmt.Sprintf("%s-any-%ggb", f.Model, f.Memory.Or(0)), f.Model + "-any"} {
		if v := t.Variants(common); slices.Equal(slices.Sorted(slices.Values(v)), all) {
			return common, nil
		}
	}
	return "", &NameError{Name: name, Problem: Ambiguous, Suggestions: ids}
}

// Names returns what Resolve accepts beside aliases: ids and families.
func (t *Table) Names() []string {
	names := slices.Clone(t.bare)
	for _, f := range t.facts {
		names = append(names, f.ID, f.Model)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// canonical finds an id, with or without its hyphens.
func (t *Table) canonical(n string) (string, bool) {
	if _, ok := t.byID[n]; ok {
		return n, true
	}
	for _, f := range t.facts {
		if sameName(n, f.ID) {
			return f.ID, true
		}
	}
	for _, id := range t.bare {
		if sameName(n, id) {
			return id, true
		}
	}
	return "", false
}

// expand lists the ids behind the alias file's canonical column.
func (t *Table) expand(canonical string) []string {
	var ids []string
	for id := range strings.SplitSeq(canonical, "|") {
		if v := t.Variants(id); v != nil {
			ids = append(ids, v...)
		} else {
			ids = append(ids, id)
		}
	}
	return ids
}

// family reads words as a model with, in any place, a memory size and a form.
// It returns the matching rows, and the model when that alone matched.
func (t *Table) family(words []string) (found []int, model string) {
	var memory float64
	var form string
	var rest []string
	for _, w := range words {
		if g, ok := gigabytes(w); ok && memory == 0 {
			memory = g
		} else if f, ok := forms[w]; ok && form == "" {
			form = f
		} else if w != "any" && w != "form" && w != "family" {
			rest = append(rest, w)
		}
	}
	m := strings.Join(rest, "-")
	for i, f := range t.facts {
		if !sameName(m, f.Model) {
			continue
		}
		model = f.Model
		if (memory == 0 || f.Memory.Or(0) == memory) && (form == "" || f.Form.Or("") == form) {
			found = append(found, i)
		}
	}
	return found, model
}

func (t *Table) mismatch(name, model string) error {
	e := &NameError{Name: name, Problem: Mismatch, Suggestions: t.variantNames(model)}
	var sizes, formNames []string
	for _, f := range t.facts {
		if f.Model == model {
			if s := fmt.Sprintf("%g GB", f.Memory.Or(0)); !slices.Contains(sizes, s) {
				sizes = append(sizes, s)
			}
			if s := f.Form.Or(""); s != "" && !slices.Contains(formNames, s) {
				formNames = append(formNames, s)
			}
		}
	}
	e.Detail = model + " has " + strings.Join(sizes, " or ")
	if len(sizes) == 1 {
		e.Detail += " only"
	}
	if len(formNames) > 0 {
		e.Detail += " and comes as " + strings.Join(formNames, " or ")
	}
	return e
}

// variantNames lists the shortest names that tell a model's memory sizes apart.
func (t *Table) variantNames(model string) []string {
	var names []string
	for _, f := range t.facts {
		if f.Model == model {
			if n := fmt.Sprintf("%s-%ggb", model, f.Memory.Or(0)); !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	if len(names) == 1 {
		return []string{model}
	}
	return names
}

func (t *Table) unknown(name string, words []string) error {
	e := &NameError{Name: name, Problem: Unknown}
	for n := len(words) - 1; n > 0; n-- { // "a100-8": the model is right
		model := strings.Join(words[:n], "-")
		for _, f := range t.facts {
			if f.Model == model {
				e.Suggestions = t.variantNames(model)
				return e
			}
		}
	}
	if ids := t.bearing(words); len(words) > 1 && len(ids) > 1 { // "RTX 6000"
		e.Problem, e.Suggestions = Ambiguous, t.families(ids)
		return e
	}
	e.Suggestions = nearest.Of(strings.Join(words, "-"), t.Names(), 3)
	return e
}

// bearing lists the ids that have all of the words in them.
func (t *Table) bearing(words []string) []string {
	var ids []string
	for _, f := range t.facts {
		if contains(strings.Split(f.ID, "-"), words) {
			ids = append(ids, f.ID)
		}
	}
	return ids
}

// normal lowers a name, joins its words with hyphens and drops the brand.
func normal(s string) string {
	words := strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return strings.ContainsRune(" \t_-/(),", r)
	})
	for len(words) > 1 && slices.Contains([]string{"nvidia", "tesla", "geforce", "amd", "instinct", "gpu"}, words[0]) {
		words = words[1:]
	}
	for i := 0; i+1 < len(words); i++ { // "80 GB" is one word
		if u := words[i+1]; u == "gb" || u == "gib" {
			if _, ok := gigabytes(words[i] + u); ok {
				words[i] += u
				words = slices.Delete(words, i+1, i+2)
			}
		}
	}
	return strings.Join(words, "-")
}

// sameName says that written is the name with none or some of its hyphens left
// out. Added hyphens are another name: "a10-0" is not "a100".
func sameName(written, name string) bool {
	i := 0
	for j := range len(name) {
		if i < len(written) && written[i] == name[j] {
			i++
		} else if name[j] != '-' {
			return false
		}
	}
	return i == len(written)
}

func contains(all, some []string) bool {
	for _, s := range some {
		if !slices.Contains(all, s) {
			return false
		}
	}
	return true
}
