package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/money"
	"gpubroker/internal/objects"
	"gpubroker/internal/workdir"
	"gpubroker/queue"
)

// CostQuery selects what costs are summed over.
type CostQuery struct {
	Project string
	Job     string
	Since   time.Time
	Until   time.Time
	May     func(project string) bool
}

// Costs are sums over machines and attempts.
type Costs struct {
	Spent    money.Amount `json:"spent"`     // settled, and of machines that are not an estimate by time
	Reserved money.Amount `json:"reserved"`  // may still be spent by machines that live
	OnDemand money.Amount `json:"on_demand"` // the same paid time at the on-demand price
	// Unpriced is the paid time for which no on-demand price is known: it is not in
	// OnDemand.
	Unpriced time.Duration `json:"unpriced"`
	Saved    *float64      `json:"saved_percent"` // against OnDemand; null when that is not known
	Machines int           `json:"machines"`
	Spot     time.Duration `json:"spot"`   // paid time on spot machines
	Steady   time.Duration `json:"steady"` // paid time on on-demand machines
	Busy     time.Duration `json:"busy"`   // commands ran
	Lost     time.Duration `json:"lost"`   // the part of Busy that no checkpoint and no result holds
	Attempts int           `json:"attempts"`
	Projects []ProjectCost `json:"projects"`
}

// ProjectCost is one project's share.
type ProjectCost struct {
	Project  string       `json:"project"`
	Spent    money.Amount `json:"spent"`
	Reserved money.Amount `json:"reserved"`
	Machines int          `json:"machines"`
}

// Costs sums what was spent. Jobs that share machines of a project share their
// cost: with Job set only machines that the job alone paid for are summed.
func (b *Broker) Costs(ctx context.Context, q CostQuery) (Costs, error) {
	var c Costs
	projects := map[string]*ProjectCost{}
	var order []string
	for after := ""; ; {
		page, err := b.state.Store().Instances(ctx, queue.InstanceQuery{Page: queue.Page{After: after, Limit: 1000}, Project: q.Project, Since: q.Since})
		if err != nil {
			return c, err
		}
		for _, i := range page {
			after = i.ID
			if q.May != nil && !q.May(i.Project) || q.Job != "" && i.Payer != q.Job || !q.Until.IsZero() && i.Requested.After(q.Until) {
				continue
			}
			p := projects[i.Project]
			if p == nil {
				p = &ProjectCost{Project: i.Project}
				projects[i.Project] = p
				order = append(order, i.Project)
			}
			if err := b.addMachine(ctx, &c, p, i); err != nil {
				return c, err
			}
		}
		if len(page) < 1000 {
			break
		}
	}
	for _, name := range order {
		c.Projects = append(c.Projects, *projects[name])
	}
	if c.OnDemand > 0 && c.Unpriced == 0 {
		c.Saved = new(100 * (1 - c.Spent.Float()/c.OnDemand.Float()))
	}
	return c, b.addAttempts(ctx, &c, q)
}

// soFar is what a machine that is not settled has cost by now, and what is
// reserved beyond that: what was accrued, or where that lags the time since its
// launch at the price of the decision.
func (b *Broker) soFar(ctx context.Context, i *queue.Instance) (spent, reserved money.Amount, err error) {
	holds, err := b.state.Store().Holds(ctx, i.ID)
	if err != nil {
		return 0, 0, err
	}
	for _, h := range holds {
		if h.Budget == budget.Ledger {
			spent, reserved = spent+h.Accrued, reserved+h.Reserved
		}
	}
	if i.Launched.IsZero() {
		return spent, reserved, nil
	}
	end := i.Ended
	if end.IsZero() {
		end = b.now()
	}
	estimate, err := money.Charge(end.Sub(i.Launched), i.Price, i.Billing)
	if err != nil {
		return 0, 0, fmt.Errorf("cost of %s so far: %w", i.ID, err)
	}
	if more := min(estimate-spent, reserved); more > 0 {
		spent, reserved = spent+more, reserved-more
	}
	return spent, reserved, nil
}

func (b *Broker) addMachine(ctx context.Context, c *Costs, p *ProjectCost, i *queue.Instance) error {
	spent, reserved := i.Cost, money.Amount(0)
	if i.Settled.IsZero() {
		var err error
		if spent, reserved, err = b.soFar(ctx, i); err != nil {
			return err
		}
	}
	c.Spent, c.Reserved = c.Spent+spent, c.Reserved+reserved
	p.Spent, p.Reserved = p.Spent+spent, p.Reserved+reserved
	if i.Launched.IsZero() {
		return nil
	}
	c.Machines++
	p.Machines++
	end := i.Ended
	if end.IsZero() {
		end = b.now()
	}
	paid := i.Billing.Paid(end.Sub(i.Launched))
	if i.Kind == "spot" {
		c.Spot += paid
	} else {
		c.Steady += paid
	}
	rate := i.OnDemand
	if i.Kind != "spot" {
		rate = i.Price
	}
	if rate == 0 {
		c.Unpriced += paid
		return nil
	}
	same, err := money.Charge(end.Sub(i.Launched), rate, i.Billing)
	if err != nil {
		return fmt.Errorf("on-demand price of %s: %w", i.ID, err)
	}
	c.OnDemand += same
	return nil
}

func (b *Broker) addAttempts(ctx context.Context, c *Costs, q CostQuery) error {
	jobs := map[string]bool{}
	for after := ""; ; {
		page, err := b.state.Store().Attempts(ctx, queue.AttemptQuery{Page: queue.Page{After: after, Limit: 1000}, Job: q.Job, Since: q.Since})
		if err != nil {
			return err
		}
		for _, a := range page {
			after = a.ID
			seen, known := jobs[a.Job]
			if !known {
				j, err := b.Job(ctx, a.Job)
				if err != nil {
					return err
				}
				seen = (q.Project == "" || j.Project == q.Project) && (q.May == nil || q.May(j.Project))
				jobs[a.Job] = seen
			}
			if !seen || !q.Until.IsZero() && a.Created.After(q.Until) {
				continue
			}
			c.Attempts++
			c.Busy += a.Busy
			if a.State == queue.AttemptEnded {
				c.Lost += max(0, a.Busy-a.Kept)
			}
		}
		if len(page) < 1000 {
			return nil
		}
	}
}

// PutWorkdir keeps a work folder under its content.
func (b *Broker) PutWorkdir(ctx context.Context, sum string, archive io.ReadSeeker) (ref string, had bool, err error) {
	h := sha256.New()
	if _, err := io.Copy(h, archive); err != nil {
		return "", false, err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != sum {
		return "", false, fmt.Errorf("%w: the archive's digest is %s, not %s", ErrInvalid, got, sum)
	}
	ref = workdirScheme + sum
	if _, had, err = b.HasWorkdir(ctx, sum); err != nil || had {
		return ref, had, err
	}
	_, err = b.objects.Put(ctx, workdir.Key(strings.TrimPrefix(ref, workdirScheme)), archive, objects.PutOptions{})
	return ref, false, err
}

// HasWorkdir reports whether a work folder is there.
func (b *Broker) HasWorkdir(ctx context.Context, sum string) (ref string, have bool, err error) {
	ref = workdirScheme + sum
	_, err = b.objects.Stat(ctx, workdir.Key(strings.TrimPrefix(ref, workdirScheme)))
	switch {
	case err == nil:
		return ref, true, nil
	case objects.Is(err, objects.NotFound):
		return ref, false, nil
	}
	return ref, false, err
}
