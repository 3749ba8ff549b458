//go:build linux

package rig

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(script string) *Process {
		t.Helper()
		p, err := Start(exec.Command("sh", "-c", script, dir), filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	p := run("echo told; exit 3")
	<-p.Ended()
	if p.ExitCode() != 3 || p.Running() || p.Log() != "told\n" {
		t.Errorf("exit code %d, running %t, log %q", p.ExitCode(), p.Running(), p.Log())
	}
	if err := Await(t.Context(), "nothing", p, func() error { return errors.New("not yet") }); err == nil || !strings.Contains(err.Error(), "exit code 3") || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("a process that has ended is waited for: %v", err)
	}

	stubborn := run("trap '' INT; echo up; while :; do sleep 0.05; done")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := Await(ctx, "its first word", stubborn, func() error {
		if !strings.Contains(stubborn.Log(), "up") {
			return errors.New("silent")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if left := Left(dir); len(left) == 0 || !strings.Contains(strings.Join(left, "\n"), "trap") {
		t.Errorf("it is not seen: %v", left)
	}
	stubborn.Stop(100 * time.Millisecond)
	if stubborn.Running() || stubborn.ExitCode() != -1 {
		t.Errorf("it goes on")
	}
	if _, err := Start(exec.Command(filepath.Join(dir, "nowhere")), filepath.Join(dir, "log")); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestAwaitSaysWhatItSaw(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	seen := errors.New("2 of 3")
	err := Await(ctx, "three", nil, func() error { return seen })
	if !errors.Is(err, seen) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "three") {
		t.Errorf("%v", err)
	}
}
