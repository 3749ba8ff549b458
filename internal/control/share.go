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

// shareWindow is how far back a project's money counts against its turn.
const shareWindow = 24 * time.Hour

// shares remembers, by project and hour, what settled machines have cost lately.
// What lives counts by its holds, see [shares.draw].
type shares struct {
	mu    sync.Mutex
	spent map[string]map[time.Time]money.Amount
}

func (s *shares) add(project string, at time.Time, cost money.Amount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spent == nil {
		s.spent = map[string]map[time.Time]money.Amount{}
	}
	if s.spent[project] == nil {
		s.spent[project] = map[time.Time]money.Amount{}
	}
	s.spent[project][at.Truncate(time.Hour)] += cost
}

// load reads what was settled before the broker's start.
func (s *shares) load(ctx context.Context, store queue.Store, now time.Time) error {
	for after := ""; ; {
		page, err := store.Instances(ctx, queue.InstanceQuery{Since: now.Add(-shareWindow), Page: queue.Page{After: after, Limit: 1000}})
		if err != nil {
			return fmt.Errorf("reading what projects have spent lately: %w", err)
		}
		for _, i := range page {
			after = i.ID
			if !i.Settled.IsZero() {
				s.add(i.Project, i.Settled, i.Cost)
			}
		}
		if len(page) < 1000 {
			return nil
		}
	}
}

// draw sums each project's money in the window: what was settled in it, and what
// its living machines have cost and hold.
func (s *shares) draw(view *state.Tables, now time.Time) map[string]money.Amount {
	out := map[string]money.Amount{}
	for h := range view.Holds.All() {
		if h.Budget != budget.Ledger || h.Settled {
			continue
		}
		if i := view.Instance(h.Instance); i != nil {
			out[i.Project] += h.Reserved + h.Accrued
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for project, hours := range s.spent {
		for hour, cost := range hours {
			if now.Sub(hour) > shareWindow+time.Hour {
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
