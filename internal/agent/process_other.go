//go:build !linux

package agent

import (
	"errors"
	"log/slog"
	"net/netip"
)

// InitArg is the first argument that makes the program the init of one command.
const InitArg = "task-init"

// Init is for Linux alone.
func Init() int { return 1 }

// NewProcesses is for Linux alone: elsewhere there is no way to end a command
// with everything that it started.
func NewProcesses(string, []netip.AddrPort, *slog.Logger) (Executor, error) {
	return nil, errors.New("agent: commands are run on Linux only")
}
