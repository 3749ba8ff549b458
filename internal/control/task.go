package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/gpu"
	"gpubroker/internal/money"
	"gpubroker/internal/nearest"
	"gpubroker/internal/spec"
	"gpubroker/internal/spec/template"
	"gpubroker/internal/state"
	"gpubroker/internal/workdir"
	"gpubroker/queue"
	"gpubroker/scheduler/policy"
)

// The parts of a workspace, relative to it.
const (
	inputDir      = "inputs"
	outputDir     = "outputs"
	checkpointDir = "checkpoints"
)

// stopGrace is the time from the stop signal to SIGKILL when nothing presses.
const stopGrace = 60 * time.Second

// signedFor is how long signed URLs are good for beyond the lease's end.
const signedFor = time.Hour

// validFor is how long URLs are good for that are signed now: whole hours, so that
// one which is asked for anew ends at another moment, and so is another one. An
// agent would take the same for the one that was refused.
func validFor(lease, now time.Time) time.Duration {
	return (max(lease.Sub(now), 0) + signedFor).Truncate(time.Hour) + time.Hour
}

// desiredAttempt draws what an agent needs to run an attempt, signed URLs left
// out.
func (b *Broker) desiredAttempt(ctx context.Context, view *state.Tables, i *queue.Instance, a *queue.Attempt) (agentapi.DesiredAttempt, error) {
	j, t := view.Job(a.Job), view.Task(a.TaskID)
	if j == nil || t == nil {
		return agentapi.DesiredAttempt{}, fmt.Errorf("attempt %s: its task %s is not in the tables", a.ID, a.TaskID)
	}
	s, err := b.specs.of(j)
	if err != nil {
		return agentapi.DesiredAttempt{}, err
	}
	task, err := b.task(ctx, s, j, i, a)
	if err != nil {
		return agentapi.DesiredAttempt{}, err
	}
	d := agentapi.DesiredAttempt{
		ID: a.ID, Token: a.Token, Slot: a.Slot, Task: task,
		Committed: t.Committed, Next: max(t.Saves, t.Committed) + 1,
	}
	if err := b.membership(view, s, a, &d); err != nil {
		return agentapi.DesiredAttempt{}, err
	}
	if a.Stop != nil {
		d.Stop = &agentapi.Stop{Why: a.Stop.Why, Grace: agentapi.Of(stopGrace), Save: a.Stop.Checkpoint}
		if !a.Stop.By.IsZero() {
			in := max(a.Stop.By.Sub(b.now()), time.Second)
			d.Stop.In = agentapi.Of(in)
			d.Stop.Grace = min(d.Stop.Grace, agentapi.Of(in))
		}
	}
	if !a.Started.IsZero() {
		d.Task.Secrets = nil // the command has them; nobody needs them on the wire again
	}
	b.mu.Lock()
	if a.Publish != "" && b.isPublished[a.ID] {
		d.Published = a.Publish
	}
	d.PublishErr = b.published[a.ID]
	if w := b.watching[a.ID]; w != nil && w.watchers > 0 {
		d.Watch = new(w.next)
	}
	b.mu.Unlock()
	return d, nil
}

