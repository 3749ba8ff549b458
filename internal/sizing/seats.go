package sizing

import "gpubroker/internal/gpu"

// profiles are the frame buffers of graphics vGPU profiles (NVIDIA RTX Virtual
// Workstation, Q type), in GiB: a card is cut into equal ones of such a size
// (NVIDIA vGPU device manager, example profile list, 2026-08).
var profiles = []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96}

// Seats is how many users with a frame buffer each share a GPU: the smallest
// profile that holds the frame buffer and divides the card. 0 where the GPU
// cannot be shared by graphics users, or the frame buffer is larger than it;
// unknown where the facts are.
func Seats(f gpu.Fact, frameBuffer int64) gpu.Known[int] {
	graphics, ok := f.Graphics.Get()
	if !ok {
		return gpu.Known[int]{}
	}
	if !graphics || f.Class.Or("") == "consumer" {
		return gpu.Of(0)
	}
	memory, ok := f.Memory.Get()
	if !ok {
		return gpu.Known[int]{}
	}
	if f.Vendor.Or("") != "nvidia" { // MxGPU is cut without a list of sizes
		return gpu.Of(int(memory * gpu.GiB / float64(max(1, frameBuffer))))
	}
	for _, p := range profiles {
		if int64(p)*gpu.GiB >= frameBuffer && p <= int(memory) && int(memory)%p == 0 {
			return gpu.Of(int(memory) / p)
		}
	}
	return gpu.Of(0)
}
