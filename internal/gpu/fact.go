package gpu

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// GiB is the unit in which memory of a GPU is sold, whatever the label says:
// an "80 GB" card reports 79.6 to 80 GiB.
const GiB = 1 << 30

// Fact is what is known of one GPU. Rates are dense (without 2:4 sparsity) and
// per GPU. Where nothing trustworthy was found the field is unknown.
type Fact struct {
	ID     string        `json:"id"`
	Name   string        `json:"name,omitzero"`
	Vendor Known[string] `json:"vendor,omitzero"` // nvidia, amd, intel
	Arch   Known[string] `json:"arch,omitzero"`
	// Class is datacenter, workstation or consumer.
	Class Known[string] `json:"class,omitzero"`
	Year  Known[int]    `json:"year,omitzero"`
	// Model is the family that variants share ("a100"); Form is sxm, pcie, nvl,
	// server or workstation, as far as the id tells it.
	Model string        `json:"model,omitzero"`
	Form  Known[string] `json:"form,omitzero"`
	// Variants names the rows that an id such as a100-any-80gb stands for.
	Variants []string `json:"variants,omitzero"`

	ComputeCapability Known[float64] `json:"compute_capability,omitzero"` // CUDA; NVIDIA only
	Target            Known[string]  `json:"target,omitzero"`             // LLVM target; AMD and others

	Memory          Known[float64] `json:"memory_gib,omitzero"` // nominal
	MemoryType      Known[string]  `json:"memory_type,omitzero"`
	MemoryBandwidth Known[float64] `json:"memory_bandwidth_gbs,omitzero"` // decimal GB/s

	FP64       Known[float64] `json:"fp64_tflops,omitzero"` // vector rate
	FP64Matrix Known[float64] `json:"fp64_matrix_tflops,omitzero"`
	FP32       Known[float64] `json:"fp32_tflops,omitzero"`
	TF32       Known[float64] `json:"tf32_tflops,omitzero"`
	FP16       Known[float64] `json:"fp16_tflops,omitzero"`      // FP16 accumulation
	FP16FP32   Known[float64] `json:"fp16_fp32_tflops,omitzero"` // FP32 accumulation, as training uses
	BF16       Known[bool]    `json:"bf16,omitzero"`
	BF16Half   bool           `json:"bf16_half_rate,omitzero"`
	// BF16Measured is the best matmul rate measured, TFLOPS.
	BF16Measured Known[float64] `json:"bf16_measured_tflops,omitzero"`
	FP8          Known[float64] `json:"fp8_tflops,omitzero"`
	INT8         Known[float64] `json:"int8_tops,omitzero"`
	FP4          Known[float64] `json:"fp4_tflops,omitzero"`
	INT4Tensor   Known[bool]    `json:"int4_tensor,omitzero"`

	Link          Known[string]  `json:"link,omitzero"`               // GPU-to-GPU fabric, "none" when there is none
	LinkBandwidth Known[float64] `json:"link_bandwidth_gbs,omitzero"` // both directions added
	PCIe          Known[float64] `json:"pcie_generation,omitzero"`

	Encoders        Known[int]    `json:"encoders,omitzero"` // NVENC or VCN engines
	EncoderGen      Known[string] `json:"encoder_generation,omitzero"`
	EncodeAV1       Known[bool]   `json:"encode_av1,omitzero"`
	EncoderSessions Known[string] `json:"encoder_sessions,omitzero"` // driver limit per system; "none"
	Decoders        Known[int]    `json:"decoders,omitzero"`

	RTGeneration Known[int] `json:"rt_generation,omitzero"` // 0 = no ray-tracing cores
	RTCores      Known[int] `json:"rt_cores,omitzero"`
	// Graphics says that the GPU can drive graphics in a cloud: vWS profiles,
	// AMD MxGPU, or a card made for it.
	Graphics    Known[bool]    `json:"graphics,omitzero"`
	VGPUCompute Known[bool]    `json:"vgpu_compute,omitzero"`
	MIG         Known[int]     `json:"mig,omitzero"` // most MIG slices; 0 = none
	TDP         Known[float64] `json:"tdp_w,omitzero"`
	ECC         Known[bool]    `json:"ecc,omitzero"`

	Sources string `json:"sources,omitzero"`
	// Unverified names the columns that were not re-read from a source.
	Unverified []string `json:"unverified,omitzero"`
	Conflicts  string   `json:"conflicts,omitzero"`
}

