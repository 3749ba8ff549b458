package agent

import (
	"context"
	"io"
	"syscall"
)

// Executor starts commands. The one here starts processes of this machine, see
// [NewProcesses].
type Executor interface {
	// Start starts a command. An error means that nothing of it runs.
	Start(c Command) (Process, error)
	// Clean ends what an agent before this one has left in a folder of
	// workspaces.
	Clean(ctx context.Context, folder string) error
	// Close removes what the executor needed on the machine. Nothing runs any more.
	Close()
	// Limits says, for the log, what the executor cannot arrange on this machine.
	Limits() []string
}

// Command is what an [Executor] starts.
type Command struct {
	ID     string    // of the attempt
	Args   []string  // program and arguments
	Dir    string    // workspace
	Env    []string  // the whole environment; it may hold secrets
	Output io.Writer // takes standard output and error
	Memory int64     // bytes; 0 means no limit
}

// Process is a started command with everything that it started.
//
// With a PID namespace (the agent is root, or may make user namespaces), its
// first process is the agent's own init, and the kernel ends all others with
// it, however they forked away. Without, the init is a subreaper: what forks away
// stays below it and is found by walking the tree.
type Process interface {
	// Signal sends a signal to the command's process group.
	Signal(sig syscall.Signal) error
	// Kill ends everything. It may be called at any time and often.
	Kill()
	// Wait returns once nothing of the command is left and all its output was
	// taken. It is called once.
	Wait() Exit
}

// Exit is how a command ended.
type Exit struct {
	Code   int            // exit code; -1 when there is none
	Signal syscall.Signal // that ended it; 0 for none
	OOM    bool           // it was killed for want of memory
	Err    error          // it could not be started, or was lost
}
