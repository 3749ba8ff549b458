package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"gpubroker/internal/durable"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for _, text := range []string{"one", "", "three"} {
		if placed, err := durable.WriteFile(path, []byte(text)); !placed || err != nil {
			t.Fatal(placed, err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Errorf("holds %q, %v; want %q", got, err, text)
		}
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// What cannot be put in its place leaves nothing behind.
	taken := filepath.Join(dir, "folder")
	if err := errors.Join(os.Mkdir(taken, 0o700), os.WriteFile(filepath.Join(taken, "x"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if placed, err := durable.WriteFile(taken, []byte("x")); placed || err == nil {
		t.Errorf("a file took the place of a folder: %t, %v", placed, err)
	}
	if placed, err := durable.WriteFile(filepath.Join(dir, "none", "x"), nil); placed || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("wrote into a folder that is not there: %t, %v", placed, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("in the folder: %v, %v", left, err)
	}
}
