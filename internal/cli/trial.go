package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/control"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/quantity"
	"gpubroker/internal/spec"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// How long a task of a trial may run where nobody says: one that is all of its job
// is stopped and judged by its progress.
const (
	trialOne  = 10 * time.Minute
	trialMany = time.Hour
)

// trialFlags are the flags of trial, beside those of a spec.
type trialFlags struct {
	on       []string
	sample   string
	most     string
	limit    time.Duration
	patience time.Duration
}

func (a *app) trial() *cobra.Command {
	var flags specFlags
	var f trialFlags
	cmd := &cobra.Command{
		Use:   "trial FILE --on GPU,GPU...",
		Short: "Run a sample of a job on several GPUs, and say what all of it would cost",
		Long: "Run the first tasks of a job on each GPU named, at the same time and under one cap, and print how long\n" +
			"a task took there, what it cost, and what the full job would cost and take. What is measured stays\n" +
			"with the broker: plans of the job rest on it from then on.\n\n" +
			"Results go to a folder of their own, trial-TIME/GPU/, inside that of outputs.to. A job of one task is\n" +
			"stopped after --for (10m) and judged by the progress that it reports. Ctrl-C cancels the trial.\n\n" +
			"Exit code 0: it ran on all of them, else 1.",
		Example: "  gpubroker trial nightly.yaml --on l4,t4,a10g --sample 2% --max '5 USD'\n" +
			"  gpubroker trial train.yaml --on h100,a100 --for 15m",
		RunE: func(cmd *cobra.Command, args []string) error {
			j, dir, err := flags.read(cmd, args, a.In)
			if err != nil {
				return err
			}
			return a.runTrial(cmd.Context(), j, dir, &f)
		},
	}
	flags.register(cmd)
	c := cmd.Flags()
	c.StringSliceVar(&f.on, "on", nil, "GPUs to try, as in resources.gpu: l4,t4,a10g")
	c.StringVar(&f.sample, "sample", "2%", "how many of the tasks, from the first: a share or a number; at least one")
	c.StringVar(&f.most, "max", "5 USD", "most that the whole trial may cost; each GPU gets an equal part")
	c.DurationVar(&f.limit, "for", 0, "stop each task after this (default: max_duration, else 1h, or 10m for one task)")
	c.DurationVar(&f.patience, "patience", 20*time.Minute, "how long a GPU is waited for")
	return cmd
}

// Trial is what a trial found.
type Trial struct {
	Job      string         `json:"job"`
	Tasks    int            `json:"tasks"`  // of the full job
	Sample   int            `json:"sample"` // of them, tried on each GPU
	Currency money.Currency `json:"currency"`
	GPUs     []TrialGPU     `json:"gpus"`
}

// TrialGPU is what a trial found on one GPU. Seconds are sums over the sample,
// what was undone and repeated included.
type TrialGPU struct {
	GPU    string `json:"gpu"` // as it was asked for
	Job    string `json:"job,omitzero"`
	Ran    bool   `json:"ran"`             // all of the sample did, to its end or to the time limit
	Reason string `json:"reason,omitzero"` // why not

	Machine  *control.AttemptMachine `json:"machine,omitempty"` // the first
	Machines int                     `json:"machines"`
	Done     float64                 `json:"tasks_done"` // parts count as what was done of them

	EndToEnd float64 `json:"end_to_end_seconds"` // from the submission to the end of the last task
	Boot     float64 `json:"boot_seconds"`       // of all machines, from the decision to the agent's first call
	Staging  float64 `json:"staging_seconds"`    // from the placing on a machine that is up to the command's start
	Work     float64 `json:"work_seconds"`       // commands ran
	Output   float64 `json:"output_seconds"`     // from their end until all was handed in

	TaskSeconds float64      `json:"task_seconds"` // of work for one task
	TaskCost    money.Amount `json:"task_cost"`    // of that work, at the machine's price
	Spent       money.Amount `json:"spent"`        // by this part of the trial, as far as it is booked
	Full        *TrialFull   `json:"full,omitempty"`
}

// TrialFull is what the full job would cost and take there, as it is planned now.
type TrialFull struct {
	Cost    money.Amount     `json:"cost"`
	Seconds float64          `json:"seconds"`
	Rate    scheduler.Source `json:"rate"`
	Low     float64          `json:"task_seconds_low"`
	High    float64          `json:"task_seconds_high"`
}

