package invariant

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/state"
	"gpubroker/queue"
)

// Machine is a machine as its cloud truly has it.
type Machine struct {
	ID       string
	Request  string // our id of it
	Live     bool   // it may still cost money
	Launched time.Time
	Cost     money.Amount // so far
}

// World compares the rows with the machines that there truly are. lag is how
// long a machine may be unknown to us: what a launch whose answer was lost takes
// to be found.
func (c *Checker) World(now time.Time, lag time.Duration, machines iter.Seq[Machine]) error {
	var errs []error
	cost := map[string]money.Amount{}
	for m := range machines {
		i := c.instances[m.Request]
		if i == nil {
			errs = append(errs, breach(noLeak, "machine %s of request %s has no record", m.ID, m.Request))
			continue
		}
		cost[m.Request] += m.Cost
		if m.Live && i.State == queue.InstanceGone && now.Sub(m.Launched) > lag {
			errs = append(errs, breach(noLeak, "machine %s lives, and its record %s is gone: %v", m.ID, i.ID, i.Gone))
		}
	}
	for id, spent := range cost {
		h := c.holds[id][budget.Key{Budget: budget.Ledger}]
		if h == nil {
			errs = append(errs, breach(noBrokenCap, "machine of %s has cost %v without a reservation", id, spent))
			continue
		}
		if held := h.Reserved + h.Accrued; held < spent && !c.Beyond {
			errs = append(errs, breach(noBrokenCap, "machine of %s has cost %v, reserved and booked are %v", id, spent, held))
		}
	}
	return errors.Join(errs...)
}

// Settled makes sure that nothing is open and that the ledger is the bill.
func (c *Checker) Settled(invoice money.Amount) error {
	var errs []error
	for id, i := range c.instances {
		if i.Settled.IsZero() {
			errs = append(errs, breach(noLeak, "instance %s is %s", id, i.State))
		}
	}
	var booked money.Amount
	for k, a := range c.accounts {
		if a.Reserved != 0 {
			errs = append(errs, breach(ledger, "account %v still reserves %v", k, a.Reserved))
		}
		if k.Budget == budget.Ledger {
			booked += a.Cost
		}
	}
	if booked != invoice {
		errs = append(errs, breach(ledger, "%v is booked, the invoice is %v", booked, invoice))
	}
	return errors.Join(errs...)
}

// Tables makes sure that two pictures of the tables are equal: the broker's
// memory, and what its store would give after a restart.
func Tables(memory, stored *state.Tables) error {
	return errors.Join(
		same("job", memory.Jobs.All(), stored.Jobs.All()),
		same("task", memory.Tasks.All(), stored.Tasks.All()),
		same("attempt", memory.Attempts.All(), stored.Attempts.All()),
		same("attempt that runs", memory.On.All(), stored.On.All()),
		same("checkpoint", memory.Checkpoints.All(), stored.Checkpoints.All()),
		same("instance", memory.Instances.All(), stored.Instances.All()),
		same("account", memory.Accounts.All(), stored.Accounts.All()),
		same("hold", memory.Holds.All(), stored.Holds.All()),
		same("cooldown", memory.Cooldowns.All(), stored.Cooldowns.All()),
		same("setting", memory.Settings.All(), stored.Settings.All()),
		same("token", memory.Tokens.All(), stored.Tokens.All()),
	)
}

func same[R any](what string, memory, stored iter.Seq[*R]) error {
	next, stop := iter.Pull(stored)
	defer stop()
	for m := range memory {
		s, ok := next()
		if !ok {
			return fmt.Errorf("memory is the store: %s %s is in memory alone", what, text(m))
		}
		if a, b := text(m), text(s); !bytes.Equal(a, b) {
			return fmt.Errorf("memory is the store: %s\n\tin memory %s\n\tstored    %s", what, a, b)
		}
	}
	if s, ok := next(); ok {
		return fmt.Errorf("memory is the store: %s %s is in the store alone", what, text(s))
	}
	return nil
}

func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte(err.Error())
	}
	return b
}
