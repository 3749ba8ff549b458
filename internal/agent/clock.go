package agent

import "gpubroker/internal/agentapi"

// Clock reads CLOCK_BOOTTIME or, in tests, something that behaves like it: it
// runs through suspension, is never set, and starts anew with the machine.
// Timers are Go's own and only say when to look at it again.
type Clock interface {
	Now() agentapi.Ticks
	// Boot names the life of the machine that the readings belong to.
	Boot() string
}
