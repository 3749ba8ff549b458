// Package gpu knows GPU hardware: what each model can do, and by which names
// providers sell it.
//
// The facts are data files built into the program (see data/README.md). What
// the files do not know is unknown here, never zero and never guessed: a GPU
// without a row has an id and nothing else, and a constraint on an unknown
// fact fails and says "unknown". Estimates are methods that say so.
package gpu

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

//go:embed data/gpus.csv
var gpusCSV []byte

//go:embed data/gpu-aliases.csv
var aliasesCSV []byte

//go:embed data/instance-types.csv
var instanceTypesCSV []byte

//go:embed data/bf16-measured.csv
var measuredCSV []byte

//go:embed data/nvenc-rates.csv
var nvencCSV []byte

// Table holds the facts. It is immutable and safe for concurrent use.
type Table struct {
	facts     []Fact // in the file's order: by vendor and generation
	byID      map[string]int
	aliases   map[aliasKey]alias
	byAlias   map[string][]alias // over all providers
	bare      []string           // ids that only the alias file knows
	instances map[[2]string]InstanceType
	encode    map[[3]string]float64 // generation, codec, preset
}

type aliasKey struct{ provider, name string }

type alias struct {
	provider, canonical, note string
}

// Builtin returns the facts built into the program. They are parsed once; a
// broken data file is a fault of the build and panics.
var Builtin = sync.OnceValue(func() *Table {
	t, err := load(gpusCSV, aliasesCSV, instanceTypesCSV, measuredCSV, nvencCSV)
	if err != nil {
		panic("gpu: built-in facts: " + err.Error())
	}
	return t
})

