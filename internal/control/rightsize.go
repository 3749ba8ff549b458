package control

import (
	"context"
	"errors"
	"time"

	"gpubroker/internal/money"
	"gpubroker/internal/quantity"
	"gpubroker/internal/reason"
	"gpubroker/internal/rightsize"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/queue"
	"gpubroker/scheduler"
	"gpubroker/scheduler/policy"
)

// sizedAttempts is how many attempts of a job are read for its right size at most,
// the oldest first: a million tasks show no more than the first thousands.
const sizedAttempts = 5000

// RightSize says what would have been enough for a job that is done; nil while it
// is not. What it suggests are offers of this moment that the job may use.
func (b *Broker) RightSize(ctx context.Context, j *queue.Job) (*rightsize.Advice, error) {
	if j.Ended.IsZero() {
		return nil, nil
	}
	s, err := b.specs.of(j)
	if err != nil {
		return nil, err
	}
	catalog := b.market.Catalog()
	attempts, err := b.sized(ctx, j, catalog)
	if err != nil {
		return nil, err
	}
	job := rightsize.Job{Width: j.Count, GPUs: s.needs.GPUs, Figure: s.needs.Figure, Disk: s.needs.Disk > 0}
	if t := s.Tasks; t != nil && t.Parallelism > 0 {
		job.Width = min(job.Width, t.Parallelism)
	}
	e := rightsize.Measure(job, attempts, b.facts)
	if e.Kind() == "" {
		return new(e.Advise(nil, nil, rightsize.Ask{})), nil
	}
	offers := b.usable(j, s, e.Kind())
	var lesser []rightsize.Machine
	less, ask := lower(s.Job, e.Enough())
	if ask != (rightsize.Ask{}) {
		p, err := prepare(less)
		if err != nil {
			return nil, err
		}
		lesser = b.usable(j, p, e.Kind())
	}
	return new(e.Advise(offers, lesser, ask)), nil
}

// sized reads what a job's attempts used, and of what machines.
func (b *Broker) sized(ctx context.Context, j *queue.Job, catalog *scheduler.Catalog) ([]rightsize.Attempt, error) {
	type rented struct {
		machine rightsize.Machine
		today   money.Rate
	}
	machines := map[string]*rented{}
	today := map[providers.Market]scheduler.Like{}
	var out []rightsize.Attempt
	for after := ""; len(out) < sizedAttempts; {
		page, err := b.state.Store().Attempts(ctx, queue.AttemptQuery{Page: queue.Page{After: after, Limit: 1000}, Job: j.ID})
		if err != nil {
			return nil, err
		}
		for _, a := range page {
			after = a.ID
			if a.Busy <= 0 || a.State != queue.AttemptEnded {
				continue
			}
			m := machines[a.Instance]
			if m == nil {
				i, err := b.state.Store().Instance(ctx, a.Instance)
				if errors.Is(err, queue.ErrNotFound) {
					continue // swept before its attempts
				}
				if err != nil {
					return nil, err
				}
				market := marketOf(i)
				place := market
				place.Zone = ""
				if _, ok := today[place]; !ok {
					today[place] = catalog.Like(place)
				}
				m = &rented{
					machine: rightsize.Machine{Market: market, Shape: b.machineOf(i, 0).Shape, Price: i.Price, Slots: i.Slots},
					today:   today[place].Price,
				}
				m.machine.Shape.NetworkBps = today[place].NetworkBps
				machines[a.Instance] = m
			}
			out = append(out, rightsize.Attempt{
				Machine: m.machine, Today: m.today, Busy: a.Busy, Usage: a.Usage,
				Succeeded: a.Outcome == queue.Succeeded, OutOfMemory: a.Reason.Code == "out_of_memory",
			})
		}
		if len(page) < 1000 {
			break
		}
	}
	return out, nil
}

// usable returns what a job might be given now, whatever its window and deadline.
func (b *Broker) usable(j *queue.Job, s *parsed, kind providers.Kind) []rightsize.Machine {
	if s.Unresolved() {
		return nil // what its scenario asked for is not known any more
	}
	now, view := b.now(), b.state.View()
	p := &picture{
		Snapshot: scheduler.Snapshot{
			Now: now, Facts: b.facts, Catalog: b.market.Catalog(), Settings: b.set.Plan, Budgets: b.budgets(), Book: viewBook{view},
			Providers: map[string]scheduler.Provider{}, Cooldowns: map[string]scheduler.Cooldown{}, Spent: map[string]money.Amount{}, History: map[string]policy.History{},
		},
	}
	b.drawMachines(view, p)
	g := b.group(s, j, now)
	g.ID, g.Left, g.Waiting = j.ID, 1, 1
	g.Held, g.Opens, g.Closes, g.Deadline = reason.Reason{}, time.Time{}, time.Time{}, time.Time{}
	if own, ok := b.specs.budget(j); ok {
		p.Budgets = append(p.Budgets, own)
	}
	var out []rightsize.Machine
	for _, u := range scheduler.UsableOffers(&p.Snapshot, nil, &g, kind) {
		out = append(out, rightsize.Machine{Market: u.Market, Shape: u.Shape, Price: u.Price, Slots: u.Slots})
	}
	return out
}

// lower copies a spec with what it asks for lowered to what is enough, and says
// what that changed. What it does not ask for is not lowered, nor what only its
// scenario asks for.
func lower(j *spec.Job, enough rightsize.Enough) (*spec.Job, rightsize.Ask) {
	out := *j
	r := &out.Resources
	var ask rightsize.Ask
	if enough.VCPU > 0 && r.VCPU > enough.VCPU {
		r.VCPU, ask.VCPU = enough.VCPU, enough.VCPU
	}
	if enough.Memory > 0 && r.Memory.Bytes() > enough.Memory {
		r.Memory, ask.Memory = quantity.Size(enough.Memory), enough.Memory
	}
	if enough.GPUMemory > 0 && r.GPUMemory.Bytes() > enough.GPUMemory {
		r.GPUMemory, ask.GPUMemory = quantity.Size(enough.GPUMemory), enough.GPUMemory
	}
	return &out, ask
}
