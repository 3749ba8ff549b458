package cli

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/control"
	"gpubroker/queue"
)

// find returns the job of an id, or the newest of a name.
func (a *app) find(ctx context.Context, c *client.Client, arg string) (api.Job, error) {
	j, err := c.Job(ctx, arg)
	if !client.Is(err, http.StatusNotFound) && !client.Is(err, http.StatusUnprocessableEntity) {
		return j, away(err)
	}
	named, err := c.Jobs(ctx, client.JobQuery{Name: arg, Limit: 1})
	if err != nil {
		return j, away(err)
	}
	if len(named.Jobs) > 0 {
		return c.Job(ctx, named.Jobs[0].ID)
	}
	recent, err := c.Jobs(ctx, client.JobQuery{Limit: 200})
	if err != nil {
		return j, away(err)
	}
	var names []string
	for _, r := range recent.Jobs {
		names = append(names, r.Name, r.ID)
	}
	return j, fmt.Errorf("there is no job %q; %s", arg, hint(arg, names, "gpubroker jobs lists them"))
}

// completeJobs offers ids and names of jobs to the shell.
func (a *app) completeJobs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := a.broker()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := c.Jobs(cmd.Context(), client.JobQuery{Limit: 50})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, j := range list.Jobs {
		out = append(out, j.ID+"\t"+j.Name+", "+string(j.State), j.Name)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) jobs() *cobra.Command {
	var q client.JobQuery
	var all, why bool
	cmd := &cobra.Command{
		Use: "jobs [JOB]", Short: "List jobs, or show one with its tasks",
		Args: atMostOne, ValidArgsFunction: a.completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			if len(args) == 1 {
				return a.showJob(cmd.Context(), c, args[0], q.Limit, all, why)
			}
			if why {
				return usage("--why is about one job; usage: gpubroker jobs JOB --why")
			}
			q.Open = !all
			list, err := a.listJobs(cmd.Context(), c, q)
			if err != nil {
				return away(err)
			}
			if done, err := a.json(list); done {
				return err
			}
			return a.printJobs(list, all)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "jobs that are done too; with JOB all its tasks")
	f.BoolVar(&why, "why", false, "with JOB: what was decided for it and from what")
	f.StringVar(&q.Project, "project", "", "only of this project")
	f.StringVar(&q.Queue, "queue", "", "only of this queue")
	f.IntVar(&q.Limit, "limit", 50, "at most so many")
	return cmd
}

// largest is the largest page that the broker gives.
const largest = 1000

// listJobs reads pages until limit jobs are there.
func (a *app) listJobs(ctx context.Context, c *client.Client, q client.JobQuery) (api.Jobs, error) {
	out := api.Jobs{Jobs: []api.Job{}}
	limit := max(q.Limit, 1)
	for {
		q.Limit = min(limit-len(out.Jobs), largest)
		page, err := c.Jobs(ctx, q)
		if err != nil {
			return out, err
		}
		out.Jobs = append(out.Jobs, page.Jobs...)
		out.Next, q.After = page.Next, page.Next
		if page.Next == "" || len(out.Jobs) >= limit {
			return out, nil
		}
	}
}

func (a *app) printJobs(list api.Jobs, all bool) error {
	if len(list.Jobs) == 0 {
		if all {
			return a.look.printf("no jobs; gpubroker submit hands one in\n")
		}
		return a.look.printf("no jobs are waiting or running; --all lists those that are done too\n")
	}
	t := table{head: []string{"JOB", "NAME", "PROJECT", "STATE", "DONE", "RUN", "FAIL", "AGE", "WHY NOT SOONER"}, right: []int{4, 5, 6}, flexible: []int{8, 1, 2}}
	for _, j := range list.Jobs {
		t.row(j.ID, j.Name, j.Project, state(string(j.State)), fmt.Sprintf("%d/%d", j.Counts.Succeeded, j.Tasks),
			strconv.Itoa(j.Counts.Running), strconv.Itoa(j.Counts.Failed), strings.TrimSuffix(a.look.age(j.Accepted), " ago"), waits(j))
	}
	if err := a.look.printf("%s", t.String()); err != nil {
		return err
	}
	if list.Next != "" {
		return a.look.printf("%s\n", styleDim.Render("there are more; --limit shows them"))
	}
	return nil
}

// waits is why a job's tasks wait, in short.
func waits(j api.Job) string {
	if j.Ended != nil {
		return ""
	}
	if j.Held != "" {
		return j.Held
	}
	return j.Reason
}

// jobDetail is the JSON of one job.
type jobDetail struct {
	Job      api.Job            `json:"job"`
	Tasks    []control.TaskView `json:"tasks"`
	Attempts []*queue.Attempt   `json:"attempts"`
}

