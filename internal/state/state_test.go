package state

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/reason"
	"gpubroker/queue"
)

// The broker's time never goes back, whatever is done to the wall clock.
func TestClock(t *testing.T) {
	begin := time.Now() // with a monotonic reading
	read := begin
	c := NewClock(time.Time{}, func() time.Time { return read }, slog.New(slog.DiscardHandler))
	at := c.Now()
	step := func(what string, reading time.Time, low, high time.Duration) {
		t.Helper()
		read = reading
		now := c.Now()
		if d := now.Sub(at); d < low || d > high {
			t.Errorf("%s: time went on by %v, want %v to %v", what, d, low, high)
		}
		at = now
	}
	second := time.Second
	step("a second passes", begin.Add(second), second, second)
	step("set back an hour", begin.Add(-time.Hour), 0, 0)
	step("going on from there", begin.Add(-time.Hour+second), second, second)
	step("set forward", begin.Add(5*time.Hour), 5*time.Hour-second, 6*time.Hour)
	if at.Location() != time.UTC {
		t.Error("not in UTC")
	}
	// Suspended: only the wall clock has moved.
	slept := begin.Round(0).Add(20 * time.Hour)
	step("suspended", slept, 10*time.Hour, 20*time.Hour)
}

func TestClockAtAStart(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	wall := func() time.Time { return now }
	for what, row := range map[string]struct{ newest, want time.Time }{
		"an empty store":              {time.Time{}, now},
		"a store from before":         {now.Add(-time.Hour), now},
		"the clock was set back":      {now.Add(time.Hour), now.Add(time.Hour)},
		"the clock was wrong by far":  {now.Add(365 * 24 * time.Hour), now},
		"the clock was a moment fast": {now.Add(time.Millisecond), now.Add(time.Millisecond)},
	} {
		if got := NewClock(row.newest, wall, slog.New(slog.DiscardHandler)).Now(); !got.Equal(row.want) {
			t.Errorf("%s: %v, want %v", what, got, row.want)
		}
	}
}

// memory is a store that keeps nothing: what the tests here ask of it.
type memory struct {
	queue.Store
	batches []*queue.Batch
	fail    error
	loads   int
}

func (m *memory) Load(context.Context) (*queue.Image, error) {
	m.loads++
	img := &queue.Image{}
	for _, b := range m.batches {
		img.Jobs = append(img.Jobs, b.Jobs...)
		img.Settings = append(img.Settings, b.Settings...)
	}
	return img, nil
}

func (m *memory) Commit(_ context.Context, b *queue.Batch) error {
	if m.fail != nil {
		return m.fail
	}
	m.batches = append(m.batches, b)
	return nil
}

func (m *memory) Events(context.Context, queue.EventQuery) ([]*queue.Event, error) { return nil, nil }

func running(t *testing.T, m *memory) (*State, context.CancelFunc) {
	t.Helper()
	s, err := Open(t.Context(), m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	return s, func() { stop(); <-done }
}

func put(key string) func(*Tx) error {
	return func(tx *Tx) error {
		tx.PutSetting(&queue.Setting{Key: key, Value: []byte("1")})
		return nil
	}
}

// Changes that wait together are one commit, and one that fails leaves no trace.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		s, stop := running(t, m)
		defer stop()
		refuse := errors.New("no")
		first := make(chan error, 3)
		// The writer is kept busy until all three wait.
		gate := make(chan struct{})
		go func() { first <- s.Do(t.Context(), func(tx *Tx) error { <-gate; return put("a")(tx) }) }()
		synctest.Wait()
		go func() { first <- s.Do(t.Context(), put("b")) }()
		go func() {
			first <- s.Do(t.Context(), func(tx *Tx) error {
				_ = put("c")(tx)
				tx.Emit(queue.Event{Kind: "x", Reason: reason.New("x")})
				return refuse
			})
		}()
		synctest.Wait()
		close(gate)
		var failed int
		for range 3 {
			if err := <-first; errors.Is(err, refuse) {
				failed++
			} else if err != nil {
				t.Error(err)
			}
		}
		v := s.View()
		if failed != 1 || v.Settings.Get("a") == nil || v.Settings.Get("b") == nil || v.Settings.Get("c") != nil {
			t.Errorf("%d refused, settings %d", failed, v.Settings.Len())
		}
		if len(m.batches) != 2 {
			t.Errorf("%d commits", len(m.batches))
		}
	})
}

// A commit that fails is not seen, and memory is read anew before the next one.
func TestAFailedCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{fail: queue.ErrFull}
		s, stop := running(t, m)
		defer stop()
		if err := s.Do(t.Context(), put("a")); !errors.Is(err, queue.ErrFull) {
			t.Errorf("%v", err)
		}
		if s.View().Settings.Len() != 0 || !errors.Is(s.Health(), queue.ErrFull) {
			t.Error("what is not durable is seen, or nobody is told")
		}
		m.fail = nil
		loads := m.loads
		if err := s.Probe(t.Context()); err != nil || s.Health() != nil || m.loads != loads+1 {
			t.Errorf("afterwards: %v, %v, read %d times", err, s.Health(), m.loads-loads)
		}
	})
}

// Whoever comes after the end is told so at once.
func TestDoAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, &memory{})
		stop()
		if err := s.Do(t.Context(), put("a")); !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}

// A view is a picture: later changes do not show in it.
func TestAViewStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, &memory{})
		defer stop()
		before := s.View()
		changed := s.Watch("")
		if err := s.Do(t.Context(), put("a")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		default:
			t.Error("nobody was woken")
		}
		if before.Settings.Len() != 0 || s.View().Settings.Len() != 1 || s.View().Revision <= before.Revision {
			t.Error("the old view has changed, or the new one has not")
		}
	})
}