// share is how many tasks a sample has: "2%" or "3".
func share(sample string, tasks int) (int, error) {
	text, isShare := strings.CutSuffix(strings.TrimSpace(sample), "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	switch {
	case err != nil || !(n > 0) || math.IsInf(n, 0) || isShare && n > 100 || !isShare && n != math.Trunc(n):
		return 0, usage("--sample %q: expected a share such as 2%%, or a number of tasks", sample)
	case isShare:
		n = math.Ceil(n / 100 * float64(tasks))
	}
	return int(min(max(n, 1), float64(tasks))), nil
}

// candidates checks the GPUs that are to be tried.
func candidates(j *spec.Job, on []string) error {
	if len(on) == 0 {
		return usage("say which GPUs are to be tried: --on l4,t4")
	}
	if !j.NeedsGPU() {
		return usage("the job asks for no GPU (gpu: none), and there is nothing to compare")
	}
	tried := map[string]string{}
	for _, name := range on {
		ids, err := gpu.Builtin().Resolve(name)
		if err != nil {
			return usage("--on: %w", err)
		}
		for _, id := range ids {
			switch other, twice := tried[id]; {
			case twice && other == name:
				return usage("--on names %s twice", name)
			case twice:
				return usage("--on: %s and %s are both %s; each GPU is tried once", other, name, id)
			}
			tried[id] = name
		}
	}
	return nil
}

// only is a copy of a spec that may use just one GPU.
func only(canonical []byte, name string) (*spec.Job, error) {
	j, err := spec.Reader{Open: true}.Decode(canonical)
	if err != nil {
		return nil, err
	}
	if j.Work != nil && j.Work.On == "" && len(j.Resources.GPU) == 1 {
		j.Work.On = j.Resources.GPU[0] // what it meant
	}
	j.Resources.GPU = []string{name}
	return j, nil
}

// sampled is a copy of a spec for one part of a trial: on one GPU, now, within its
// part of the cap, and with results of its own.
func sampled(canonical []byte, name, folder string, most money.Money, limit time.Duration) (*spec.Job, error) {
	j, err := only(canonical, name)
	if err != nil {
		return nil, err
	}
	j.Deadline, j.AfterDeadline, j.Window, j.Retry, j.Work = nil, "", nil, nil, nil
	if j.Spot != nil && j.Spot.OnDemand == "deadline" {
		j.Spot.OnDemand = ""
	}
	if j.Budget == nil || j.Budget.Max.Amount > most.Amount {
		j.Budget = &spec.Budget{Max: quantity.Money{Money: most}}
	}
	j.MaxDuration = quantity.Duration(limit)
	if j.Outputs != nil {
		j.Outputs.To = apart(j.Outputs.To, folder+"/"+plainName(name)+"/")
	}
	return j, nil
}

// trialName is what a part of a trial is listed as.
func trialName(job, folder, gpu string) string {
	const longest = 40 // so that all of it has 100 letters at most
	name := plainName(gpu)
	return job[:min(len(job), longest)] + "." + folder + "." + name[:min(len(name), 32)]
}

// plainName is a GPU's name as a part of a path and of a job's name.
func plainName(gpu string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, gpu)
}

// apart puts results into a folder inside the one where they would go: the last one
// before the first part that differs by task.
func apart(to, folder string) string {
	fixed, _, _ := strings.Cut(to, "{{")
	at := strings.LastIndexByte(fixed, '/') + 1
	return to[:at] + folder + to[at:]
}

// stopsTrial are the answers to a plan that waiting does not change.
var stopsTrial = map[string]bool{
	"no_offer_fits": true, "no_offers": true, "over_budget": true, "no_max_duration": true, "not_admitted": true,
}

