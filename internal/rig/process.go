package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// Process is a program that was started. Its methods may be called by anybody at
// any time.
type Process struct {
	Name  string
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

// Start starts a command whose output is appended to the file log.
func Start(cmd *exec.Cmd, log string) (*Process, error) {
	name := cmd.Args[0]
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	return start(cmd, name, log)
}

func start(cmd *exec.Cmd, name, log string) (*Process, error) {
	p := &Process{Name: name, cmd: cmd, log: log, ended: make(chan struct{})}
	bind(cmd)
	started := make(chan error)
	go func() {
		// The kernel kills a bound child when the thread that forked it ends, so
		// that thread waits for it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // ExitCode tells how it ended
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// Pid is the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Running reports whether it has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// ExitCode is what it ended with: -1 if it runs or was ended by a signal.
func (p *Process) ExitCode() int {
	if p.Running() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// Log returns what it has written so far.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Signal sends a signal; to a process that has ended, none.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s to %s: %w", s, p.Name, err)
	}
	return nil
}

// Kill ends it as kill -9 does, and waits until it has ended.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// Stop asks it to end as Ctrl-C does, and kills it if it has not within grace.
func (p *Process) Stop(grace time.Duration) {
	_ = p.cmd.Process.Signal(os.Interrupt) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(grace):
		p.Kill()
	}
}

// pollEvery is how often a condition is looked at that nobody announces.
const pollEvery = 50 * time.Millisecond

// Await looks again and again until ready returns nil. It gives up with ready's
// last error when ctx ends, or when p, unless it is nil, has ended.
func Await(ctx context.Context, what string, p *Process, ready func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var ended <-chan struct{}
	if p != nil {
		ended = p.ended
	}
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; last seen: %w", what, context.Cause(ctx), err)
		case <-ended:
			return fmt.Errorf("waiting for %s: %s has ended with exit code %d; last seen: %w", what, p.Name, p.ExitCode(), err)
		case <-tick.C:
		}
	}
}

// FreeAddress returns a port of this machine that nothing listens on now.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}
