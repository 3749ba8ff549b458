package sizing

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Method is how a model is used.
type Method string

// The methods.
const (
	Full     Method = "full"       // mixed precision with AdamW
	FullBF16 Method = "full-bf16"  // everything in bf16
	LoRA     Method = "lora"       // 16-bit base
	QLoRA8   Method = "qlora-8bit" // quantised base
	QLoRA4   Method = "qlora-4bit"
	QLoRA2   Method = "qlora-2bit"
	Infer    Method = "inference"
)

// Methods lists the methods.
func Methods() []Method { return []Method{Full, FullBF16, LoRA, QLoRA8, QLoRA4, QLoRA2, Infer} }

// Model describes a language model and how it is used. Zero is unknown.
type Model struct {
	Parameters float64 // 70e9
	Method     Method
	Precision  Precision // of the weights, for inference; "" is bf16
	Context    int       // tokens of a sequence
	Batch      int       // sequences at once; 0 means 1
	Layers     int
	Hidden     int
	Heads      int
	KVHeads    int
}

// Part is a share of the memory.
type Part struct {
	Name  string `json:"name"` // weights, gradients, optimizer, activations, kv-cache, overhead
	Bytes int64  `json:"bytes"`
}

// Memory is what a model needs, over all GPUs that share it.
type Memory struct {
	Parts []Part `json:"parts"`
	Total int64  `json:"total"`
	// PerGPU is what each further GPU needs beside its share: the runtime.
	PerGPU int64 `json:"per_gpu"`
	// Assumed says what was not given and taken from elsewhere; "" when nothing was.
	Assumed string `json:"assumed,omitzero"`
}

// On returns what each of n GPUs must hold when the model is split evenly.
func (m Memory) On(n int) int64 {
	if n <= 1 {
		return m.Total
	}
	return int64(math.Ceil(float64(m.Total)/float64(n))) + m.PerGPU
}

// String is "48 GB: weights 35, overhead 13".
func (m Memory) String() string {
	return fmt.Sprintf("%s GB: %s", Gigabytes(m.Total), m.Shares())
}

// Shares is "weights 35, overhead 13", in GB.
func (m Memory) Shares() string {
	var parts []string
	for _, p := range m.Parts {
		parts = append(parts, p.Name+" "+Gigabytes(p.Bytes))
	}
	return strings.Join(parts, ", ")
}

