package sizing

import "gpubroker/internal/gpu"

// Precision is a number format.
type Precision string

// The precisions.
const (
	FP64 Precision = "fp64"
	FP32 Precision = "fp32"
	TF32 Precision = "tf32"
	BF16 Precision = "bf16"
	FP16 Precision = "fp16"
	FP8  Precision = "fp8"
	INT8 Precision = "int8"
	FP4  Precision = "fp4"
	INT4 Precision = "int4" // of weights alone: the arithmetic is 16-bit
)

// Precisions lists the precisions, wide to narrow.
func Precisions() []Precision {
	return []Precision{FP64, FP32, TF32, BF16, FP16, FP8, INT8, FP4, INT4}
}

// weightBytes is what one weight takes; "" is bf16.
func (p Precision) weightBytes() (float64, bool) {
	switch p {
	case FP32, TF32:
		return 4, true
	case "", BF16, FP16:
		return 2, true
	case FP8, INT8:
		return 1, true
	case INT4, FP4:
		return 0.5 * quantScale, true
	case FP64:
	}
	return 0, false
}

// Rate is the vector or tensor rate at which a GPU computes in a precision, in
// TFLOPS or TOPS: 0 where it cannot, unknown where nobody knows. Weights of 4-bit
// integers run on every GPU with tensor units at its 16-bit rate: they save
// memory, not arithmetic.
func (p Precision) Rate(f gpu.Fact) gpu.Known[float64] {
	switch p {
	case FP64:
		return f.FP64
	case FP32:
		return f.FP32
	case TF32:
		return f.TF32
	case "", BF16:
		return f.BF16Peak()
	case FP16, INT4:
		return f.FP16FP32
	case FP8:
		return f.FP8
	case INT8:
		return f.INT8
	case FP4:
		return f.FP4
	}
	return gpu.Known[float64]{}
}
