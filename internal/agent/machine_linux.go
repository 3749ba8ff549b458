package agent

import (
	"context"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// memoryBytes is the machine's memory, 0 when unknown.
func memoryBytes() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// diskFree is what may still be written below dir in bytes, 0 when unknown.
func diskFree(dir string) int64 {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return 0
	}
	return int64(fs.Bavail) * fs.Bsize
}

// diskFull reports whether there is no room below dir to speak of.
func diskFull(dir string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return false
	}
	return int64(fs.Bavail)*fs.Bsize < 1<<20 || fs.Files > 0 && fs.Ffree == 0
}

// gpuNames asks the driver's own tool; none of it means none.
func gpuNames() []string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) //nolint:forbidigo // at start, bounded by itself
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=name", "--format=csv,noheader").Output()
	if err != nil {
		return nil
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		if name := strings.TrimSpace(line); name != "" {
			names = append(names, name)
		}
	}
	return names
}
