package checkpoint_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/internal/objects/objectstest"
)

func flaw(err error) string {
	f, ok := errors.AsType[*checkpoint.Flaw](err)
	if !ok {
		return fmt.Sprintf("(no flaw: %v)", err)
	}
	return f.What
}

// Before a commit the manifest must be the one that was named, and all of its
// parts there in full, whether they are few or many.
func TestVerify(t *testing.T) {
	for _, size := range []int{20 * kb, 200 * kb} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorld(t)
			m := w.machine("a1", 4*kb)
			m.write("state", block(1, size))
			s := m.saved(1)
			key := "j-1/3/a1/1/manifest"
			if _, err := checkpoint.Verify(t.Context(), w.store, key, checkpoint.Digest(nil)); !strings.Contains(flaw(err), "instead of") {
				t.Errorf("another digest: %v", err)
			}
			if _, err := checkpoint.Verify(t.Context(), w.store, "j-1/3/a1/2/manifest", s.Digest); !strings.Contains(flaw(err), "not there") {
				t.Errorf("another number: %v", err)
			}
			away := &objectstest.Store{Store: w.store, Fail: func(op, _ string) error {
				if op == "stat" || op == "list" {
					return objectstest.ErrAway
				}
				return nil
			}}
			if _, err := checkpoint.Verify(t.Context(), away, key, s.Digest); !errors.Is(err, objectstest.ErrAway) {
				t.Errorf("store away: %v", err)
			}
			w.spoil("j-1/3/a1/1/3", func(b []byte) []byte { return b[1:] })
			if _, err := checkpoint.Verify(t.Context(), w.store, key, s.Digest); !strings.Contains(flaw(err), "a1/1/3 has 4095 bytes") {
				t.Errorf("a short part: %v", err)
			}
			must(t, os.Remove(filepath.Join(w.root, "j-1/3/a1/1/3")))
			if _, err := checkpoint.Verify(t.Context(), w.store, key, s.Digest); !strings.Contains(flaw(err), "a1/1/3 is not there") {
				t.Errorf("a missing part: %v", err)
			}
			// A manifest copied to where another number belongs is not that save.
			must(t, os.MkdirAll(filepath.Join(w.root, "j-1/3/a1/9"), 0o755))
			data, err := os.ReadFile(filepath.Join(w.root, key))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(w.root, "j-1/3/a1/9/manifest"), data, 0o644))
			if _, err := checkpoint.Verify(t.Context(), w.store, "j-1/3/a1/9/manifest", s.Digest); !strings.Contains(flaw(err), "is of save 1") {
				t.Errorf("another place: %v", err)
			}
		})
	}
}

// At its start the broker finds the saves whose commit was lost, in order, and
// leaves those that are not complete.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	m := w.machine("a1", 4*kb)
	var want []string
	for n := range int64(5) {
		m.write("state", block(byte(n), 20*kb))
		if n == 0 {
			m.saved(1)
			continue
		}
		s, err := m.save(t.Context(), n+1)
		must(t, err)
		want = append(want, fmt.Sprintf("%d %s %d", s.Number, s.Digest, s.Busy))
	}
	must(t, os.Remove(filepath.Join(w.root, "j-1/3/a1/4/2")))
	// Another attempt's is not ours to adopt.
	o := w.machine("a9", 4*kb)
	o.write("state", block(9, 4*kb))
	_, err := o.save(t.Context(), 6)
	must(t, err)

	found, flaws, err := checkpoint.Adopt(t.Context(), w.store, task, "a1", 1)
	must(t, err)
	var got []string
	for _, f := range found {
		got = append(got, fmt.Sprintf("%d %s %d", f.Number, f.Digest, f.Manifest.Busy))
	}
	if d := cmp.Diff(slices.Delete(want, 2, 3), got); d != "" {
		t.Errorf("adopted (-want +got):\n%s", d)
	}
	if len(flaws) != 1 || !strings.Contains(flaws[0].What, "a1/4/2 is not there") {
		t.Errorf("flaws %v", flaws)
	}
}

