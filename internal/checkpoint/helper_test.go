package checkpoint_test

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/internal/objects/objectstest"
	"gpubroker/queue"
)

const kb = 1 << 10

var task = queue.TaskID{Job: "j-1", Index: 3}

// world is a store with its endpoint, and machines that reach it.
type world struct {
	t     testing.TB
	root  string
	store objects.Store
	net   *objectstest.Transport
	// committed says which attempt wrote each committed checkpoint.
	committed map[int64]string
	digests   map[int64]string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldIn(t, objectstest.Dir(t))
}

var quiet = slog.New(slog.DiscardHandler)

func newWorldIn(t testing.TB, root string) *world {
	t.Helper()
	w := &world{t: t, root: root, committed: map[int64]string{}, digests: map[int64]string{}}
	folders, err := objects.NewFolders("http://broker.test", bytes.Repeat([]byte("k"), 32), time.Now)
	must(t, err)
	t.Cleanup(func() { folders.Close() })
	w.store, err = folders.Open(w.root)
	must(t, err)
	w.net = &objectstest.Transport{Handler: folders}
	return w
}

// machine is an agent with one attempt.
type machine struct {
	*world
	attempt string
	dir     string // the job's checkpoint folder
	asides  string
	tr      *checkpoint.Transfer
	saver   *checkpoint.Saver
	next    int64
	writes  int
}

func (w *world) machine(attempt string, partSize int64) *machine {
	w.t.Helper()
	top := w.t.TempDir()
	m := &machine{world: w, attempt: attempt, dir: filepath.Join(top, "ckpt"), asides: filepath.Join(top, "aside"), next: 1}
	must(w.t, os.Mkdir(m.asides, 0o700))
	m.tr = &checkpoint.Transfer{URLs: m, Client: w.net.Client(), Log: quiet}
	var err error
	m.saver, err = checkpoint.NewSaver(attempt, m.tr, partSize)
	must(w.t, err)
	return m
}

func (m *machine) scope() checkpoint.Scope {
	return checkpoint.Scope{Task: task, Attempt: m.attempt, Next: m.next, Checkpoints: m.committed}
}

func (m *machine) url(ctx context.Context, name string, want agentapi.Want) (string, error) {
	g := checkpoint.Grants{Store: m.store, Valid: time.Hour}
	put, get, refused, err := g.Sign(ctx, m.scope(), want)
	if err != nil {
		return "", err
	}
	if len(refused) > 0 {
		return "", refused[0].Err
	}
	return put[name] + get[name], nil
}

func (m *machine) Put(ctx context.Context, name, _ string) (string, error) {
	return m.url(ctx, name, agentapi.Want{Put: []string{name}})
}

func (m *machine) Get(ctx context.Context, name, _ string) (string, error) {
	return m.url(ctx, name, agentapi.Want{Get: []string{name}})
}

// write writes a file and dates it back a little, so that Snapshot need not wait
// for its time to settle.
func (m *machine) write(name string, data []byte) {
	m.t.Helper()
	file := m.writeNow(name, data)
	m.writes++ // two writes never bear the same time, in virtual time neither
	at := time.Now().Add(-time.Second + time.Duration(m.writes))
	must(m.t, os.Chtimes(file, at, at))
}

func (m *machine) writeNow(name string, data []byte) string {
	m.t.Helper()
	file := filepath.Join(m.dir, name)
	must(m.t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(m.t, os.WriteFile(file, data, 0o644))
	return file
}

func (m *machine) snapshot() *checkpoint.Set {
	m.t.Helper()
	set, err := checkpoint.Snapshot(m.t.Context(), m.dir, filepath.Join(m.asides, "set"))
	must(m.t, err)
	return set
}

// save takes and uploads a save without committing it.
func (m *machine) save(ctx context.Context, number int64) (agentapi.Save, error) {
	m.t.Helper()
	set := m.snapshot()
	defer set.Close()
	return m.saver.Save(ctx, set, checkpoint.Taken{Number: number, Busy: 1000 * agentapi.Duration(number)})
}

// commit does what the broker does with a save.
func (m *machine) commit(s agentapi.Save) error {
	key, err := checkpoint.ManifestKey(task, m.attempt, s.Number)
	must(m.t, err)
	if _, err := checkpoint.Verify(m.t.Context(), m.store, key, s.Digest); err != nil {
		return err
	}
	m.committed[s.Number], m.digests[s.Number] = m.attempt, s.Digest
	m.next = s.Number + 1
	m.saver.Committed(s.Number)
	return nil
}

func (m *machine) saved(number int64) agentapi.Save {
	m.t.Helper()
	s, err := m.save(m.t.Context(), number)
	must(m.t, err)
	must(m.t, m.commit(s))
	return s
}

// resume restores the newest checkpoint that is good.
func (m *machine) resume() (*checkpoint.Manifest, []agentapi.Broken) {
	m.t.Helper()
	g := checkpoint.Grants{Store: m.store, Valid: time.Hour}
	from, err := g.Resume(m.t.Context(), m.scope(), m.digests)
	must(m.t, err)
	man, broken, err := checkpoint.Newest(m.t.Context(), m.tr, from, m.dir)
	must(m.t, err)
	if man != nil {
		m.saver.Resumed(man)
	}
	return man, broken
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree reads a folder: paths to content, links and modes.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			if left, err := os.ReadDir(name); err != nil || len(left) == 0 && rel != "." {
				got[rel+"/"] = "empty"
			}
		case st.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			if err != nil {
				return err
			}
			got[rel] = "-> " + to
		default:
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			got[rel] = st.Mode().String() + " " + string(data)
		}
		return nil
	}))
	return got
}

// spoil replaces an object's bytes behind everybody's back.
func (w *world) spoil(key string, f func([]byte) []byte) {
	w.t.Helper()
	name := filepath.Join(w.root, key)
	data, err := os.ReadFile(name)
	must(w.t, err)
	must(w.t, os.WriteFile(name, f(data), 0o644))
}

func (w *world) keys(prefix string) []string {
	w.t.Helper()
	var keys []string
	for i, err := range w.store.List(w.t.Context(), prefix) {
		must(w.t, err)
		keys = append(keys, i.Key)
	}
	return keys
}

// block is n bytes that differ from those of any other seed.
func block(seed byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed ^ byte(i*7) ^ byte(i>>8)
	}
	return b
}

func drain(r io.Reader) { _, _ = io.Copy(io.Discard, r) }
