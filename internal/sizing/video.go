package sizing

import (
	"fmt"
	"strconv"
	"strings"

	"gpubroker/internal/gpu"
)

// Video is a stream to be encoded or decoded.
type Video struct {
	Codec  string  // h264, hevc, av1
	Preset string  // p1 (fast) to p7 (slow); "" is p5
	Width  int     // pixels
	Height int     // pixels
	FPS    float64 // frames per second
}

// Resolutions are the names of common sizes.
func Resolutions() map[string][2]int {
	return map[string][2]int{
		"480p": {854, 480}, "720p": {1280, 720}, "1080p": {1920, 1080}, "1440p": {2560, 1440}, "2160p": {3840, 2160}, "4k": {3840, 2160}, "8k": {7680, 4320},
	}
}

// ParseResolution reads "1080p", "4k" or "1920x1080".
func ParseResolution(s string) (width, height int, err error) {
	if r, ok := Resolutions()[strings.ToLower(s)]; ok {
		return r[0], r[1], nil
	}
	w, h, ok := strings.Cut(strings.ToLower(s), "x")
	width, errW := strconv.Atoi(w)
	height, errH := strconv.Atoi(h)
	if !ok || errW != nil || errH != nil || width < 16 || height < 16 || width > 1<<15 || height > 1<<15 {
		return 0, 0, fmt.Errorf("resolution %q: want 1080p, 4k or 1920x1080", s)
	}
	return width, height, nil
}

// String is "1080p at 60 fps in hevc p5"; "" where nothing is said.
func (v Video) String() string {
	if v.FPS <= 0 {
		return ""
	}
	size := fmt.Sprintf("%dx%d", v.Width, v.Height)
	if v.Width*9 == v.Height*16 {
		size = strconv.Itoa(v.Height) + "p"
	}
	return fmt.Sprintf("%s at %s fps in %s %s", size, strconv.FormatFloat(v.FPS, 'f', -1, 64), v.Codec, v.Published())
}

// Published is the preset whose rate stands for that of the stream: the next
// slower one where none is published, p5 where none is given.
func (v Video) Published() string {
	switch v.Preset {
	case "":
		return "p5"
	case "p2":
		return "p3"
	case "p4":
		return "p5"
	case "p6":
		return "p7"
	}
	return v.Preset
}

// pixels of 1080p, for which the engine rates are published.
const pixels1080 = 1920 * 1080

// Streams is how many streams all encoders of a GPU keep up with at once: its
// engines × the published rate of one at this codec and preset, scaled by pixels,
// ÷ the frame rate. The rates are of GeForce clocks; data-centre cards clock
// lower, so it is an upper bound. 0 where there is no encoder or it lacks the
// codec; unknown where no rate is published.
func (v Video) Streams(t *gpu.Table, f gpu.Fact) gpu.Known[float64] {
	preset := v.Published()
	if engines, ok := f.Encoders.Get(); ok && engines == 0 {
		return gpu.Of(0.0)
	}
	if v.Codec == "av1" {
		if has, ok := f.EncodeAV1.Get(); ok && !has {
			return gpu.Of(0.0)
		}
	}
	fps, ok := t.EncodeFPS(f, v.Codec, preset).Get()
	if !ok || v.FPS <= 0 || v.Width <= 0 || v.Height <= 0 {
		return gpu.Known[float64]{}
	}
	return gpu.Of(fps * pixels1080 / (float64(v.Width) * float64(v.Height)) / v.FPS)
}
