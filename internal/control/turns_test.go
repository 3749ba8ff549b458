package control

import (
	"testing"
	"time"

	"gpubroker/internal/money"
	"gpubroker/queue"
)

// A settled machine counts where its life lies in the window, and its cost is
// neither lost nor doubled by being spread.
func TestMoneyCountsWhereItWasSpent(t *testing.T) {
	end := time.Date(2026, 11, 5, 22, 30, 0, 0, time.UTC)
	var s shares
	s.window = 10 * time.Hour
	s.add(&queue.Instance{Project: "p", Launched: end.Add(-40 * time.Hour), Ended: end, Settled: end.Add(time.Hour), Cost: 40*money.Unit + 7})
	sum := money.Amount(0)
	for _, c := range s.spent["p"] {
		sum += c
	}
	if sum != 40*money.Unit+7 {
		t.Errorf("its hours sum to %s", sum)
	}
	for _, x := range []struct {
		at   time.Time
		want float64
	}{{end, 10.5}, {end.Add(5 * time.Hour), 5.5}, {end.Add(9*time.Hour + 59*time.Minute), 0.5}, {end.Add(11 * time.Hour), 0}} {
		now := shares{window: s.window, spent: s.spent}
		got := now.settled(x.at)["p"].Float()
		if got < x.want-0.01 || got > x.want+0.01 {
			t.Errorf("at %s it counts for %.2f, wanted %.2f", x.at, got, x.want)
		}
	}
}
