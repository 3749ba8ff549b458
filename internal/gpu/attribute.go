package gpu

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gpubroker/internal/nearest"
)

// Kind is how an attribute is compared.
type Kind string

// The kinds of attributes and what a requirement on them means.
const (
	Number Kind = "number" // at least; 0 asks for nothing
	Flag   Kind = "flag"   // true: must have; false asks for nothing
	Word   Kind = "word"   // one of
)

// Attribute is a fact that a job or a scenario can ask for, or be rated by.
type Attribute struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	Unit string `json:"unit,omitzero"`
	Doc  string `json:"doc"`
	// Code names the failure to meet a requirement, for counted reasons.
	Code string `json:"code"`
	// Values are the words in use, for a Word.
	Values []string `json:"values,omitzero"`
	// OnlyFor is the vendor that the attribute makes sense for; a requirement
	// on it does not touch the others.
	OnlyFor string `json:"only_for,omitzero"`

	value func(*Table, Fact) Value
}

// Value is the value of an attribute, as its kind has it.
type Value struct {
	Number Known[float64]
	Flag   Known[bool]
	Word   Known[string]
}

func (v Value) String() string {
	switch {
	case v.Number.known:
		return strconv.FormatFloat(v.Number.value, 'f', -1, 64)
	case v.Flag.known:
		return strconv.FormatBool(v.Flag.value)
	case v.Word.known:
		return v.Word.value
	}
	return "unknown"
}

func number(name, unit, code, doc string, get func(Fact) Known[float64]) Attribute {
	return Attribute{Name: name, Kind: Number, Unit: unit, Code: code, Doc: doc, value: func(_ *Table, f Fact) Value { return Value{Number: get(f)} }}
}

func count(name, unit, code, doc string, get func(Fact) Known[int]) Attribute {
	return number(name, unit, code, doc, func(f Fact) Known[float64] {
		if n, ok := get(f).Get(); ok {
			return Of(float64(n))
		}
		return Known[float64]{}
	})
}

func flag(name, code, doc string, get func(Fact) Known[bool]) Attribute {
	return Attribute{Name: name, Kind: Flag, Code: code, Doc: doc, value: func(_ *Table, f Fact) Value { return Value{Flag: get(f)} }}
}

func word(name, code, doc string, values []string, get func(Fact) Known[string]) Attribute {
	return Attribute{Name: name, Kind: Word, Code: code, Doc: doc, Values: values, value: func(_ *Table, f Fact) Value { return Value{Word: get(f)} }}
}

// Attributes lists what can be asked for, in the order of the documentation.
func Attributes() []Attribute { return slices.Clone(attributes()) }

