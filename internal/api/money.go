package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gpubroker/internal/budget"
	"gpubroker/internal/control"
	"gpubroker/internal/money"
	"gpubroker/queue"
)

// Budgets are budgets with their periods.
type Budgets struct {
	Budgets  []control.BudgetView `json:"budgets"`
	Currency money.Currency       `json:"currency" doc:"of all amounts"`
}

type budgetsOutput struct{ Body Budgets }

type costsInput struct {
	Project string    `query:"project"`
	Job     string    `query:"job"`
	Since   time.Time `query:"since"`
	Until   time.Time `query:"until"`
}

// Costs are sums over machines and attempts.
type Costs struct {
	control.Costs
	Currency money.Currency `json:"currency" doc:"of all amounts"`
}

type costsOutput struct{ Body Costs }

type entriesInput struct {
	After    int64  `query:"after"`
	Limit    int    `query:"limit" minimum:"0" maximum:"1000" default:"100"`
	Budget   string `query:"budget" default:"all"`
	Project  string `query:"project"`
	Job      string `query:"job"`
	Instance string `query:"instance"`
}

// Entries is a page of the ledger.
type Entries struct {
	Entries  []*budget.Entry `json:"entries"`
	Currency money.Currency  `json:"currency" doc:"of all amounts"`
	Next     int64           `json:"next,omitempty" doc:"goes into after for the next page; absent at the end"`
}

type entriesOutput struct{ Body Entries }

func (s *Server) registerMoney() {
	huma.Register(s.api, operation("list-budgets", http.MethodGet, "/api/v1/budgets", "List budgets with their current period", View, "money"), s.listBudgets)
	huma.Register(s.api, operation("get-costs", http.MethodGet, "/api/v1/costs", "Sum what was spent, and what it would have cost on demand", View, "money"), s.getCosts)
	huma.Register(s.api, operation("list-entries", http.MethodGet, "/api/v1/ledger", "List rows of the ledger", Finance, "money"), s.listEntries)
}

func (s *Server) listBudgets(ctx context.Context, _ *struct{}) (*budgetsOutput, error) {
	list, err := s.broker.Budgets(time.Now())
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	out := &budgetsOutput{}
	out.Body.Budgets, out.Body.Currency = []control.BudgetView{}, s.opts.Currency
	for _, b := range list {
		if s.seesBudget(ctx, b.Budget) {
			out.Body.Budgets = append(out.Body.Budgets, b)
		}
	}
	return out, nil
}

// seesBudget reports whether the caller may see a budget: all of them, or those
// of its projects and of their jobs.
func (s *Server) seesBudget(ctx context.Context, b budget.Budget) bool {
	who := callerOf(ctx)
	switch {
	case len(who.Projects) == 0:
		return true
	case b.Scope == budget.Project:
		return who.may(b.Match)
	case b.Scope == budget.Job:
		j := s.broker.State().View().Job(b.Match)
		return j != nil && who.may(j.Project)
	}
	return false
}

func (s *Server) getCosts(ctx context.Context, in *costsInput) (*costsOutput, error) {
	if in.Job != "" {
		if _, err := s.visible(ctx, in.Job); err != nil {
			return nil, err
		}
	}
	costs, err := s.broker.Costs(ctx, control.CostQuery{
		Project: in.Project, Job: in.Job, Since: in.Since, Until: in.Until, May: callerOf(ctx).may,
	})
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	return &costsOutput{Costs{costs, s.opts.Currency}}, nil
}

func (s *Server) listEntries(ctx context.Context, in *entriesInput) (*entriesOutput, error) {
	rows, next, err := page(in.After, in.Limit, func(after int64, limit int) ([]*budget.Entry, error) {
		return s.broker.State().Store().Entries(ctx, queue.EntryQuery{
			After: after, Limit: limit, Budget: in.Budget, Project: in.Project, Job: in.Job, Instance: in.Instance,
		})
	}, func(e *budget.Entry) int64 { return e.Seq }, func(e *budget.Entry) bool { return callerOf(ctx).may(e.Project) })
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	out := &entriesOutput{}
	out.Body.Entries, out.Body.Currency, out.Body.Next = rows, s.opts.Currency, next
	return out, nil
}
