package checkpoint_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/internal/objects/azblob"
	"gpubroker/internal/objects/emulatortest"
	"gpubroker/internal/objects/gcs"
	"gpubroker/internal/objects/s3"
)

// The same life over a bucket: save, reuse, break, resume, sweep.
func TestOverBuckets(t *testing.T) {
	t.Run("s3", func(t *testing.T) {
		t.Setenv("AWS_ACCESS_KEY_ID", "test")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
		t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
		backend := s3mem.New()
		must(t, backend.CreateBucket("b"))
		srv := httptest.NewServer(gofakes3.New(backend).Server())
		defer srv.Close()
		overBucket(t, "s3://b?endpoint="+url.QueryEscape(srv.URL), s3.Open)
	})
	t.Run("gcs", func(t *testing.T) { overBucket(t, emulatortest.GCS(t), gcs.New(gcs.Options{})) })
	t.Run("azblob", func(t *testing.T) {
		overBucket(t, emulatortest.Azurite(t), azblob.New(azblob.Options{Account: emulatortest.AzuriteAccount, Key: emulatortest.AzuriteKey}))
	})
}

func overBucket(t *testing.T, address string, open objects.Opener) {
	t.Helper()
	scheme, _, _ := strings.Cut(address, "://")
	stores := objects.Stores{Schemes: map[string]objects.Opener{scheme: open}}
	store, err := stores.Open(t.Context(), strings.Replace(address, "?", "/gpubroker?", 1))
	must(t, err)
	w := newWorld(t)
	w.store = store

	m := w.machine("a1", 4*kb).over(http.DefaultClient)
	m.write("state", block(1, 20*kb))
	m.write("empty", nil)
	m.saved(1)
	want := tree(t, m.dir)
	m.write("state", append(block(1, 20*kb), 'x'))
	if s := m.saved(2); s.Sent != 1 {
		t.Errorf("sent %d bytes after one was added", s.Sent)
	}
	must(t, store.Delete(t.Context(), "j-1/3/a1/2/1"))
	n := w.machine("a2", 4*kb).over(http.DefaultClient)
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
	old := checkpoint.Sweeping{
		Task: task, Keep: []checkpoint.Kept{{Attempt: "a1", Number: 1, Digest: n.digests[1]}},
		Now: time.Now().Add(2 * checkpoint.Grace),
	}
	if swept, err := checkpoint.Sweep(t.Context(), store, old); err != nil || swept.Objects == 0 {
		t.Errorf("swept %+v, %v", swept, err)
	}
	if man, broken := w.machine("a3", 4*kb).over(http.DefaultClient).resume(); man == nil || man.Number != 1 || len(broken) != 1 {
		t.Errorf("after the sweep: resumed %+v, broken %v", man, broken)
	}
}

// over has the machine reach the store by another client.
func (m *machine) over(c *http.Client) *machine {
	m.tr.Client = c
	return m
}
