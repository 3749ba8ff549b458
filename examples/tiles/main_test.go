package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stopAfter ends a context once n lines were written.
type stopAfter struct {
	n    int
	stop context.CancelFunc
}

func (s *stopAfter) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("tile ")) {
		if s.n--; s.n == 0 {
			s.stop()
		}
	}
	return len(p), nil
}

func render(t *testing.T, ctx context.Context, dir, out string, progress io.Writer) int {
	t.Helper()
	env := map[string]string{"GPUBROKER_CHECKPOINT_DIR": dir, "GPUBROKER_CHECKPOINT_INTERVAL": "0.000001"}
	code, err := run(ctx, []string{"--tiles", "24", "--work", "3000", "--out", out}, func(k string) string { return env[k] }, progress)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func TestResumedResultIsIdentical(t *testing.T) {
	tmp := t.TempDir()
	whole := filepath.Join(tmp, "whole.pgm")
	if code := render(t, t.Context(), "", whole, io.Discard); code != 0 {
		t.Fatalf("code %d", code)
	}
	want, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	for _, steps := range []int{1, 5, 23} {
		dir, out := t.TempDir(), filepath.Join(tmp, "resumed.pgm")
		stops := 0
		for code := exitStopped; code != 0; stops++ {
			ctx, cancel := context.WithCancel(t.Context())
			code = render(t, ctx, dir, out, &stopAfter{steps, cancel})
			cancel()
			if code != 0 && code != exitStopped || stops > 30 {
				t.Fatalf("code %d after %d stops", code, stops)
			}
		}
		got, err := os.ReadFile(out)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("stopped every %d tiles: another image (%v)", steps, err)
		}
		if stops < 2 {
			t.Errorf("stopped every %d tiles: never resumed", steps)
		}
	}
}

func TestResultDependsOnEveryStep(t *testing.T) {
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "x.pgm")
	ctx, cancel := context.WithCancel(t.Context())
	render(t, ctx, dir, out, &stopAfter{6, cancel})
	cancel()
	names, err := (&job{dir: dir}).saves()
	if err != nil || len(names) == 0 {
		t.Fatalf("no saves: %v", err)
	}
	path := filepath.Join(dir, names[len(names)-1])
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	image := func() string {
		if code := render(t, t.Context(), dir, out, io.Discard); code != 0 {
			t.Fatalf("code %d", code)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names[:len(names)-1] {
			os.Remove(filepath.Join(dir, n))
		}
		left, _ := (&job{dir: dir}).saves()
		for _, n := range left {
			os.Remove(filepath.Join(dir, n))
		}
		return string(b)
	}
	right := image()
	data[0] ^= 1
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if wrong := image(); wrong == right {
		t.Error("one changed bit of the chain gave the same image")
	}
}

func TestTornSaveIsAnErrorNotAnotherImage(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, saveName(3)), make([]byte, 32+3*side*side-1), 0o644); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"GPUBROKER_CHECKPOINT_DIR": dir}
	code, err := run(t.Context(), []string{"--tiles", "5", "--work", "10", "--out", filepath.Join(dir, "x")}, func(k string) string { return env[k] }, io.Discard)
	if code != exitFailed || err == nil || !strings.Contains(err.Error(), "not whole") {
		t.Errorf("code %d, %v", code, err)
	}
}