func (a *app) showJob(ctx context.Context, c *client.Client, arg string, limit int, all, why bool) error {
	j, err := a.find(ctx, c, arg)
	if err != nil {
		return err
	}
	if why {
		return a.explainJob(ctx, c, j)
	}
	d := jobDetail{Job: j, Tasks: []control.TaskView{}, Attempts: []*queue.Attempt{}}
	var more bool
	for after := ""; ; {
		page, err := c.Tasks(ctx, j.ID, "", after, min(limit, largest))
		if err != nil {
			return away(err)
		}
		d.Tasks = append(d.Tasks, page.Tasks...)
		after = page.Next
		if more = after != ""; !more || !all && len(d.Tasks) >= limit {
			break
		}
	}
	for after := ""; ; {
		page, err := c.Attempts(ctx, j.ID, -1, after, largest)
		if err != nil {
			return away(err)
		}
		d.Attempts = append(d.Attempts, page.Attempts...)
		if after = page.Next; after == "" || !all {
			break
		}
	}
	if done, err := a.json(d); done {
		return err
	}
	return a.printJob(d, limit, more, all)
}

func (a *app) explainJob(ctx context.Context, c *client.Client, j api.Job) error {
	w, err := c.Why(ctx, j.ID)
	if err != nil {
		return away(err)
	}
	if done, err := a.json(w); done {
		return err
	}
	if !w.Waiting {
		return a.look.printf("%s  %s: %s; no task waits\n", j.ID, j.Name, a.countsLine(j))
	}
	return a.explain(j.Name, api.Plan{Explanation: w.Explanation, Currency: w.Currency})
}

// countsLine sums a job's tasks.
func (a *app) countsLine(j api.Job) string {
	parts := []string{state(string(j.State))}
	for _, p := range []struct {
		n    int
		what string
	}{{j.Counts.Succeeded, "done"}, {j.Counts.Running, "running"}, {j.Waiting, "waiting"}, {j.Counts.Held, "held"}, {j.Counts.Failed, "failed"}, {j.Counts.Cancelled, "cancelled"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return parts[0] + ", " + plural(j.Tasks, "task") + ": " + strings.Join(parts[1:], ", ")
}

func (a *app) printJob(d jobDetail, limit int, more, all bool) error {
	j := d.Job
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", styleHead.Render(j.ID), j.Name)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "  %-10s %s\n", name, wrap(value, 13))
		}
	}
	line("state", a.countsLine(j))
	line("project", j.Project)
	line("queue", j.Queue)
	line("submitted", local(j.Accepted)+", "+a.look.age(j.Accepted)+by(j.User))
	line("priority", strconv.Itoa(j.Priority))
	if j.Deadline != nil {
		line("deadline", local(*j.Deadline)+", "+a.look.age(*j.Deadline))
	}
	if j.Ended != nil {
		line("ended", local(*j.Ended)+", "+a.look.age(*j.Ended))
	}
	if j.CancelledBy != "" {
		line("cancelled", "by "+j.CancelledBy)
	}
	if w := waits(j); w != "" {
		line("waits", w)
		if j.Decision != nil && j.Held == "" {
			line("waits for", j.Decision.Why.Change())
		}
		if j.Decision != nil && !j.Decision.Again.IsZero() {
			line("next look", a.look.age(j.Decision.Again))
		}
	}
	if r := j.RightSizing; r != nil {
		name := "right size"
		for _, n := range r.Notes {
			line(name, n.String())
			name = ""
		}
	}
	if len(d.Tasks) > 0 {
		b.WriteString("\n" + a.tasksTable(d, limit, all))
	}
	if more {
		b.WriteString(styleDim.Render("there are more tasks; --all shows them") + "\n")
	}
	return a.look.printf("%s", b.String())
}

func by(user string) string {
	if user == "" {
		return ""
	}
	return ", by " + user
}

