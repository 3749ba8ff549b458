package sizing

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
