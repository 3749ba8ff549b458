package budget

import (
	"fmt"
	"slices"
	"time"

	"gpubroker/internal/money"
)

// pad is added to each period's reservation: a charge is rounded up once, and
// cutting it at a period's edge can move that by a nano-unit on either side.
const pad money.Amount = 2

// Lease is what money is reserved for: a machine's life from the moment it was
// asked for.
type Lease struct {
	Instance string
	Payer    Payer
	Market   string
	From     time.Time  // when it was asked for: no provider bills earlier
	Until    time.Time  // the lease's end plus the time that the provider takes to stop billing
	Last     time.Time  // likewise of an end that the provider keeps for good; zero when it keeps none
	Bound    money.Rate // no price above this is paid while we keep it
	Billing  money.Billing
}

// until is up to when a budget reserves: a strict one up to the provider's own end.
func (l Lease) until(b Budget) time.Time {
	if b.Guard == Strict && l.Last.After(l.Until) {
		return l.Last
	}
	return l.Until
}

// Change is what has to be committed, together.
type Change struct {
	Accounts []Account
	Holds    []Hold
	Entries  []Entry
}

// Book reads the rows that a change is computed from. Both return nil when
// there is none.
type Book interface {
	Account(k Key) *Account
	Hold(instance string, k Key) *Hold
}

// Extend raises the machine's holds so that they pay for the lease, in every
// matching budget and period. Nothing is lowered, and a lease that is already
// paid for gives an empty change. It fails with a [*RoomError] when a period
// lacks room.
func Extend(budgets []Budget, l Lease, book Book) (Change, error) {
	var c Change
	for _, b := range budgets {
		if !b.Matches(l.Payer) {
			continue
		}
		err := eachPeriod(b, l.From, l.until(b), func(k Key, from, to, end time.Time) error {
			whole, err := portion([]Stretch{{l.From, l.Bound}}, l.From, from, to, l.Billing)
			if err != nil {
				return err
			}
			hold := holdOf(book, l.Instance, k)
			need := whole + pad - hold.Reserved - hold.Accrued
			if need <= 0 {
				return nil
			}
			account := accountOf(book, k, end)
			if free := b.Cap - account.Committed(); b.Capped && need > free {
				return &RoomError{Budget: b, Key: k, Need: need, Free: free}
			}
			hold.Reserved += need
			account.Reserved += need
			c.add(account, hold, l.entry(k, Reserved, need, from, to, l.Bound))
			return nil
		})
		if err != nil {
			return Change{}, err
		}
	}
	return c, nil
}

// Room returns the least that is free for p among the capped budgets at now, and
// whether any cap applies.
func Room(budgets []Budget, p Payer, now time.Time, book Book) (money.Amount, bool, error) {
	least, capped := money.MaxAmount, false
	for _, b := range budgets {
		if !b.Capped || !b.Matches(p) {
			continue
		}
		start, end, err := b.Period.At(now)
		if err != nil {
			return 0, false, err
		}
		free := b.Cap - new(accountOf(book, Key{b.Name, start}, end)).Committed()
		least, capped = min(least, free), true
	}
	return least, capped, nil
}

// Stretch is a price from a moment on.
type Stretch struct {
	From  time.Time
	Price money.Rate
}

// Accrue moves what the machine has cost until now from reservation to cost, at
// the prices known. It never takes more than is reserved.
func Accrue(budgets []Budget, l Lease, start, now time.Time, prices []Stretch, book Book) (Change, error) {
	return accrue(budgets, l, start, now, prices, book, false)
}

// Overrun is Accrue for a machine that lives beyond what is reserved for it: what
// it has cost beyond is booked as an overrun, above any cap.
func Overrun(budgets []Budget, l Lease, start, now time.Time, prices []Stretch, book Book) (Change, error) {
	return accrue(budgets, l, start, now, prices, book, true)
}

