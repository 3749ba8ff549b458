package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"gpubroker/internal/quantity"
	"gpubroker/internal/state"
	"gpubroker/providers"
	"gpubroker/queue"
)

// The safety net of deadlines leaves on-demand machines more than their usual time to
// run: the 99th percentile of how much longer they took, of the last of each account,
// kept in the store. A machine that never called in says nothing; its boot deadline bounds
// what the others say.

const (
	lateness = "late/" // settings: by account
	lateKept = 200     // machines of an account that count
)

// delays is how much longer than usual the last on-demand machines of an account took from
// the wish to the first call, oldest first.
type delays struct {
	By []quantity.Duration `json:"by"`
}

// booted takes in that a machine has called in for the first time.
func (b *Broker) booted(tx *state.Tx, i *queue.Instance) {
	a := b.accounts[i.Provider]
	if a == nil || providers.Kind(i.Kind) != providers.OnDemand {
		return
	}
	var l delays
	if s := tx.Setting(lateness + i.Provider); s != nil {
		if err := json.Unmarshal(s.Value, &l); err != nil {
			b.complain("late", fmt.Errorf("%s: %w", s.Key, err))
		}
	}
	by := max(0, i.Ready.Sub(i.Requested)-a.Capabilities().BootTime).Round(time.Second)
	l.By = append(l.By, quantity.Duration(by))
	l.By = l.By[max(0, len(l.By)-lateKept):]
	value, err := json.Marshal(l)
	if err != nil {
		b.complain("late", err)
		return
	}
	tx.PutSetting(&queue.Setting{Key: lateness + i.Provider, Value: value})
}

// margin is what the safety net leaves, by the account that is late the most.
func margin(view *state.Tables) (most time.Duration) {
	for s := range view.Settings.Prefix(lateness) {
		var l delays
		if json.Unmarshal(s.Value, &l) != nil || len(l.By) == 0 {
			continue
		}
		slices.Sort(l.By)
		most = max(most, l.By[(len(l.By)*99+99)/100-1].Std())
	}
	return most
}
