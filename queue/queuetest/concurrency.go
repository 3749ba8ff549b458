package queuetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"gpubroker/queue"
)

// testConcurrency lets writers race on one row: each version is won once, and
// what a reader sees is always whole batches.
func testConcurrency(t *testing.T, e Engine) {
	place := e.New(t)
	stores := []queue.Store{place.open(t)}
	defer func() {
		for _, s := range stores {
			s.Close()
		}
	}()
	if e.Replicas {
		stores = append(stores, place.open(t))
	}
	epoch := lead(t, stores[0], "a")
	j := job("j", 1)
	commit(t, stores[0], &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{j}, Events: []*queue.Event{event(1, "j")}})

	const writers, each = 4, 25
	var wins, refusals atomic.Int64
	var writing, reading sync.WaitGroup
	stop := make(chan struct{})
	for w := range writers {
		s := stores[w%len(stores)]
		writing.Go(func() {
			for n := range each {
				have, err := s.Job(t.Context(), "j")
				if err != nil {
					t.Error(err)
					return
				}
				version := have.Version + 1
				err = s.Commit(t.Context(), &queue.Batch{
					Epoch:  epoch,
					Jobs:   []*queue.Job{next(have, func(j *queue.Job) { j.Version, j.User = version, fmt.Sprint(w, n) })},
					Events: []*queue.Event{event(version, "j")},
				})
				switch {
				case err == nil:
					wins.Add(1)
				case errors.Is(err, queue.ErrConflict):
					refusals.Add(1)
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	for _, s := range stores {
		reading.Go(func() {
			for {
				im, err := s.Load(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if im.Jobs[0].Version != im.EventSeq {
					t.Errorf("a reader sees version %d with event %d: half of a batch", im.Jobs[0].Version, im.EventSeq)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	writing.Wait()
	close(stop)
	reading.Wait()
	final := must(stores[0].Job(t.Context(), "j"))(t)
	if got := wins.Load() + 1; final.Version != got {
		t.Errorf("version %d after %d commits", final.Version, got)
	}
	if wins.Load()+refusals.Load() != writers*each {
		t.Errorf("%d commits and %d refusals of %d", wins.Load(), refusals.Load(), writers*each)
	}

	if !e.Replicas {
		t.Run("second broker", func(t *testing.T) {
			_, err := place(t.Context())
			wantErr(t, err, queue.ErrLocked)
		})
	}
}
