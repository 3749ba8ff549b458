package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/api"
	"gpubroker/internal/control"
	"gpubroker/internal/market"
	"gpubroker/queue"
)

const v1 = "/api/v1/"

func path(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = url.PathEscape(p)
	}
	return v1 + strings.Join(escaped, "/")
}

// values leaves out what is empty.
func values(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

func number[T int | int64](n T) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(int64(n), 10)
}

func flag(b bool) string {
	if b {
		return "true"
	}
	return ""
}

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// Health asks how the broker is. It needs no token.
func (c *Client) Health(ctx context.Context) (h api.Health, err error) {
	return h, c.get(ctx, "/healthz", nil, &h)
}

// Submit hands in a job.
func (c *Client) Submit(ctx context.Context, r api.SubmitRequest) (j api.Job, err error) {
	return j, c.send(ctx, http.MethodPost, path("jobs"), r, &j)
}

// Plan asks what a submission would lead to.
func (c *Client) Plan(ctx context.Context, r api.SubmitRequest) (p api.Plan, err error) {
	return p, c.send(ctx, http.MethodPost, path("plan"), r, &p)
}

// JobQuery selects jobs.
type JobQuery struct {
	Project, Queue, Name string
	Open                 bool
	After                string
	Limit                int
}

// Jobs returns a page of jobs, newest first.
func (c *Client) Jobs(ctx context.Context, q JobQuery) (out api.Jobs, err error) {
	return out, c.get(ctx, path("jobs"), values("project", q.Project, "queue", q.Queue, "name", q.Name,
		"open", flag(q.Open), "after", q.After, "limit", number(q.Limit)), &out)
}

// Job returns one job with its spec and decision.
func (c *Client) Job(ctx context.Context, id string) (j api.Job, err error) {
	return j, c.get(ctx, path("jobs", id), nil, &j)
}

// Why explains why a job's tasks wait.
func (c *Client) Why(ctx context.Context, id string) (w api.Why, err error) {
	return w, c.get(ctx, path("jobs", id, "why"), nil, &w)
}

// Tasks returns a page of a job's tasks, of one state unless it is "".
func (c *Client) Tasks(ctx context.Context, job string, state queue.TaskState, after string, limit int) (out api.Tasks, err error) {
	return out, c.get(ctx, path("jobs", job, "tasks"), values("state", string(state), "after", after, "limit", number(limit)), &out)
}

// Attempts returns a page of a job's attempts, of one task unless index is -1.
func (c *Client) Attempts(ctx context.Context, job string, index int, after string, limit int) (out api.Attempts, err error) {
	q := values("after", after, "limit", number(limit))
	if index >= 0 {
		q.Set("index", strconv.Itoa(index))
	}
	return out, c.get(ctx, path("jobs", job, "attempts"), q, &out)
}

// AttemptsOn returns a page of a job's attempts with the machines that they ran on.
func (c *Client) AttemptsOn(ctx context.Context, job, after string, limit int) (out api.Attempts, err error) {
	return out, c.get(ctx, path("jobs", job, "attempts"), values("after", after, "limit", number(limit), "machines", flag(true)), &out)
}

// The acts on one job.
const (
	Cancel  = "cancel"
	Hold    = "hold"
	Release = "release"
)

// Act does one of the acts on a job.
func (c *Client) Act(ctx context.Context, job, act string) (j api.Job, err error) {
	return j, c.send(ctx, http.MethodPost, path("jobs", job, act), nil, &j)
}

// Retry queues failed or cancelled tasks again.
func (c *Client) Retry(ctx context.Context, job string, r api.RetryRequest) (out api.Retried, err error) {
	return out, c.send(ctx, http.MethodPost, path("jobs", job, "retry"), r, &out)
}

// LogQuery selects a log.
type LogQuery struct {
	Job     string
	Index   int
	Attempt int // 0 means the newest
	Rank    int // of a task on several machines
	From    int64
	Follow  bool
}

