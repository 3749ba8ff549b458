package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"gpubroker/internal/demo"
	"gpubroker/internal/rig"
)

// play is one run of the demo in a temporary folder of its own.
type play struct {
	*rig.Process
	t       testing.TB
	ctx     context.Context
	tmp     string // in which it makes its folder
	out     string // file with what it writes to standard output
	program string
}

// startDemo starts the demo with its outputs in files, as when they are piped.
func startDemo(t testing.TB, limit time.Duration, args ...string) *play {
	t.Helper()
	self := program(t)
	for _, tool := range []string{"ffmpeg", "ffprobe"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("GPUBROKER_TEST_REQUIRE") == "1" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	p := &play{t: t, tmp: filepath.Join(dir, "tmp"), out: filepath.Join(dir, "out"), program: self}
	if err := os.Mkdir(p.tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("the test's limit of %s is over", limit))
	// The shell parts the two outputs, and leaves its place to the demo.
	cmd := exec.Command("sh", append([]string{"-c", `out=$1; shift; exec "$@" >"$out"`, "sh", p.out, self, "demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+p.tmp)
	var err error
	if p.Process, err = rig.Start(cmd, filepath.Join(dir, "err")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		p.Kill()
		p.nothingRuns()
		if t.Failed() {
			t.Logf("standard output:\n%s\nstandard error:\n%s", p.stdout(), p.Log())
		}
	})
	return p
}

func (p *play) stdout() string {
	text, err := os.ReadFile(p.out)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// exit waits for the end and returns the exit code.
func (p *play) exit() int {
	p.t.Helper()
	select {
	case <-p.Ended():
	case <-p.ctx.Done():
		p.t.Fatal(context.Cause(p.ctx))
	}
	return p.ExitCode()
}

// says waits until its output has a text.
func (p *play) says(text string) {
	p.t.Helper()
	err := rig.Await(p.ctx, fmt.Sprintf("%q", text), p.Process, func() error {
		if !strings.Contains(p.stdout(), text) {
			return fmt.Errorf("not said yet")
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// nothingRuns fails when a process of the demo is left.
func (p *play) nothingRuns() {
	p.t.Helper()
	if left := rig.Left(p.tmp); len(left) > 0 {
		p.t.Errorf("the demo left processes:\n%s", strings.Join(left, "\n"))
	}
}

// files is what is left of its folder.
func (p *play) files() []string {
	p.t.Helper()
	list, err := filepath.Glob(filepath.Join(p.tmp, "*"))
	if err != nil {
		p.t.Fatal(err)
	}
	return list
}

// readable fails when a text is not fit for a file or a terminal of 100 columns.
func readable(t testing.TB, text string) {
	t.Helper()
	if strings.ContainsAny(text, "\x1b\r") {
		t.Errorf("the output has codes of a terminal: %q", text)
	}
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 100 && !strings.Contains(line, "/") {
			t.Errorf("a line has %d columns: %s", n, line)
		}
	}
}

// TestDemo plays the whole night, as make demo does, into a pipe.
func TestDemo(t *testing.T) {
	t.Parallel()
	p := startDemo(t, 6*time.Minute, "-o", "json")
	if code := p.exit(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	d := json.NewDecoder(strings.NewReader(p.stdout()))
	d.DisallowUnknownFields()
	var s demo.Summary
	if err := d.Decode(&s); err != nil || d.More() {
		t.Fatalf("the summary is not one JSON object: %v", err)
	}
	for _, c := range s.Checks {
		if !c.OK {
			t.Errorf("%s: %s", c.Name, c.Detail)
		}
	}
	if s.Tasks != 27 || s.Succeeded != 27 || s.Failed != 0 || s.Attempts < 29 || s.BrokerKills != 1 || s.MachinesLeft != 0 ||
		s.Preemptions.Noticed < 1 || s.Preemptions.Silent < 1 || len(s.Checks) < 15 {
		t.Errorf("the summary is %+v", s)
	}
	if s.Ledger != s.Invoice || s.OnDemand <= s.Ledger || s.SavedPercent <= 0 {
		t.Errorf("the money is %s, invoice %s, on demand %s, saved %.1f %%", s.Ledger, s.Invoice, s.OnDemand, s.SavedPercent)
	}
	readable(t, p.Log())
	if left := p.files(); len(left) > 0 {
		t.Errorf("the demo left %v", left)
	}
	t.Logf("took %.0f s", s.Seconds)
}

// TestDemoTellsABrokenPromise damages a result after it was published.
func TestDemoTellsABrokenPromise(t *testing.T) {
	t.Parallel()
	p := startDemo(t, 5*time.Minute, "--short")
	var image string
	err := rig.Await(p.ctx, "an image", p.Process, func() error {
		found, err := filepath.Glob(filepath.Join(p.tmp, "*", "done", "render-dawn.pgm"))
		if err == nil && len(found) == 0 {
			err = fs.ErrNotExist
		}
		if err == nil {
			image = found[0]
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(image, append(bytes.Clone(text[:len(text)-1]), text[len(text)-1]^1), 0o644); err != nil {
		t.Fatal(err)
	}
	if code := p.exit(); code != 1 {
		t.Errorf("exit code %d with a damaged result", code)
	}
	out := p.stdout()
	readable(t, out)
	if n := strings.Count(out, "  FAIL  "); n != 1 || !strings.Contains(out, "FAIL  render-dawn equals an uninterrupted run") {
		t.Errorf("%d failed checks", n)
	}
	if !strings.Contains(p.Log(), "a promise was broken") {
		t.Errorf("standard error says %q", p.Log())
	}
	if left := p.files(); len(left) != 1 || !strings.Contains(out, "all files, are in "+left[0]) {
		t.Errorf("the folder is to be looked at; left is %v", left)
	}
}

// TestDemoKeepsEverything follows what --keep prints, and ends it with Ctrl-C.
func TestDemoKeepsEverything(t *testing.T) {
	t.Parallel()
	p := startDemo(t, 5*time.Minute, "--short", "--keep")
	p.says("  ls /")
	out := p.stdout()
	if !strings.Contains(out, "checks hold") || strings.Contains(out, "FAIL") {
		t.Errorf("the night did not go well")
	}
	readable(t, out)
	_, how, _ := strings.Cut(out, "In another terminal:\n")
	for _, need := range []string{"export GPUBROKER_DATA=", " jobs", " instances", " costs"} {
		if !strings.Contains(how, need) {
			t.Errorf("it does not say how to look: %q lacks %q", how, need)
		}
	}
	got, err := exec.CommandContext(p.ctx, "sh", "-ec", how).CombinedOutput()
	if err != nil {
		t.Errorf("what it prints does not work: %v\n%s", err, got)
	}
	for _, need := range []string{"nightly-ladder", "succeeded", "clip-07.mp4"} {
		if !strings.Contains(string(got), need) {
			t.Errorf("what it prints does not show %s:\n%s", need, got)
		}
	}
	p.interrupt(0)
	if left := p.files(); len(left) != 1 {
		t.Errorf("left is %v", left)
	}
}

// interrupt sends Ctrl-C and expects an end soon, with nothing left running.
func (p *play) interrupt(want int) {
	p.t.Helper()
	if err := p.Signal(syscall.SIGINT); err != nil {
		p.t.Fatal(err)
	}
	if code := p.exit(); code != want {
		p.t.Errorf("exit code %d after Ctrl-C, not %d", code, want)
	}
	p.nothingRuns()
}

// TestDemoInterrupted ends the demo in the middle: while clips are made, and while
// machines work.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"making 24 clips", "machine ready"} {
		t.Run(regexp.MustCompile(`\W`).ReplaceAllString(at, "_"), func(t *testing.T) {
			p := startDemo(t, 3*time.Minute)
			p.says(at)
			p.interrupt(1)
			if left := p.files(); len(left) > 0 {
				t.Errorf("the demo left %v", left)
			}
			if said := p.Log(); strings.TrimSpace(said) != "stopped" {
				t.Errorf("standard error says %q", said)
			}
		})
	}
}