var attributes = sync.OnceValue(func() []Attribute {
	encode := func(name, codec, preset string) Attribute {
		doc := "streams of 1080p at 30 fps that all encoders reach in " + codec + " at preset " + strings.ToUpper(preset) + "; an upper bound"
		a := number(name, "1080p30 streams", "gpu.encoders", doc, nil)
		a.value = func(t *Table, f Fact) Value {
			if fps, ok := t.EncodeFPS(f, codec, preset).Get(); ok {
				return Value{Number: Of(fps / 30)}
			}
			return Value{}
		}
		return a
	}
	cc := number("compute_capability", "", "gpu.compute_capability", "CUDA compute capability", func(f Fact) Known[float64] { return f.ComputeCapability })
	cc.OnlyFor = "nvidia"
	return []Attribute{
		word("vendor", "gpu.vendor", "who makes it: nvidia runs CUDA, amd runs ROCm", []string{"nvidia", "amd", "intel"}, func(f Fact) Known[string] { return f.Vendor }),
		word("class", "gpu.class", "the market it is made for", []string{"datacenter", "workstation", "consumer"}, func(f Fact) Known[string] { return f.Class }),
		word("form", "gpu.form", "form factor or edition", []string{"sxm", "pcie", "nvl", "server", "workstation"}, func(f Fact) Known[string] { return f.Form }),
		word("arch", "gpu.arch", "architecture, as the vendor names it", nil, func(f Fact) Known[string] { return f.Arch }),
		word("target", "gpu.target", "LLVM target of an AMD GPU", nil, func(f Fact) Known[string] { return f.Target }),
		cc,
		number("memory", "GiB", "gpu.memory", "nominal memory per GPU", func(f Fact) Known[float64] { return f.Memory }),
		number("memory_bandwidth", "GB/s", "gpu.memory_bandwidth", "memory bandwidth", func(f Fact) Known[float64] { return f.MemoryBandwidth }),
		number("fp64", "TFLOPS", "gpu.fp64", "FP64 vector rate", func(f Fact) Known[float64] { return f.FP64 }),
		number("fp64_matrix", "TFLOPS", "gpu.fp64", "FP64 matrix rate", func(f Fact) Known[float64] { return f.FP64Matrix }),
		number("fp32", "TFLOPS", "gpu.fp32", "FP32 vector rate", func(f Fact) Known[float64] { return f.FP32 }),
		number("tf32", "TFLOPS", "gpu.tf32", "TF32 tensor rate, dense", func(f Fact) Known[float64] { return f.TF32 }),
		number("fp16", "TFLOPS", "gpu.fp16", "FP16 tensor rate, dense", func(f Fact) Known[float64] { return f.FP16 }),
		number("fp16_fp32", "TFLOPS", "gpu.fp16", "FP16 tensor rate with FP32 accumulation, as training uses it, dense", func(f Fact) Known[float64] { return f.FP16FP32 }),
		number("bf16", "TFLOPS", "gpu.bf16", "BF16 tensor rate with FP32 accumulation, dense; 0 where bf16 is not supported", Fact.BF16Peak),
		number("bf16_effective", "TFLOPS", "gpu.bf16", "BF16 rate that work reaches: measured, or 0.78 of the peak", func(f Fact) Known[float64] { v, _ := f.BF16Effective(); return v }),
		flag("bf16_support", "gpu.bf16", "computes in bf16", func(f Fact) Known[bool] { return f.BF16 }),
		number("fp8", "TFLOPS", "gpu.fp8", "FP8 tensor rate, dense", func(f Fact) Known[float64] { return f.FP8 }),
		flag("fp8_support", "gpu.fp8", "computes in FP8: Ada, Hopper and Blackwell (compute capability 8.9 on), MI300 on", Fact.HasFP8),
		number("int8", "TOPS", "gpu.int8", "INT8 tensor rate, dense", func(f Fact) Known[float64] { return f.INT8 }),
		flag("int8_support", "gpu.int8", "computes in INT8 in its tensor units: compute capability 7.5 on", Fact.HasINT8),
		number("fp4", "TFLOPS", "gpu.fp4", "FP4 tensor rate, dense", func(f Fact) Known[float64] { return f.FP4 }),
		flag("fp4_support", "gpu.fp4", "computes in FP4: Blackwell (compute capability 10 on), MI350 on", Fact.HasFP4),
		flag("int4_tensor", "gpu.int4", "INT4 in the tensor units", func(f Fact) Known[bool] { return f.INT4Tensor }),
		number("link_bandwidth", "GB/s", "gpu.link", "GPU-to-GPU link, both directions", func(f Fact) Known[float64] { return f.LinkBandwidth }),
		number("pcie", "", "gpu.pcie", "PCIe generation", func(f Fact) Known[float64] { return f.PCIe }),
		count("encoders", "engines", "gpu.encoders", "video encoders (NVENC or VCN)", func(f Fact) Known[int] { return f.Encoders }),
		count("decoders", "engines", "gpu.decoders", "video decoders (NVDEC or VCN)", func(f Fact) Known[int] { return f.Decoders }),
		flag("encode_av1", "gpu.encode_av1", "encodes AV1", func(f Fact) Known[bool] { return f.EncodeAV1 }),
		encode("encode_h264", "h264", "p5"),
		encode("encode_h264_p1", "h264", "p1"),
		encode("encode_h264_p3", "h264", "p3"),
		encode("encode_h264_p7", "h264", "p7"),
		encode("encode_hevc", "hevc", "p5"),
		encode("encode_hevc_p1", "hevc", "p1"),
		encode("encode_hevc_p3", "hevc", "p3"),
		encode("encode_hevc_p7", "hevc", "p7"),
		count("rt_generation", "", "gpu.rt_cores", "generation of ray-tracing cores; 0 = none", func(f Fact) Known[int] { return f.RTGeneration }),
		count("rt_cores", "cores", "gpu.rt_cores", "ray-tracing cores", func(f Fact) Known[int] { return f.RTCores }),
		flag("graphics", "gpu.graphics", "can drive graphics: vWS profiles, MxGPU, or a graphics card", func(f Fact) Known[bool] { return f.Graphics }),
		flag("vgpu_compute", "gpu.vgpu_compute", "has compute vGPU profiles", func(f Fact) Known[bool] { return f.VGPUCompute }),
		count("mig", "slices", "gpu.mig", "MIG slices", func(f Fact) Known[int] { return f.MIG }),
		flag("ecc", "gpu.ecc", "memory with error correction", func(f Fact) Known[bool] { return f.ECC }),
	}
})

