package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"sync"
	"time"

	"gpubroker/internal/state"
	"gpubroker/providers"
	"gpubroker/queue"
	"gpubroker/scheduler/policy"
)

// What launches and losses show of a spot market is kept in the settings, in the
// transaction that records them: had when a machine was accepted, refused when the market
// had none, taken when one was, held up to the end of each. That a machine is held now is
// not written: it follows from the tables. Whatever is drawn follows from the rows and the
// moment alone, so that a broker which has restarted decides alike: time passes a row's
// belief in whole steps, and facts are drawn at whole multiples of [policy.FactsFor].

// learnedPrefix is where memories are kept, by market.
const learnedPrefix = "learned/"

// learnedFor is how long a market counts after it was last seen.
const learnedFor = 90 * 24 * time.Hour

// sight is what is seen of a spot market.
type sight uint8

const (
	gotOne  sight = iota // a machine was launched
	gotNone              // there was none to launch
	lostOne              // a machine was taken
	heldOne              // a machine was held up to now
)

// spots keeps the memories as they were read last, and what was drawn from them.
type spots struct {
	mu     sync.Mutex
	model  *policy.Model
	unseen *policy.Outlook
	read   map[string]*spot // by market
}

// spot is what is drawn from one row.
type spot struct {
	of      *queue.Setting
	held    bool
	memory  *policy.Memory // nil: nothing counts
	outlook *policy.Outlook
	until   time.Time // the outlook is the same before that
}

func newSpots() *spots {
	m := policy.ShippedModel()
	return &spots{model: m, unseen: m.Memory(time.Time{}).Outlook(time.Time{}), read: map[string]*spot{}}
}

// recall reads a row; nil is that of a market which counts as never seen.
func (s *spots) recall(row *queue.Setting) (*policy.Memory, error) {
	if row == nil || string(row.Value) == dropped {
		return nil, nil
	}
	m, err := s.model.Recall(row.Value)
	if err != nil {
		return nil, fmt.Errorf("what was learned, %s, is begun anew: %w", row.Key, err)
	}
	return m, nil
}

// dropped is the value of a row that is of no use any more.
const dropped = "null"

// bring lets time pass up to a moment, throughout which a machine was held or nothing
// is known.
func bring(m *policy.Memory, to time.Time, held bool) {
	pass := m.Belief.Pass
	if held {
		pass = m.Hold
	}
	if at := to.Truncate(policy.FactsFor); at.After(m.Drawn) {
		pass(at)
		m.Facts, m.Drawn = m.Belief.Facts(), at
	}
	pass(to)
}

// draw is what is known of all markets that were seen.
func (s *spots) draw(view *state.Tables, now time.Time, complain func(string, error)) map[string]*policy.Outlook {
	holding := marketsInHand(view.Instances.All())
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]*policy.Outlook, len(s.read))
	for row := range view.Settings.Prefix(learnedPrefix) {
		name := row.Key[len(learnedPrefix):]
		x := s.read[name]
		if x == nil || x.of != row || x.held != holding[name] {
			x = &spot{of: row, held: holding[name]}
			var err error
			if x.memory, err = s.recall(row); err != nil {
				complain("learned", err)
			}
			s.read[name] = x
		}
		if o := x.at(now); o != nil {
			out[name] = o
		}
	}
	return out
}

// at is the outlook at a moment, nil if nothing counts.
func (x *spot) at(now time.Time) *policy.Outlook {
	switch {
	case x.memory == nil, !x.held && now.Sub(x.memory.Belief.At()) > learnedFor:
		return nil
	case x.outlook != nil && now.Before(x.until):
		return x.outlook
	}
	m := x.memory
	if !x.held { // what passes in two parts is not quite what passes in one
		m = &policy.Memory{Belief: m.Belief.Clone(), Facts: m.Facts, Drawn: m.Drawn}
	}
	bring(m, now, x.held)
	x.outlook, x.until = m.Belief.Outlook(m.Facts), m.Belief.At().Add(policy.Grid)
	if next := now.Truncate(policy.FactsFor).Add(policy.FactsFor); next.Before(x.until) {
		x.until = next
	}
	return x.outlook
}

// holds reports whether a spot machine is in hand: it was launched, and is neither gone
// nor about to be taken.
func holds(i *queue.Instance) bool {
	return providers.Kind(i.Kind) == providers.Spot && !i.Launched.IsZero() && lives(i) && !taken(i.Gone)
}

// marketsInHand are the spot markets, by name, in which machines are held.
func marketsInHand(machines iter.Seq[*queue.Instance]) map[string]bool {
	markets := map[providers.Market]bool{}
	for i := range machines {
		if holds(i) {
			markets[marketOf(i)] = true
		}
	}
	names := make(map[string]bool, len(markets))
	for m := range markets {
		names[m.String()] = true
	}
	return names
}

// see keeps what was seen at a moment of a machine's market.
func (b *Broker) see(tx *state.Tx, i *queue.Instance, at time.Time, what sight) {
	if providers.Kind(i.Kind) != providers.Spot {
		return
	}
	key := learnedPrefix + marketOf(i).String()
	row := tx.Setting(key)
	m, err := b.spots.recall(row)
	if err != nil {
		b.complain("learned", err)
	}
	if m == nil {
		if what == heldOne {
			return // its launch is not known
		}
		m = b.spots.model.Memory(at)
	}
	same := at.Before(m.Belief.At().Add(policy.Grid)) // as the last look
	bring(m, at, what == heldOne || what == lostOne || !same && b.inHand(tx, i))
	switch {
	case what == gotOne && same && m.Belief.Up() < 0.001:
		// Of one moment the refusal counts: what was had beside it is not enough for all.
	case what == gotOne:
		m.See(at, true)
	case what != heldOne:
		m.See(at, false)
	}
	value, err := json.Marshal(m)
	if err != nil {
		b.complain("learned", err)
		return
	}
	if row == nil || !bytes.Equal(value, row.Value) {
		tx.PutSetting(&queue.Setting{Key: key, Value: value})
	}
}

// inHand reports whether another machine of the same market is held.
func (b *Broker) inHand(tx *state.Tx, i *queue.Instance) bool {
	m := marketOf(i)
	for o := range tx.Instances() {
		if o.ID != i.ID && holds(o) && marketOf(o) == m {
			return true
		}
	}
	return false
}

// dropSpots drops what was learned of markets that nobody has seen for long.
func (b *Broker) dropSpots(ctx context.Context, view *state.Tables, now time.Time) error {
	var old []string
	for row := range view.Settings.Prefix(learnedPrefix) {
		if m, err := b.spots.recall(row); err == nil && m != nil && now.Sub(m.Belief.At()) > learnedFor {
			old = append(old, row.Key)
		}
	}
	if len(old) == 0 {
		return nil
	}
	held := marketsInHand(view.Instances.All())
	return b.state.Do(ctx, func(tx *state.Tx) error {
		for _, key := range old {
			if !held[key[len(learnedPrefix):]] {
				tx.PutSetting(&queue.Setting{Key: key, Value: []byte(dropped)})
			}
		}
		return nil
	})
}
