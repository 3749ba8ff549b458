package policy

import "time"

// Cooldown says how long a market is left alone after a launch was refused
// there or a machine was lost: Base, doubled by each failure up to Max. One
// failure is forgiven for each Decay that passes after the last cool-down ended.
type Cooldown struct {
	Base, Max, Decay time.Duration
}

// DefaultCooldown follows Karpenter's 3 minutes for an offer without capacity.
var DefaultCooldown = Cooldown{Base: 3 * time.Minute, Max: 10 * time.Minute, Decay: 30 * time.Minute}

// Cooled is the state of one market, to be kept across restarts. The zero value
// is a market without failures.
type Cooled struct {
	Failures int       `json:"failures"`
	Until    time.Time `json:"until,omitzero"`
}

// Fail returns the state after a failure at now. A cool-down is never shortened.
func (c Cooldown) Fail(was Cooled, now time.Time) Cooled {
	n := c.Level(was, now) + 1
	wait := c.Base
	for range n - 1 {
		if wait >= c.Max {
			break
		}
		wait *= 2
	}
	until := now.Add(min(wait, c.Max))
	if was.Until.After(until) {
		until = was.Until
	}
	return Cooled{Failures: n, Until: until}
}

// Level is how many failures still count at now.
func (c Cooldown) Level(was Cooled, now time.Time) int {
	n := was.Failures
	if c.Decay > 0 {
		if idle := now.Sub(was.Until); idle > 0 {
			n -= int(min(idle/c.Decay, time.Duration(n)))
		}
	}
	return max(0, n)
}