func (a *app) runTrial(ctx context.Context, j *spec.Job, dir string, f *trialFlags) error {
	if err := candidates(j, f.on); err != nil {
		return err
	}
	if _, err := share(f.sample, 1); err != nil {
		return err
	}
	most, err := money.Parse(f.most, money.USD)
	if err != nil || most.Amount <= 0 {
		return usage("--max %q: expected an amount with its currency such as 5 USD", f.most)
	}
	most.Amount /= money.Amount(len(f.on))
	c, err := a.broker()
	if err != nil {
		return err
	}
	done := a.slow("asking the broker")
	r, err := a.request(ctx, c, j, dir, true)
	if err != nil {
		done()
		return away(err)
	}
	whole, err := c.Plan(ctx, r)
	done()
	if err != nil {
		return away(err)
	}
	t := Trial{Job: j.Name, Tasks: whole.Decision.Waiting, Currency: cmp.Or(whole.Currency, money.USD)}
	if t.Sample, err = share(f.sample, t.Tasks); err != nil {
		return err
	}
	limit := cmp.Or(f.limit, j.MaxDuration.Std(), trialMany)
	if f.limit == 0 && t.Tasks == 1 {
		limit = min(limit, trialOne)
	}
	began := a.Now().UTC()
	folder := "trial-" + began.Format("20060102-150405")
	for _, name := range f.on {
		t.GPUs = append(t.GPUs, TrialGPU{GPU: name})
	}
	err = a.startTrial(ctx, c, r, &t, folder, most, limit)
	if err == nil {
		err = a.followTrial(ctx, c, &t, f.patience)
	}
	if err != nil {
		return errors.Join(err, a.endTrial(ctx, c, &t))
	}
	for i := range t.GPUs {
		if err := a.measure(ctx, c, r, &t, &t.GPUs[i]); err != nil {
			return away(err)
		}
	}
	if done, err := a.json(t); done {
		return errors.Join(err, t.outcome())
	}
	if err := a.look.printf("%s", t.text()); err != nil {
		return err
	}
	return t.outcome()
}

// outcome is the exit of a trial.
func (t *Trial) outcome() error {
	for _, g := range t.GPUs {
		if !g.Ran {
			return &exit{code: ExitFailed}
		}
	}
	return nil
}

// startTrial submits a job for each GPU that may have one.
func (a *app) startTrial(ctx context.Context, c *client.Client, r api.SubmitRequest, t *Trial, folder string, most money.Money, limit time.Duration) error {
	for i := range t.GPUs {
		g := &t.GPUs[i]
		j, err := sampled(r.Spec, g.GPU, folder, most, limit)
		if err != nil {
			return err
		}
		one := api.SubmitRequest{Spec: j.Canonical(), Inputs: r.Inputs, Trial: &control.Trial{Name: trialName(j.Name, folder, g.GPU), First: t.Sample}}
		p, err := c.Plan(ctx, one)
		switch d := p.Decision; {
		case client.Is(err, http.StatusUnprocessableEntity): // the job itself is valid: it cannot be on this GPU
			g.Reason = err.Error()
		case err != nil:
			return away(err)
		case d.Placed == 0 && stopsTrial[string(d.Why.Code)]:
			g.Reason = d.Why.String()
		}
		if g.Reason != "" {
			fmt.Fprintf(a.Err, "%s: %s\n", g.GPU, g.Reason)
			continue
		}
		// Once it is sent it is waited for: a job that is not known cannot be cancelled.
		job, err := c.Submit(context.WithoutCancel(ctx), one)
		if err != nil {
			return away(err)
		}
		g.Job = job.ID
		fmt.Fprintf(a.Err, "%s: %s of %s as job %s\n", g.GPU, plural(t.Sample, "task"), t.Job, job.ID)
	}
	return nil
}

// followTrial waits until all jobs of a trial are done, and says how they get on. One
// that finds no machine within wait is cancelled, with what it waits for. The broker
// may be away for a while.
func (a *app) followTrial(ctx context.Context, c *client.Client, t *Trial, wait time.Duration) error {
	told := map[string]string{}
	open := map[string]bool{}
	for _, g := range t.GPUs {
		open[g.Job] = g.Job != ""
	}
	began := time.Now()
	seen := began
	for slices.ContainsFunc(t.GPUs, func(g TrialGPU) bool { return open[g.Job] }) {
		for i := range t.GPUs {
			g := &t.GPUs[i]
			if !open[g.Job] {
				continue
			}
			j, err := c.Job(ctx, g.Job)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, client.ErrUnreachable) && time.Since(seen) < patience:
				continue
			case err != nil:
				return away(err)
			}
			seen = time.Now()
			line := fmt.Sprintf("%d of %s done, %d running", j.Counts.Succeeded, plural(j.Tasks, "task"), j.Counts.Running)
			if why := waits(j); why != "" && j.Counts.Running == 0 {
				line += ": " + why
			}
			if line != told[g.Job] {
				told[g.Job] = line
				fmt.Fprintf(a.Err, "%s: %s\n", g.GPU, line)
			}
			never := j.Counts.Running+j.Counts.Succeeded+j.Counts.Failed == 0
			switch {
			case j.Ended != nil:
				open[g.Job] = false
				g.EndToEnd = j.Ended.Sub(j.Accepted).Seconds()
			case never && time.Since(began) > wait && g.Reason == "":
				g.Reason = fmt.Sprintf("no machine within %s: %s", span(wait), cmp.Or(waits(j), "nothing is known of why"))
				if _, err := c.Act(ctx, g.Job, client.Cancel); err != nil {
					return away(err)
				}
			}
		}
		if err := pause(ctx, lookAgain/2); err != nil {
			return err
		}
	}
	return nil
}

