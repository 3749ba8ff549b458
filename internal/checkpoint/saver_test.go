package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects/objectstest"
)

// What was saved comes back as it was: content, modes, links, empty folders.
func TestRoundTrip(t *testing.T) {
	w := newWorld(t)
	m := w.machine("a1", 4*kb)
	m.write("model/weights.bin", block(1, 10*kb+1))
	m.write("model/exact.bin", block(2, 8*kb))
	m.write("model/zeros.bin", make([]byte, 12*kb))
	m.write("empty.txt", nil)
	m.write("deep/er/still/x", []byte("x"))
	dotted := []byte("kept: a leading dot is nothing special")
	m.write(".metadata", dotted)
	m.write("model/weights.bin.tmp", []byte("left out"))
	m.write("tmp-checkpoint-7/x", []byte("left out"))
	must(t, os.Chmod(filepath.Join(m.dir, "model/exact.bin"), 0o555))
	must(t, os.Symlink("model/weights.bin", filepath.Join(m.dir, "latest")))
	must(t, os.Symlink("../../empty.txt", filepath.Join(m.dir, "deep/er/up")))
	must(t, os.MkdirAll(filepath.Join(m.dir, "nothing/in/here"), 0o755))
	want := tree(t, m.dir)
	for k := range want {
		if strings.Contains(k, "tmp") {
			delete(want, k)
		}
	}
	s := m.saved(1)
	// Three blocks of zeros are one part.
	if wantBytes, wantSent := int64(30*kb+2+len(dotted)), int64(22*kb+2+len(dotted)); s.Bytes != wantBytes || s.Sent != wantSent {
		t.Errorf("bytes %d, sent %d; want %d, %d", s.Bytes, s.Sent, wantBytes, wantSent)
	}
	if left, err := os.ReadDir(m.asides); err != nil || len(left) > 0 {
		t.Errorf("left aside: %v, %v", left, err)
	}

	n := w.machine("a2", 4*kb)
	man, broken := n.resume()
	if man == nil || man.Number != 1 || len(broken) > 0 {
		t.Fatalf("resumed %+v, broken %v", man, broken)
	}
	if d := cmp.Diff(want, tree(t, n.dir)); d != "" {
		t.Errorf("restored (-want +got):\n%s", d)
	}
	// The resumed save is the base of the next attempt's.
	n.write("empty.txt", []byte("no more"))
	if s := n.saved(2); s.Sent != 7 {
		t.Errorf("sent %d bytes after a change of 7", s.Sent)
	}
}

// A checkpoint comes over what a working folder brought, and leaves the rest.
func TestRestoreOverAWorkingFolder(t *testing.T) {
	w := newWorld(t)
	m := w.machine("a1", 4*kb)
	m.write("md.log", []byte("step 100"))
	m.write("sub/state.cpt", []byte("state"))
	m.write("data/0", []byte("a folder now"))
	must(t, os.MkdirAll(filepath.Join(m.dir, "frames"), 0o755))
	m.saved(1)

	n := w.machine("a2", 4*kb)
	outside := filepath.Join(filepath.Dir(n.dir), "outside")
	must(t, os.Mkdir(outside, 0o755))
	n.write("topol.tpr", []byte("input"))
	n.write("md.log", []byte("old"))
	n.write("sub/state.cpt/x", []byte("a file now"))
	must(t, os.Symlink("../outside", filepath.Join(n.dir, "data")))
	if man, broken := n.resume(); man == nil || len(broken) > 0 {
		t.Fatalf("resumed %+v, broken %v", man, broken)
	}
	want := map[string]string{
		"topol.tpr": "-rw-r--r-- input", "md.log": "-rw-r--r-- step 100", "sub/state.cpt": "-rw-r--r-- state",
		"data/0": "-rw-r--r-- a folder now", "frames/": "empty",
	}
	if d := cmp.Diff(want, tree(t, n.dir)); d != "" {
		t.Errorf("restored (-want +got):\n%s", d)
	}
	left, err := os.ReadDir(filepath.Dir(n.dir))
	must(t, err)
	if len(left) != 3 || len(tree(t, outside)) != 0 {
		t.Errorf("beside it: %v, outside: %v", left, tree(t, outside))
	}
}

