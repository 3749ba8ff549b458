package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is a release of CUDA or ROCm: 1204 is 12.4. 0 is none.
type Version int

// ParseVersion reads "12.4" or "13".
func ParseVersion(s string) (Version, bool) {
	major, minor, _ := strings.Cut(s, ".")
	a, errA := strconv.ParseUint(major, 10, 7)
	b, errB := uint64(0), error(nil)
	if minor != "" {
		b, errB = strconv.ParseUint(minor, 10, 6)
	}
	return Version(a*100 + b), errA == nil && errB == nil && a > 0 && !strings.HasSuffix(s, ".")
}

func (v Version) String() string { return fmt.Sprintf("%d.%d", v/100, v%100) }

// Versions are releases from one on, to below another. Zero bounds nothing.
type Versions struct{ From, Below Version }

// ParseVersions reads ">=12.4", "<13", ">=12.4 <13" or "12.4", which means at least.
func ParseVersions(s string) (v Versions, ok bool) {
	words := strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ',' })
	for _, w := range words {
		number := strings.TrimLeft(w, "<>=")
		at, fine := ParseVersion(number)
		if !fine {
			return Versions{}, false
		}
		switch w[:len(w)-len(number)] {
		case "", ">=":
			v.From = max(v.From, at)
		case ">":
			v.From = max(v.From, at+1)
		case "<":
			v.bound(at)
		case "<=":
			v.bound(at + 1)
		case "=", "==":
			v.From = max(v.From, at)
			v.bound(at + 1)
		default:
			return Versions{}, false
		}
	}
	return v, len(words) > 0 && (v.Below == 0 || v.From < v.Below)
}

func (v *Versions) bound(below Version) {
	if v.Below == 0 || below < v.Below {
		v.Below = below
	}
}

func (v Versions) String() string {
	var words []string
	if v.From > 0 {
		words = append(words, ">="+v.From.String())
	}
	if v.Below > 0 {
		words = append(words, "<"+v.Below.String())
	}
	return strings.Join(words, " ")
}

// meet reports whether some release is in both.
func (v Versions) meet(o Versions) bool {
	return (v.Below == 0 || o.From < v.Below) && (o.Below == 0 || v.From < o.Below)
}

// Runtime is what a job's software is built for. It is comparable; the zero
// Runtime asks for nothing.
type Runtime struct {
	CUDA, ROCm Versions
}

// IsZero reports whether nothing is asked for.
func (r Runtime) IsZero() bool { return r == Runtime{} }

func (r Runtime) String() string {
	var words []string
	if r.CUDA != (Versions{}) {
		words = append(words, "CUDA "+r.CUDA.String())
	}
	if r.ROCm != (Versions{}) {
		words = append(words, "ROCm "+r.ROCm.String())
	}
	return strings.Join(words, " or ")
}

// Vendors are those whose GPUs it runs on; nil means any.
func (r Runtime) Vendors() []string {
	var out []string
	if r.ROCm != (Versions{}) {
		out = append(out, "amd")
	}
	if r.CUDA != (Versions{}) {
		out = append(out, "nvidia")
	}
	return out
}

// Check reports whether some release that is asked for knows the GPU, and else
// which do: "CUDA >=12.8".
func (r Runtime) Check(f Fact) (have string, ok bool) {
	if r.IsZero() {
		return "", true
	}
	name, want, knows := "CUDA", r.CUDA, Versions{}
	known := false
	switch f.Vendor.Or("") {
	case "nvidia":
		if cc, is := f.ComputeCapability.Get(); is {
			knows, known = cudaOf(cc)
		}
	case "amd":
		name, want = "ROCm", r.ROCm
		knows, known = rocm[f.Target.Or("")]
	default:
		return "neither CUDA nor ROCm", false
	}
	switch {
	case want == Versions{}:
		return name, false
	case !known:
		return name + " unknown", false
	}
	return name + " " + knows.String(), want.meet(knows)
}

// cuda lists from which toolkit on a compute capability is known, and which no
// longer does (NVIDIA, release notes of the CUDA toolkits 10.0 to 13.0: 13.0 dropped
// Maxwell, Pascal and Volta).
var cuda = []struct {
	capability float64
	knows      Versions
}{
	{5.2, Versions{700, 1300}},
	{6.0, Versions{800, 1300}},
	{7.0, Versions{900, 1300}},
	{7.5, Versions{From: 1000}},
	{8.0, Versions{From: 1100}},
	{8.6, Versions{From: 1101}},
	{8.9, Versions{From: 1108}},
	{9.0, Versions{From: 1108}},
	{10.0, Versions{From: 1208}},
	{10.3, Versions{From: 1209}},
	{12.0, Versions{From: 1208}},
}

func cudaOf(capability float64) (v Versions, ok bool) {
	for _, c := range cuda {
		if capability >= c.capability {
			v, ok = c.knows, true
		}
	}
	return v, ok
}

// rocm lists the same of AMD's targets (AMD, compatibility matrix and release notes
// of ROCm 4.5 to 7.0).
var rocm = map[string]Versions{
	"gfx908":  {From: 405},
	"gfx90a":  {From: 405},
	"gfx942":  {From: 600},
	"gfx950":  {From: 700},
	"gfx1030": {From: 405},
	"gfx1100": {From: 600},
	"gfx1101": {From: 603},
}
