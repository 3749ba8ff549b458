package control

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"gpubroker/internal/rates"
	"gpubroker/internal/state"
	"gpubroker/queue"
)

// ratesPrefix is where the shelves of learned rates are kept, by the first three
// digits of the classes on them: 4,096 of them hold 4 classes each, and a class that
// nobody has run for longest makes room. A shelf is small, since all of it is written
// for one observation.
const ratesPrefix = "rates/"

func shelfKey(class string) string { return ratesPrefix + class[:3] }

// shelves keeps the shelves as they were read last. A row of the tables is never
// changed, so that one which is still the same need not be read again, and groups of
// one class see the same one.
type shelves struct {
	mu   sync.Mutex
	read map[string]shelf
}

type shelf struct {
	of   *queue.Setting
	kept rates.Shelf
}

// of reads a shelf; one that is not understood is empty, with the error.
func (s *shelves) of(row *queue.Setting) (rates.Shelf, error) {
	if row == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.read[row.Key]; ok && at.of == row {
		return at.kept, nil
	}
	at := shelf{of: row}
	err := json.Unmarshal(row.Value, &at.kept)
	if err != nil {
		at.kept, err = nil, fmt.Errorf("learned rates %s: %w", row.Key, err)
	}
	if s.read == nil {
		s.read = map[string]shelf{}
	}
	s.read[row.Key] = at
	return at.kept, err
}

// measured is what was learned of a class, or nil. view may be nil: nothing is known
// then.
func (b *Broker) measured(view *state.Tables, class string) *rates.Class {
	if view == nil {
		return nil
	}
	kept, err := b.shelves.of(view.Settings.Get(shelfKey(class)))
	if err != nil {
		b.complain("rates", err)
	}
	return kept.Find(class)
}

// learn takes what an attempt did into the rates of its job's class, in the
// transaction that ends it: no crash makes it count twice, or not at all. share is
// what its agent last said of the task's progress, and busy how long the command had
// run by then. A task that failed by itself teaches nothing.
func (b *Broker) learn(tx *state.Tx, a *queue.Attempt, p Progress, spec *parsed) {
	base := 0.0
	if a.Resume > 0 {
		c := tx.Checkpoint(a.TaskID, a.Resume)
		if c == nil || c.Progress <= 0 {
			return // nobody knows where it began
		}
		base = c.Progress
	}
	share, busy := 0.0, time.Duration(0)
	switch {
	case a.Outcome == queue.Succeeded:
		share, busy = 1, a.Busy
	case a.Outcome == queue.Failed && a.Reason.Code != "max_duration":
		return
	case p.Share != nil:
		share, busy = *p.Share, p.Busy
	default:
		if t := tx.Task(a.TaskID); t != nil && t.Committed > 0 {
			if c := tx.Checkpoint(a.TaskID, t.Committed); c != nil && c.Attempt == a.ID {
				share, busy = c.Progress, a.Kept
			}
		}
	}
	i := tx.Instance(a.Instance)
	if i == nil || share <= base {
		return
	}
	a.Done = min(share-base, 1)
	key := shelfKey(spec.class)
	kept, err := b.shelves.of(tx.Setting(key))
	if err != nil {
		b.complain("rates", err)
	}
	m := rates.Machine{Type: i.Provider + "/" + i.Type, GPU: i.GPU, GPUs: i.GPUs, VCPU: i.VCPU}
	next, ok := kept.Learn(spec.class, rates.Observation{Machine: m, Busy: busy, Done: a.Done, At: tx.Now})
	if !ok {
		return
	}
	value, err := json.Marshal(next)
	if err != nil {
		b.complain("rates", err)
		return
	}
	tx.PutSetting(&queue.Setting{Key: key, Value: value})
}