func load(gpus, aliases, instances, measured, nvenc []byte) (*Table, error) {
	t := &Table{
		byID: map[string]int{}, aliases: map[aliasKey]alias{}, byAlias: map[string][]alias{},
		instances: map[[2]string]InstanceType{}, encode: map[[3]string]float64{},
	}
	if err := rows(bytes.NewReader(gpus), func(r *row) {
		f := parseFact(r)
		if _, ok := t.byID[f.ID]; ok {
			r.fail("id", "given twice")
		}
		t.byID[f.ID] = len(t.facts)
		t.facts = append(t.facts, f)
	}); err != nil {
		return nil, fmt.Errorf("gpus.csv: %w", err)
	}
	if err := rows(bytes.NewReader(measured), func(r *row) {
		i, ok := t.byID[r.text("id")]
		if !ok {
			r.fail("id", "no such GPU")
			return
		}
		t.facts[i].BF16Measured = r.number("bf16_matmul_tflops")
	}); err != nil {
		return nil, fmt.Errorf("bf16-measured.csv: %w", err)
	}
	if err := rows(bytes.NewReader(nvenc), func(r *row) {
		for _, preset := range []string{"p1", "p3", "p5", "p7"} {
			if v, ok := r.number(preset + "_fps").Get(); ok {
				t.encode[[3]string{r.text("enc_gen"), r.text("codec"), preset}] = v
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("nvenc-rates.csv: %w", err)
	}
	bare := map[string]bool{}
	if err := rows(bytes.NewReader(aliases), func(r *row) {
		a := alias{r.text("provider"), r.text("canonical"), r.text("note")}
		name := normal(r.text("alias"))
		key := aliasKey{normal(a.provider), name}
		if before, twice := t.aliases[key]; twice { // one name for several cards
			a.canonical = t.join(before.canonical, a.canonical)
		}
		t.aliases[key] = a
		t.byAlias[name] = append(t.byAlias[name], a)
		for id := range strings.SplitSeq(a.canonical, "|") {
			if id == notGPU {
				continue
			}
			if _, ok := t.byID[id]; !ok && t.anyOf(id) == nil {
				bare[id] = true
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("gpu-aliases.csv: %w", err)
	}
	t.bare = slices.Sorted(maps.Keys(bare))
	if err := rows(bytes.NewReader(instances), func(r *row) {
		it := parseInstance(r)
		if it.GPU != "" {
			if _, ok := t.byID[it.GPU]; !ok {
				r.fail("gpu", "no such GPU")
			}
		}
		t.instances[[2]string{it.Cloud, strings.ToLower(it.Name)}] = it
	}); err != nil {
		return nil, fmt.Errorf("instance-types.csv: %w", err)
	}
	return t, nil
}

// join is all that two cells of the alias file may mean. What an id leaves open
// already is not named beside it.
func (t *Table) join(a, b string) string {
	ids := slices.Concat(strings.Split(a, "|"), strings.Split(b, "|"))
	var out []string
	for _, id := range ids {
		covered := slices.ContainsFunc(ids, func(o string) bool { return o != id && slices.Contains(t.Variants(o), id) })
		if !covered && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return strings.Join(out, "|")
}

// All returns every GPU that the facts describe, in the file's order.
func (t *Table) All() []Fact { return slices.Clone(t.facts) }

// Lookup returns the facts of a canonical id. For an id such as a100-any-80gb,
// which a provider's words leave open, it returns what holds for each of its
// variants: a fact that they share, or the least of their numbers. ok is false
// when nothing is known; the fact then holds the id alone.
func (t *Table) Lookup(id string) (f Fact, ok bool) {
	if i, ok := t.byID[id]; ok {
		return t.facts[i], true
	}
	if v := t.anyOf(id); v != nil {
		return t.common(id, v), true
	}
	return Fact{ID: id}, false
}

// Variants returns the ids of the facts that an id stands for: itself, or those
// behind an id such as a100-any-80gb; nil for a GPU without facts.
func (t *Table) Variants(id string) []string {
	if _, ok := t.byID[id]; ok {
		return []string{id}
	}
	var ids []string
	for _, i := range t.anyOf(id) {
		ids = append(ids, t.facts[i].ID)
	}
	return ids
}

// anyOf returns the rows behind "<model>[-<form>]-any[-<memory>]".
func (t *Table) anyOf(id string) []int {
	if !strings.Contains(id, "-any") {
		return nil
	}
	var words []string
	for w := range strings.SplitSeq(id, "-") {
		if w != "any" {
			words = append(words, w)
		}
	}
	found, _ := t.family(words)
	return found
}

// EncodeFPS returns the 1080p frames per second that all encoders of a GPU
// reach together for codec "h264" or "hevc" at preset p1, p3, p5 or p7. It is
// an upper bound: the figures were taken at GeForce clocks.
func (t *Table) EncodeFPS(f Fact, codec, preset string) Known[float64] {
	engines, ok := f.Encoders.Get()
	if !ok {
		return Known[float64]{}
	}
	if engines == 0 {
		return Of(0.0)
	}
	rate, ok := t.encode[[3]string{f.EncoderGen.Or(""), codec, preset}]
	if !ok {
		return Known[float64]{}
	}
	return Of(rate * float64(engines))
}

func (t *Table) common(id string, indices []int) Fact {
	f := t.facts[indices[0]]
	for _, i := range indices[1:] {
		g := t.facts[i]
		for _, k := range []struct{ a, b *Known[float64] }{
			{&f.ComputeCapability, &g.ComputeCapability},
			{&f.Memory, &g.Memory},
			{&f.MemoryBandwidth, &g.MemoryBandwidth},
			{&f.FP64, &g.FP64},
			{&f.FP64Matrix, &g.FP64Matrix},
			{&f.FP32, &g.FP32},
			{&f.TF32, &g.TF32},
			{&f.FP16, &g.FP16},
			{&f.FP16FP32, &g.FP16FP32},
			{&f.BF16Measured, &g.BF16Measured},
			{&f.FP8, &g.FP8},
			{&f.INT8, &g.INT8},
			{&f.FP4, &g.FP4},
			{&f.LinkBandwidth, &g.LinkBandwidth},
			{&f.PCIe, &g.PCIe},
		} {
			*k.a = least(*k.a, *k.b)
		}
		for _, k := range []struct{ a, b *Known[int] }{
			{&f.Year, &g.Year},
			{&f.Encoders, &g.Encoders},
			{&f.Decoders, &g.Decoders},
			{&f.RTGeneration, &g.RTGeneration},
			{&f.RTCores, &g.RTCores},
			{&f.MIG, &g.MIG},
		} {
			*k.a = least(*k.a, *k.b)
		}
		for _, k := range []struct{ a, b *Known[string] }{
			{&f.Vendor, &g.Vendor},
			{&f.Arch, &g.Arch},
			{&f.Class, &g.Class},
			{&f.Form, &g.Form},
			{&f.Target, &g.Target},
			{&f.MemoryType, &g.MemoryType},
			{&f.Link, &g.Link},
			{&f.EncoderGen, &g.EncoderGen},
			{&f.EncoderSessions, &g.EncoderSessions},
		} {
			*k.a = shared(*k.a, *k.b)
		}
		for _, k := range []struct{ a, b *Known[bool] }{
			{&f.BF16, &g.BF16},
			{&f.INT4Tensor, &g.INT4Tensor},
			{&f.EncodeAV1, &g.EncodeAV1},
			{&f.Graphics, &g.Graphics},
			{&f.VGPUCompute, &g.VGPUCompute},
			{&f.ECC, &g.ECC},
		} {
			*k.a = shared(*k.a, *k.b)
		}
		f.TDP = shared(f.TDP, g.TDP)
		f.BF16Half = f.BF16Half || g.BF16Half
	}
	f.ID, f.Name = id, strings.ToUpper(f.Model)+", form or memory not stated"
	f.Sources, f.Conflicts, f.Unverified, f.Variants = "", "", nil, nil
	for _, i := range indices {
		f.Variants = append(f.Variants, t.facts[i].ID)
	}
	return f
}

func least[T int | float64](a, b Known[T]) Known[T] {
	if !a.known || !b.known {
		return Known[T]{}
	}
	return Of(min(a.value, b.value))
}

func shared[T comparable](a, b Known[T]) Known[T] {
	if a != b {
		return Known[T]{}
	}
	return a
}
