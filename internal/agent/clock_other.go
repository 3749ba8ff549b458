//go:build !linux

package agent

import (
	"strconv"
	"time"

	"gpubroker/internal/agentapi"
)

type processClock struct{ start time.Time }

// KernelClock counts from the start of the process, which here is a boot of its
// own: leases do not outlive the agent, and time asleep is not counted.
func KernelClock() (Clock, error) { return processClock{time.Now()}, nil }

func (p processClock) Now() agentapi.Ticks { return agentapi.Ticks(time.Since(p.start)) }
func (p processClock) Boot() string        { return strconv.FormatInt(p.start.UnixNano(), 36) }