// endTrial cancels what a trial has begun, also after Ctrl-C.
func (a *app) endTrial(ctx context.Context, c *client.Client, t *Trial) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	var failed error
	for _, g := range t.GPUs {
		if g.Job == "" {
			continue
		}
		if _, err := c.Act(ctx, g.Job, client.Cancel); err != nil {
			failed = errors.Join(failed, fmt.Errorf("the trial's job %s was not cancelled, gpubroker cancel %s does it: %w", g.Job, g.Job, err))
			continue
		}
		fmt.Fprintf(a.Err, "%s: job %s cancelled\n", g.GPU, g.Job)
	}
	return failed
}

// measure reads what one part of a trial took and cost, and what all of the job
// would there.
func (a *app) measure(ctx context.Context, c *client.Client, r api.SubmitRequest, t *Trial, g *TrialGPU) error {
	if g.Job == "" {
		return nil
	}
	var attempts []*queue.Attempt
	machines := map[string]control.AttemptMachine{}
	for after := ""; ; {
		page, err := c.AttemptsOn(ctx, g.Job, after, largest)
		if err != nil {
			return err
		}
		attempts = append(attempts, page.Attempts...)
		maps.Copy(machines, page.Machines)
		if after = page.Next; after == "" {
			break
		}
	}
	costs, err := c.Costs(ctx, client.CostQuery{Job: g.Job})
	if err != nil {
		return err
	}
	g.Spent = costs.Spent
	g.sum(attempts, machines, t.Sample)
	if g.Done <= 0 {
		return nil
	}
	j, err := only(r.Spec, g.GPU)
	if err != nil {
		return err
	}
	p, err := c.Plan(ctx, api.SubmitRequest{Spec: j.Canonical(), Inputs: r.Inputs})
	if err != nil || len(p.Options) == 0 {
		return err
	}
	best := p.Options[0]
	g.Full = &TrialFull{
		Cost: best.Cost.Total * money.Amount(t.Tasks), Seconds: best.Done.Seconds(), Rate: best.Rate,
		Low: best.Low.Seconds(), High: best.High.Seconds(),
	}
	return nil
}

// sum adds up what attempts took, and says what went wrong where a task of the sample
// did nothing.
func (g *TrialGPU) sum(attempts []*queue.Attempt, machines map[string]control.AttemptMachine, sample int) {
	var cost, busy float64
	seen, told := map[string]bool{}, map[int]bool{}
	why := ""
	for _, at := range attempts {
		m, known := machines[at.Instance]
		if known && !seen[m.ID] {
			seen[m.ID] = true
			if g.Machine == nil {
				g.Machine = new(m)
			}
			g.Machines++
			if m.Ready.After(m.Requested) {
				g.Boot += m.Ready.Sub(m.Requested).Seconds()
			}
		}
		g.Work += at.Busy.Seconds()
		if !at.Started.IsZero() {
			placed := at.Created
			if m.Ready.After(placed) {
				placed = m.Ready
			}
			g.Staging += max(0, at.Started.Sub(placed).Seconds())
			if !at.Ended.IsZero() {
				g.Output += max(0, at.Ended.Sub(at.Started).Seconds()-at.Busy.Seconds())
			}
		}
		if at.Done > 0 {
			g.Done += at.Done
			told[at.Index] = true
			busy += at.Busy.Seconds()
			if known {
				cost += m.Price.Float() * at.Busy.Hours() / float64(max(m.Slots, 1))
			}
		} else if at.State == queue.AttemptEnded {
			why = at.Reason.String()
			if at.Reason.Code == "max_duration" {
				why += ", and reported no progress (docs/spec.md says how it is read); try --for with more time"
			}
		}
	}
	if g.Done > 0 {
		g.TaskSeconds = busy / g.Done
		if each, err := money.FromFloat(cost / g.Done); err == nil {
			g.TaskCost = each
		}
	}
	if g.Ran = len(told) == sample && g.Reason == ""; g.Ran {
		return
	}
	if g.Reason = cmp.Or(g.Reason, why, "nothing of it was done"); len(told) > 0 {
		g.Reason = fmt.Sprintf("%s told nothing: %s", plural(sample-len(told), "task"), g.Reason)
	}
}