// tasksTable shows tasks with their attempts below them, when there are few.
func (a *app) tasksTable(d jobDetail, limit int, all bool) string {
	t := table{head: []string{"TASK", "STATE", "SAVED", "NOW", "ATTEMPT", "MACHINE", "FOR", "INPUT OR WHY"}, right: []int{0, 2, 3, 4}, flexible: []int{7, 5}}
	byTask := map[int][]*queue.Attempt{}
	for _, at := range d.Attempts {
		byTask[at.Index] = append(byTask[at.Index], at)
	}
	shown := d.Tasks
	if !all {
		shown = shown[:min(len(shown), limit)]
	}
	for _, x := range shown {
		now, machine, since := "", "", ""
		if x.Running != nil {
			machine = x.Running.Instance
			if m := x.Running.Member; m != nil && m.Nodes > 1 {
				machine += fmt.Sprintf(" +%d", m.Nodes-1)
			}
			since = span(a.look.now().Sub(x.Running.Created))
		}
		if p := x.Progress; p != nil {
			switch {
			case p.Share != nil:
				now = percent(*p.Share)
			case p.Units != nil:
				now = strconv.FormatFloat(*p.Units, 'g', 6, 64)
			default:
				now = p.Phase
			}
		}
		saved := ""
		if x.Committed > 0 {
			saved = percent(x.Task.Progress)
		}
		note := x.Input
		if !x.Reason.IsZero() && x.State != queue.TaskSucceeded {
			note = x.Reason.String()
		}
		t.row(strconv.Itoa(x.Index), state(string(x.State)), saved, now, strconv.Itoa(x.Attempts), machine, since, note)
		if len(shown) > 5 {
			continue
		}
		for _, at := range byTask[x.Index] {
			if at.State != queue.AttemptEnded || !at.Leads() && (at.Outcome == queue.Stopped || at.Outcome == queue.Succeeded) {
				continue // what became of a gang is told by its first machine, and by the one that ended it
			}
			number := strconv.Itoa(at.Number)
			if at.Member != nil {
				number += " rank " + strconv.Itoa(at.Member.Rank)
			}
			t.row("", styleDim.Render("  "+string(at.Outcome)), "", "", number, at.Instance, span(at.Ended.Sub(at.Created)), at.Reason.String())
		}
	}
	return t.String()
}

func (a *app) act(use, short, verb string, done func(api.Job) string) *cobra.Command {
	return &cobra.Command{
		Use: use + " JOB...", Short: short, ValidArgsFunction: a.completeJobs,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exactly("JOB")(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			out := api.Jobs{}
			for _, arg := range args {
				j, err := a.find(cmd.Context(), c, arg)
				if err != nil {
					return err
				}
				if j, err = c.Act(cmd.Context(), j.ID, verb); err != nil {
					return away(err)
				}
				out.Jobs = append(out.Jobs, j)
				if a.format == "text" {
					if err := a.look.printf("%s  %s: %s\n", j.ID, j.Name, done(j)); err != nil {
						return err
					}
				}
			}
			_, err = a.json(out)
			return err
		},
	}
}

// cancelled says what a cancel did.
func (a *app) cancelled(j api.Job) string {
	switch {
	case j.Ended != nil && j.CancelledBy == "":
		return "the job is done already and nothing was cancelled; " + a.countsLine(j)
	case j.Counts.Running > 0:
		return fmt.Sprintf("cancelled; %s being stopped now", isOrAre(j.Counts.Running, "task"))
	case j.Tasks == 1:
		return "cancelled"
	}
	return fmt.Sprintf("cancelled: %d of %s", j.Counts.Cancelled, plural(j.Tasks, "task"))
}

// held says what a hold did.
func (a *app) held(j api.Job) string {
	text := "held, nothing more of it is placed"
	if j.Counts.Running > 0 {
		text += fmt.Sprintf("; %s still running", isOrAre(j.Counts.Running, "task"))
	}
	return text
}

// isOrAre is "1 task is" or "3 tasks are".
func isOrAre(n int, what string) string {
	if n == 1 {
		return plural(n, what) + " is"
	}
	return plural(n, what) + " are"
}

func (a *app) cancel() *cobra.Command {
	return a.act("cancel", "Cancel jobs: what waits at once, what runs is stopped", client.Cancel, a.cancelled)
}

func (a *app) hold() *cobra.Command {
	return a.act("hold", "Stop new placements of jobs; what runs goes on", client.Hold, a.held)
}

func (a *app) release() *cobra.Command {
	return a.act("release", "Undo a hold", client.Release, func(j api.Job) string { return "released; " + a.countsLine(j) })
}

func (a *app) retry() *cobra.Command {
	var r api.RetryRequest
	cmd := &cobra.Command{
		Use: "retry JOB --failed", Short: "Queue a job's failed or cancelled tasks again",
		Args: exactly("JOB"), ValidArgsFunction: a.completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !r.Failed && !r.Cancelled {
				return usage("say which tasks: --failed, --cancelled, or both")
			}
			c, err := a.broker()
			if err != nil {
				return err
			}
			defer a.slow("asking the broker")()
			j, err := a.find(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			out, err := c.Retry(cmd.Context(), j.ID, r)
			if err != nil {
				return away(err)
			}
			if done, err := a.json(out); done {
				return err
			}
			return a.look.printf("%s  %s: %s queued again\n", j.ID, j.Name, plural(out.Tasks, "task"))
		},
	}
	cmd.Flags().BoolVar(&r.Failed, "failed", false, "tasks that failed")
	cmd.Flags().BoolVar(&r.Cancelled, "cancelled", false, "tasks that were cancelled")
	return cmd
}

// sorted returns the keys of a map in order.
func sorted[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
