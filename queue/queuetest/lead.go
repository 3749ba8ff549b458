package queuetest

import (
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/queue"
)

func testLead(t *testing.T, e Engine) {
	t.Run("nobody writes before anybody leads", func(t *testing.T) {
		s := e.New(t).open(t)
		defer s.Close()
		wantErr(t, s.Commit(t.Context(), full(0)), queue.ErrFenced)
		wantErr(t, s.Commit(t.Context(), full(1)), queue.ErrFenced)
		same(t, "image", load(t, s), new(queue.Image))
	})

	t.Run("the epoch rises with the holder", func(t *testing.T) {
		s := e.New(t).open(t)
		defer s.Close()
		first, err := s.Lead(t.Context(), "a", -time.Second) // over as soon as it is given
		if err != nil {
			t.Fatal(err)
		}
		if again := must(s.Lead(t.Context(), "a", -time.Second))(t); again != first {
			t.Errorf("renewed after its end with nobody between, the epoch went from %d to %d", first, again)
		}
		second := must(s.Lead(t.Context(), "b", time.Hour))(t)
		if second <= first {
			t.Fatalf("the epoch went from %d to %d with another holder", first, second)
		}
		_, err = s.Lead(t.Context(), "a", time.Hour)
		wantErr(t, err, queue.ErrFenced)
		wantErr(t, s.Commit(t.Context(), full(first)), queue.ErrFenced)
		wantErr(t, s.Commit(t.Context(), full(second+1)), queue.ErrFenced)
		same(t, "image", load(t, s), new(queue.Image))
		commit(t, s, full(second))
	})

	t.Run("leadership survives opening again", func(t *testing.T) {
		place := e.New(t)
		s := place.open(t)
		epoch := lead(t, s, "a")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = place.open(t)
		defer s.Close()
		_, err := s.Lead(t.Context(), "b", time.Hour)
		wantErr(t, err, queue.ErrFenced)
		if again := lead(t, s, "a"); again != epoch {
			t.Errorf("epoch went from %d to %d", epoch, again)
		}
		commit(t, s, full(epoch))
	})

	t.Run("a lease ends by the clock of the process", func(t *testing.T) {
		if e.Replicas {
			t.Skip("a server's socket does not run in virtual time; the SQLite run covers the same query")
		}
		place := e.New(t)
		synctest.Test(t, func(t *testing.T) {
			s := place.open(t)
			defer s.Close()
			first := must(s.Lead(t.Context(), "a", time.Minute))(t)
			time.Sleep(59 * time.Second)
			_, err := s.Lead(t.Context(), "b", time.Minute)
			wantErr(t, err, queue.ErrFenced)
			time.Sleep(2 * time.Second)
			if second := must(s.Lead(t.Context(), "b", time.Minute))(t); second != first+1 {
				t.Errorf("epoch %d, want %d", second, first+1)
			}
			wantErr(t, s.Commit(t.Context(), full(first)), queue.ErrFenced)
		})
	})

	t.Run("a replica takes over", func(t *testing.T) {
		if !e.Replicas {
			t.Skip("one broker at a time")
		}
		place := e.New(t)
		a, b := place.open(t), place.open(t)
		defer a.Close()
		defer b.Close()
		old := must(a.Lead(t.Context(), "a", -time.Second))(t)
		now := must(b.Lead(t.Context(), "b", time.Hour))(t)
		commit(t, b, full(now))
		want := load(t, b)
		wantErr(t, a.Commit(t.Context(), &queue.Batch{Epoch: old, Events: []*queue.Event{event(99, "")}}), queue.ErrFenced)
		same(t, "the other's view", load(t, a), want)
	})
}
