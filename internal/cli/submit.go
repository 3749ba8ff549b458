package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/spec"
	"gpubroker/queue"
)

// anyBroker reads specs for a broker that may know more scenarios than are built
// in: whether it does is its word.
var anyBroker = spec.Reader{Open: true}

// specFlags are the flags of commands that take a spec or a command line.
type specFlags struct {
	set, gpu                                             []string
	name, project, queue, scenario, workdir, out, budget string
	gpuCount, vcpu, count                                int
	memory, deadline, maxDuration                        string
}

func (s *specFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&s.set, "set", nil, "override a value of the spec: --set resources.slots=4 (repeatable)")
	f.StringSliceVar(&s.gpu, "gpu", nil, "GPUs that will do: l4,t4, or none")
	f.IntVar(&s.gpuCount, "gpus", 0, "GPUs per task")
	f.IntVar(&s.vcpu, "vcpu", 0, "CPU threads per task")
	f.StringVar(&s.memory, "memory", "", "main memory per task: 8GiB")
	f.StringVar(&s.name, "name", "", "name of the job")
	f.StringVar(&s.project, "project", "", "project that pays")
	f.StringVar(&s.queue, "queue", "", "queue to submit to")
	f.StringVar(&s.scenario, "scenario", "", "kind of work; gpubroker scenarios lists them")
	f.StringVar(&s.workdir, "workdir", "", "folder that is uploaded and becomes the working directory")
	f.StringVar(&s.out, "outputs", "", "where results go: s3://bucket/{{stem}}.mp4")
	f.StringVar(&s.budget, "budget", "", "ceiling for the job: '25 USD'")
	f.StringVar(&s.deadline, "deadline", "", "when all should be done: '06:00 Europe/Berlin'")
	f.StringVar(&s.maxDuration, "max-duration", "", "longest time that one attempt may run: 2h")
	f.IntVar(&s.count, "count", 0, "number of tasks")
}

// sets are the overrides that the flags mean.
func (s *specFlags) sets() []string {
	var out []string
	text := func(key, v string) {
		if v != "" {
			out = append(out, key+"="+v)
		}
	}
	number := func(key string, n int) {
		if n != 0 {
			out = append(out, fmt.Sprintf("%s=%d", key, n))
		}
	}
	text("name", s.name)
	text("project", s.project)
	text("queue", s.queue)
	text("scenario", s.scenario)
	if len(s.gpu) > 0 {
		text("resources.gpu", "["+strings.Join(s.gpu, ", ")+"]")
	}
	number("resources.gpu_count", s.gpuCount)
	number("resources.vcpu", s.vcpu)
	text("resources.memory", s.memory)
	text("workdir", s.workdir)
	text("outputs.to", s.out)
	text("budget.max", s.budget)
	text("deadline", s.deadline)
	text("max_duration", s.maxDuration)
	number("tasks.count", s.count)
	return append(out, s.set...)
}

// read returns the spec of a command's arguments: FILE, or a command line after
// --. dir is what relative paths of the spec are below.
func (s *specFlags) read(cmd *cobra.Command, args []string, in io.Reader) (j *spec.Job, dir string, err error) {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash == 0 && len(args) > 0:
		j, err = anyBroker.FromCommand(args, s.sets()...)
		return j, ".", err
	case dash > 0:
		return nil, "", usage("give either FILE or -- COMMAND, not both; usage: %s", cmd.UseLine())
	case len(args) == 0:
		return nil, "", usage("FILE is missing; usage: %s", cmd.UseLine())
	case len(args) > 1:
		return nil, "", usage("%q is one argument too many; a command line stands after --: %s -- %s", args[1], cmd.CommandPath(), strings.Join(args, " "))
	}
	text, err := readSpec(args[0], in)
	if err != nil {
		return nil, "", err
	}
	j, err = anyBroker.Parse(args[0], text, s.sets()...)
	return j, filepath.Dir(args[0]), err
}

func readSpec(name string, in io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(in)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, usage("read the spec: %w", err)
	}
	return text, nil
}