// Gigabytes shows bytes in GB, 10⁹ bytes: without decimals from 10 on.
func Gigabytes(n int64) string {
	v := float64(n) / gb
	if v >= 10 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

// runtime is what a process takes on each GPU: 1 to 2 GB for the context of the
// runtime and its libraries (stas00/ml-engineering, training memory).
const runtime = 1.5 * gb

// tuning is a row of the hardware table of LLaMA-Factory: bytes for each
// parameter, and the published need for models of some sizes, in GB.
type tuning struct {
	rate  float64
	cells [4]float64
	split []share
}

type share struct {
	name string
	rate float64
}

// sizes are the columns of the table, in parameters.
var sizes = [4]float64{7e9, 14e9, 30e9, 70e9}

// tunings are the methods that train. The 18 bytes of full tuning are 2 of bf16
// weights, 4 of the FP32 master copy, 4 of gradients and 8 of Adam's moments
// (stas00/ml-engineering); the 8 of pure bf16 are 2, 2 and 4.
var tunings = map[Method]tuning{
	Full:     {18, [4]float64{120, 240, 600, 1200}, []share{{"weights", 6}, {"gradients", 4}, {"optimizer", 8}}},
	FullBF16: {8, [4]float64{60, 120, 300, 600}, []share{{"weights", 2}, {"gradients", 2}, {"optimizer", 4}}},
	LoRA:     {2, [4]float64{16, 32, 64, 160}, []share{{"weights", 2}}},
	QLoRA8:   {1, [4]float64{10, 20, 40, 80}, []share{{"weights", 1}}},
	QLoRA4:   {0.5, [4]float64{6, 12, 24, 48}, []share{{"weights", 0.5}}},
	QLoRA2:   {0.25, [4]float64{4, 8, 16, 24}, []share{{"weights", 0.25}}},
}

// Memory returns what the model needs. Its errors say what is missing.
func (m Model) Memory() (Memory, error) {
	if !(m.Parameters > 0) {
		return Memory{}, errors.New("the number of parameters is not given")
	}
	if !slices.Contains(Methods(), m.Method) {
		return Memory{}, fmt.Errorf("method %q is not known", m.Method)
	}
	m.Batch = max(m.Batch, 1)
	if m.Method == Infer {
		return m.inference()
	}
	return m.training(), nil
}

func (m Model) training() Memory {
	t := tunings[m.Method]
	var out Memory
	for _, s := range t.split {
		out.add(s.name, s.rate*m.Parameters)
	}
	published := max(t.published(m.Parameters)-t.rate*m.Parameters, 0)
	switch {
	case m.Context > 0 && m.Layers > 0 && m.Hidden > 0:
		out.add("activations", m.activations())
		out.add("overhead", runtime)
	case published > 0:
		// Adapters, activations of a short context and the runtime, as published.
		out.add("overhead", max(published, runtime))
		out.Assumed = "activations as in the published table, for short sequences"
	default:
		out.add("overhead", runtime)
		out.Assumed = "activations are not counted: give context, batch, layers and hidden"
	}
	out.PerGPU = runtime
	return out
}

// published reads the table, straight between its columns: below the first with
// that column's margin, beyond the last with its margin in proportion.
func (t tuning) published(p float64) float64 {
	margin := func(i int) float64 { return t.cells[i]*gb - t.rate*sizes[i] }
	last := len(sizes) - 1
	switch {
	case p <= sizes[0]:
		return t.rate*p + margin(0)
	case p >= sizes[last]:
		return t.rate*p + margin(last)*p/sizes[last]
	}
	i := 0
	for p > sizes[i+1] {
		i++
	}
	part := (p - sizes[i]) / (sizes[i+1] - sizes[i])
	return gb * (t.cells[i] + part*(t.cells[i+1]-t.cells[i]))
}

// activations with checkpointing at each layer: its input, 2 bytes for each
// token and hidden unit, and once the 34 bytes of a whole layer that is being
// computed anew (Korthikanti et al. 2022, "Reducing Activation Recomputation",
// without the attention matrix, which fused kernels do not keep).
func (m Model) activations() float64 {
	tokens := float64(m.Batch) * float64(m.Context)
	return tokens * float64(m.Hidden) * (2*float64(m.Layers) + 34)
}

// known are architectures that stand in for one whose shape is not given
// (Llama 3, model cards of Meta, 2024).
var known = []struct {
	parameters                     float64
	layers, hidden, heads, kvHeads int
}{
	{1.2e9, 16, 2048, 32, 8}, {3.2e9, 28, 3072, 24, 8}, {8e9, 32, 4096, 32, 8}, {70e9, 80, 8192, 64, 8}, {405e9, 126, 16384, 128, 8},
}

// quantScale is what the scales of 4-bit weights add: 5 to 15 %.
const quantScale = 1.1

// serveShare is what engines take beyond weights and cache: 10 to 20 %.
const serveShare = 0.15

func (m Model) inference() (Memory, error) {
	bytes, ok := m.Precision.weightBytes()
	if !ok {
		return Memory{}, fmt.Errorf("precision %q has no size for weights; give bf16, fp16, fp8, int8, int4 or fp4", m.Precision)
	}
	var out Memory
	weights := bytes * m.Parameters
	out.add("weights", weights)
	cache := 0.0
	if m.Context > 0 {
		s := m
		if s.Layers == 0 || s.Hidden == 0 {
			near := known[0]
			for _, k := range known {
				if math.Abs(math.Log(k.parameters/m.Parameters)) < math.Abs(math.Log(near.parameters/m.Parameters)) {
					near = k
				}
			}
			s.Layers, s.Hidden, s.Heads, s.KVHeads = near.layers, near.hidden, near.heads, near.kvHeads
			out.Assumed = fmt.Sprintf("layers and heads as of a Llama 3 model of %s B", Gigabytes(int64(near.parameters)))
		}
		cache = s.cachePerToken() * float64(s.Context) * float64(s.Batch)
		out.add("kv-cache", cache)
	} else {
		out.Assumed = "no cache is counted: give context and batch"
	}
	out.add("overhead", serveShare*(weights+cache))
	out.PerGPU = runtime
	return out, nil
}

// cachePerToken is 2 × layers × hidden × (kv_heads / heads) × bytes: 131 kB for
// Llama-3.1-8B in bf16. The cache is in bf16 whatever the weights are.
func (m Model) cachePerToken() float64 {
	share := 1.0
	if m.Heads > 0 && m.KVHeads > 0 {
		share = float64(m.KVHeads) / float64(m.Heads)
	}
	return 2 * float64(m.Layers) * float64(m.Hidden) * share * 2
}

func (m *Memory) add(name string, bytes float64) {
	n := int64(math.Ceil(bytes))
	m.Parts = append(m.Parts, Part{name, n})
	m.Total += n
}
