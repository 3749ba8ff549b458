package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/state"
	"gpubroker/queue"
)

// shareWindow is how far back a project's money counts against its turn, where
// nobody says.
const shareWindow = 24 * time.Hour

// shares remembers, by project and hour, what settled machines have cost lately:
// each machine's cost is spread evenly over its life. What lives counts by its
// holds, see [shares.draw].
type shares struct {
	window time.Duration // 0 means shareWindow
	mu     sync.Mutex
	spent  map[string]map[time.Time]money.Amount
}

func (s *shares) length() time.Duration {
	if s.window > 0 {
		return s.window
	}
	return shareWindow
}

// add counts a settled machine, by what of its life lies in each hour.
func (s *shares) add(i *queue.Instance) {
	from, to := i.Launched, i.Ended
	if to.IsZero() {
		to = i.Settled
	}
	if from.IsZero() || !to.After(from) {
		from = to.Add(-1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spent == nil {
		s.spent = map[string]map[time.Time]money.Amount{}
	}
	hours := s.spent[i.Project]
	if hours == nil {
		hours = map[time.Time]money.Amount{}
		s.spent[i.Project] = hours
	}
	left, life := i.Cost, to.Sub(from)
	for hour := from.Truncate(time.Hour); hour.Before(to); hour = hour.Add(time.Hour) {
		end := hour.Add(time.Hour)
		if !end.Before(to) {
			hours[hour] += left // what rounding has left goes to the last
			break
		}
		part := share(i.Cost, end.Sub(maxTime(hour, from)), life)
		hours[hour] += part
		left -= part
	}
}

// share is the part of an amount that falls to a part of a time.
func share(a money.Amount, part, whole time.Duration) money.Amount {
	if part >= whole {
		return a
	}
	return money.Amount(float64(a) * (float64(part) / float64(whole)))
}

// load reads what was settled before the broker's start.
func (s *shares) load(ctx context.Context, store queue.Store, now time.Time) error {
	for after := ""; ; {
		page, err := store.Instances(ctx, queue.InstanceQuery{Since: now.Add(-s.length()), Page: queue.Page{After: after, Limit: 1000}})
		if err != nil {
			return fmt.Errorf("reading what projects have spent lately: %w", err)
		}
		for _, i := range page {
			after = i.ID
			if !i.Settled.IsZero() {
				s.add(i)
			}
		}
		if len(page) < 1000 {
			return nil
		}
	}
}

// draw sums each project's money in the window: what settled machines cost in it,
// and what living ones have cost in it and hold. An hour counts while any of it is
// in the window.
func (s *shares) draw(view *state.Tables, now time.Time) map[string]money.Amount {
	out, start := s.settled(now), now.Add(-s.length())
	for h := range view.Holds.All() {
		if h.Budget != budget.Ledger || h.Settled {
			continue
		}
		i := view.Instance(h.Instance)
		if i == nil {
			continue
		}
		accrued := h.Accrued
		if life := now.Sub(i.Launched); !i.Launched.IsZero() && i.Launched.Before(start) {
			accrued = share(accrued, s.length(), life)
		}
		out[i.Project] += h.Reserved + accrued
	}
	return out
}

// settled sums what settled machines cost in the window.
func (s *shares) settled(now time.Time) map[string]money.Amount {
	out, start := map[string]money.Amount{}, now.Add(-s.length())
	s.mu.Lock()
	defer s.mu.Unlock()
	for project, hours := range s.spent {
		for hour, cost := range hours {
			if !hour.Add(time.Hour).After(start) {
				delete(hours, hour)
				continue
			}
			out[project] += cost
		}
		if len(hours) == 0 {
			delete(s.spent, project)
		}
	}
	return out
}