// Known says that the facts hold a row for this GPU; otherwise only its id is known.
func (f Fact) Known() bool { return f.Name != "" }

// MemoryBytes is the nominal memory in bytes.
func (f Fact) MemoryBytes() Known[int64] {
	if m, ok := f.Memory.Get(); ok {
		return Of(int64(m * GiB))
	}
	return Known[int64]{}
}

// UsableMemory is a safe lower bound of what a program can use: 93 % of the
// nominal memory. Drivers report up to 7 % less than the label (24 GiB L4:
// 22,888 MiB; 288 GiB B300: 275,040 MiB).
func (f Fact) UsableMemory() Known[int64] {
	const permille = 930 // the worst seen is 22,888 of 24,576 MiB = 931
	if m, ok := f.MemoryBytes().Get(); ok {
		return Of(m / 1000 * permille)
	}
	return Known[int64]{}
}

// BF16Peak is the dense bf16 tensor rate with FP32 accumulation, TFLOPS.
func (f Fact) BF16Peak() Known[float64] {
	has, ok := f.BF16.Get()
	if !ok {
		return Known[float64]{}
	}
	if !has {
		return Of(0.0)
	}
	r, ok := f.FP16FP32.Get()
	if !ok {
		return Known[float64]{}
	}
	if f.BF16Half {
		r /= 2
	}
	return Of(r)
}

// has reports whether the tensor units know a format: when a rate of it is known,
// from a compute capability on, and on some of AMD's targets.
func (f Fact) has(rate Known[float64], capability float64, targets ...string) Known[bool] {
	if r, ok := rate.Get(); ok {
		return Of(r > 0)
	}
	if cc, ok := f.ComputeCapability.Get(); ok {
		return Of(cc >= capability)
	}
	if t, ok := f.Target.Get(); ok && f.Vendor.Or("") == "amd" {
		return Of(slices.Contains(targets, t))
	}
	return Known[bool]{}
}

// HasFP8 reports whether a GPU computes in FP8.
func (f Fact) HasFP8() Known[bool] { return f.has(f.FP8, 8.9, "gfx942", "gfx950") }

// HasINT8 reports whether a GPU's tensor units compute in INT8.
func (f Fact) HasINT8() Known[bool] {
	return f.has(f.INT8, 7.5, "gfx908", "gfx90a", "gfx942", "gfx950")
}

// HasFP4 reports whether a GPU computes in FP4.
func (f Fact) HasFP4() Known[bool] { return f.has(f.FP4, 10, "gfx950") }

// matmulShare is the share of the bf16 peak that a matmul reaches where it was
// not measured: the middle of what was (0.71 to 0.87 on NVIDIA parts).
const matmulShare = 0.78

// BF16Effective is the bf16 rate that work can reach, TFLOPS: measured, or
// else 0.78 of the peak, which is an estimate.
func (f Fact) BF16Effective() (tflops Known[float64], measured bool) {
	if f.BF16Measured.known {
		return f.BF16Measured, true
	}
	if r, ok := f.BF16Peak().Get(); ok {
		return Of(r * matmulShare), false
	}
	return Known[float64]{}, false
}

// row reads named columns of one CSV record and keeps the first error.
type row struct {
	columns map[string]int
	record  []string
	err     error
}

// text returns the column, "" when it is unknown.
func (r *row) text(column string) string {
	i, ok := r.columns[column]
	if !ok {
		r.fail(column, "no such column")
		return ""
	}
	return strings.TrimSpace(r.record[i])
}

func (r *row) fail(column, why string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: column %s: %s", r.record[0], column, why)
	}
}

func (r *row) word(column string) Known[string] {
	if s := r.text(column); s != "" {
		return Of(s)
	}
	return Known[string]{}
}

func (r *row) number(column string) Known[float64] {
	s := r.text(column)
	if s == "" {
		return Known[float64]{}
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		r.fail(column, fmt.Sprintf("%q is no number", s))
		return Known[float64]{}
	}
	return Of(v)
}

func (r *row) integer(column string) Known[int] {
	s := r.text(column)
	if s == "" {
		return Known[int]{}
	}
	v, err := strconv.Atoi(s)
	if err != nil {
		r.fail(column, fmt.Sprintf("%q is no whole number", s))
		return Known[int]{}
	}
	return Of(v)
}

