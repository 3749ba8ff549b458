package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gpubroker/internal/budget"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

var everything = providers.Scope{}

func instanceOfKey(key string) string {
	for k := range key {
		if key[k] == '/' {
			return key[:k]
		}
	}
	return key
}

// Job returns a job, live or done.
func (b *Broker) Job(ctx context.Context, id string) (*queue.Job, error) {
	if j := b.state.View().Job(id); j != nil {
		return j, nil
	}
	j, err := b.state.Store().Job(ctx, id)
	if errors.Is(err, queue.ErrNotFound) {
		return nil, fmt.Errorf("%w: there is no job %s", ErrNotFound, id)
	}
	return j, err
}

// TaskView is a task with what is known of its running attempt.
type TaskView struct {
	queue.Task
	Input    string         `json:"input,omitzero"`
	Running  *queue.Attempt `json:"running,omitempty"`
	Progress *Progress      `json:"now,omitempty"`
}

// Tasks returns a page of a job's tasks that have a row.
func (b *Broker) Tasks(ctx context.Context, q queue.TaskQuery) ([]TaskView, error) {
	j, err := b.Job(ctx, q.Job)
	if err != nil {
		return nil, err
	}
	s, err := b.specs.of(j)
	if err != nil {
		return nil, err
	}
	rows, err := b.state.Store().Tasks(ctx, q)
	if err != nil {
		return nil, err
	}
	view := b.state.View()
	out := make([]TaskView, 0, len(rows))
	for _, t := range rows {
		v := TaskView{Task: *t}
		if v.Input, err = b.inputs.of(ctx, s, j, t.Index); err != nil {
			return nil, err
		}
		if a := view.Attempt(t.Attempt); a != nil && a.State != queue.AttemptEnded {
			v.Running = a
			if p, ok := b.progressOf(a.ID); ok {
				v.Progress = &p
			}
		}
		out = append(out, v)
	}
	return out, nil
}

// Decision returns what the last pass decided for a job, and when that was.
func (b *Broker) Decision(job string) (scheduler.Decision, time.Time, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d, ok := b.decisions[job]
	return d, b.passed, ok
}

// with draws a snapshot as if a job had just been accepted.
func (b *Broker) with(ctx context.Context, s Submission, source spec.Source) (*picture, *queue.Job, error) {
	if err := b.checkSpec(&s); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	now := b.now()
	j, err := b.pretend(ctx, s.Spec, source, now)
	if err != nil {
		return nil, nil, err
	}
	j.Count = s.Trial.limit(j.Count)
	view := b.state.View()
	p := b.snapshot(view, now)
	b.planning.Lock() // all such jobs have one name
	defer b.planning.Unlock()
	b.specs.drop(j.ID)
	b.drawJob(view, p, j, nil)
	return p, j, nil
}

