package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gpubroker/queue"
)

// State is the broker's memory over a store. Make one with [Open], and run
// [State.Run] while it is used.
type State struct {
	store queue.Store
	clock *Clock
	epoch atomic.Int64

	requests chan *request
	closed   chan struct{} // Run has ended
	closing  sync.Once
	view     atomic.Pointer[Tables]

	// Only Run's goroutine touches these.
	tables *Tables
	seq    sequences
	stale  bool // memory may differ from the store: read it before the next change

	mu       sync.Mutex
	watchers map[string]chan struct{}
	events   []*queue.Event // the newest, for live views
	failed   error          // the last commit's failure, nil when it went well
}

type request struct {
	fn   func(*Tx) error
	err  error
	done chan struct{}
}

// Backlog is how many functions are committed together at most, and Recent how
// many events are kept in memory.
const (
	Backlog = 512
	Recent  = 2000
)

// ErrClosed is returned by Do after Run has ended.
var ErrClosed = errors.New("state: the broker is stopping")

// Open reads the store.
func Open(ctx context.Context, store queue.Store, log *slog.Logger) (*State, error) {
	newest, err := newestMoment(ctx, store)
	if err != nil {
		return nil, fmt.Errorf("state: reading the store: %w", err)
	}
	s := &State{
		store: store, clock: NewClock(newest, time.Now, log), requests: make(chan *request, Backlog), closed: make(chan struct{}),
		watchers: map[string]chan struct{}{},
	}
	if err := s.reload(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Now returns the broker's time, see [Clock].
func (s *State) Now() time.Time { return s.clock.Now() }

// SetEpoch sets the leader's epoch that every later batch carries.
func (s *State) SetEpoch(epoch int64) { s.epoch.Store(epoch) }

func (s *State) reload(ctx context.Context) error {
	img, err := s.store.Load(ctx)
	if err != nil {
		return fmt.Errorf("state: reading the store: %w", err)
	}
	var revision uint64
	if s.tables != nil {
		revision = s.tables.Revision + 1
	}
	s.tables = load(img)
	s.tables.Revision = revision
	s.seq = sequences{event: img.EventSeq, entry: img.EntrySeq}
	s.stale = false
	s.view.Store(s.tables.copy())
	return nil
}

// Run commits what Do asks for until ctx ends. It runs once.
func (s *State) Run(ctx context.Context) error {
	defer s.closing.Do(func() { close(s.closed) })
	for {
		select {
		case <-ctx.Done():
			s.refuse()
			return ctx.Err()
		case r := <-s.requests:
			group := []*request{r}
			for len(group) < Backlog {
				select {
				case r := <-s.requests:
					group = append(group, r)
					continue
				default:
				}
				break
			}
			s.commit(ctx, group)
		}
	}
}

func (s *State) refuse() {
	for {
		select {
		case r := <-s.requests:
			r.err = ErrClosed
			close(r.done)
		default:
			return
		}
	}
}

func (s *State) commit(ctx context.Context, group []*request) {
	defer func() {
		for _, r := range group {
			close(r.done)
		}
	}()
	failAll := func(err error) {
		for _, r := range group {
			if r.err == nil {
				r.err = err
			}
		}
		s.mu.Lock()
		s.failed = err
		s.mu.Unlock()
	}
	if s.stale {
		if err := s.reload(ctx); err != nil {
			failAll(err)
			return
		}
	}
	now := s.Now()
	all, seq := newStage(), s.seq
	for _, r := range group {
		tx := &Tx{Now: now, base: s.tables, group: all, own: newStage(), seq: &seq}
		switch r.err = r.fn(tx); {
		case r.err != nil:
		case all.empty():
			all = tx.own // the usual case, and a large one has much to copy
		default:
			all.merge(tx.own)
		}
	}
	if all.empty() {
		return
	}
	batch := all.batch(s.epoch.Load())
	if err := s.store.Commit(ctx, batch); err != nil {
		s.stale = true
		failAll(fmt.Errorf("state: commit: %w", err))
		return
	}
	s.seq = seq
	s.tables.apply(batch)
	s.view.Store(s.tables.copy())
	s.publish(batch)
}

// Do runs fn in the one writer and returns when what it staged is durable and
// seen. An error of fn discards its changes. fn may run only once, must be
// quick, and must not call Do.
func (s *State) Do(ctx context.Context, fn func(*Tx) error) error {
	r := &request{fn: fn, done: make(chan struct{})}
	select {
	case s.requests <- r:
	case <-s.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-r.done:
		return r.err
	case <-s.closed:
		select {
		case <-r.done:
			return r.err
		default:
			return ErrClosed
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// View returns the tables at the newest revision. It must not be changed, and
// may be kept.
func (s *State) View() *Tables { return s.view.Load() }

// Health returns the failure of the last commit, or nil: while it is set, nothing
// is decided and no silence of an agent counts.
func (s *State) Health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Probe writes a mark to the store, to find out whether it can be written again.
func (s *State) Probe(ctx context.Context) error {
	return s.Do(ctx, func(tx *Tx) error {
		tx.PutSetting(&queue.Setting{Key: "probe", Value: []byte(`"` + tx.Now.Format(time.RFC3339) + `"`)})
		return nil
	})
}

// Store returns the store, for history that memory does not hold.
func (s *State) Store() queue.Store { return s.store }

// Watch returns a channel that is closed at the next change of key: "" for any
// change, "instance/ID", "job/ID", "events".
func (s *State) Watch(key string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.watchers[key]
	if c == nil {
		c = make(chan struct{})
		s.watchers[key] = c
	}
	return c
}

func (s *State) publish(b *queue.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = nil
	s.wake("")
	for _, r := range b.Instances {
		s.wake("instance/" + r.ID)
	}
	for _, r := range b.Attempts {
		s.wake("instance/" + r.Instance)
		s.wake("job/" + r.Job)
	}
	for _, r := range b.Tasks {
		s.wake("job/" + r.Job)
		if a := s.tables.Attempts.Get(r.Attempt); a != nil {
			s.wake("instance/" + a.Instance)
		}
	}
	for _, r := range b.Jobs {
		s.wake("job/" + r.ID)
	}
	if len(b.Events) > 0 {
		s.wake("events")
		s.events = append(s.events, b.Events...)
		if extra := len(s.events) - Recent; extra > 0 {
			s.events = append([]*queue.Event(nil), s.events[extra:]...)
		}
	}
}

func (s *State) wake(key string) {
	if c := s.watchers[key]; c != nil {
		close(c)
		delete(s.watchers, key)
	}
}

// Events returns the newest events after seq that are kept in memory.
func (s *State) Events(after int64) []*queue.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, e := range s.events {
		if e.Seq > after {
			return append([]*queue.Event(nil), s.events[i:]...)
		}
	}
	return nil
}

// Wake wakes those who watch one key.
func (s *State) Wake(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake(key)
}

// Poke wakes those who watch for any change, as after something that is not
// stored has changed.
func (s *State) Poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake("")
}