// Log opens a task's log; the caller closes it. A log that is cut off ends with
// an error, not with io.EOF.
func (c *Client) Log(ctx context.Context, q LogQuery) (io.ReadCloser, error) {
	req, err := c.request(ctx, http.MethodGet, path("jobs", q.Job, "tasks", strconv.Itoa(q.Index), "log"),
		values("attempt", number(q.Attempt), "rank", number(q.Rank), "from", number(q.From), "follow", flag(q.Follow)), nil)
	if err != nil {
		return nil, err
	}
	res, err := c.do(c.once, req)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Workdir asks whether a work folder is there already.
func (c *Client) Workdir(ctx context.Context, digest string) (w api.Workdir, err error) {
	return w, c.get(ctx, path("workdirs", digest), nil, &w)
}

// PutWorkdir uploads a work folder's archive.
func (c *Client) PutWorkdir(ctx context.Context, digest string, archive io.Reader, size int64) (w api.Workdir, err error) {
	req, err := c.request(ctx, http.MethodPut, path("workdirs", digest), nil, archive)
	if err != nil {
		return w, err
	}
	req.Header.Set("Content-Type", "application/gzip")
	req.ContentLength = size
	res, err := c.do(c.once, req)
	if err != nil {
		return w, err
	}
	return w, read(res, &w)
}

// Offers returns what can be rented, in the order asked for, and with what is
// quarantined if that is asked for.
func (c *Client) Offers(ctx context.Context, q market.Query, quarantined bool) (out api.Offers, err error) {
	v := offerValues(q)
	for name, value := range map[string]string{
		"memory": decimal(q.Memory), "link": q.Link, "scenario": q.Scenario, "sort": q.Sort, "limit": number(q.Limit),
		"rdma": flag(q.RDMA), "quarantined": flag(quarantined),
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.MaxPrice > 0 {
		v.Set("max_price", q.MaxPrice.String())
	}
	if !q.Near.IsZero() {
		v.Set("near", strings.Join(q.Near.From, ","))
		v.Set("max_rtt", q.Near.RTT.String())
	}
	return out, c.get(ctx, path("offers"), v, &out)
}

// OfferHistory returns what prices were in the last days.
func (c *Client) OfferHistory(ctx context.Context, q market.Query, days int) (out api.History, err error) {
	v := offerValues(q)
	v.Set("days", strconv.Itoa(days))
	return out, c.get(ctx, path("offers", "history"), v, &out)
}

func offerValues(q market.Query) url.Values {
	return values("gpu", q.GPU, "kind", string(q.Kind), "provider", q.Provider, "region", q.Region)
}

func decimal(f float64) string {
	if f == 0 {
		return ""
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// GPUs returns what is known of GPUs, and where each is cheapest.
func (c *Client) GPUs(ctx context.Context) (out api.GPUs, err error) {
	return out, c.get(ctx, path("gpus"), nil, &out)
}

// Scenarios returns the kinds of work that jobs may name.
func (c *Client) Scenarios(ctx context.Context) (out api.Scenarios, err error) {
	return out, c.get(ctx, path("scenarios"), nil, &out)
}

// Scenario tells of one of them.
func (c *Client) Scenario(ctx context.Context, name string) (out api.ScenarioPage, err error) {
	return out, c.get(ctx, path("scenarios", name), nil, &out)
}

// CheckProvider has the broker ask an account's provider whether it can be used.
func (c *Client) CheckProvider(ctx context.Context, name string) (out control.Checkup, err error) {
	return out, c.send(ctx, http.MethodPost, path("providers", name, "check"), nil, &out)
}

// Providers returns the accounts.
func (c *Client) Providers(ctx context.Context) (out api.Providers, err error) {
	return out, c.get(ctx, path("providers"), nil, &out)
}

// Instances returns the machines that are not settled.
func (c *Client) Instances(ctx context.Context) (out api.Instances, err error) {
	return out, c.get(ctx, path("instances"), nil, &out)
}

// Budgets returns the budgets with their current periods.
func (c *Client) Budgets(ctx context.Context) (out api.Budgets, err error) {
	return out, c.get(ctx, path("budgets"), nil, &out)
}

// CostQuery selects what costs are summed over.
type CostQuery struct {
	Project, Job string
	Since, Until time.Time
}

// Costs sums what was spent.
func (c *Client) Costs(ctx context.Context, q CostQuery) (out api.Costs, err error) {
	return out, c.get(ctx, path("costs"), values("project", q.Project, "job", q.Job, "since", moment(q.Since), "until", moment(q.Until)), &out)
}

// EntryQuery selects ledger entries.
type EntryQuery struct {
	Budget, Project, Job, Instance string
	After                          int64
	Limit                          int
}

// Ledger returns a page of the ledger.
func (c *Client) Ledger(ctx context.Context, q EntryQuery) (out api.Entries, err error) {
	return out, c.get(ctx, path("ledger"), values("budget", q.Budget, "project", q.Project, "job", q.Job,
		"instance", q.Instance, "after", number(q.After), "limit", number(q.Limit)), &out)
}

// Tokens returns the tokens without their secrets.
func (c *Client) Tokens(ctx context.Context) (out api.Tokens, err error) {
	return out, c.get(ctx, path("tokens"), nil, &out)
}

// CreateToken makes a token; its text is in the answer and nowhere else.
func (c *Client) CreateToken(ctx context.Context, r api.TokenRequest) (t api.Token, err error) {
	return t, c.send(ctx, http.MethodPost, path("tokens"), r, &t)
}

// RevokeToken ends a token.
func (c *Client) RevokeToken(ctx context.Context, id string) (t api.Token, err error) {
	return t, c.send(ctx, http.MethodDelete, path("tokens", id), nil, &t)
}

// Adopt makes a restored or copied store the broker's own.
func (c *Client) Adopt(ctx context.Context) (m queue.Meta, err error) {
	return m, c.send(ctx, http.MethodPost, path("adopt"), nil, &m)
}

// Version says which version the broker is.
func (c *Client) Version(ctx context.Context) (string, error) {
	var v api.Version
	err := c.get(ctx, path("version"), nil, &v)
	return v.Version, err
}

// EventQuery selects events.
type EventQuery struct {
	Job, Project string
	After        int64
	Limit        int
	Last         bool // the newest ones
}

// Events returns a page of events.
func (c *Client) Events(ctx context.Context, q EventQuery) (out api.Events, err error) {
	return out, c.get(ctx, path("events"), values("job", q.Job, "project", q.Project, "after", number(q.After),
		"limit", number(q.Limit), "last", flag(q.Last)), &out)
}
