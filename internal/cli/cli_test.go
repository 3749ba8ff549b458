package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"charm.land/lipgloss/v2"

	"gpubroker/internal/money"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func packed(t *testing.T, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := pack(t.Context(), dir, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The archive of a folder depends on its content alone.
func TestPackIsByContent(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	files := map[string]string{"run.sh": "#!/bin/sh\n", "lib/x.py": "x", "lib/y.py": "y"}
	write(t, a, files)
	time.Sleep(10 * time.Millisecond) // other times of change
	write(t, b, files)
	if !bytes.Equal(packed(t, a), packed(t, b)) {
		t.Error("the same files gave other bytes")
	}
	if err := os.Chmod(filepath.Join(b, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(packed(t, a), packed(t, b)) {
		t.Error("a mode that changed gave the same bytes")
	}
}

func TestPackIgnores(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		".gpubrokerignore": "# objects\n*.o\n/data/raw\nbuild/\n",
		".git/config":      "", "main.c": "", "main.o": "", "lib/util.o": "", "lib/util.c": "",
		"data/raw": "", "data/clean": "", "other/data/raw": "", "build/out": "", "lib/build/out": "", "docs/build": "",
	})
	if err := os.Symlink("main.c", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	zr, err := gzip.NewReader(bytes.NewReader(packed(t, dir)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeDir {
			got = append(got, h.Name)
		}
	}
	want := []string{"data/clean", "docs/build", "lib/util.c", "link", "main.c", "other/data/raw"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("packed (-want +got):\n%s", diff)
	}
	write(t, dir, map[string]string{".gpubrokerignore": "!keep\n"})
	if _, err := pack(t.Context(), dir, io.Discard); err == nil || !strings.Contains(err.Error(), ".gpubrokerignore:1") {
		t.Errorf("a pattern that is not known: %v", err)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0ms", 250 * time.Millisecond: "250ms", time.Second: "1s", 59*time.Second + 600*time.Millisecond: "1m",
		90 * time.Second: "1m30s", 12*time.Minute + 5*time.Second: "12m", time.Hour: "1h", 25 * time.Hour: "1d1h",
		15 * 24 * time.Hour: "15d", -90 * time.Minute: "-1h30m",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestAmount(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0.00", "0.000001": "0.0000", "0.12345": "0.1235", "-0.5": "-0.5000", "1": "1.00", "1234.567": "1234.57", "-1": "-1.00",
	} {
		a, err := money.ParseAmount(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := amount(a); got != want {
			t.Errorf("amount(%s) = %s, want %s", text, got, want)
		}
	}
}

// A table is no wider than it may be as long as its fixed columns fit.
func TestTablesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := table{head: []string{"A", "B", "C"}, right: []int{0}, flexible: []int{1, 2}}
		cell := rapid.StringOfN(rapid.RuneFrom([]rune("abc 日…–é")), 0, 200, -1)
		for range rapid.IntRange(0, 5).Draw(t, "rows") {
			x.row(rapid.StringOfN(rapid.RuneFrom([]rune("0123456789")), 0, 12, -1).Draw(t, "n"), cell.Draw(t, "b"), cell.Draw(t, "c"))
		}
		for line := range strings.Lines(x.String()) {
			if w := lipgloss.Width(strings.TrimSuffix(line, "\n")); w > width {
				t.Errorf("%d wide: %q", w, line)
			}
		}
	})
}

func TestWrap(t *testing.T) {
	text := strings.Repeat("some words ", 40)
	for i, line := range strings.Split(wrap(text, 13), "\n") {
		w := len(line)
		if i == 0 {
			w += 13
		}
		if w > width {
			t.Errorf("line %d is %d wide", i, w)
		}
	}
	if got := strings.Fields(wrap(text, 13)); !slices.Equal(got, strings.Fields(text)) {
		t.Error("words were lost")
	}
}
