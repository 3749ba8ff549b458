package agent

import (
	"bufio"
	"cmp"
	"context"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// openGPUs reads NVIDIA's GPUs through the driver's own tool, AMD's through sysfs.
// Where there is neither, nothing is known of GPUs.
func openGPUs(ctx context.Context, sys string, every time.Duration, log *slog.Logger) gpuReader {
	if tool, err := exec.LookPath("nvidia-smi"); err == nil {
		return openNvidia(ctx, tool, every, log)
	}
	if cards := amdCards(sys); len(cards) > 0 {
		return amd(cards)
	}
	return nil
}

// What is asked of nvidia-smi. The engines' loads come last: older drivers do not
// know these names, and refuse the whole question.
var (
	nvidiaFields = []string{"index", "utilization.gpu", "memory.used", "memory.total", "utilization.encoder", "utilization.decoder"}
	nvidiaOlder  = nvidiaFields[:4]
)

// Times of the tool: it is taken for stuck after nvidiaSilent, and started anew
// ever more seldom.
const (
	nvidiaSilent = time.Minute
	nvidiaAgain  = time.Minute
	nvidiaSeldom = time.Hour
)

// nvidia reads one nvidia-smi that runs as long as it is needed: to start it each
// time would cost a second of the driver's on machines without persistence mode.
type nvidia struct {
	every  time.Duration
	log    *slog.Logger
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex
	rows map[int]gpuRow
}

type gpuRow struct {
	gpuNow
	at time.Time
}

func openNvidia(ctx context.Context, tool string, every time.Duration, log *slog.Logger) *nvidia {
	ctx, cancel := context.WithCancel(ctx)
	r := &nvidia{every: every, log: log, cancel: cancel, rows: map[int]gpuRow{}}
	r.done.Go(func() {
		fields := nvidiaFields
		for n := 1; ctx.Err() == nil; n++ {
			lines, err := r.follow(ctx, tool, fields)
			if lines == 0 && len(fields) > len(nvidiaOlder) && ctx.Err() == nil {
				fields, n = nvidiaOlder, 0
				continue
			}
			if ctx.Err() == nil {
				log.Warn("nvidia-smi ended; GPUs are unknown until it is started again", "err", err)
			}
			if pause(ctx, backoff(n, nvidiaAgain, nvidiaSeldom)) != nil {
				return
			}
		}
	})
	return r
}

// follow runs the tool and reads it to its end. lines are those that were
// understood.
func (r *nvidia) follow(ctx context.Context, tool string, fields []string) (lines int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seconds := max(1, int(r.every/time.Second))
	cmd := exec.CommandContext(ctx, tool, "--query-gpu="+strings.Join(fields, ","), "--format=csv,noheader,nounits", "-l", strconv.Itoa(seconds))
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	var silent atomic.Bool
	stuck := time.AfterFunc(nvidiaSilent, func() { silent.Store(true); cancel() })
	defer stuck.Stop()
	// A child of the tool may outlive it and hold the pipe.
	closing := context.AfterFunc(ctx, func() { out.Close() })
	defer closing()
	in := bufio.NewScanner(out)
	for in.Scan() {
		if n, now, ok := parseNvidia(in.Text()); ok {
			lines++
			stuck.Reset(nvidiaSilent)
			r.mu.Lock()
			r.rows[n] = gpuRow{now, time.Now()}
			r.mu.Unlock()
		}
	}
	err = cmd.Wait()
	if silent.Load() {
		r.log.Warn("nvidia-smi said nothing and was ended", "for", nvidiaSilent)
	}
	return lines, err
}

// parseNvidia reads a line such as "0, 97, 20480, 24576, 0, 3". What the driver
// cannot say stands there as [N/A] or [Not Supported].
func parseNvidia(line string) (index int, now gpuNow, ok bool) {
	f := strings.Split(line, ",")
	if len(f) < len(nvidiaOlder) {
		return 0, now, false
	}
	index, err := strconv.Atoi(strings.TrimSpace(f[0]))
	if err != nil {
		return 0, now, false
	}
	at := func(i int, unit float64) *float64 {
		if i >= len(f) {
			return nil
		}
		return number(f[i], unit)
	}
	const mib = 1 << 20
	return index, gpuNow{busy: percentage(at(1, 1)), used: at(2, mib), size: at(3, mib), encoder: percentage(at(4, 1)), decoder: percentage(at(5, 1))}, true
}

// number reads a number in a unit; nil is none, or none that can be so.
func number(text string, unit float64) *float64 {
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if v *= unit; err != nil || !(v >= 0 && v < 1<<53) {
		return nil
	}
	return &v
}

// percentage leaves out what can be none.
func percentage(v *float64) *float64 {
	if v != nil && *v > 100 {
		return nil
	}
	return v
}

// read leaves out what is older than three looks.
func (r *nvidia) read() map[int]gpuNow {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[int]gpuNow{}
	for n, row := range r.rows {
		if time.Since(row.at) <= 3*max(r.every, time.Second) {
			out[n] = row.gpuNow
		}
	}
	return out
}

func (r *nvidia) close() {
	r.cancel()
	r.done.Wait()
}

// amd are the folders of AMD's GPUs in sysfs, by device number.
type amd []string

// amdCards finds the GPUs of the amdgpu driver, in the order of their PCI
// addresses, which is the one that the numbers of devices are counted in.
func amdCards(sys string) []string {
	found, _ := filepath.Glob(filepath.Join(sys, "class/drm/card*/device/gpu_busy_percent")) // the pattern is well formed
	byAddress := map[string]string{}
	for _, file := range found {
		dir := filepath.Dir(file)
		address, err := filepath.EvalSymlinks(dir)
		if err != nil {
			address = dir
		}
		byAddress[address] = dir
	}
	order := slices.SortedFunc(maps.Keys(byAddress), func(a, b string) int {
		return cmp.Or(cmp.Compare(filepath.Base(a), filepath.Base(b)), cmp.Compare(a, b))
	})
	cards := make([]string, len(order))
	for i, address := range order {
		cards[i] = byAddress[address]
	}
	return cards
}

// read reads the files that kernel/gpu/amdgpu/driver-misc.rst describes. The load
// of video engines is in the file vcn_busy_percent of newer kernels, for encoding
// and decoding together.
func (cards amd) read() map[int]gpuNow {
	out := map[int]gpuNow{}
	for n, dir := range cards {
		at := func(name string) *float64 {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return nil
			}
			return number(string(text), 1)
		}
		video := percentage(at("vcn_busy_percent"))
		out[n] = gpuNow{
			busy: percentage(at("gpu_busy_percent")), used: at("mem_info_vram_used"), size: at("mem_info_vram_total"),
			encoder: video, decoder: video,
		}
	}
	return out
}

func (amd) close() {}