// An append-only file saved ten times goes up about once.
func TestAppendOnly(t *testing.T) {
	// The proportions of 1 GB in parts of 64 MiB, scaled down by 1024.
	const part, step, times = 64 * kb, 100 * kb, 10
	w := newWorld(t)
	m := w.machine("a1", part)
	var sent int64
	for n := range int64(times) {
		file, err := os.OpenFile(ensure(t, m.dir, "log.bin"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		must(t, err)
		_, err = file.Write(block(byte(n), step))
		must(t, errors.Join(err, file.Close()))
		s := m.saved(n + 1)
		if want := (n + 1) * step; s.Bytes != want {
			t.Errorf("save %d has %d bytes, want %d", s.Number, s.Bytes, want)
		}
		sent += s.Sent
	}
	_, wire, _ := w.net.Counts()
	t.Logf("%d bytes in %d saves: parts sent %d, on the wire with manifests %d", step*times, times, sent, wire)
	// Each save sends at most what was added and the block that it began in.
	if limit := int64(step*times + times*part); sent > limit {
		t.Errorf("sent %d bytes, at most %d", sent, limit)
	}
	if again, err := m.save(t.Context(), times+1); err != nil || again.Sent != 0 {
		t.Errorf("an unchanged save sent %d bytes, %v", again.Sent, err)
	}
	n := w.machine("a2", part)
	n.resume()
	if d := cmp.Diff(tree(t, m.dir), tree(t, n.dir)); d != "" {
		t.Error("restored something else")
	}
}

func ensure(t *testing.T, dir, name string) string {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	return filepath.Join(dir, name)
}

// A save torn at any byte of any request leaves the previous one to resume from,
// and never a broken newest.
func TestTornSave(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		w := newWorld(t)
		m := w.machine("a1", 4*kb)
		m.write("state", block(1, 20*kb))
		m.saved(1)
		before := tree(t, m.dir)
		m.write("state", block(2, 20*kb))
		set := m.snapshot()
		// The machine dies in the middle of one request.
		ctx, die := context.WithCancel(t.Context())
		victim, at := r.IntN(6), r.Int64N(4*kb)
		w.net.Spoil(func(n int, _ *http.Request) objectstest.Fault {
			if n < victim {
				return objectstest.Fault{}
			}
			die()
			return objectstest.Fault{Tear: &at}
		})
		s, err := m.saver.Save(ctx, set, checkpoint.Taken{Number: 2})
		if err == nil {
			t.Fatalf("request %d torn at %d: save %+v", victim, at, s)
		}
		w.net.Spoil(nil)
		found, _, err := checkpoint.Adopt(t.Context(), w.store, task, "a1", 1)
		if err != nil || len(found) > 0 {
			t.Fatalf("adopted %+v, %v", found, err)
		}
		n := w.machine("a2", 4*kb)
		man, broken := n.resume()
		if man == nil || man.Number != 1 || len(broken) > 0 {
			t.Fatalf("resumed %+v, broken %v", man, broken)
		}
		if d := cmp.Diff(before, tree(t, n.dir)); d != "" {
			t.Fatal("restored a mixture")
		}
	}
}

// A wire that tears and loses answers only costs time.
func TestBadWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.machine("a1", 4*kb)
		m.write("state", block(1, 30*kb))
		r := rand.New(rand.NewPCG(3, 4))
		var mu sync.Mutex
		w.net.Spoil(func(int, *http.Request) objectstest.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch r.IntN(5) {
			case 0:
				return objectstest.Fault{Tear: new(r.Int64N(4 * kb))}
			case 1:
				return objectstest.Fault{Lost: true}
			case 2:
				return objectstest.Fault{Status: []int{500, 503, 403, 507}[r.IntN(4)]}
			}
			return objectstest.Fault{}
		})
		m.saved(1)
		n := w.machine("a2", 4*kb)
		if man, broken := n.resume(); man == nil || len(broken) > 0 {
			t.Fatalf("resumed %+v, broken %v", man, broken)
		}
		if d := cmp.Diff(tree(t, m.dir), tree(t, n.dir)); d != "" {
			t.Error("restored something else")
		}
	})
}

