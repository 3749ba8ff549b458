package gpu_test

import (
	"testing"

	"gpubroker/internal/gpu"
)

func TestRuntimeKnowsTheGPU(t *testing.T) {
	for _, c := range []struct {
		cuda, rocm, id, have string
		ok                   bool
	}{
		{">=12.4", "", "h100-sxm-80gb", "CUDA >=11.8", true},
		{"<=12.4", "", "b200", "CUDA >=12.8", false},
		{">=13", "", "v100-sxm-32gb", "CUDA >=9.0 <13.0", false},
		{"12.4", "", "b200", "CUDA >=12.8", true},
		{"=11.8", "", "l4", "CUDA >=11.8", true},
		{">=12.4", "", "mi300x", "ROCm", false},
		{">=12.4", ">=6.2", "mi300x", "ROCm >=6.0", true},
		{"", ">=6.0,<7", "mi355x", "ROCm >=7.0", false},
		{"", ">=6.0", "l4", "CUDA", false},
		{">=12.4", "", "gaudi2", "neither CUDA nor ROCm", false},
		{"", "", "gaudi2", "", true},
	} {
		var r gpu.Runtime
		for _, v := range []struct {
			text string
			into *gpu.Versions
		}{{c.cuda, &r.CUDA}, {c.rocm, &r.ROCm}} {
			if v.text == "" {
				continue
			}
			var ok bool
			if *v.into, ok = gpu.ParseVersions(v.text); !ok {
				t.Fatalf("%q is not read", v.text)
			}
		}
		f, known := gpu.Builtin().Lookup(c.id)
		if have, ok := r.Check(f); !known || have != c.have || ok != c.ok {
			t.Errorf("CUDA %q, ROCm %q on %s: %q, %t", c.cuda, c.rocm, c.id, have, ok)
		}
	}
}

func TestVersionsThatMeanNothing(t *testing.T) {
	for _, s := range []string{"", "x", ">=", "12.", "=>12", "12.4.1", ">=13 <12", "~12", "0", "<12 >12"} {
		if v, ok := gpu.ParseVersions(s); ok {
			t.Errorf("%q is read as %v", s, v)
		}
	}
}
