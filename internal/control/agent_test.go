package control_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/control"
	"gpubroker/internal/objects"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/providers"
	"gpubroker/queue"
)

// boot is a machine: it joins and does what the broker desires, as the real agent
// does, with tasks that only take time. A task runs as many seconds as its
// command's second word says, saves every tenth of them when it has a checkpoint,
// fails when the third word is "fail", and shows no sign of work when it is "stall".
func (s *site) boot(ctx context.Context, g cloud.Guest) {
	set := map[string]string{}
	for line := range strings.Lines(g.UserData) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(k, "GPUBROKER_") {
			set[k] = v
		}
	}
	if set["GPUBROKER_INSTANCE"] == "" {
		return // nothing of ours
	}
	a := &fakeAgent{site: s, guest: g, instance: set["GPUBROKER_INSTANCE"], start: time.Now(), tasks: map[string]*fakeTask{}}
	a.join = set["GPUBROKER_TOKEN"]
	s.mu.Lock()
	s.agents[a.instance] = a
	s.mu.Unlock()
	lease, err := time.ParseDuration(set["GPUBROKER_LEASE"])
	if err != nil {
		s.t.Errorf("user data without a lease: %v", err)
	}
	a.setEnd(time.Now().Add(lease))
	var wg sync.WaitGroup
	defer wg.Wait()
	if s.world.Config().EndAction == providers.EndPoweroff {
		wg.Go(func() { a.timer(ctx) })
	}
	a.run(ctx, a.join)
}

// timer is the root timer that the user data arms: it ends the machine at the
// lease's end though the agent be dead.
func (a *fakeAgent) timer(ctx context.Context) {
	for pause(ctx, a.site.every/2) {
		if a.site.is(&a.site.hung, a.instance) {
			continue
		}
		if time.Now().After(a.until()) {
			a.guest.PowerOff()
			return
		}
	}
}

// rig changes what goes wrong, while agents look at it.
func (s *site) rig(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// is asks one of the things that go wrong.
func (s *site) is(what *func(string) bool, instance string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *what != nil && (*what)(instance)
}

func (a *fakeAgent) setEnd(t time.Time) { a.end.Store(t.UnixNano()) }

func (a *fakeAgent) until() time.Time { return time.Unix(0, a.end.Load()) }

type fakeAgent struct {
	site     *site
	guest    cloud.Guest
	instance string
	start    time.Time
	tasks    map[string]*fakeTask
	sent     agentapi.Ticks
	end      atomic.Int64 // of the lease, in Unix nanoseconds
	revision string
	join     string
	mu       sync.Mutex
	cred     string // guarded by mu
	tasksNow int    // likewise
}

func (a *fakeAgent) credential() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cred
}

func (a *fakeAgent) setCredential(c string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cred = c
}

// works returns how many tasks were on the machine when it last looked.
func (a *fakeAgent) works() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tasksNow
}

func (a *fakeAgent) looked() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tasksNow = len(a.tasks)
}

type fakeTask struct {
	want    agentapi.DesiredAttempt
	began   time.Time
	resumed int64
	base    time.Duration // work that the checkpoint brought
	length  time.Duration
	saves   []agentapi.Save
	last    time.Duration // work in the newest save
	ended   *agentapi.Ended
	busy    time.Duration
	broken  []agentapi.Broken
	waits   bool // for the others of its gang
}

func (a *fakeAgent) ticks() agentapi.Ticks {
	a.sent = max(a.sent+1, agentapi.Ticks(time.Since(a.start)))
	return a.sent
}

func (a *fakeAgent) run(ctx context.Context, join string) {
	for a.credential() == "" {
		if !pause(ctx, time.Second) {
			return
		}
		b := a.site.up()
		if b == nil {
			continue
		}
		sent := time.Now()
		res, err := b.Join(ctx, agentapi.JoinRequest{Instance: a.instance, Token: join, Nonce: a.guest.ID, CloudID: a.guest.ID, Sent: a.ticks()})
		if err != nil {
			if p, ok := errors.AsType[*control.Problem](err); ok && p.Status == 410 {
				return
			}
			continue
		}
		a.setCredential(res.Credential)
		a.setEnd(sent.Add(res.Lease.For.Std()))
	}
	for pause(ctx, a.beat()) {
		if a.site.is(&a.site.agentDead, a.instance) {
			return
		}
		if a.site.is(&a.site.hung, a.instance) {
			continue
		}
		if time.Now().After(a.until()) {
			a.guest.PowerOff()
			return
		}
		a.step(ctx)
		b := a.site.up()
		if b == nil || a.site.is(&a.site.deaf, a.instance) {
			continue
		}
		sent := time.Now()
		d, err := b.Sync(ctx, a.credential(), a.observe())
		if p, ok := errors.AsType[*control.Problem](err); ok && p.Status == 410 {
			a.tasks = map[string]*fakeTask{}
			a.looked()
			return
		}
		if err != nil {
			continue
		}
		a.setEnd(sent.Add(d.Lease.For.Std()))
		a.revision = d.Revision
		if d.Leave {
			a.tasks = map[string]*fakeTask{} // all is stopped
			a.looked()
			return
		}
		a.apply(d)
		a.looked()
	}
}