// A store that is away for an hour is waited for, gently.
func TestStoreAwayForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.machine("a1", 4*kb)
		m.write("state", block(1, 30*kb))
		w.net.Away(true)
		begin := time.Now()
		go func() {
			time.Sleep(time.Hour)
			w.net.Away(false)
		}()
		m.saved(1)
		took := time.Since(begin)
		calls, _, _ := w.net.Counts()
		t.Logf("saved after %s and %d requests", took, calls)
		if took < time.Hour || took > time.Hour+30*time.Second {
			t.Errorf("took %s", took)
		}
		if calls > 2000 {
			t.Errorf("%d requests in an hour", calls)
		}
		// The same for a restore.
		w.net.Away(true)
		go func() {
			time.Sleep(time.Hour)
			w.net.Away(false)
		}()
		n := w.machine("a2", 4*kb)
		if man, broken := n.resume(); man == nil || len(broken) > 0 {
			t.Fatalf("resumed %+v, broken %v: a store that is away breaks no checkpoint", man, broken)
		}
	})
}

// A newer save supersedes one under way; what went up of it is not sent again, so
// that uploads slower than the interval between saves still get done.
func TestSuperseded(t *testing.T) {
	w := newWorld(t)
	m := w.machine("a1", 4*kb)
	m.write("state", block(1, 40*kb))
	ctx, supersede := context.WithCancelCause(t.Context())
	newer := errors.New("a newer save is complete")
	w.net.Spoil(func(n int, _ *http.Request) objectstest.Fault {
		if n == 6 {
			supersede(newer)
		}
		return objectstest.Fault{}
	})
	if _, err := m.save(ctx, 1); !errors.Is(err, newer) {
		t.Fatalf("got %v, want the cause", err)
	}
	w.net.Spoil(nil)
	file, err := os.OpenFile(filepath.Join(m.dir, "state"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteString("more")
	must(t, errors.Join(err, file.Close()))
	s := m.saved(2)
	if s.Sent > 40*kb+4-6*4*kb+4*4*kb {
		t.Errorf("sent %d bytes again", s.Sent)
	}
	if n := w.machine("a2", 4*kb); true {
		n.resume()
		if d := cmp.Diff(tree(t, m.dir), tree(t, n.dir)); d != "" {
			t.Error("restored something else")
		}
	}
}

// A set that is written to is dropped, whenever that happens.
func TestChangedWhileSaved(t *testing.T) {
	change := func(m *machine) {
		file, err := os.OpenFile(filepath.Join(m.dir, "state"), os.O_WRONLY, 0)
		must(m.t, err)
		_, err = file.WriteAt([]byte("changed"), 5*kb) // same size, in place
		must(m.t, errors.Join(err, file.Close()))
	}
	for _, c := range []struct {
		when string
		save func(m *machine, set *checkpoint.Set) error
	}{
		{"before hashing", func(m *machine, set *checkpoint.Set) error {
			change(m)
			_, err := m.saver.Plan(m.t.Context(), set)
			return err
		}},
		{"between hashing and sending", func(m *machine, set *checkpoint.Set) error {
			p, err := m.saver.Plan(m.t.Context(), set)
			must(m.t, err)
			change(m)
			_, err = m.saver.Send(m.t.Context(), p, checkpoint.Taken{Number: 1})
			return err
		}},
		{"before the manifest", func(m *machine, set *checkpoint.Set) error {
			var once sync.Once
			m.net.Spoil(func(n int, r *http.Request) objectstest.Fault {
				if n >= 4 {
					once.Do(func() { change(m) })
				}
				return objectstest.Fault{}
			})
			_, err := m.saver.Save(m.t.Context(), set, checkpoint.Taken{Number: 1})
			return err
		}},
	} {
		t.Run(c.when, func(t *testing.T) {
			w := newWorld(t)
			m := w.machine("a1", 4*kb)
			m.t = t
			m.writeNow("state", block(1, 20*kb))
			set := m.snapshot()
			if err := c.save(m, set); !errors.Is(err, checkpoint.ErrChanged) {
				t.Errorf("got %v, want ErrChanged", err)
			}
			for _, k := range w.keys("") {
				if strings.HasSuffix(k, "manifest") {
					t.Errorf("%s was written", k)
				}
			}
		})
	}
}

// A file that is only appended to may grow while it is saved, if the job says so,
// and is taken at the length it had when the save was complete. One that shrinks
// or is replaced is as changed as any.
func TestGrowsWhileSaved(t *testing.T) {
	w := newWorld(t)
	m := w.machine("a1", 4*kb)
	m.write("run/traj.xtc", block(1, 10*kb))
	m.write("state", []byte("10"))
	want := tree(t, m.dir)
	take := func() *checkpoint.Set {
		set, err := checkpoint.Snapshot(t.Context(), m.dir, filepath.Join(t.TempDir(), "set"), "*.xtc")
		must(t, err)
		return set
	}
	grow := func() {
		file, err := os.OpenFile(filepath.Join(m.dir, "run/traj.xtc"), os.O_APPEND|os.O_WRONLY, 0)
		must(t, err)
		_, err = file.Write(block(2, 3*kb))
		must(t, errors.Join(err, file.Close()))
	}
	set := take()
	grow()
	p, err := m.saver.Plan(t.Context(), set)
	must(t, err)
	grow()
	s, err := m.saver.Send(t.Context(), p, checkpoint.Taken{Number: 1})
	must(t, err)
	must(t, m.commit(s))
	n := w.machine("a2", 4*kb)
	n.resume()
	if d := cmp.Diff(want, tree(t, n.dir)); d != "" {
		t.Errorf("restored (-want +got):\n%s", d)
	}
	set = take()
	must(t, os.Truncate(filepath.Join(m.dir, "run/traj.xtc"), 5*kb))
	if _, err := m.saver.Plan(t.Context(), set); !errors.Is(err, checkpoint.ErrChanged) {
		t.Errorf("truncated: %v", err)
	}
	set = take()
	m.write("state", []byte("11"))
	if _, err := m.saver.Plan(t.Context(), set); !errors.Is(err, checkpoint.ErrChanged) {
		t.Errorf("another file: %v", err)
	}
}

// The job may rename, replace and remove its files once a save is complete.
func TestJobGoesOn(t *testing.T) {
	w := newWorld(t)
	m := w.machine("a1", 4*kb)
	m.write("state", block(1, 20*kb))
	want := tree(t, m.dir)
	set := m.snapshot()
	m.write("next.tmp", block(2, 20*kb))
	must(t, os.Rename(filepath.Join(m.dir, "next.tmp"), filepath.Join(m.dir, "state")))
	s, err := m.saver.Save(t.Context(), set, checkpoint.Taken{Number: 1})
	must(t, err)
	must(t, m.commit(s))
	n := w.machine("a2", 4*kb)
	n.resume()
	if d := cmp.Diff(want, tree(t, n.dir)); d != "" {
		t.Errorf("restored (-want +got):\n%s", d)
	}
}

// A checkpoint that is short by a byte, missing a part or garbled is refused with
// what is broken, and the one before is taken.
func TestBrokenCheckpoint(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world)
		want string
	}{
		{"part short by a byte", func(w *world) {
			w.spoil("j-1/3/a1/2/2", func(b []byte) []byte { return b[:len(b)-1] })
		}, "part a1/2/2 of state: 4095 bytes instead of 4096"},
		{"part long by a byte", func(w *world) {
			w.spoil("j-1/3/a1/2/1", func(b []byte) []byte { return append(b, 0) })
		}, "part a1/2/1 of state: 4097 bytes instead of 4096"},
		{"part garbled", func(w *world) {
			w.spoil("j-1/3/a1/2/1", func(b []byte) []byte { b[7] ^= 1; return b })
		}, "part a1/2/1 of state: its digest is "},
		{
			"part missing", func(w *world) { must(w.t, os.Remove(filepath.Join(w.root, "j-1/3/a1/2/1"))) },
			"part a1/2/1 of state: it is not there",
		},
		{"manifest short by a byte", func(w *world) {
			w.spoil("j-1/3/a1/2/manifest", func(b []byte) []byte { return b[:len(b)-1] })
		}, "manifest: its digest is "},
		{
			"manifest missing", func(w *world) { must(w.t, os.Remove(filepath.Join(w.root, "j-1/3/a1/2/manifest"))) },
			"manifest: it is not there",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				m := w.machine("a1", 4*kb)
				m.write("state", block(1, 20*kb))
				m.saved(1)
				want := tree(t, m.dir)
				m.write("state", block(2, 20*kb))
				m.saved(2)
				c.do(w)
				n := w.machine("a2", 4*kb)
				man, broken := n.resume()
				if man == nil || man.Number != 1 {
					t.Fatalf("resumed %+v", man)
				}
				if len(broken) != 1 || broken[0].Number != 2 || !strings.HasPrefix(broken[0].What, c.want) {
					t.Errorf("broken %+v, want 2: %s…", broken, c.want)
				}
				if d := cmp.Diff(want, tree(t, n.dir)); d != "" {
					t.Error("restored something else")
				}
				if left, err := os.ReadDir(filepath.Dir(n.dir)); err != nil || len(left) != 2 {
					t.Errorf("left beside the folder: %v, %v", left, err)
				}
			})
		})
	}
}