// Whatever was saved, committed, cut short and resumed: a sweep never removes
// what a kept checkpoint or an open save needs, nothing young, and nothing that
// is not a save; and it leaves nothing else.
func TestSweepProperty(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(t)
		now := time.Now()
		const names = 3
		attempt := 1
		m := w.machine("a1", kb)
		live := map[string]int64{"a1": 0}
		kept := map[int64]checkpoint.Kept{}
		number := int64(0)
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			switch rapid.SampledFrom([]string{"save", "save", "save", "lose commit", "move"}).Draw(r, "step") {
			case "save", "lose commit":
				n := rapid.IntRange(0, names-1).Draw(r, "file")
				m.write(fmt.Sprint("f", n), block(byte(rapid.IntRange(0, 5).Draw(r, "content")), rapid.IntRange(0, 3*kb).Draw(r, "size")))
				number++
				m.next = number
				s, err := m.save(t.Context(), number)
				must(t, err)
				if rapid.Bool().Draw(r, "committed") {
					must(t, m.commit(s))
					kept[number] = checkpoint.Kept{Attempt: m.attempt, Number: number, Digest: s.Digest}
					live[m.attempt] = number
				}
			case "move":
				if rapid.Bool().Draw(r, "dead") {
					delete(live, m.attempt)
				}
				attempt++
				m = w.machine(fmt.Sprintf("a%d", attempt), kb)
				live[m.attempt] = 0
				must(t, os.MkdirAll(m.dir, 0o755))
				must(t, os.Remove(m.dir))
				m.resume()
			}
		}
		for _, other := range []string{"j-1/3/a1/log/1", "j-1/3/a1/out/abc", "j-1/33/a1/1/1", "j-1/3/readme"} {
			_, err := w.store.Put(t.Context(), other, strings.NewReader("x"), objects.PutOptions{})
			must(t, err)
		}
		all := w.keys("")
		keep := map[int64]checkpoint.Kept{}
		for _, n := range slices.Backward(slices.Sorted(mapsKeys(kept))) {
			if len(keep) < 3 {
				keep[n] = kept[n]
			}
		}
		young := rapid.SampledFrom(all).Draw(r, "young")
		for _, k := range all {
			if k != young {
				old := now.Add(-25 * time.Hour)
				must(t, os.Chtimes(filepath.Join(w.root, k), old, old))
			}
		}
		sw := checkpoint.Sweeping{Task: task, Live: live, Now: now}
		for _, k := range keep {
			sw.Keep = append(sw.Keep, k)
		}
		must(t, os.Chtimes(filepath.Join(w.root, young), now, now))
		if _, err := checkpoint.Sweep(t.Context(), w.store, sw); err != nil {
			r.Fatal(err)
		}
		left := map[string]bool{}
		for _, k := range w.keys("") {
			left[k] = true
		}
		// Every kept checkpoint is whole.
		needed := map[string]bool{}
		for n, k := range keep {
			key, err := checkpoint.ManifestKey(task, k.Attempt, n)
			must(t, err)
			man, err := checkpoint.Verify(t.Context(), w.store, key, k.Digest)
			if err != nil {
				r.Fatalf("a kept checkpoint was broken: %v", err)
			}
			needed[key] = true
			for _, f := range man.Files {
				for _, p := range f.Parts {
					needed["j-1/3/"+p.Key] = true
				}
			}
		}
		for _, k := range all {
			f := strings.Split(k, "/")
			spared := needed[k] || k == young || !strings.HasPrefix(k, "j-1/3/a") || f[3] == "log" || f[3] == "out"
			if !spared {
				var n int64
				_, err := fmt.Sscan(f[3], &n)
				must(t, err)
				committed, isLive := live[f[2]]
				spared = isLive && n > committed
			}
			if left[k] != spared {
				r.Errorf("%s: left %v, want %v", k, left[k], spared)
			}
		}
	})
}

func mapsKeys[V any](m map[int64]V) func(func(int64) bool) {
	return func(yield func(int64) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// A kept manifest that cannot be read stops the sweep before it removes anything.
func TestSweepStopsAtAFlaw(t *testing.T) {
	w := newWorld(t)
	m := w.machine("a1", 4*kb)
	m.write("state", block(1, 20*kb))
	s := m.saved(1)
	before := w.keys("")
	sw := checkpoint.Sweeping{
		Task: task, Now: time.Now().Add(48 * time.Hour),
		Keep: []checkpoint.Kept{{Attempt: "a1", Number: 1, Digest: s.Digest}},
	}
	away := &objectstest.Store{Store: w.store, Fail: func(op, _ string) error {
		if op == "get" {
			return objectstest.ErrAway
		}
		return nil
	}}
	if _, err := checkpoint.Sweep(t.Context(), away, sw); !errors.Is(err, objectstest.ErrAway) {
		t.Errorf("store away: %v", err)
	}
	w.spoil("j-1/3/a1/1/manifest", func(b []byte) []byte { return b[1:] })
	if _, err := checkpoint.Sweep(t.Context(), w.store, sw); !strings.Contains(flaw(err), "digest") {
		t.Errorf("got %v, want a flaw", err)
	}
	if d := cmp.Diff(before, w.keys("")); d != "" {
		t.Errorf("swept (-want +got):\n%s", d)
	}
}

// With nothing kept and nobody live, all old saves go, and a second sweep finds
// nothing.
func TestSweepAll(t *testing.T) {
	w := newWorld(t)
	m := w.machine("a1", 4*kb)
	m.write("state", block(1, 20*kb))
	m.saved(1)
	sw := checkpoint.Sweeping{Task: task, Now: time.Now().Add(23 * time.Hour)}
	if got, err := checkpoint.Sweep(t.Context(), w.store, sw); err != nil || got.Objects != 0 {
		t.Errorf("within the grace: %+v, %v", got, err)
	}
	sw.Now = time.Now().Add(25 * time.Hour)
	got, err := checkpoint.Sweep(t.Context(), w.store, sw)
	if err != nil || got.Objects != 6 || got.Bytes < 20*kb {
		t.Errorf("swept %+v, %v", got, err)
	}
	if left := w.keys(""); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}
