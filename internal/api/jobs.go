package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gpubroker/internal/control"
	"gpubroker/internal/money"
	"gpubroker/internal/rightsize"
	"gpubroker/internal/spec"
	"gpubroker/providers"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// Job is a job as the API shows it.
type Job struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Project     string            `json:"project"`
	Queue       string            `json:"queue,omitempty"`
	User        string            `json:"user,omitempty"`
	State       queue.JobState    `json:"state" enum:"queued,held,running,succeeded,failed,cancelled"`
	Priority    int               `json:"priority"`
	Accepted    time.Time         `json:"accepted"`
	Deadline    *time.Time        `json:"deadline,omitempty"`
	Ended       *time.Time        `json:"ended,omitempty"`
	Tasks       int               `json:"tasks"`
	Waiting     int               `json:"waiting"`
	Counts      queue.Counts      `json:"counts"`
	Held        string            `json:"held,omitempty"`
	CancelledBy string            `json:"cancelled_by,omitempty"`
	Reason      string            `json:"reason,omitempty" doc:"why tasks wait, as of the last pass"`
	Decision    *LastDecision     `json:"decision,omitempty" doc:"with one job: what the last pass decided and from what"`
	RightSizing *rightsize.Advice `json:"right_sizing,omitempty" doc:"with one job that is done: what would have been enough, what that would have saved, and what its GPUs waited for"`
	Spec        json.RawMessage   `json:"spec,omitempty" doc:"with one job: its spec with all that was set"`
}

