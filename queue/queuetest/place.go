package queuetest

import (
	"testing"

	"gpubroker/queue"
)

func testPlace(t *testing.T, e Engine) {
	meta := func(s queue.Store) queue.Meta { t.Helper(); return must(s.Meta(t.Context()))(t) }
	place := e.New(t)
	s := place.open(t)
	first := meta(s)
	if first.Generation == "" || first.Copied || first.Why != "" || first.Schema < 1 {
		t.Fatalf("a new store says %+v", first)
	}
	commit(t, s, full(lead(t, s, "a")))
	image := load(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if err := s.Commit(t.Context(), full(1)); err == nil {
		t.Error("a closed store takes a commit")
	}

	s = place.open(t)
	same(t, "meta of the store opened again", meta(s), first)
	adopted := must(s.Adopt(t.Context()))(t)
	if adopted.Generation == first.Generation || adopted.Copied {
		t.Errorf("adopted: %+v, before %+v", adopted, first)
	}
	same(t, "meta after adopting", meta(s), adopted)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = place.open(t)
	defer s.Close()
	same(t, "meta of the adopted store opened again", meta(s), adopted)
	same(t, "its rows", load(t, s), image)

	other := e.New(t).open(t)
	defer other.Close()
	if g := meta(other).Generation; g == first.Generation || g == adopted.Generation {
		t.Error("two stores have one generation")
	}
}