func accrue(budgets []Budget, l Lease, start, now time.Time, prices []Stretch, book Book, beyond bool) (Change, error) {
	var c Change
	for _, b := range budgets {
		if !b.Matches(l.Payer) {
			continue
		}
		err := eachPeriod(b, start, now, func(k Key, from, to, end time.Time) error {
			cost, err := portion(prices, start, from, to, l.Billing)
			if err != nil {
				return err
			}
			hold := holdOf(book, l.Instance, k)
			rate := prices[len(prices)-1].Price
			account := accountOf(book, k, end)
			over := cost - hold.Reserved - hold.Accrued
			if more := min(cost, hold.Reserved+hold.Accrued) - hold.Accrued; more > 0 {
				hold.Reserved, hold.Accrued = hold.Reserved-more, hold.Accrued+more
				account.Reserved, account.Cost = account.Reserved-more, account.Cost+more
				c.Entries = append(c.Entries, l.entry(k, Accrued, more, from, to, rate))
			} else if over <= 0 || !beyond {
				return nil
			}
			if beyond && over > 0 {
				hold.Accrued += over
				account.Cost, account.Overrun = account.Cost+over, account.Overrun+over
				c.Entries = append(c.Entries, l.entry(k, Overspent, over, from, to, rate))
			}
			c.Accounts = append(c.Accounts, account)
			c.Holds = append(c.Holds, hold)
			return nil
		})
		if err != nil {
			return Change{}, err
		}
	}
	return c, nil
}

// Settle closes the machine's holds at what the provider has charged: its life
// from start to end at the given prices. What was reserved beyond is released;
// what was charged beyond is booked as an overrun. A machine that was never
// billed is settled with a zero start. open are the machine's holds.
func Settle(budgets []Budget, l Lease, start, end time.Time, prices []Stretch, open []Hold, book Book) (Change, money.Amount, error) {
	var c Change
	total := money.Amount(0)
	if !start.IsZero() {
		var err error
		if total, err = portion(prices, start, start, end, l.Billing); err != nil {
			return Change{}, 0, err
		}
	}
	settled := map[Key]bool{}
	for _, b := range budgets {
		if start.IsZero() || !b.Matches(l.Payer) {
			continue
		}
		err := eachPeriod(b, start, end, func(k Key, from, to, periodEnd time.Time) error {
			cost, err := portion(prices, start, from, to, l.Billing)
			if err != nil {
				return err
			}
			settled[k] = true
			c.settle(l, holdOf(book, l.Instance, k), accountOf(book, k, periodEnd), cost, from, to, prices)
			return nil
		})
		if err != nil {
			return Change{}, 0, err
		}
	}
	for _, hold := range open {
		if !settled[hold.Key] && !hold.Settled {
			c.settle(l, hold, accountOf(book, hold.Key, time.Time{}), 0, time.Time{}, time.Time{}, nil)
		}
	}
	return c, total, nil
}

// Late books a machine that was found after its request had been given up and
// settled: nothing is reserved for it any more, all of it is an overrun.
func Late(budgets []Budget, l Lease, start, end time.Time, prices []Stretch, book Book) (Change, money.Amount, error) {
	var c Change
	total, err := portion(prices, start, start, end, l.Billing)
	if err != nil {
		return Change{}, 0, err
	}
	for _, b := range budgets {
		if !b.Matches(l.Payer) {
			continue
		}
		err := eachPeriod(b, start, end, func(k Key, from, to, periodEnd time.Time) error {
			cost, err := portion(prices, start, from, to, l.Billing)
			if err != nil || cost == 0 {
				return err
			}
			account := accountOf(book, k, periodEnd)
			account.Cost, account.Overrun = account.Cost+cost, account.Overrun+cost
			c.Accounts = append(c.Accounts, account)
			c.Entries = append(c.Entries, l.entry(k, Overspent, cost, from, to, prices[len(prices)-1].Price))
			return nil
		})
		if err != nil {
			return Change{}, 0, err
		}
	}
	return c, total, nil
}