// FindAttribute returns the attribute of this name.
func FindAttribute(name string) (Attribute, bool) {
	all := attributes()
	i := slices.IndexFunc(all, func(a Attribute) bool { return a.Name == name })
	if i < 0 {
		return Attribute{}, false
	}
	return all[i], true
}

// AttributeNames lists the names, for hints and schemas.
func AttributeNames() []string {
	var names []string
	for _, a := range attributes() {
		names = append(names, a.Name)
	}
	return names
}

// Rate is the number of an attribute for a GPU; 0 where it is unknown or no number.
func (t *Table) Rate(f Fact, attribute string) float64 {
	a, ok := FindAttribute(attribute)
	if !ok {
		return 0
	}
	return t.Value(f, a).Number.Or(0)
}

// Value returns the attribute's value for a GPU; nothing is known of the zero
// Attribute.
func (t *Table) Value(f Fact, a Attribute) Value {
	if a.value == nil {
		return Value{}
	}
	return a.value(t, f)
}

// Want is what a requirement asks of one attribute: a number (at least), a flag
// or words (one of). In YAML and JSON it is written as such: 24, true, amd,
// [nvidia, amd].
type Want struct {
	Number float64
	Flag   bool
	Words  []string
	kind   Kind
}

// AtLeast, HasIt and OneOf make wants.
func AtLeast(n float64) Want { return Want{Number: n, kind: Number} }

// HasIt asks for a flag; false asks for nothing.
func HasIt(b bool) Want { return Want{Flag: b, kind: Flag} }

// OneOf asks for one of the words.
func OneOf(words ...string) Want { return Want{Words: words, kind: Word} }

// ParseWant reads a scalar or the items of a list for the attribute; the error
// says what was expected.
func ParseWant(a Attribute, words ...string) (Want, error) {
	switch a.Kind {
	case Word:
		w := OneOf()
		for _, s := range words {
			if len(a.Values) > 0 && !slices.Contains(a.Values, s) {
				return Want{}, &ValueError{a.Name, s, nearest.Or(a.Values), nearest.Hint(s, a.Values)}
			}
			w.Words = append(w.Words, s)
		}
		if len(words) == 0 {
			return Want{}, &ValueError{a.Name, "", "at least one word", ""}
		}
		return w, nil
	case Flag:
		if len(words) == 1 {
			if b, err := strconv.ParseBool(words[0]); err == nil && (words[0] == "true" || words[0] == "false") {
				return HasIt(b), nil
			}
		}
		return Want{}, &ValueError{a.Name, strings.Join(words, ", "), "true or false", ""}
	default:
		unit := ""
		if a.Unit != "" {
			unit = " in " + a.Unit
		}
		if len(words) == 1 {
			n, err := strconv.ParseFloat(words[0], 64)
			if err == nil && n >= 0 && n < 1e12 {
				return AtLeast(n), nil
			}
		}
		return Want{}, &ValueError{a.Name, strings.Join(words, ", "), "a number" + unit + ", without a unit", ""}
	}
}

