package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/queue"
)

// eventLine shows an event in one line: a job by its name, and by its id where
// that is not known.
func (a *app) eventLine(e api.Event) string {
	where := cmp.Or(e.Name, e.Job)
	if e.Index != nil {
		where += "/" + strconv.Itoa(*e.Index)
	}
	if where == "" {
		where = e.Instance
	} else if e.Instance != "" {
		where += " on " + e.Instance
	}
	return strings.TrimRight(fmt.Sprintf("%s  %-20s  %s  %s", e.At.Local().Format("15:04:05"), e.Kind, where, e.Text), " ")
}

func (a *app) watch() *cobra.Command {
	var q client.EventQuery
	var last int
	cmd := &cobra.Command{
		Use: "watch [JOB]", Short: "Follow what happens; with JOB until it is done",
		Long: "Follow what happens, one line for each event, or with -o json one object a line. With JOB it ends when\n" +
			"the job is done: exit code 0 when it succeeded, else 1.",
		Args: atMostOne, ValidArgsFunction: a.completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := a.broker()
			if err != nil {
				return err
			}
			var job api.Job
			if len(args) == 1 {
				if job, err = a.find(ctx, c, args[0]); err != nil {
					return err
				}
				q.Job = job.ID
			}
			old, err := c.Events(ctx, client.EventQuery{Job: q.Job, Project: q.Project, Last: true, Limit: max(last, 1)})
			if err != nil {
				return away(err)
			}
			for _, e := range old.Events {
				q.After = e.Seq
				if last > 0 {
					if err := a.printEvent(e); err != nil {
						return err
					}
				}
			}
			if len(args) == 1 {
				if job, err = a.followJob(ctx, c, job, q.After, a.printEvent); err != nil {
					return err
				}
				if a.format == "text" {
					if err := a.look.printf("%s  %s: %s\n", job.ID, job.Name, a.countsLine(job)); err != nil {
						return err
					}
				}
				return outcome(job)
			}
			fmt.Fprintln(a.Err, "following "+c.URL()+"; Ctrl-C ends it")
			return a.followAll(ctx, c, q)
		},
	}
	cmd.Flags().StringVar(&q.Project, "project", "", "only of this project")
	cmd.Flags().IntVar(&last, "last", 20, "begin with so many that were")
	return cmd
}

func (a *app) printEvent(e api.Event) error {
	if a.format == "json" {
		return writeJSONLine(a.Out, e)
	}
	if a.again(e) {
		return nil
	}
	return a.look.printf("%s\n", a.eventLine(e))
}

// again reports whether an event only repeats what was shown: a cancelled job says
// so with who did it, and once more when its last task has stopped.
func (a *app) again(e api.Event) bool {
	if e.Event == nil || e.Job == "" || !strings.HasPrefix(e.Kind, "job.") {
		return false
	}
	if e.Reason.IsZero() && e.Text == "" && a.ended[e.Job] == e.Kind {
		return true
	}
	if a.ended == nil {
		a.ended = map[string]string{}
	}
	a.ended[e.Job] = e.Kind
	return false
}

// followAll follows all events, across breaks of the connection.
func (a *app) followAll(ctx context.Context, c *client.Client, q client.EventQuery) error {
	gone := a.Now()
	for {
		after, err := c.Watch(ctx, q, func(e api.Event) error {
			gone = a.Now()
			return a.printEvent(e)
		})
		q.After = max(q.After, after)
		switch {
		case ctx.Err() != nil:
			return nil // that is how it is ended
		case !errors.Is(err, client.ErrUnreachable):
			return err
		case a.Now().Sub(gone) > patience:
			return away(err)
		}
		fmt.Fprintln(a.Err, "the broker does not answer; trying again")
		if err := pause(ctx, lookAgain); err != nil {
			return nil
		}
	}
}

