package checkpoint_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
)

// slowWorld has a store behind a real socket and parts of the real size.
func slowWorld(t *testing.T) (*world, *machine) {
	t.Helper()
	if testing.Short() || os.Getenv("GPUBROKER_SLOW") != "1" {
		t.Skip("set GPUBROKER_SLOW=1 for saves of full size")
	}
	w := &world{t: t, root: t.TempDir(), committed: map[int64]string{}, digests: map[int64]string{}}
	srv := httptest.NewUnstartedServer(nil)
	folders, err := objects.NewFolders("http://"+srv.Listener.Addr().String(), bytes.Repeat([]byte("k"), 32), time.Now)
	must(t, err)
	t.Cleanup(func() { folders.Close() })
	w.store, err = folders.Open(w.root)
	must(t, err)
	srv.Config.Handler = folders
	srv.Start()
	t.Cleanup(srv.Close)
	top := t.TempDir()
	m := &machine{world: w, attempt: "a1", dir: filepath.Join(top, "ckpt"), asides: filepath.Join(top, "aside"), next: 1}
	must(t, os.MkdirAll(m.asides, 0o700))
	must(t, os.MkdirAll(m.dir, 0o700))
	m.tr = &checkpoint.Transfer{URLs: m, Client: srv.Client(), Log: slog.New(slog.DiscardHandler)}
	m.saver, err = checkpoint.NewSaver("a1", m.tr, 0)
	must(t, err)
	return w, m
}

// A file of 1 GB that is appended to and saved ten times goes up once and a bit.
func TestSlowAppendOnly(t *testing.T) {
	_, m := slowWorld(t)
	const step, times = 1_000_000_000 / 10, 10
	file, err := os.Create(filepath.Join(m.dir, "log.bin"))
	must(t, err)
	defer file.Close()
	var sent int64
	begin := time.Now()
	for n := range int64(times) {
		_, err := io.CopyN(file, rand.Reader, step)
		must(t, err)
		s := m.saved(n + 1)
		sent += s.Sent
	}
	t.Logf("1 GB in 10 saves: %d MB sent (%.2f times the file, 5.50 without reuse), %s", sent/1_000_000, float64(sent)/1e9, time.Since(begin).Round(time.Millisecond))
	if limit := int64(step*times + times*agentapi.PartSize); sent > limit {
		t.Errorf("sent %d bytes, at most %d", sent, limit)
	}
}

// A file of 6 GB, more than S3 takes in one request, is saved and comes back. It
// is sparse but for a byte in each part, so that no two parts are the same.
func TestSlowSixGigabytes(t *testing.T) {
	w, m := slowWorld(t)
	const size = 6_000_000_000
	name := filepath.Join(m.dir, "state.bin")
	file, err := os.Create(name)
	must(t, err)
	must(t, file.Truncate(size))
	parts := int64(0)
	for off := int64(0); off < size; off += agentapi.PartSize {
		parts++
		at, err := rand.Int(rand.Reader, big.NewInt(min(agentapi.PartSize, size-off)-8))
		must(t, err)
		_, err = file.WriteAt(fmt.Appendf(nil, "%08d", parts), off+at.Int64())
		must(t, err)
	}
	must(t, file.Close())
	begin := time.Now()
	s := m.saved(1)
	up := time.Since(begin)
	if s.Sent != size || s.Bytes != size {
		t.Errorf("bytes %d, sent %d, want %d", s.Bytes, s.Sent, int64(size))
	}
	if n := int64(len(w.keys("j-1/"))); n != parts+1 {
		t.Errorf("%d objects, want %d parts and a manifest", n, parts)
	}
	n := w.machine("a2", 0)
	n.tr.Client = m.tr.Client
	begin = time.Now()
	if man, broken := n.resume(); man == nil || len(broken) > 0 {
		t.Fatalf("resumed %+v, broken %v", man, broken)
	}
	t.Logf("6 GB in %d parts: saved in %s, restored in %s, measured rate %.0f MB/s", parts, up.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond), m.tr.Rate()/1e6)
	same(t, name, filepath.Join(n.dir, "state.bin"))
}

func same(t *testing.T, a, b string) {
	t.Helper()
	fa, err := os.Open(a)
	must(t, err)
	defer fa.Close()
	fb, err := os.Open(b)
	must(t, err)
	defer fb.Close()
	x, y := make([]byte, 1<<20), make([]byte, 1<<20)
	for {
		n, err := io.ReadFull(fa, x)
		k, err2 := io.ReadFull(fb, y)
		if n != k || !bytes.Equal(x[:n], y[:k]) {
			t.Fatal("the files differ")
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			if !errors.Is(err2, err) {
				t.Fatal("the files differ in length")
			}
			return
		}
		must(t, err)
	}
}
