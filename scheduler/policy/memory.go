package policy

import (
	"encoding/json"
	"fmt"
	"time"
)

// FactsFor is how long the facts of a market are kept as they were drawn, so that
// tables serve for a while.
const FactsFor = 6 * time.Hour

// Memory is what is kept about one spot market: what is believed of it, and the
// facts that were last drawn from that. The zero Memory is of no use; see
// [Model.Memory].
type Memory struct {
	Belief *Belief
	Facts  Facts
	Drawn  time.Time
}

// Memory is that of a market of which nothing was seen.
func (m *Model) Memory(at time.Time) *Memory {
	b := m.Unseen(at)
	return &Memory{Belief: b, Facts: b.Facts(), Drawn: at}
}

// See takes in that a machine could be had at a moment, or not.
func (m *Memory) See(at time.Time, up bool) {
	b := m.Belief
	b.Pass(at)
	if x := b.Up(); up && x < 1e-9 || !up && x > 1-1e-9 {
		// It has changed since the last step of the grid: a run begins, now.
		now := b.at
		if at.After(now) {
			now = at
		}
		b.Pass(b.at.Add(b.model.grid))
		b.at = now
	}
	b.See(up)
}

// Hold takes in that a machine was held up to a moment.
func (m *Memory) Hold(to time.Time) { m.Belief.Hold(to) }

// Outlook is what a decision may know of the market now; facts that are old are
// drawn anew.
func (m *Memory) Outlook(now time.Time) *Outlook {
	m.Belief.Pass(now)
	if now.Sub(m.Drawn) >= FactsFor {
		m.Facts, m.Drawn = m.Belief.Facts(), now
	}
	return m.Belief.Outlook(m.Facts)
}

type keptMemory struct {
	Belief *Belief   `json:"belief"`
	Facts  Facts     `json:"facts"`
	Drawn  time.Time `json:"drawn"`
}

// MarshalJSON keeps a memory.
func (m *Memory) MarshalJSON() ([]byte, error) {
	return json.Marshal(keptMemory{m.Belief, m.Facts, m.Drawn})
}

// Recall reads a memory that was kept. One of another model is an error.
func (m *Model) Recall(data []byte) (*Memory, error) {
	var k struct {
		Belief json.RawMessage `json:"belief"`
		Facts  Facts           `json:"facts"`
		Drawn  time.Time       `json:"drawn"`
	}
	if err := json.Unmarshal(data, &k); err != nil {
		return nil, fmt.Errorf("memory of a market: %w", err)
	}
	b, err := m.Restore(k.Belief)
	if err != nil {
		return nil, err
	}
	if err := k.Facts.check(); err != nil {
		return nil, fmt.Errorf("memory of a market: %w", err)
	}
	return &Memory{b, k.Facts, k.Drawn}, nil
}