// task renders the spec for one task on one machine.
func (b *Broker) task(ctx context.Context, s *parsed, j *queue.Job, i *queue.Instance, a *queue.Attempt) (agentapi.Task, error) {
	input, err := b.inputs.of(ctx, s, j, a.Index)
	if err != nil {
		return agentapi.Task{}, err
	}
	values := template.ForTask(j.ID, j.Name, a.Index, input)
	fill := func(text string) string { return template.Render(text, values) }
	t := agentapi.Task{
		Job: j.ID, Name: j.Name, Index: a.Index, Number: a.Number, Input: input,
		Env: map[string]string{}, StopSignal: "SIGTERM", StopGrace: agentapi.Of(stopGrace),
		Stall: agentapi.Of(s.Stall.Std()), MaxDuration: agentapi.Of(s.MaxDuration.Std()),
		VCPU: float64(s.Resources.VCPU), Memory: s.Resources.Memory.Bytes(), Disk: s.Resources.Disk.Bytes(),
	}
	for _, arg := range s.Run.Command {
		t.Command = append(t.Command, fill(arg))
	}
	if s.Run.Shell != "" {
		t.Shell = fill(s.Run.Shell)
	}
	if s.needs.GPUs > 0 && i.GPU != "" {
		t.Env["GPUBROKER_GPU"] = i.GPU
	}
	for name, value := range s.Run.Env {
		t.Env[name] = fill(value)
	}
	if len(s.Secrets) > 0 {
		t.Secrets = map[string]string{}
		for name, ref := range s.Secrets {
			v, err := ref.Read()
			if err != nil {
				return t, fmt.Errorf("secret %s of job %s: %w", name, j.ID, err)
			}
			t.Secrets[name] = v.Reveal()
		}
	}
	if spec.IsLocation(input) {
		t.InputPath = path.Join(inputDir, path.Base(input))
		t.Fetch = append(t.Fetch, agentapi.Fetch{Name: input, Path: t.InputPath})
	}
	for _, in := range s.Inputs {
		t.Fetch = append(t.Fetch, agentapi.Fetch{Name: fill(in.From), Path: fill(in.To)})
	}
	if sum, ok := strings.CutPrefix(s.Workdir, workdirScheme); ok {
		t.Workdir = &agentapi.Fetch{Name: s.Workdir, Digest: "sha256:" + sum}
	}
	if o := s.Outputs; o != nil {
		to := fill(o.To)
		out := agentapi.OutputSpec{Path: fill(o.From), Folder: isFolder(o)}
		if out.Path == "" {
			out.Path = path.Join(outputDir, path.Base(to))
		}
		t.Output = &out
	}
	if c := s.Checkpoint; c != nil {
		t.StopSignal = c.StopSignal
		t.Checkpoint = &agentapi.CheckpointSpec{
			Append: c.Append,
			Dir:    fill(c.Dir), Interval: agentapi.Of(c.Interval.Std()), Quiesce: agentapi.Of(c.Quiesce.Std()),
		}
		if t.Checkpoint.Dir == "" {
			t.Checkpoint.Dir = checkpointDir
		}
		if c.Complete != nil {
			t.Checkpoint.Marker = c.Complete.Marker
		}
		if t.Checkpoint.Interval == 0 {
			life := policy.Life(b.historyOf(i), policy.History{}) / time.Duration(max(1, s.Nodes)) // of the first that goes
			t.Checkpoint.Interval = agentapi.Of(policy.CheckpointInterval(30*time.Second, life))
		}
	}
	if p := s.Progress; p != nil {
		t.ProgressLog, t.ProgressOf = p.Log, p.Total
	}
	t.GPUs = devices(s, i, a.Slot)
	return t, nil
}

// devices are the numbers of the GPUs that a slot stands for.
func devices(s *parsed, i *queue.Instance, slot int) []int {
	if s.needs.GPUs <= 0 || i.GPUs < 1 {
		return nil
	}
	if s.needs.Demand.Seated() {
		return []int{slot % int(i.GPUs)}
	}
	if s.needs.Slots > 1 {
		return []int{slot / s.needs.Slots % int(i.GPUs)}
	}
	var out []int
	count, ok := s.needs.GPUsOn(gpu.Builtin(), i.GPU)
	if !ok { // a machine that was rented for what the facts said before
		count = s.needs.GPUs
	}
	per := int(count)
	for k := range per {
		out = append(out, (slot*per+k)%int(i.GPUs))
	}
	return out
}

// workdirScheme marks a work folder that was uploaded by content.
const workdirScheme = "workdir:"

// sign adds signed URLs to what is desired: those that the attempt will want
// next, ahead of time, and those it asks for.
func (b *Broker) sign(ctx context.Context, view *state.Tables, d *agentapi.DesiredAttempt, o *agentapi.ObservedAttempt) error {
	a := view.Attempt(d.ID)
	if a == nil {
		return nil
	}
	i := view.Instance(a.Instance)
	valid := validFor(i.Lease, b.now())
	scope := checkpoint.Scope{Task: a.TaskID, Attempt: a.ID, Next: d.Next, Checkpoints: map[int64]string{}}
	digests := map[int64]string{}
	for c := range view.Checkpoints.Prefix(state.TaskKey(a.TaskID) + "/") {
		if c.Broken.IsZero() {
			scope.Checkpoints[c.Number] = c.Attempt
			digests[c.Number] = c.Digest
		}
	}
	want := agentapi.Want{}
	if o != nil {
		want = o.Want
	}
	ahead := []string{}
	if d.Task.Checkpoint != nil && a.Leads() {
		ahead = append(ahead, fmt.Sprintf("save/%d/manifest", d.Next))
		for part := 1; part <= 4; part++ {
			ahead = append(ahead, fmt.Sprintf("save/%d/%d", d.Next, part))
		}
	}
	want.Put = append(ahead, want.Put...)
	g := &checkpoint.Grants{Store: b.objects, Valid: valid}
	if d.Task.Output != nil && a.Leads() {
		stage, _, err := b.stageOf(ctx, view, a)
		if err != nil {
			return err
		}
		g.Outputs = stage
	}
	put, get, refusedNames, err := g.Sign(ctx, scope, want)
	if err != nil {
		return err
	}
	for _, r := range refusedNames {
		b.log.Warn("an agent asked for a URL that it may not have", "attempt", a.ID, "name", r.Name, "error", r.Err)
	}
	d.Put, d.Get = put, get
	if d.Task.Checkpoint != nil && a.State != queue.AttemptRunning {
		if d.Resume, err = g.Resume(ctx, scope, digests); err != nil {
			return err
		}
	}
	return b.signInputs(ctx, view.Job(a.Job), &d.Task, valid)
}

