package agent

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"gpubroker/internal/agentapi"
)

type kernelClock struct{ boot string }

// KernelClock reads the kernel's CLOCK_BOOTTIME and boot id.
func KernelClock() (Clock, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("agent: read the boot id: %w", err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return nil, fmt.Errorf("agent: read CLOCK_BOOTTIME: %w", err)
	}
	return kernelClock{strings.TrimSpace(string(id))}, nil
}

func (k kernelClock) Boot() string { return k.boot }

func (kernelClock) Now() agentapi.Ticks {
	var ts unix.Timespec
	// It cannot fail once it has worked.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return agentapi.Ticks(ts.Nano())
}