func (r *row) yes(column string) Known[bool] {
	s := r.text(column)
	switch {
	case s == "":
		return Known[bool]{}
	case strings.HasPrefix(s, "yes"):
		return Of(true)
	case strings.HasPrefix(s, "no"):
		return Of(false)
	}
	r.fail(column, fmt.Sprintf("%q is neither yes nor no", s))
	return Known[bool]{}
}

// rows calls f for each record of a CSV file with a header.
func rows(r io.Reader, f func(*row)) error {
	c := csv.NewReader(r)
	header, err := c.Read()
	if err != nil {
		return fmt.Errorf("read the header: %w", err)
	}
	columns := make(map[string]int, len(header))
	for i, h := range header {
		columns[h] = i
	}
	for {
		record, err := c.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		one := row{columns: columns, record: record}
		f(&one)
		if one.err != nil {
			return one.err
		}
	}
}

// forms are the form factors that ids and names carry, by how they are written.
var forms = map[string]string{
	"sxm": "sxm", "sxm2": "sxm", "sxm3": "sxm", "sxm4": "sxm", "sxm5": "sxm",
	"pcie": "pcie", "nvl": "nvl",
	"se": "server", "server": "server", "ws": "workstation", "workstation": "workstation",
}

func parseFact(r *row) Fact {
	f := Fact{
		ID: r.text("id"), Name: r.text("name"),
		Vendor: r.word("vendor"), Arch: r.word("arch"), Class: r.word("class"), Year: r.integer("year"),
		Memory: r.number("mem_gb"), MemoryType: r.word("mem_type"), MemoryBandwidth: r.number("mem_bw_gbs"),
		FP64: r.number("fp64_tflops"), FP64Matrix: r.number("fp64_matrix_tflops"), FP32: r.number("fp32_tflops"),
		TF32: r.number("tf32_dense_tflops"), FP16: r.number("fp16_dense_tflops"), FP16FP32: r.number("fp16_fp32acc_dense_tflops"),
		BF16: r.yes("bf16"), BF16Half: strings.Contains(r.text("bf16"), "half"),
		FP8: r.number("fp8_dense_tflops"), INT8: r.number("int8_dense_tops"), FP4: r.number("fp4_dense_tflops"), INT4Tensor: r.yes("int4_tensor"),
		Link: r.word("link"), LinkBandwidth: r.number("link_gbs_bidir"), PCIe: r.number("pcie_gen"),
		Encoders: r.integer("nvenc_count"), EncoderGen: r.word("enc_gen"), EncodeAV1: r.yes("av1_encode"),
		EncoderSessions: r.word("enc_session_limit"), Decoders: r.integer("nvdec_count"),
		RTGeneration: r.integer("rt_gen"), RTCores: r.integer("rt_cores"),
		VGPUCompute: r.yes("vgpu_compute"), MIG: r.integer("mig_max"), TDP: r.number("tdp_w"), ECC: r.yes("ecc"),
		Sources: r.text("sources"), Conflicts: r.text("conflicts"),
	}
	if s := r.text("unverified"); s != "" {
		f.Unverified = strings.Split(s, ",")
	}
	cc := r.text("cc_or_gfx")
	if f.Vendor.Or("") == "nvidia" {
		f.ComputeCapability = r.number("cc_or_gfx")
	} else if cc != "" {
		f.Target = Of(cc)
	}
	var model []string
	for t := range strings.SplitSeq(f.ID, "-") {
		if form, ok := forms[t]; ok {
			f.Form = Of(form)
		} else if _, ok := gigabytes(t); !ok {
			model = append(model, t)
		}
	}
	f.Model = strings.Join(model, "-")
	vws, arch := r.text("vws"), f.Arch.Or("")
	switch {
	case strings.HasPrefix(vws, "yes"), strings.Contains(vws, "MxGPU"),
		slices.Contains([]string{"consumer", "workstation"}, f.Class.Or("")),
		strings.HasPrefix(arch, "RDNA"), strings.HasPrefix(arch, "Vega"):
		f.Graphics = Of(true)
	case strings.HasPrefix(vws, "no"):
		f.Graphics = Of(false)
	}
	return f
}

// gigabytes reads "80gb", "80g" or "80gib".
func gigabytes(s string) (float64, bool) {
	n := strings.TrimRight(s, "gib")
	if n == s || n == "" {
		return 0, false
	}
	switch s[len(n):] {
	case "g", "gb", "gib":
	default:
		return 0, false
	}
	v, err := strconv.ParseUint(n, 10, 16)
	return float64(v), err == nil
}
