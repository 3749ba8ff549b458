package checkpoint_test

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
)

// BenchmarkSave takes saves of 256 MiB over a loopback connection to a folder
// store that the broker serves, and commits them: everything new, nothing new,
// and restored again. Both ends share the processor.
func BenchmarkSave(b *testing.B) {
	const size = 256 << 20
	begin := func(b *testing.B) *machine {
		w := &world{t: b, root: b.TempDir(), committed: map[int64]string{}, digests: map[int64]string{}}
		srv := httptest.NewUnstartedServer(nil)
		folders, err := objects.NewFolders("http://"+srv.Listener.Addr().String(), bytes.Repeat([]byte("k"), 32), time.Now)
		must(b, err)
		b.Cleanup(func() { folders.Close() })
		w.store, err = folders.Open(w.root)
		must(b, err)
		srv.Config.Handler = folders
		srv.Start()
		b.Cleanup(srv.Close)
		top := b.TempDir()
		m := &machine{world: w, attempt: "a1", dir: filepath.Join(top, "ckpt"), asides: filepath.Join(top, "aside"), next: 1}
		must(b, os.MkdirAll(m.asides, 0o700))
		m.tr = &checkpoint.Transfer{URLs: m, Client: srv.Client(), Log: slog.New(slog.DiscardHandler)}
		m.saver, err = checkpoint.NewSaver("a1", m.tr, 0)
		must(b, err)
		return m
	}
	random := rand.NewChaCha8([32]byte{1})
	fill := func(m *machine) {
		data := make([]byte, size)
		_, _ = random.Read(data) // never fails
		m.write("state.bin", data)
	}
	b.Run("new", func(b *testing.B) {
		m := begin(b)
		b.SetBytes(size)
		for n := int64(1); b.Loop(); n++ {
			b.StopTimer()
			fill(m)
			b.StartTimer()
			if s := m.saved(n); s.Sent != size {
				b.Fatalf("%d bytes were sent", s.Sent)
			}
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		m := begin(b)
		fill(m)
		m.saved(1)
		for n := int64(2); b.Loop(); n++ {
			if s := m.saved(n); s.Sent != 0 {
				b.Fatalf("%d bytes were sent", s.Sent)
			}
		}
	})
	b.Run("restore", func(b *testing.B) {
		m := begin(b)
		fill(m)
		m.saved(1)
		b.SetBytes(size)
		for b.Loop() {
			b.StopTimer()
			must(b, os.RemoveAll(m.dir))
			b.StartTimer()
			if man, _ := m.resume(); man == nil {
				b.Fatal("nothing was restored")
			}
		}
	})
}