// Two attempts that write at once, the stale one and its successor, do not touch
// each other's saves, and each is whole.
func TestTwoAttemptsAtOnce(t *testing.T) {
	w := newWorld(t)
	first := w.machine("a1", 4*kb)
	first.write("state", block(1, 40*kb))
	first.saved(1)
	second := w.machine("a2", 4*kb)
	second.resume()
	second.next, first.next = 2, 2
	first.write("state", block(3, 40*kb))
	second.write("state", block(4, 40*kb))
	var wg sync.WaitGroup
	saves := make([]agentapi.Save, 2)
	errs := make([]error, 2)
	for i, m := range []*machine{first, second} {
		wg.Go(func() { saves[i], errs[i] = m.save(t.Context(), 2) })
	}
	wg.Wait()
	must(t, errors.Join(errs...))
	// The broker's fence lets only the second commit; both are readable.
	must(t, second.commit(saves[1]))
	third := w.machine("a3", 4*kb)
	third.resume()
	if d := cmp.Diff(tree(t, second.dir), tree(t, third.dir)); d != "" {
		t.Error("the stale attempt got into the save")
	}
	if saves[0].Digest == saves[1].Digest {
		t.Error("two different saves with one digest")
	}
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.net.Rate(100 * kb)
		m := w.machine("a1", 64*kb)
		if m.tr.Rate() != 0 || !m.tr.Fits(1<<40, time.Second) {
			t.Error("an unknown rate decides something")
		}
		m.write("state", block(1, 64*kb))
		m.saved(1)
		if r := m.tr.Rate(); r < 80*kb || r > 120*kb {
			t.Errorf("rate %.0f, want about %d", r, 100*kb)
		}
		if m.tr.Fits(200*kb, time.Second) || !m.tr.Fits(100*kb, 2*time.Second) {
			t.Error("what fits in the notice is misjudged")
		}
	})
}