// text shows a trial.
func (t *Trial) text() string {
	currency := string(t.Currency)
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s on each GPU, of %d\n\n", styleHead.Render(t.Job), plural(t.Sample, "task"), t.Tasks)
	rows := table{
		head:     []string{"GPU", "MACHINE", "DONE", "BOOT", "STAGE", "WORK", "WHOLE", "/TASK", currency + "/TASK", "ALL " + currency, "ALL TAKES"},
		right:    []int{2, 3, 4, 5, 6, 7, 8, 9, 10},
		flexible: []int{1, 0},
	}
	seconds := func(s float64) string { return span(time.Duration(s * float64(time.Second))) }
	for _, g := range t.GPUs {
		machine := "-"
		if m := g.Machine; m != nil {
			machine = m.Market.Type + " " + string(m.Market.Kind)
			if g.Machines > 1 {
				machine = fmt.Sprintf("%d × %s", g.Machines, machine)
			}
		}
		if g.Done <= 0 {
			rows.row(g.GPU, machine, "0", "-", "-", "-", "-", "-", "-", "-", "-")
			continue
		}
		all, takes := "-", "-"
		if g.Full != nil {
			all, takes = part(g.Full.Cost), seconds(g.Full.Seconds)
		}
		rows.row(g.GPU, machine, strconv.FormatFloat(math.Round(g.Done*1000)/1000, 'g', 4, 64), seconds(g.Boot), seconds(g.Staging), seconds(g.Work),
			seconds(g.EndToEnd), seconds(g.TaskSeconds), part(g.TaskCost), all, takes)
	}
	b.WriteString(rows.String())
	b.WriteString("\n")
	var spent money.Amount
	measured := ""
	for _, g := range t.GPUs {
		spent += g.Spent
		if g.Done > 0 {
			measured = "; what it measured is what plans of this job rest on now"
		}
		what := " did not run: "
		if g.Done > 0 {
			what = " did not run whole: "
		}
		if !g.Ran {
			fmt.Fprintf(&b, "  %s\n", wrap(g.GPU+what+g.Reason, 4))
		}
	}
	b.WriteString(t.best())
	fmt.Fprintf(&b, "  %s\n", wrap("the trial has cost "+in(spent, t.Currency)+" so far"+measured, 4))
	return b.String()
}

// best says where all of the job would be cheapest, and where it would be done first.
func (t *Trial) best() string {
	var cheapest, soonest *TrialGPU
	for i := range t.GPUs {
		g := &t.GPUs[i]
		if g.Full == nil {
			continue
		}
		if cheapest == nil || g.Full.Cost < cheapest.Full.Cost {
			cheapest = g
		}
		if soonest == nil || g.Full.Seconds < soonest.Full.Seconds {
			soonest = g
		}
	}
	if cheapest == nil {
		return ""
	}
	takes := func(g *TrialGPU) string { return span(time.Duration(g.Full.Seconds * float64(time.Second))) }
	out := fmt.Sprintf("%s would be cheapest for %s: %s, in %s", cheapest.GPU, plural(t.Tasks, "task"), in(cheapest.Full.Cost, t.Currency), takes(cheapest))
	if soonest != cheapest {
		out += fmt.Sprintf("; soonest %s: %s, %s", soonest.GPU, takes(soonest), in(soonest.Full.Cost, t.Currency))
	}
	return "  " + wrap(out, 4) + "\n"
}
