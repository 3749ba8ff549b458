package checkpoint_test

import (
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/internal/objects/s3"
)

// The same life over a bucket: save, reuse, break, resume, sweep.
func TestOverS3(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	backend := s3mem.New()
	must(t, backend.CreateBucket("b"))
	srv := httptest.NewServer(gofakes3.New(backend).Server())
	defer srv.Close()
	stores := objects.Stores{Schemes: map[string]objects.Opener{"s3": s3.Open}}
	store, err := stores.Open(t.Context(), "s3://b/gpubroker?endpoint="+url.QueryEscape(srv.URL))
	must(t, err)
	w := newWorld(t)
	w.store = store
	client := srv.Client()

	m := w.machine("a1", 4*kb)
	m.tr.Client = client
	m.write("state", block(1, 20*kb))
	m.write("empty", nil)
	m.saved(1)
	want := tree(t, m.dir)
	m.write("state", append(block(1, 20*kb), 'x'))
	if s := m.saved(2); s.Sent != 1 {
		t.Errorf("sent %d bytes after one was added", s.Sent)
	}
	must(t, store.Delete(t.Context(), "j-1/3/a1/2/1"))
	n := w.machine("a2", 4*kb)
	n.tr.Client = client
	man, broken := n.resume()
	if man == nil || man.Number != 1 || len(broken) != 1 {
		t.Fatalf("resumed %+v, broken %v", man, broken)
	}
	if d := cmp.Diff(want, tree(t, n.dir)); d != "" {
		t.Errorf("restored (-want +got):\n%s", d)
	}
	found, flaws, err := checkpoint.Adopt(t.Context(), store, task, "a1", 0)
	if err != nil || len(found) != 1 || len(flaws) != 1 {
		t.Errorf("adopted %v, flaws %v, %v", found, flaws, err)
	}
}