// LastDecision is what the last pass decided for a job, and when.
type LastDecision struct {
	At time.Time `json:"at"`
	scheduler.Decision
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (s *Server) job(j *queue.Job) Job {
	out := Job{
		ID: j.ID, Name: j.Name, Project: j.Project, Queue: j.Queue, User: j.User, State: j.State(), Priority: j.Priority,
		Accepted: j.Accepted, Deadline: optional(j.Deadline), Ended: optional(j.Ended),
		Tasks: j.Count, Waiting: j.Waiting(), Counts: j.Counts, Held: j.Held.String(), CancelledBy: j.CancelledBy,
	}
	if d, _, ok := s.broker.Decision(j.ID); ok && d.Wait {
		out.Reason = d.Why.String()
	}
	return out
}

type submitInput struct {
	Body SubmitRequest
}

// SubmitRequest hands in a job.
type SubmitRequest struct {
	Spec json.RawMessage `json:"spec" doc:"the job spec as a JSON object; docs/job.schema.json describes it"`
	Key  string          `json:"key,omitempty" maxLength:"200" doc:"makes the call safe to repeat: the same key with the same spec and inputs is the same job"`
	// Inputs are the lines of tasks.file: only who hands the job in can read it.
	Inputs []string `json:"inputs,omitempty" doc:"the lines of tasks.file, one task for each; the file itself is not read by the broker"`
	// Trial is what gpubroker trial sends: a job of the same class.
	Trial *control.Trial `json:"trial,omitempty" doc:"makes a trial of the job, which is listed under a name of its own and has some of its tasks"`
}

// MaxSubmit is the longest body of a submission in bytes: a million inputs of a
// hundred bytes each fit.
const MaxSubmit = 128 << 20

type jobOutput struct {
	Body Job
}

// JobPath names a job in a path. It is exported because huma reads only exported fields.
type JobPath struct {
	ID string `path:"id" maxLength:"40"`
}

type listJobs struct {
	Project string `query:"project"`
	Queue   string `query:"queue"`
	Name    string `query:"name"`
	Open    bool   `query:"open" doc:"only jobs that are not done"`
	After   string `query:"after" doc:"the id that the last page ended with"`
	Limit   int    `query:"limit" minimum:"0" maximum:"1000" default:"100"`
}

// Jobs is a page of jobs, newest first.
type Jobs struct {
	Jobs []Job  `json:"jobs"`
	Next string `json:"next,omitempty" doc:"goes into after for the next page; absent at the end"`
}

type jobsOutput struct{ Body Jobs }

type tasksInput struct {
	JobPath
	State string `query:"state" enum:"queued,held,running,succeeded,failed,cancelled"`
	After string `query:"after" doc:"the index that the last page ended with"`
	Limit int    `query:"limit" minimum:"0" maximum:"1000" default:"100"`
}

// Tasks is a page of a job's tasks.
type Tasks struct {
	Tasks []control.TaskView `json:"tasks" doc:"tasks that have been placed at least once"`
	Next  string             `json:"next,omitempty" doc:"goes into after for the next page; absent at the end"`
}

type tasksOutput struct{ Body Tasks }

type attemptsInput struct {
	JobPath
	Index    int    `query:"index" minimum:"-1" default:"-1" doc:"of one task"`
	Machines bool   `query:"machines" doc:"with the machines that they ran on"`
	After    string `query:"after"`
	Limit    int    `query:"limit" minimum:"0" maximum:"1000" default:"100"`
}

// Attempts is a page of attempts, oldest first.
type Attempts struct {
	Attempts []*queue.Attempt                  `json:"attempts"`
	Machines map[string]control.AttemptMachine `json:"machines,omitempty" doc:"by id, when asked for; without those whose record was swept"`
	Next     string                            `json:"next,omitempty" doc:"goes into after for the next page; absent at the end"`
}

type attemptsOutput struct{ Body Attempts }

// RetryRequest says which tasks are queued again.
type RetryRequest struct {
	Failed    bool `json:"failed,omitempty" doc:"tasks that failed"`
	Cancelled bool `json:"cancelled,omitempty" doc:"tasks that were cancelled"`
}

type retryInput struct {
	JobPath
	Body RetryRequest
}

// Retried says what a retry did.
type Retried struct {
	Tasks int `json:"tasks" doc:"that were queued again"`
}

type retryOutput struct{ Body Retried }

type planOutput struct {
	Body Plan
}

// Why is why a job's tasks wait: of those that are alike, the most.
type Why struct {
	Waiting bool `json:"waiting" doc:"false when no task waits; there is nothing to explain then"`
	scheduler.Explanation
	Currency money.Currency `json:"currency" doc:"of all amounts"`
}

type whyOutput struct{ Body Why }

// Plan is what a submission now would lead to, and why.
type Plan struct {
	scheduler.Explanation
	Launches []Launch       `json:"launches" doc:"machines that would be asked for now"`
	Currency money.Currency `json:"currency" doc:"of all amounts"`
}

// Launch is a machine that would be asked for.
type Launch struct {
	Market providers.Market `json:"market"`
	Shape  providers.Shape  `json:"shape"`
	Tasks  int              `json:"tasks" doc:"that it would begin with"`
	Slots  int              `json:"slots" doc:"tasks that it can run at once"`
	Price  money.Rate       `json:"price" doc:"of the whole machine per hour"`
	Bound  money.Rate       `json:"bound" doc:"the price that its reservations would assume"`
	Lease  time.Time        `json:"lease" doc:"money would be reserved until then"`
}

// PlanOf is an explanation and its launches as the API shows them.
func PlanOf(e scheduler.Explanation, launches []scheduler.Launch, currency money.Currency) Plan {
	p := Plan{Explanation: e, Launches: []Launch{}, Currency: currency}
	for _, l := range launches {
		p.Launches = append(p.Launches, Launch{
			Market: l.Market, Shape: l.Shape, Tasks: l.Tasks, Slots: l.Slots, Price: l.Price, Bound: l.Bound, Lease: l.Lease,
		})
	}
	return p
}

func (s *Server) registerJobs() {
	submit := operation("submit-job", http.MethodPost, "/api/v1/jobs", "Submit a job", Submit, "jobs")
	plan := operation("plan-job", http.MethodPost, "/api/v1/plan", "Say what a submission now would lead to; nothing is committed", View, "jobs")
	for _, op := range []*huma.Operation{&submit, &plan} {
		op.MaxBodyBytes, op.BodyReadTimeout = MaxSubmit, uploadTime
	}
	huma.Register(s.api, submit, s.submitJob)
	huma.Register(s.api, plan, s.planJob)
	huma.Register(s.api, operation("list-jobs", http.MethodGet, "/api/v1/jobs", "List jobs, newest first", View, "jobs"), s.listJobs)
	huma.Register(s.api, operation("get-job", http.MethodGet, "/api/v1/jobs/{id}", "Show a job", View, "jobs"), s.getJob)
	huma.Register(s.api, operation("explain-job", http.MethodGet, "/api/v1/jobs/{id}/why", "Explain why a job's tasks wait, from every offer", View, "jobs"), s.explainJob)
	huma.Register(s.api, operation("list-tasks", http.MethodGet, "/api/v1/jobs/{id}/tasks", "List a job's tasks", View, "jobs"), s.listTasks)
	huma.Register(s.api, operation("list-attempts", http.MethodGet, "/api/v1/jobs/{id}/attempts", "List a job's attempts, oldest first", View, "jobs"), s.listAttempts)
	huma.Register(s.api, operation("cancel-job", http.MethodPost, "/api/v1/jobs/{id}/cancel", "Cancel a job", Submit, "jobs"), s.change(s.cancel))
	huma.Register(s.api, operation("hold-job", http.MethodPost, "/api/v1/jobs/{id}/hold", "Stop new placements of a job", Submit, "jobs"), s.change(s.hold))
	huma.Register(s.api, operation("release-job", http.MethodPost, "/api/v1/jobs/{id}/release", "Undo a hold", Submit, "jobs"), s.change(s.release))
	huma.Register(s.api, operation("retry-job", http.MethodPost, "/api/v1/jobs/{id}/retry", "Queue failed or cancelled tasks again", Submit, "jobs"), s.retry)
}

// parse reads a spec for the caller's project.
func (s *Server) parse(ctx context.Context, in *SubmitRequest) (*spec.Job, error) {
	j, err := spec.Reader{Scenarios: s.broker.Scenarios()}.Parse("spec", in.Spec)
	if faults, ok := errors.AsType[spec.Errors](err); ok {
		list := make([]error, len(faults))
		for i, f := range faults {
			message := f.Message
			if f.Hint != "" {
				message += "; " + f.Hint
			}
			list[i] = &huma.ErrorDetail{Location: f.Path, Message: message}
		}
		return nil, huma.Error422UnprocessableEntity("the spec is not valid", list...)
	}
	if err != nil {
		return nil, huma.Error422UnprocessableEntity("the spec is not valid: " + err.Error())
	}
	fromFile := j.Tasks != nil && j.Tasks.File != ""
	switch {
	case fromFile && len(in.Inputs) == 0:
		return nil, huma.Error422UnprocessableEntity("tasks.file is a file of the caller's, which the broker cannot read: give its lines as inputs")
	case !fromFile && len(in.Inputs) > 0:
		return nil, huma.Error422UnprocessableEntity("inputs are the lines of tasks.file, and the spec has none")
	case len(in.Inputs) > spec.MaxTasks:
		return nil, huma.Error422UnprocessableEntity(fmt.Sprintf("%d inputs; at most %d: split the job", len(in.Inputs), spec.MaxTasks))
	}
	who := callerOf(ctx)
	if j.Project == "" && len(who.Projects) == 1 {
		j.Project = who.Projects[0]
	}
	if j.Project == "" {
		j.Project = "default"
	}
	if !who.may(j.Project) {
		return nil, huma.Error403Forbidden("your token is not for project " + j.Project)
	}
	return j, nil
}

func (s *Server) submitJob(ctx context.Context, in *submitInput) (*jobOutput, error) {
	j, err := s.parse(ctx, &in.Body)
	if err != nil {
		return nil, err
	}
	row, err := s.broker.Submit(ctx, control.Submission{Spec: j, Key: in.Body.Key, Trial: in.Body.Trial, User: callerOf(ctx).name(), Inputs: in.Body.Inputs, Anywhere: callerOf(ctx).anywhere()}, s.opts.Source)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	return &jobOutput{s.job(row)}, nil
}

func (s *Server) planJob(ctx context.Context, in *submitInput) (*planOutput, error) {
	j, err := s.parse(ctx, &in.Body)
	if err != nil {
		return nil, err
	}
	e, launches, err := s.broker.ExplainPlan(ctx, control.Submission{Spec: j, Inputs: in.Body.Inputs, Trial: in.Body.Trial, Anywhere: callerOf(ctx).anywhere()}, given{s.opts.Source, in.Body.Inputs})
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	return &planOutput{PlanOf(e, launches, s.opts.Currency)}, nil
}

// explainJob explains why a job's tasks wait, from every offer.
func (s *Server) explainJob(ctx context.Context, in *JobPath) (*whyOutput, error) {
	if _, err := s.visible(ctx, in.ID); err != nil {
		return nil, err
	}
	e, waiting := s.broker.Explain(in.ID)
	return &whyOutput{Why{Waiting: waiting, Explanation: e, Currency: s.opts.Currency}}, nil
}

// given is a source whose one file is the lines that came with the call.
type given struct {
	spec.Source
	lines []string
}

func (g given) Open(ctx context.Context, location string) (io.ReadCloser, error) {
	if g.lines == nil {
		return g.Source.Open(ctx, location)
	}
	return io.NopCloser(strings.NewReader(strings.Join(g.lines, "\n"))), nil
}

// Weigh asks the source that it stands before.
func (g given) Weigh(ctx context.Context, location string) (int64, error) {
	scale, ok := g.Source.(spec.Scale)
	if !ok {
		return 0, fmt.Errorf("%s cannot be weighed", location)
	}
	return scale.Weigh(ctx, location)
}

func (s *Server) listJobs(ctx context.Context, in *listJobs) (*jobsOutput, error) {
	out := &jobsOutput{}
	rows, next, err := page(in.After, in.Limit, func(after string, limit int) ([]*queue.Job, error) {
		return s.broker.State().Store().Jobs(ctx, queue.JobQuery{
			Page: queue.Page{After: after, Limit: limit}, Project: in.Project, Queue: in.Queue, Name: in.Name, Open: in.Open,
		})
	}, func(j *queue.Job) string { return j.ID }, func(j *queue.Job) bool { return callerOf(ctx).may(j.Project) })
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	out.Body.Jobs, out.Body.Next = []Job{}, next
	for _, j := range rows {
		out.Body.Jobs = append(out.Body.Jobs, s.job(j))
	}
	return out, nil
}

// visible returns a job that the caller may see.
func (s *Server) visible(ctx context.Context, id string) (*queue.Job, error) {
	j, err := s.broker.Job(ctx, id)
	switch {
	case errors.Is(err, control.ErrNotFound):
		return nil, notFound(id)
	case err != nil:
		return nil, s.failure(ctx, err)
	case !callerOf(ctx).may(j.Project):
		return nil, notFound(id)
	}
	return j, nil
}

func (s *Server) getJob(ctx context.Context, in *JobPath) (*jobOutput, error) {
	j, err := s.visible(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	out := s.job(j)
	out.Spec = j.Spec
	if d, at, ok := s.broker.Decision(j.ID); ok {
		out.Decision = &LastDecision{At: at, Decision: d}
	}
	if out.RightSizing, err = s.broker.RightSize(ctx, j); err != nil {
		return nil, s.failure(ctx, err)
	}
	return &jobOutput{out}, nil
}

func (s *Server) listTasks(ctx context.Context, in *tasksInput) (*tasksOutput, error) {
	if _, err := s.visible(ctx, in.ID); err != nil {
		return nil, err
	}
	all := func(control.TaskView) bool { return true }
	tasks, next, err := page(in.After, in.Limit, func(after string, limit int) ([]control.TaskView, error) {
		return s.broker.Tasks(ctx, queue.TaskQuery{Page: queue.Page{After: after, Limit: limit}, Job: in.ID, State: queue.TaskState(in.State)})
	}, func(t control.TaskView) string { return strconv.Itoa(t.Index) }, all)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	for i := range tasks {
		if tasks[i].Running != nil {
			tasks[i].Running = public(tasks[i].Running)
		}
	}
	out := &tasksOutput{}
	out.Body.Tasks, out.Body.Next = tasks, next
	return out, nil
}

// public is an attempt without its token.
func public(a *queue.Attempt) *queue.Attempt {
	c := *a
	c.Token = ""
	return &c
}

func (s *Server) listAttempts(ctx context.Context, in *attemptsInput) (*attemptsOutput, error) {
	if _, err := s.visible(ctx, in.ID); err != nil {
		return nil, err
	}
	q := queue.AttemptQuery{Job: in.ID}
	if in.Index >= 0 {
		q.Index = &in.Index
	}
	all := func(*queue.Attempt) bool { return true }
	rows, next, err := page(in.After, in.Limit, func(after string, limit int) ([]*queue.Attempt, error) {
		q.Page = queue.Page{After: after, Limit: limit}
		return s.broker.State().Store().Attempts(ctx, q)
	}, func(a *queue.Attempt) string { return a.ID }, all)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	out := &attemptsOutput{}
	out.Body.Attempts, out.Body.Next = []*queue.Attempt{}, next
	for _, a := range rows {
		out.Body.Attempts = append(out.Body.Attempts, public(a))
	}
	if in.Machines {
		if out.Body.Machines, err = s.broker.AttemptMachines(ctx, rows); err != nil {
			return nil, s.failure(ctx, err)
		}
	}
	return out, nil
}

// change makes a handler of an act on one job.
func (s *Server) change(act func(ctx context.Context, id, by string) (*queue.Job, error)) func(context.Context, *JobPath) (*jobOutput, error) {
	return func(ctx context.Context, in *JobPath) (*jobOutput, error) {
		if _, err := s.visible(ctx, in.ID); err != nil {
			return nil, err
		}
		j, err := act(ctx, in.ID, callerOf(ctx).name())
		if err != nil {
			return nil, s.failure(ctx, err)
		}
		return &jobOutput{s.job(j)}, nil
	}
}

func (s *Server) cancel(ctx context.Context, id, by string) (*queue.Job, error) {
	return s.broker.Cancel(ctx, id, by)
}

func (s *Server) hold(ctx context.Context, id, by string) (*queue.Job, error) {
	return s.broker.Hold(ctx, id, by)
}

func (s *Server) release(ctx context.Context, id, by string) (*queue.Job, error) {
	return s.broker.Release(ctx, id, by)
}

func (s *Server) retry(ctx context.Context, in *retryInput) (*retryOutput, error) {
	if _, err := s.visible(ctx, in.ID); err != nil {
		return nil, err
	}
	var states []queue.TaskState
	if in.Body.Failed {
		states = append(states, queue.TaskFailed)
	}
	if in.Body.Cancelled {
		states = append(states, queue.TaskCancelled)
	}
	if len(states) == 0 {
		return nil, huma.Error422UnprocessableEntity("say which tasks: failed, cancelled, or both")
	}
	n, err := s.broker.Retry(ctx, in.ID, states...)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	out := &retryOutput{}
	out.Body.Tasks = n
	return out, nil
}
