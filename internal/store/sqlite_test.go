package store

import (
	"path/filepath"
	"testing"
	"time"

	"gpubroker/queue"
)

func TestSmoke(t *testing.T) {
	p := filepath.Join(t.TempDir(), "a b?.db")
	t0 := time.Now()
	s, err := Open(t.Context(), p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(t0))
	t.Log(s.Meta(t.Context()))
	ep, err := s.Lead(t.Context(), "a", time.Minute)
	t.Log(ep, err)
	b := &queue.Batch{Epoch: ep, Jobs: []*queue.Job{{ID: "j", Version: 1, Count: 3, Spec: []byte(`{"a":"<>"}`)}}, Tasks: []*queue.Task{{TaskID: queue.TaskID{Job: "j", Index: 1}, Version: 1, State: "running"}}}
	t.Log(s.Commit(t.Context(), b))
	t.Log(s.Commit(t.Context(), b))
	b.Epoch = 7
	t.Log(s.Commit(t.Context(), b))
	im, err := s.Load(t.Context())
	t.Log(im, err)
	_, err = Open(t.Context(), p, Options{})
	t.Log(err)
	s.Close()
	t0 = time.Now()
	s, err = Open(t.Context(), p, Options{})
	t.Log(time.Since(t0))
	t.Log(s.Meta(t.Context()))
	t.Log(s.Prune(t.Context(), time.Now(), 100))
	t.Log(s.Adopt(t.Context()))
	s.Close()
}
