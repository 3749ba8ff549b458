package backtest

import (
	"errors"
	"math"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
)

// book keeps the teams' money by the broker's own rules, [budget.Extend] and
// [budget.Settle]. A reservation of an amount is a lease of one hour at that
// amount an hour.
type book struct {
	budgets  map[string][]budget.Budget // of each team, none or one
	accounts map[budget.Key]budget.Account
	holds    map[string]budget.Hold // by instance: the jobs
}

func newBook(teams []Team, caps map[string]money.Amount) *book {
	b := &book{budgets: map[string][]budget.Budget{}, accounts: map[budget.Key]budget.Account{}, holds: map[string]budget.Hold{}}
	for _, t := range teams {
		if limit, ok := caps[t.Name]; ok {
			b.budgets[t.Name] = []budget.Budget{{
				Name: t.Name, Scope: budget.Team, Match: t.Name, Capped: true, Cap: limit, Period: budget.Rule{Length: budget.Total},
			}}
		}
	}
	return b
}

// Account and Hold make it a [budget.Book].
func (b *book) Account(k budget.Key) *budget.Account {
	if a, ok := b.accounts[k]; ok {
		return &a
	}
	return nil
}

func (b *book) Hold(instance string, _ budget.Key) *budget.Hold {
	if h, ok := b.holds[instance]; ok {
		return &h
	}
	return nil
}

func (b *book) apply(c budget.Change) {
	for _, a := range c.Accounts {
		b.accounts[a.Key] = a
	}
	for _, h := range c.Holds {
		if h.Settled {
			delete(b.holds, h.Instance)
		} else {
			b.holds[h.Instance] = h
		}
	}
}

// nano is an amount of dollars, rounded up.
func nano(usd float64) money.Amount { return money.Amount(math.Ceil(usd * float64(money.Unit))) }

func (b *book) lease(team, job string, usd float64) budget.Lease {
	return budget.Lease{
		Instance: job, Payer: budget.Payer{Team: team},
		From: epoch, Until: epoch.Add(time.Hour), Bound: money.Rate(nano(usd)),
	}
}

// reserve raises what is reserved for a job to an amount. A cap without room for
// it is a [*budget.RoomError].
func (b *book) reserve(team, job string, usd float64) error {
	c, err := budget.Extend(b.budgets[team], b.lease(team, job, usd), b)
	if err == nil {
		b.apply(c)
	}
	return err
}

// pay books what a job has cost since the last time and ends its reservation.
func (b *book) pay(team, job string, usd float64) error {
	l := b.lease(team, job, usd)
	var open []budget.Hold
	if h, ok := b.holds[job]; ok {
		open = append(open, h)
	}
	c, _, err := budget.Settle(b.budgets[team], l, l.From, l.Until, []budget.Stretch{{From: l.From, Price: l.Bound}}, open, b)
	if err == nil {
		b.apply(c)
	}
	return err
}

// affords says whether a job could reserve an amount, by reserving nothing.
func (b *book) affords(team, job string, usd float64) bool {
	_, err := budget.Extend(b.budgets[team], b.lease(team, job, usd), b)
	return err == nil
}

// committed is what a team has spent, and what it has spent or reserved, in $.
func (b *book) committed(team string) (spent, all float64) {
	a := b.accounts[budget.Key{Budget: team}]
	return a.Cost.Float(), a.Committed().Float()
}

// lacks is how much room a failed reservation would have needed and found.
func lacks(err error) (need, free money.Amount, ok bool) {
	if e, is := errors.AsType[*budget.RoomError](err); is {
		return e.Need, e.Free, true
	}
	return 0, 0, false
}