// signInputs gives the files to fetch their URLs.
func (b *Broker) signInputs(ctx context.Context, j *queue.Job, t *agentapi.Task, valid time.Duration) error {
	for k := range t.Fetch {
		f := &t.Fetch[k]
		store, key, err := b.open(ctx, j, f.Name)
		if err != nil {
			return fmt.Errorf("input %s: %w", f.Name, err)
		}
		if f.URL, err = store.SignGet(ctx, key, valid); err != nil {
			return fmt.Errorf("input %s: %w", f.Name, err)
		}
	}
	if w := t.Workdir; w != nil {
		url, err := b.objects.SignGet(ctx, workdir.Key(strings.TrimPrefix(w.Name, workdirScheme)), valid)
		if err != nil {
			return fmt.Errorf("work folder: %w", err)
		}
		w.URL = url
	}
	return nil
}

// verified returns the saves whose manifest and parts are whole in the store.
// What cannot be checked now is reported again by the agent.
func (b *Broker) verified(ctx context.Context, a *queue.Attempt, saves []agentapi.Save) []agentapi.Save {
	t := b.state.View().Task(a.TaskID)
	if t == nil || t.Attempt != a.ID {
		return nil
	}
	var out []agentapi.Save
	saves = slices.SortedFunc(slices.Values(saves), func(x, y agentapi.Save) int { return cmp.Compare(x.Number, y.Number) })
	for _, s := range saves {
		if s.Number <= t.Saves {
			continue
		}
		key, err := checkpoint.ManifestKey(a.TaskID, a.ID, s.Number)
		if err == nil {
			_, err = checkpoint.Verify(ctx, b.objects, key, s.Digest)
		}
		if err != nil {
			b.complain("checkpoint", fmt.Errorf("save %s is not committed: %w", key, err))
			continue
		}
		out = append(out, s)
	}
	return out
}

// checkSpec refuses what the broker could not run, before a job is accepted.
func (b *Broker) checkSpec(s *Submission) error {
	j := s.Spec
	if err := j.PricedIn(cmp.Or(b.set.Currency, money.USD)); err != nil {
		return err
	}
	if len(b.set.Teams) > 0 {
		if _, known := b.set.Teams[j.Project]; !known {
			names := slices.Sorted(maps.Keys(b.set.Teams))
			return fmt.Errorf("project: there is no project %s; %s", j.Project, cmp.Or(nearest.Hint(j.Project, names), "known: "+strings.Join(names, ", ")))
		}
	}
	for n, in := range j.Inputs {
		if strings.HasSuffix(in.From, "/") {
			return fmt.Errorf("inputs[%d].from: %s is a folder, and only files are fetched; name its files, or put them into workdir", n, in.From)
		}
	}
	if err := b.checkPlaces(s); err != nil {
		return err
	}
	for name, ref := range j.Secrets {
		if !b.set.Secrets[ref.String()] {
			return fmt.Errorf("secrets.%s: this broker does not offer %s; an admin lists it under secrets in the configuration", name, ref)
		}
	}
	if j.Queue != "" {
		q, ok := b.set.Queues[j.Queue]
		if !ok {
			return fmt.Errorf("queue: there is no queue %s; %s", j.Queue, cmp.Or(nearest.Hint(j.Queue, slices.Sorted(maps.Keys(b.set.Queues))), b.knownQueues()))
		}
		if len(q.Projects) > 0 && !slices.Contains(q.Projects, j.Project) {
			return fmt.Errorf("queue: %s is not for project %s; it is for %s", j.Queue, j.Project, strings.Join(q.Projects, ", "))
		}
	}
	return nil
}