// beat is how long the agent waits: less while something is about to happen.
func (a *fakeAgent) beat() time.Duration {
	next := cmp.Or(a.site.calls, a.site.every)
	if len(a.tasks) == 0 && a.revision == "" {
		return time.Second // it has just joined
	}
	for _, t := range a.tasks {
		if t.ended != nil || t.want.Stop != nil || t.waits {
			return time.Second
		}
		next = min(next, max(time.Second, t.length-t.base-t.busy))
	}
	return next
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (a *fakeAgent) observe() agentapi.Observed {
	o := agentapi.Observed{Instance: a.instance, BootID: a.guest.ID, Sent: a.ticks(), Revision: a.revision}
	a.site.rig(func() {
		if a.site.notice != nil {
			o.Notice = a.site.notice(a.instance)
		}
	})
	for id, t := range a.tasks {
		x := agentapi.ObservedAttempt{ID: id, Token: t.want.Token, Phase: agentapi.Running, Busy: agentapi.Of(t.busy), Resumed: new(t.resumed)}
		for _, s := range t.saves {
			if s.Number > t.want.Committed {
				x.Saves = append(x.Saves, s)
			}
		}
		if w := t.want.Task; w.Nodes > 1 {
			x.At = &queue.Endpoint{Address: fmt.Sprintf("10.0.0.%d", w.Rank+1), Port: 29500}
		}
		if t.waits {
			x.Phase = agentapi.Staging
		}
		x.Broken = t.broken
		a.site.rig(func() {
			if a.site.usage != nil {
				x.Usage = a.site.usage(t.busy)
			}
		})
		if t.idle() {
			x.Idle = x.Busy
		}
		if t.ended != nil {
			x.Phase, x.Ended = agentapi.PhaseEnded, t.ended
		}
		o.Attempts = append(o.Attempts, x)
	}
	slices.SortFunc(o.Attempts, func(a, b agentapi.ObservedAttempt) int { return strings.Compare(a.ID, b.ID) })
	return o
}

func (a *fakeAgent) apply(d agentapi.Desired) {
	seen := map[string]bool{}
	for _, w := range d.Attempts {
		if w.Recorded {
			continue
		}
		seen[w.ID] = true
		t := a.tasks[w.ID]
		if t == nil {
			t = a.begin(w)
			a.tasks[w.ID] = t
		}
		t.want = w
		if t.waits && w.Gang != nil {
			t.waits, t.began = false, time.Now()
			a.site.met(w)
		}
	}
	for id := range a.tasks {
		if !seen[id] {
			delete(a.tasks, id)
		}
	}
}

func (a *fakeAgent) begin(w agentapi.DesiredAttempt) *fakeTask {
	t := &fakeTask{want: w, began: time.Now()}
	t.length, _ = time.ParseDuration(w.Task.Command[1])
	a.site.rig(func() {
		if a.site.pace != nil {
			t.length = time.Duration(float64(t.length) * a.site.pace(a.instance))
		}
	})
	for _, r := range w.Resume {
		var what string
		a.site.rig(func() { what = a.site.broken[r.Number] })
		if what != "" {
			t.broken = append(t.broken, agentapi.Broken{Number: r.Number, What: what})
			continue
		}
		t.resumed = r.Number
		id := queue.TaskID{Job: w.Task.Job, Index: w.Task.Index}
		t.base, _ = time.ParseDuration(a.site.manifest(id, r))
		t.last = t.base
		break
	}
	t.waits = w.Task.Nodes > 1
	return t
}

func (t *fakeTask) word() string {
	if len(t.want.Task.Command) > 2 {
		return t.want.Task.Command[2]
	}
	return ""
}

// idle reports whether the task shows no sign of work.
func (t *fakeTask) idle() bool { return t.word() == "stall" }

// step lets the tasks work on, and save.
func (a *fakeAgent) step(ctx context.Context) {
	for id, t := range a.tasks {
		if t.ended != nil {
			continue
		}
		if t.waits {
			if t.want.Stop != nil {
				t.ended = &agentapi.Ended{Layer: "agent", Reason: t.want.Stop.Why}
			}
			continue
		}
		t.busy = time.Since(t.began)
		work := min(t.base+t.busy, t.length)
		if c := t.want.Task.Checkpoint; c != nil && t.want.Task.Leads() && (work-t.last >= cmp.Or(a.site.saves, t.length/10) || t.want.Stop != nil && t.want.Stop.Save && work > t.last) {
			number := t.want.Next
			if n := len(t.saves); n > 0 && t.saves[n-1].Number >= number {
				number = t.saves[n-1].Number + 1
			}
			if s, err := a.site.save(ctx, t.want, id, number, work); err == nil {
				s.Busy = agentapi.Of(t.busy)
				s.Progress = new(float64(work) / float64(t.length))
				t.saves = append(t.saves, s)
				t.last = work
			}
		}
		switch {
		case t.busy >= time.Minute && t.word() == fmt.Sprintf("fail-%d", t.want.Task.Rank):
			t.ended = &agentapi.Ended{ExitCode: new(4), Layer: "task"}
		case work >= t.length && t.word() == "fail":
			t.ended = &agentapi.Ended{ExitCode: new(3), Layer: "task"}
		case work >= t.length:
			t.ended = &agentapi.Ended{ExitCode: new(0), Layer: "task"}
		case t.want.Stop != nil:
			t.ended = &agentapi.Ended{ExitCode: new(143), Layer: "task"}
		}
	}
}

// save writes a whole save of a task that has done so much work.
func (s *site) save(ctx context.Context, w agentapi.DesiredAttempt, attempt string, number int64, work time.Duration) (agentapi.Save, error) {
	id := queue.TaskID{Job: w.Task.Job, Index: w.Task.Index}
	part := fmt.Sprintf("%s/%d/1", attempt, number)
	prefix, err := checkpoint.TaskPrefix(id)
	if err != nil {
		return agentapi.Save{}, err
	}
	body := work.String()
	if _, err := s.objects.Put(ctx, prefix+part, strings.NewReader(body), objects.PutOptions{}); err != nil {
		return agentapi.Save{}, err
	}
	m := &checkpoint.Manifest{Format: 1, Number: number, Files: []checkpoint.File{{
		Path: "state", Mode: 0o644, Bytes: int64(len(body)),
		Parts: []checkpoint.Part{{Key: part, Bytes: int64(len(body)), Digest: checkpoint.Digest([]byte(body))}},
	}}}
	data, err := m.Encode()
	if err != nil {
		return agentapi.Save{}, err
	}
	key, err := checkpoint.ManifestKey(id, attempt, number)
	if err != nil {
		return agentapi.Save{}, err
	}
	if _, err := s.objects.Put(ctx, key, strings.NewReader(string(data)), objects.PutOptions{}); err != nil {
		return agentapi.Save{}, err
	}
	return agentapi.Save{Number: number, Digest: checkpoint.Digest(data), Bytes: int64(len(body)), Sent: int64(len(body))}, nil
}

// manifest returns the one part of a checkpoint: how much work it holds.
func (s *site) manifest(id queue.TaskID, r agentapi.Resume) string {
	for _, key := range s.keys() {
		if strings.HasSuffix(key, fmt.Sprintf("/%d/1", r.Number)) && strings.HasPrefix(key, fmt.Sprintf("%s/%d/", id.Job, id.Index)) {
			body, _, err := s.objects.Get(context.Background(), key, objects.Range{})
			if err != nil {
				s.t.Error(err)
				return ""
			}
			data, err := io.ReadAll(body)
			if err = errors.Join(err, body.Close()); err != nil {
				s.t.Error(err)
			}
			return string(data)
		}
	}
	return ""
}

func (s *site) keys() (out []string) {
	for i, err := range s.objects.List(context.Background(), "") {
		if err != nil {
			s.t.Error(err)
			return nil
		}
		out = append(out, i.Key)
	}
	return out
}