// anchor makes relative paths of a spec absolute, since the broker has another
// working directory: tasks.glob, paths in tasks.list, inputs and outputs. They
// are of the broker's own disk; only workdir and tasks.file are read here.
func anchor(j *spec.Job, dir string) error {
	root, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	abs := func(p *string) {
		if *p == "" || strings.Contains(*p, "://") || strings.HasPrefix(*p, "/") || strings.HasPrefix(*p, "{{") {
			return
		}
		slash := strings.HasSuffix(*p, "/")
		*p = filepath.ToSlash(filepath.Join(root, filepath.FromSlash(*p)))
		if slash {
			*p += "/"
		}
	}
	if t := j.Tasks; t != nil {
		abs(&t.Glob)
		for i := range t.List {
			if isPath(t.List[i]) {
				abs(&t.List[i])
			}
		}
	}
	for i := range j.Inputs {
		abs(&j.Inputs[i].From)
	}
	if j.Outputs != nil {
		abs(&j.Outputs.To)
	}
	return nil
}

// isPath tells files of an array from plain values.
func isPath(s string) bool { return strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../") }

// lines reads tasks.file, whose lines go with the call. They may be MaxTasks
// many, and [api.MaxSubmit] bytes long in all.
func lines(ctx context.Context, j *spec.Job, dir string) ([]string, error) {
	if j.Tasks == nil || j.Tasks.File == "" {
		return nil, nil
	}
	if u, err := url.Parse(j.Tasks.File); err == nil && u.Scheme != "" && u.Scheme != "file" {
		return nil, usage("tasks.file: %s is not a file of this machine; copy it here, or use tasks.glob", j.Tasks.File)
	}
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	total := 0
	for line, err := range j.Expand(ctx, spec.Local{Dir: root}) {
		if err != nil {
			return nil, &exit{ExitUsage, err}
		}
		if isPath(line) {
			line = filepath.ToSlash(filepath.Join(root, filepath.FromSlash(line)))
		}
		out = append(out, line)
		if total += len(line) + 3; total > api.MaxSubmit-1<<20 {
			return nil, usage("tasks.file: its lines have more than %s, which one submission may have; split the job", size(api.MaxSubmit-1<<20))
		}
	}
	return out, nil
}

// request makes a submission of a spec: paths anchored, lines read, and with
// upload the work folder handed in.
func (a *app) request(ctx context.Context, c *client.Client, j *spec.Job, dir string, upload bool) (r api.SubmitRequest, err error) {
	if r.Inputs, err = lines(ctx, j, dir); err != nil {
		return r, err
	}
	if err := anchor(j, dir); err != nil {
		return r, err
	}
	if upload && j.Workdir != "" && !strings.HasPrefix(j.Workdir, "workdir:") {
		if j.Workdir, err = a.uploadWorkdir(ctx, c, filepath.Join(absent(dir, j.Workdir), filepath.FromSlash(j.Workdir))); err != nil {
			return r, err
		}
	}
	r.Spec = j.Canonical()
	return r, nil
}

// absent is dir, or nothing when the path does not need it.
func absent(dir, path string) string {
	if filepath.IsAbs(path) {
		return ""
	}
	return dir
}

func (a *app) submit() *cobra.Command {
	var flags specFlags
	var key string
	var wait bool
	cmd := &cobra.Command{
		Use:   "submit FILE | -- COMMAND...",
		Short: "Submit a job: a spec, or a command line",
		Example: "  gpubroker submit nightly.yaml --set tasks.parallelism=8 --wait\n" +
			"  gpubroker submit --gpu l4 --max-duration 1h -- nvidia-smi",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			j, dir, err := flags.read(cmd, args, a.In)
			if err != nil {
				return err
			}
			c, err := a.broker()
			if err != nil {
				return err
			}
			done := a.slow("submitting")
			r, err := a.request(ctx, c, j, dir, true)
			if err != nil {
				done()
				return away(err)
			}
			r.Key = key
			job, err := c.Submit(ctx, r)
			done()
			if err != nil {
				return away(err)
			}
			if !wait {
				if done, err := a.json(job); done {
					return err
				}
				return a.look.printf("%s  %s: %s accepted\n%s\n", styleHead.Render(job.ID), job.Name, plural(job.Tasks, "task"),
					styleDim.Render("gpubroker jobs "+job.ID+" shows it, gpubroker watch "+job.ID+" follows it"))
			}
			return a.await(ctx, c, job)
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&key, "key", "", "makes the call safe to repeat: the same key with the same content is the same job")
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "follow the job until it is done; exit 1 if it failed")
	return cmd
}