// A request in which nothing moves is ended and tried again.
func TestStalledRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.machine("a1", 4*kb)
		m.write("state", block(1, 4*kb))
		hang := &hanging{RoundTripper: w.net, n: 2}
		m.tr.Client = &http.Client{Transport: hang}
		begin := time.Now()
		m.saved(1)
		if took := time.Since(begin); took < 2*time.Minute || took > 3*time.Minute {
			t.Errorf("took %s, want two stalls of a minute", took)
		}
	})
}

type hanging struct {
	http.RoundTripper
	n int
}

func (h *hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	if h.n > 0 {
		h.n--
		drain(r.Body)
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return h.RoundTripper.RoundTrip(r)
}

func TestSnapshotRefusesLinksOut(t *testing.T) {
	w := newWorld(t)
	m := w.machine("a1", 4*kb)
	m.write("x", []byte("x"))
	must(t, os.Symlink("../../etc/passwd", filepath.Join(m.dir, "out")))
	_, err := checkpoint.Snapshot(t.Context(), m.dir, filepath.Join(m.asides, "set"))
	if err == nil || !strings.Contains(err.Error(), "out") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(m.asides); err != nil || len(left) > 0 {
		t.Errorf("left aside: %v, %v", left, err)
	}
}

func TestParseManifestRefuses(t *testing.T) {
	sum := checkpoint.Digest(nil)
	part := `{"key":"a/1/1","digest":"` + sum + `","bytes":3}`
	file := func(path, rest string) string { return `{"path":"` + path + `","mode":420,"bytes":3,` + rest + `}` }
	good := file("x", `"parts":[`+part+`]`)
	wrap := func(files string) string { return `{"format":1,"number":1,"busy":0,"sent":0,"files":[` + files + `]}` }
	if _, err := checkpoint.Parse([]byte(wrap(good))); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty":            ``,
		"cut":              wrap(good)[:40],
		"trailing":         wrap(good) + "{}",
		"format":           strings.Replace(wrap(good), `"format":1`, `"format":2`, 1),
		"number":           strings.Replace(wrap(good), `"number":1`, `"number":0`, 1),
		"unknown key":      strings.Replace(wrap(good), `"busy"`, `"bussy"`, 1),
		"traversal":        wrap(file("../x", `"parts":[`+part+`]`)),
		"absolute":         wrap(file("/etc/x", `"parts":[`+part+`]`)),
		"twice":            wrap(good + "," + good),
		"under a file":     wrap(good + "," + file("x/y", `"parts":[`+part+`]`)),
		"short":            wrap(strings.Replace(good, `"bytes":3,"parts"`, `"bytes":4,"parts"`, 1)),
		"setuid":           wrap(strings.Replace(good, `"mode":420`, `"mode":2541`, 1)),
		"no digest":        wrap(strings.Replace(good, sum, "sha256:12", 1)),
		"key of a task":    wrap(strings.Replace(good, "a/1/1", "../../other/a/1/1", 1)),
		"key short":        wrap(strings.Replace(good, "a/1/1", "a/1", 1)),
		"link out":         wrap(`{"path":"l","mode":511,"bytes":0,"link":"../x"}`),
		"link absolute":    wrap(`{"path":"l","mode":511,"bytes":0,"link":"/etc/passwd"}`),
		"link up and down": wrap(`{"path":"a/l","mode":511,"bytes":0,"link":"b/../../x"}`),
		"through a link":   wrap(`{"path":"l","mode":511,"bytes":0,"link":"d"},` + file("l/x", `"parts":[`+part+`]`)),
		"overflow":         wrap(strings.ReplaceAll(good+","+strings.Replace(good, `"x"`, `"y"`, 1), `"bytes":3`, `"bytes":9000000000000000000`)),
	} {
		if m, err := checkpoint.Parse([]byte(text)); err == nil {
			t.Errorf("%s: taken as %+v", name, m)
		}
	}
}

// The parser never panics, and what it takes can be written and read again.
func FuzzParse(f *testing.F) {
	sum := checkpoint.Digest(nil)
	f.Add([]byte(`{"format":1,"number":1,"busy":0,"sent":0,"files":[{"path":"x","mode":420,"bytes":3,"parts":[{"key":"a/1/1","digest":"` + sum + `","bytes":3}]}]}`))
	f.Add([]byte(`{"format":1,"number":9,"busy":5,"progress":0.5,"sent":0,"files":[{"path":"d/l","mode":511,"bytes":0,"link":"../x"}],"empty":["e"]}`))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := checkpoint.Parse(data)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if !filepath.IsLocal(file.Path) {
				t.Errorf("path %q leaves the folder", file.Path)
			}
			if file.Link != "" && !filepath.IsLocal(filepath.Join(filepath.Dir(file.Path), file.Link)) {
				t.Errorf("link %q at %q leaves the folder", file.Link, file.Path)
			}
		}
		again, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		n, err := checkpoint.Parse(again)
		if err != nil {
			t.Fatal(err)
		}
		if third, err := n.Encode(); err != nil || !bytes.Equal(again, third) {
			t.Errorf("%s became %s, %v", again, third, err)
		}
	})
}