// ValueError says that an attribute cannot be asked for in this way.
type ValueError struct{ Attribute, Value, Expected, Hint string }

func (e *ValueError) Error() string {
	return fmt.Sprintf("%q is no value for %s: expected %s", e.Value, e.Attribute, e.Expected)
}

// String shows what is asked for.
func (w Want) String() string {
	switch w.kind {
	case Word:
		return strings.Join(w.Words, "|")
	case Flag:
		return strconv.FormatBool(w.Flag)
	default:
		return strconv.FormatFloat(w.Number, 'f', -1, 64)
	}
}

// MarshalJSON writes the number, the flag or the list of words.
func (w Want) MarshalJSON() ([]byte, error) {
	switch w.kind {
	case Word:
		return json.Marshal(w.Words)
	case Flag:
		return json.Marshal(w.Flag)
	default:
		return json.Marshal(w.Number)
	}
}

// UnmarshalJSON reads what MarshalJSON writes.
func (w *Want) UnmarshalJSON(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	switch v := v.(type) {
	case float64:
		*w = AtLeast(v)
	case bool:
		*w = HasIt(v)
	case string:
		*w = OneOf(v)
	case []any:
		*w = OneOf()
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return fmt.Errorf("gpu: %v in a list of words is no word", e)
			}
			w.Words = append(w.Words, s)
		}
	default:
		return fmt.Errorf("gpu: %s asks for nothing that a GPU can have", b)
	}
	return nil
}

// Requirements asks for attributes by name. All hold together.
type Requirements map[string]Want

// Failure is one requirement that a GPU does not meet.
type Failure struct {
	Code      string `json:"code"`
	Attribute string `json:"attribute"`
	Want      string `json:"want"`
	Have      string `json:"have"` // "unknown" when the facts do not say
	Unit      string `json:"unit,omitzero"`
}

func (f Failure) String() string {
	unit := ""
	if f.Unit != "" {
		unit = " " + f.Unit
	}
	return fmt.Sprintf("%s: %s, wanted %s%s", f.Attribute, f.Have, f.Want, unit)
}

// Check returns the requirements that the GPU does not meet, in the order of
// [Attributes]. An unknown fact meets no requirement. A name that is no
// attribute fails too, so that a wrong requirement never passes.
func (t *Table) Check(f Fact, r Requirements) []Failure {
	if len(r) == 0 {
		return nil
	}
	var failures []Failure
	seen := 0
	for _, a := range attributes() {
		w, ok := r[a.Name]
		if !ok {
			continue
		}
		seen++
		if a.OnlyFor != "" && f.Vendor.known && f.Vendor.value != a.OnlyFor {
			continue
		}
		v := a.value(t, f)
		met := false
		switch a.Kind {
		case Number:
			n, ok := v.Number.Get()
			met = w.Number <= 0 || ok && n >= w.Number
		case Flag:
			met = !w.Flag || v.Flag.Or(false)
		case Word:
			s, ok := v.Word.Get()
			met = ok && slices.ContainsFunc(w.Words, func(x string) bool { return strings.EqualFold(x, s) })
		}
		if w.kind != "" && w.kind != a.Kind || !met {
			failures = append(failures, Failure{Code: a.Code, Attribute: a.Name, Want: w.String(), Have: v.String(), Unit: a.Unit})
		}
	}
	if seen < len(r) {
		for name, w := range r {
			if _, ok := FindAttribute(name); !ok {
				failures = append(failures, Failure{Code: "gpu.unknown_attribute", Attribute: name, Want: w.String(), Have: "unknown"})
			}
		}
		slices.SortStableFunc(failures, func(a, b Failure) int {
			if a.Code != b.Code && a.Code == "gpu.unknown_attribute" {
				return 1
			}
			return 0
		})
	}
	return failures
}