// lookAgain is how often a job is asked for while its events are followed, and
// the pause after a broken connection.
const lookAgain = 2 * time.Second

// patience is how long a broker may be away while something is followed.
const patience = 10 * time.Minute

// await follows a job until it is done and shows how it went.
func (a *app) await(ctx context.Context, c *client.Client, job api.Job) error {
	job, err := a.followJob(ctx, c, job, 0, func(e api.Event) error {
		if a.again(e) {
			return nil
		}
		_, err := fmt.Fprintln(a.Err, a.eventLine(e))
		return err
	})
	if err != nil {
		return err
	}
	if done, err := a.json(job); done {
		return errors.Join(err, outcome(job))
	}
	if err := a.look.printf("%s  %s: %s\n", job.ID, job.Name, a.countsLine(job)); err != nil {
		return err
	}
	return outcome(job)
}

// outcome is the exit of a job that is done.
func outcome(j api.Job) error {
	if j.State == queue.JobSucceeded {
		return nil
	}
	return &exit{code: ExitFailed}
}

// followJob hands a job's events to fn until the job is done, across breaks of
// the connection.
func (a *app) followJob(ctx context.Context, c *client.Client, job api.Job, after int64, fn func(api.Event) error) (api.Job, error) {
	var gone time.Time
	told := false
	for {
		fresh, err := c.Job(ctx, job.ID)
		if err == nil {
			job, gone, told = fresh, time.Time{}, false
			if job.Ended != nil {
				// What was written until now is shown before the end.
				page, err := c.Events(ctx, client.EventQuery{Job: job.ID, After: after, Limit: 1000})
				if err != nil || after == 0 {
					return job, err
				}
				for _, e := range page.Events {
					if err := fn(e); err != nil {
						return job, err
					}
				}
				return job, nil
			}
			if after == 0 {
				last, err := c.Events(ctx, client.EventQuery{Last: true, Limit: 1})
				if err == nil && len(last.Events) > 0 {
					after = last.Events[0].Seq
				}
			}
			after, err = a.someEvents(ctx, c, job.ID, after, fn)
		}
		switch {
		case ctx.Err() != nil:
			return job, context.Cause(ctx)
		case err != nil && !errors.Is(err, client.ErrUnreachable):
			return job, err
		case err != nil:
			if gone.IsZero() {
				gone = a.Now()
			}
			if a.Now().Sub(gone) > patience {
				return job, away(err)
			}
			if !told && a.Now().Sub(gone) > lookAgain {
				told = true
				fmt.Fprintf(a.Err, "the broker does not answer; trying again for %s\n", span(patience))
			}
			if err := pause(ctx, lookAgain/4); err != nil {
				return job, err
			}
		}
	}
}

var errEnough = errors.New("enough")

// someEvents follows events for a while: until the job may be done, or the time
// for another look has come.
func (a *app) someEvents(ctx context.Context, c *client.Client, job string, after int64, fn func(api.Event) error) (int64, error) {
	watching, cancel := context.WithTimeoutCause(ctx, lookAgain, errEnough)
	defer cancel()
	last, err := c.Watch(watching, client.EventQuery{Job: job, After: after}, func(e api.Event) error {
		if err := fn(e); err != nil {
			return err
		}
		after = e.Seq
		if strings.HasPrefix(e.Kind, "job.") {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return max(last, after), nil
	}
	return max(last, after), err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
