package state

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"gpubroker/queue"
)

// Clock is the broker's time in UTC. It never goes back: when the wall clock is
// set back it goes on by the monotonic clock, when it is set forward, or the
// machine was suspended, it follows. Leases and budgets are counted by it, so no
// change of the wall clock makes a lease longer than what is reserved for it.
type Clock struct {
	wall func() time.Time

	mu   sync.Mutex
	last time.Time // what was answered, without a monotonic reading
	read time.Time // the wall clock's reading then, with it
}

// longestBack is by how much a stored moment may be ahead of the wall clock at a
// start and still be believed: more is a clock that was wrong then.
const longestBack = 24 * time.Hour

// NewClock begins at the wall clock, or at what was the newest moment known
// before, when that is later by less than a day.
func NewClock(newest time.Time, wall func() time.Time, log *slog.Logger) *Clock {
	read := wall()
	c := &Clock{wall: wall, last: read.Round(0).UTC(), read: read}
	switch ahead := newest.Sub(c.last); {
	case ahead <= 0:
	case ahead < longestBack:
		log.Warn("the clock has been set back since the broker last ran; its time goes on from then", "by", ahead)
		c.last = newest.Round(0).UTC()
	default:
		log.Error("the store holds moments of the far future; the present clock is believed", "newest", newest, "now", c.last)
	}
	return c
}

// Now returns the broker's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	read := c.wall()
	now := c.last.Add(max(0, read.Sub(c.read))) // by the monotonic clock
	if w := read.Round(0).UTC(); w.After(now) {
		now = w
	}
	c.last, c.read = now, read
	return now
}

// newestMoment is the time of the newest event in the store.
func newestMoment(ctx context.Context, store queue.Store) (time.Time, error) {
	events, err := store.Events(ctx, queue.EventQuery{Last: true, Limit: 1})
	if err != nil || len(events) == 0 {
		return time.Time{}, err
	}
	return events[len(events)-1].At, nil
}
