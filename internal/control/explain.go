package control

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/egress"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/spec"
	"gpubroker/queue"
	"gpubroker/scheduler"
	"gpubroker/scheduler/policy"
)

// Alone draws the snapshot of a job that is alone in a market: for a plan without
// a broker. No money is spent and nothing runs; what the accounts can do is told
// by whoever asks.
func Alone(ctx context.Context, s *spec.Job, source spec.Source, catalog *scheduler.Catalog, accounts map[string]scheduler.Provider, set scheduler.Settings, now time.Time) (*scheduler.Snapshot, error) {
	b := &Broker{
		set: Settings{Plan: set, Buckets: BucketsAt("", "", ""), ObjectsAt: ObjectsAt("", nil)}, log: slog.New(slog.DiscardHandler), facts: gpu.Builtin(), egress: egress.Builtin(), specs: newSpecs(nil),
		complained: map[string]time.Time{},
	}
	if err := s.PricedIn(money.USD); err != nil { // as the tables of offers are
		return nil, err
	}
	j, err := b.pretend(ctx, s, source, now)
	if err != nil {
		return nil, err
	}
	p := &picture{
		Snapshot: scheduler.Snapshot{
			Now: now, Facts: b.facts, Egress: b.egress, Catalog: catalog, Providers: accounts, Settings: set, Budgets: b.budgets(),
			Book: noBook{}, Cooldowns: map[string]scheduler.Cooldown{}, Spent: map[string]money.Amount{}, History: map[string]policy.History{},
		},
		members: map[string][]queue.TaskID{}, jobs: map[string]string{},
	}
	b.drawJob(nil, p, j, nil)
	b.vary(p, j)
	return &p.Snapshot, nil
}

// ExplainPlan decides about a job as if it had just been accepted, and commits
// nothing: the decision with everything that people ask about it, and the machines
// that would be launched.
func (b *Broker) ExplainPlan(ctx context.Context, s Submission, source spec.Source) (scheduler.Explanation, []scheduler.Launch, error) {
	p, j, err := b.with(ctx, s, source)
	if err != nil {
		return scheduler.Explanation{}, nil, err
	}
	b.vary(p, j)
	p.Asked = nil // there is nobody to build a table
	var memo scheduler.Memo
	r := scheduler.Plan(&p.Snapshot, &memo)
	at := slices.IndexFunc(r.Decisions, func(d scheduler.Decision) bool { return d.Job == j.ID })
	if at < 0 {
		return scheduler.Explanation{}, nil, fmt.Errorf("%w: the job has no tasks", ErrInvalid)
	}
	group := r.Decisions[at].Group
	e, _ := scheduler.ExplainResult(&p.Snapshot, &memo, &r, group) // what was decided on is there
	return e, slices.DeleteFunc(r.Launches, func(l scheduler.Launch) bool { return l.Group != group }), nil
}

// Explain explains, as of now, the decision on those of a job's waiting tasks that
// are the most alike. ok is false when none wait.
func (b *Broker) Explain(job string) (e scheduler.Explanation, ok bool) {
	view := b.state.View()
	p := b.snapshot(view, b.now())
	group, most := "", 0
	for i := range p.Groups {
		if g := &p.Groups[i]; g.Job == job && g.Waiting > most {
			group, most = g.ID, g.Waiting
		}
	}
	if most == 0 {
		return e, false
	}
	b.vary(p, view.Job(job))
	e, ok = scheduler.Explain(&p.Snapshot, nil, group)
	if latest := p.Now.Add(scheduleEvery); e.Decision.Wait && (e.Again.IsZero() || e.Again.After(latest)) {
		e.Again = latest // the loop looks without a cause too
	}
	return e, ok
}

// vary adds to a job's groups what else it could ask for.
func (b *Broker) vary(p *picture, j *queue.Job) {
	if j == nil {
		return
	}
	s, err := b.specs.of(j)
	if err != nil {
		return // the snapshot has complained
	}
	list := variants(s.Job)
	for i := range p.Groups {
		if g := &p.Groups[i]; g.Job == j.ID {
			g.Variants = list
		}
	}
}

// noBook is a ledger in which nothing is written.
type noBook struct{}

func (noBook) Account(budget.Key) *budget.Account   { return nil }
func (noBook) Hold(string, budget.Key) *budget.Hold { return nil }