// task splits JOB/INDEX.
func (a *app) task(ctx context.Context, c *client.Client, arg string) (api.Job, int, error) {
	name, text, given := strings.Cut(arg, "/")
	index := 0
	if given {
		var err error
		if index, err = strconv.Atoi(text); err != nil || index < 0 {
			return api.Job{}, 0, usage("%q: expected JOB or JOB/INDEX with a number from 0 on", arg)
		}
	}
	j, err := a.find(ctx, c, name)
	switch {
	case err != nil:
		return j, 0, err
	case !given && j.Tasks > 1:
		return j, 0, usage("job %s has %d tasks: name one, for example %s/0", name, j.Tasks, name)
	case index >= j.Tasks:
		return j, 0, usage("job %s has the tasks 0 to %d", name, j.Tasks-1)
	}
	return j, index, nil
}

func (a *app) logs() *cobra.Command {
	var follow bool
	var attempt, rank int
	cmd := &cobra.Command{
		Use: "logs JOB[/INDEX]", Short: "Show a task's log, and follow it with -f",
		Long: "Show the log of a task's newest attempt. With -f it goes on until the task is done, through all\nattempts that follow; where one begins is said on standard error. Of a task on several machines\nit is the log of the first; --rank 1 shows the next one's.",
		Args: exactly("JOB"), ValidArgsFunction: a.completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := a.broker()
			if err != nil {
				return err
			}
			j, index, err := a.task(ctx, c, args[0])
			if err != nil {
				return err
			}
			q := client.LogQuery{Job: j.ID, Index: index, Attempt: attempt, Rank: rank, Follow: follow}
			if !follow || attempt > 0 {
				_, err := a.copyLog(ctx, c, q)
				return away(err)
			}
			return a.followLog(ctx, c, q)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the task is done")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "of this attempt; 0 means the newest")
	cmd.Flags().IntVar(&rank, "rank", 0, "of a task on several machines: of this one; 0 is the first")
	return cmd
}

// copyLog writes a log and returns how many bytes of it there were.
func (a *app) copyLog(ctx context.Context, c *client.Client, q client.LogQuery) (int64, error) {
	r, err := c.Log(ctx, q)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	n, err := io.Copy(a.Out, r)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: the log broke off: %w", client.ErrUnreachable, err)
	}
	return n, err
}

// followLog follows a task through its attempts until it is done.
func (a *app) followLog(ctx context.Context, c *client.Client, q client.LogQuery) error {
	gone, waited := a.Now(), false
	for {
		attempt, done, err := a.newest(ctx, c, q)
		if err == nil && attempt > q.Attempt {
			if attempt > 1 {
				fmt.Fprintf(a.Err, "--- attempt %d ---\n", attempt)
			}
			q.Attempt, q.From = attempt, 0
		}
		if err == nil && q.Attempt > 0 {
			var n int64
			n, err = a.copyLog(ctx, c, q)
			q.From += n
			if err == nil && done {
				return nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil // that is how it is ended
		case err == nil:
			gone = a.Now()
			if done {
				return nil
			}
			if q.Attempt == 0 && !waited {
				waited = true
				fmt.Fprintln(a.Err, "the task has not been placed yet; waiting")
			}
		case !errors.Is(err, client.ErrUnreachable):
			return err
		case a.Now().Sub(gone) > patience:
			return away(err)
		}
		if pause(ctx, lookAgain/2) != nil {
			return nil
		}
	}
}

// newest returns the number of a task's newest attempt, 0 when it has none, and
// whether the task is done.
func (a *app) newest(ctx context.Context, c *client.Client, q client.LogQuery) (attempt int, done bool, err error) {
	j, err := c.Job(ctx, q.Job)
	if err != nil {
		return 0, false, err
	}
	var last *queue.Attempt
	for after := ""; ; {
		page, err := c.Attempts(ctx, q.Job, q.Index, after, largest)
		if err != nil {
			return 0, false, err
		}
		for _, at := range page.Attempts {
			if at.Leads() && (last == nil || at.Number > last.Number) {
				last = at
			}
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if last == nil {
		return 0, j.Ended != nil, nil
	}
	over := last.State == queue.AttemptEnded && (last.Outcome == queue.Succeeded || j.Ended != nil)
	return last.Number, over, nil
}