func (c *Change) settle(l Lease, hold Hold, account Account, cost money.Amount, from, to time.Time, prices []Stretch) {
	var rate money.Rate
	if len(prices) > 0 {
		rate = prices[len(prices)-1].Price
	}
	covered := min(cost, hold.Reserved+hold.Accrued)
	over := cost - covered
	difference := covered - hold.Accrued
	left := hold.Reserved - difference
	account.Cost += difference + over
	account.Overrun += over
	account.Reserved -= hold.Reserved
	if difference != 0 {
		c.Entries = append(c.Entries, l.entry(hold.Key, Settled, difference, from, to, rate))
	}
	if over != 0 {
		c.Entries = append(c.Entries, l.entry(hold.Key, Overspent, over, from, to, rate))
	}
	if left != 0 {
		c.Entries = append(c.Entries, l.entry(hold.Key, Released, -left, time.Time{}, time.Time{}, 0))
	}
	hold.Reserved, hold.Accrued, hold.Settled = 0, cost, true
	c.Accounts = append(c.Accounts, account)
	c.Holds = append(c.Holds, hold)
}

func (c *Change) add(a Account, h Hold, e Entry) {
	c.Accounts = append(c.Accounts, a)
	c.Holds = append(c.Holds, h)
	c.Entries = append(c.Entries, e)
}

func (l Lease) entry(k Key, kind Kind, amount money.Amount, from, to time.Time, rate money.Rate) Entry {
	return Entry{
		Key: k, Kind: kind, Instance: l.Instance, Project: l.Payer.Project, Job: l.Payer.Job,
		Amount: amount, From: from, To: to, Rate: rate, Market: l.Market,
	}
}

func holdOf(book Book, instance string, k Key) Hold {
	if h := book.Hold(instance, k); h != nil {
		return *h
	}
	return Hold{Instance: instance, Key: k}
}

func accountOf(book Book, k Key, end time.Time) Account {
	if a := book.Account(k); a != nil {
		return *a
	}
	return Account{Key: k, End: end}
}

// eachPeriod calls fn for each period of b that [from, to) touches, with the
// part of it inside.
func eachPeriod(b Budget, from, to time.Time, fn func(k Key, from, to, end time.Time) error) error {
	for at := from; at.Before(to); {
		start, end, err := b.Period.At(at)
		if err != nil {
			return fmt.Errorf("budget %s: %w", b.Name, err)
		}
		upto := to
		if !end.IsZero() && end.Before(to) {
			upto = end
		}
		if err := fn(Key{b.Name, start}, at, upto, end); err != nil {
			return err
		}
		at = upto
	}
	return nil
}

// portion returns what [from, to) of a life that began at start costs: the
// charge up to its end less the charge up to its beginning, so that the parts of
// a life sum to the whole.
func portion(prices []Stretch, start, from, to time.Time, b money.Billing) (money.Amount, error) {
	upto, err := chargeUntil(prices, start, to, b)
	if err != nil {
		return 0, err
	}
	before, err := chargeUntil(prices, start, from, b)
	if err != nil {
		return 0, err
	}
	return upto - before, nil
}

func chargeUntil(prices []Stretch, start, at time.Time, b money.Billing) (money.Amount, error) {
	if !at.After(start) {
		return 0, nil
	}
	if len(prices) == 0 {
		return 0, fmt.Errorf("budget: no price is known for a life from %s", start.Format(time.RFC3339))
	}
	var segments []money.Segment
	for i, p := range prices {
		from := p.From
		if i == 0 || from.Before(start) {
			from = start
		}
		to := at
		if i+1 < len(prices) && prices[i+1].From.Before(at) {
			to = prices[i+1].From
		}
		if to.After(from) {
			segments = append(segments, money.Segment{Duration: to.Sub(from), Rate: p.Price})
		}
	}
	return money.ChargeSegments(segments, b)
}

// Sum adds a budget's rows of the kinds that are cost.
func Sum(entries []Entry, budget string) money.Amount {
	var sum money.Amount
	for _, e := range entries {
		if e.Budget == budget && slices.Contains([]Kind{Accrued, Settled, Overspent, Adjusted}, e.Kind) {
			sum += e.Amount
		}
	}
	return sum
}