// pretend makes the row that a submission would.
func (b *Broker) pretend(ctx context.Context, s *spec.Job, source spec.Source, now time.Time) (*queue.Job, error) {
	if _, err := prepare(s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	j := &queue.Job{ID: "plan", Name: s.Name, Project: s.Project, Queue: s.Queue, Spec: s.Canonical(), Priority: b.priority(s), Accepted: now, Count: 1}
	if err := b.deadline(j, s); err != nil {
		return nil, fmt.Errorf("%w: deadline: %w", ErrInvalid, err)
	}
	if s.Users != nil {
		j.Count = s.Users.Count
	}
	var locations sample
	if s.Tasks != nil {
		j.Count = s.Tasks.Count
		if j.Count == 0 {
			for input, err := range s.Expand(ctx, source) {
				if err != nil {
					return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
				}
				if spec.IsLocation(input) {
					locations.add(input)
				}
				j.Count++
			}
		}
	}
	j.Data = b.weigh(ctx, s, &locations, source)
	b.specs.drop(j.ID)
	return j, nil
}

// AttemptMachine is the machine of an attempt, as far as it explains its times.
type AttemptMachine struct {
	ID        string           `json:"id"`
	Market    providers.Market `json:"market"`
	Shape     providers.Shape  `json:"shape"`
	Slots     int              `json:"slots" doc:"tasks that it can run at once"`
	Price     money.Rate       `json:"price" doc:"of the whole machine per hour, at the decision"`
	Requested time.Time        `json:"requested"`
	Ready     time.Time        `json:"ready,omitzero" doc:"its agent called in; absent while it boots, and where it never did"`
}

// AttemptMachines returns the machines of attempts, by id, without those that were
// swept meanwhile.
func (b *Broker) AttemptMachines(ctx context.Context, attempts []*queue.Attempt) (map[string]AttemptMachine, error) {
	out := map[string]AttemptMachine{}
	for _, a := range attempts {
		if _, ok := out[a.Instance]; ok {
			continue
		}
		i := b.state.View().Instance(a.Instance)
		if i == nil {
			var err error
			i, err = b.state.Store().Instance(ctx, a.Instance)
			if errors.Is(err, queue.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("machine %s: %w", a.Instance, err)
			}
		}
		out[i.ID] = AttemptMachine{
			ID: i.ID, Market: marketOf(i), Shape: b.machineOf(i, 0).Shape, Slots: i.Slots, Price: i.Price,
			Requested: i.Requested, Ready: i.Ready,
		}
	}
	return out, nil
}

// InstanceView is a machine with what it holds.
type InstanceView struct {
	queue.Instance
	Attempts []*queue.Attempt `json:"attempts"`
	Reserved string           `json:"reserved"` // in the ledger
	Seen     time.Time        `json:"seen,omitzero"`
}

// Instances returns the machines that are not settled.
func (b *Broker) Instances() []InstanceView {
	view := b.state.View()
	var out []InstanceView
	for i := range view.Instances.All() {
		v := InstanceView{Instance: *i, Attempts: []*queue.Attempt{}}
		v.JoinHash, v.Credential, v.Nonce = "", "", ""
		for a := range view.AttemptsOn(i.ID) {
			c := *a
			c.Token = ""
			v.Attempts = append(v.Attempts, &c)
		}
		for h := range view.Holds.Prefix(i.ID + "/") {
			if h.Budget == budget.Ledger {
				v.Reserved = (h.Reserved + h.Accrued).String()
			}
		}
		b.mu.Lock()
		v.Seen = b.seen[i.ID]
		b.mu.Unlock()
		out = append(out, v)
	}
	return out
}

// BudgetView is a budget with its current period.
type BudgetView struct {
	budget.Budget
	Current budget.Account `json:"current"`
}

// Budgets returns the configured budgets, the ledger, and those of live jobs.
func (b *Broker) Budgets(now time.Time) ([]BudgetView, error) {
	view := b.state.View()
	list := b.budgets()
	for j := range view.Jobs.All() {
		if own, ok := b.specs.budget(j); ok {
			list = append(list, own)
		}
	}
	var out []BudgetView
	for _, x := range list {
		start, end, err := x.Period.At(now)
		if err != nil {
			return nil, err
		}
		v := BudgetView{Budget: x, Current: budget.Account{Key: budget.Key{Budget: x.Name, Start: start}, End: end}}
		if a := view.Accounts.Get(v.Current.Key.String()); a != nil {
			v.Current = *a
		}
		out = append(out, v)
	}
	return out, nil
}

// Market returns what is offered.
func (b *Broker) Market() *market.Market { return b.market }

// Accounts returns the providers by name.
func (b *Broker) Accounts() map[string]*Account { return b.accounts }

// Meta says which store this is.
func (b *Broker) Meta() queue.Meta { return b.meta }

// AdoptStore makes a restored or copied store this broker's own.
func (b *Broker) AdoptStore(ctx context.Context) (queue.Meta, error) {
	if !b.meta.Copied {
		return b.meta, fmt.Errorf("%w: this store is where it belongs; there is nothing to adopt", ErrConflict)
	}
	return b.state.Store().Adopt(ctx)
}

// Events returns events after a sequence number: the newest from memory, older
// ones from the store.
func (b *Broker) Events(ctx context.Context, q queue.EventQuery) ([]*queue.Event, error) {
	return b.state.Store().Events(ctx, q)
}

// Watch returns a channel that is closed at the next event.
func (b *Broker) Watch() <-chan struct{} { return b.state.Watch("events") }
