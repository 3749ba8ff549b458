package backtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is kept changes nothing, is used, and belongs to just these windows.
func TestCache(t *testing.T) {
	fresh, err := Run(t.Context(), toy())
	if err != nil {
		t.Fatal(err)
	}
	o := toy()
	o.CacheDir = filepath.Join(t.TempDir(), "optima")
	again := func(what string, want Result, files int) string {
		t.Helper()
		got, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		found, err := filepath.Glob(filepath.Join(o.CacheDir, "*"))
		if err != nil || len(found) != files {
			t.Fatalf("%s: files %q, %v", what, found, err)
		}
		return found[0]
	}
	again("first", fresh, 1)
	file := again("kept", fresh, 1)
	if err := os.WriteFile(file, []byte("[1,"), 0o600); err != nil {
		t.Fatal(err)
	}
	again("broken", fresh, 1)

	// Were it not read, another optimum in the file would not be seen.
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(b), "[", "[1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Run(t.Context(), o); err != nil || r.Optimum.SumCost <= fresh.Optimum.SumCost {
		t.Errorf("what was kept was not used: %v, %v", r.Optimum, err)
	}
	o.Delay *= 2
	if other, err := Run(t.Context(), o); err != nil || other.Optimum.SumCost <= fresh.Optimum.SumCost {
		t.Errorf("another job got %v, %v", other.Optimum, err)
	}

	// A folder that cannot be written to costs time, not the result.
	o = toy()
	o.CacheDir = filepath.Join("testdata", "toy", "zones.csv", "x")
	if r, err := Run(t.Context(), o); err != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "could not be kept") {
		t.Errorf("notes %q, %v", r.Notes, err)
	}
}

func TestSuite(t *testing.T) {
	quiet := func(int, int) {}
	for _, o := range []SuiteOptions{{Tracks: []string{"D"}}, {Policies: []string{"best"}}, {Starts: -1}, {Traces: "testdata/none"}} {
		if _, err := RunSuite(t.Context(), o, quiet); !errors.Is(err, ErrInput) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	names := map[string]bool{}
	for _, c := range cells() {
		if names[c.track+c.name] {
			t.Errorf("two cells are called %s %s", c.track, c.name)
		}
		names[c.track+c.name] = true
	}

	needs(t, "gcp-h100x16-2025-10/s2")
	calls := 0
	s, err := RunSuite(t.Context(), SuiteOptions{Traces: recorded, Tracks: []string{"C"}, Starts: 2, Policies: []string{"up-s", "ours"}},
		func(int, int) { calls++ })
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Cells) != 10 || calls != 10 || len(s.Tracks) != 1 || s.Tracks[0].Track != "C" {
		t.Fatalf("%d cells in %d calls, tracks %+v", len(s.Cells), calls, s.Tracks)
	}
	for _, c := range s.Cells {
		for _, p := range c.Policies {
			if c.Windows != 2 || p.SumRatio < 1 || p.Misses != 0 {
				t.Errorf("%s: %d windows, %+v", c.Name, c.Windows, p)
			}
		}
	}
	mean := 0.0
	for _, c := range s.Cells {
		mean += c.Policies[0].SumRatio / 10
	}
	if got := s.Tracks[0].Policies[0]; got.Name != "up-s" || got.SumRatio < mean-1e-9 || got.SumRatio > mean+1e-9 {
		t.Errorf("track %+v, mean of its cells %v", got, mean)
	}
}
