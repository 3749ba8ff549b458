package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/budget"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/control"
	"gpubroker/internal/control/invariant"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/internal/objects"
	cloud "gpubroker/internal/simcloud"
	"gpubroker/internal/spec"
	"gpubroker/internal/state"
	"gpubroker/internal/store"
	"gpubroker/providers"
	"gpubroker/providers/managed"
	"gpubroker/providers/simcloud"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

const token = "s3cret-of-the-test"

// site is a broker with its cloud, store and object store, in one process and in
// virtual time. The broker can be killed and started again; the rest lives on.
type site struct {
	t       testing.TB
	dir     string
	world   *cloud.World
	folders *objects.Folders
	objects objects.Store
	set     control.Settings
	// point is asked before and after every write to the store and every call of
	// the cloud; true kills the broker there.
	point func(what string) bool

	check     *invariant.Checker
	lag       time.Duration // how long a machine may be unknown to us
	batch     *queue.Batch  // being committed
	looks     int
	deaf      func(instance string) bool // agents that do not hear the broker, nor it them
	hung      func(instance string) bool // guests in which nothing runs on
	fail      func() error               // what the store's next commit fails with
	agentDead func(instance string) bool // agents whose process was killed
	caps      func(*providers.Capabilities)

	mu     sync.Mutex
	broker *control.Broker // nil while it is down
	st     *store.Store
	stop   func()
	dead   *life // of the broker that runs now
}

// life is one run of the broker: once it is over, nothing that it does has an
// effect.
type life struct {
	over    bool
	crashed chan struct{}
}

var errDead = errors.New("the broker was killed here")

// at is a crash point of a life; it reports whether the life is over.
func (s *site) at(l *life, what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !l.over && s.point != nil && s.point(what) {
		l.over = true
		s.broker = nil
		close(l.crashed)
	}
	if l.over {
		return errDead
	}
	return nil
}

// kill ends a life between two points.
func (l *life) kill(s *site) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.over = true
}

// deadly is a connection to the cloud that dies with its broker.
type deadly struct {
	site *site
	life *life
	next http.RoundTripper
}

func (d *deadly) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := d.site.at(d.life, "call "+r.Method+" "+r.URL.Path); err != nil {
		return nil, err
	}
	res, err := d.next.RoundTrip(r)
	if dead := d.site.at(d.life, "answer "+r.Method+" "+r.URL.Path); dead != nil {
		if err == nil {
			err = res.Body.Close()
		}
		return nil, errors.Join(dead, err)
	}
	return res, err
}

// newSite makes a site whose machines run the test's own agent.
func newSite(t testing.TB, cfg cloud.Config) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	cfg.Tokens.API = token
	world, err := cloud.New(cfg, &cloud.Null{Boot: s.boot}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.world = world
	if s.folders, err = objects.NewFolders("http://objects.internal", []byte(strings.Repeat("k", 32)), time.Now); err != nil {
		t.Fatal(err)
	}
	folder, err := s.folders.Open(filepath.Join(s.dir, "objects"))
	if err != nil {
		t.Fatal(err)
	}
	s.objects = folder
	s.set = control.Settings{
		Owner: "broker", PublicURL: "http://broker.internal",
		AgentDigests: map[string]string{"amd64": "00"},
		Plan:         scheduler.Settings{Lease: 20 * time.Minute, Idle: 30 * time.Second, Stale: time.Hour},
	}
	s.check, s.lag = invariant.New(nil), 5*time.Second+cfg.ListLag.D()
	return s
}

// lookEvery is how often the promises are compared with the world.
const lookEvery = 5 * time.Second

// watched is the store as the broker has it: every batch is shown to the checker
// once it is committed.
type watched struct {
	*store.Store
	site *site
}

func (w watched) Commit(ctx context.Context, b *queue.Batch) error {
	w.site.batch = b
	return w.Store.Commit(ctx, b)
}

// breach fails the test over a broken promise.
func (s *site) breach(err error) {
	if err != nil {
		s.t.Errorf("at %s: %v", time.Now().UTC().Format(time.TimeOnly), err)
	}
}

// look compares what is written with the world, and now and then the broker's
// memory with its store.
func (s *site) look(ctx context.Context, tables *state.State) {
	s.looks++
	s.mu.Lock()
	bills := map[string]money.Amount{}
	for _, l := range s.world.Invoice().Lines {
		bills[l.Request] += l.Amount
	}
	truth := s.world.Truth()
	err := s.check.World(time.Now(), s.lag, func(yield func(invariant.Machine) bool) {
		for _, m := range truth {
			if !yield(invariant.Machine{ID: m.ID, Request: m.Request, Live: m.State != providers.Terminated, Launched: m.Launched, Cost: bills[m.Request]}) {
				return
			}
		}
	})
	s.mu.Unlock()
	s.breach(err)
	if s.looks%60 != 0 {
		return
	}
	before := tables.View()
	stored, err := state.Open(ctx, tables.Store())
	if err != nil {
		if ctx.Err() == nil {
			s.breach(err)
		}
		return
	}
	if tables.View().Revision == before.Revision && tables.Health() == nil {
		s.breach(invariant.Tables(before, stored.View()))
	}
}

// Open serves outputs and inputs from the site's own folder.
func (s *site) Open(_ context.Context, url string) (objects.Store, string, error) {
	return s.objects, "data/" + strings.TrimPrefix(url, "/"), nil
}

// start brings the broker up over the store.
func (s *site) start() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{crashed: make(chan struct{})}
	st, err := store.Open(ctx, filepath.Join(s.dir, "store.db"), store.Options{Fault: func(op string, done bool) error {
		if op != "commit" {
			return nil
		}
		if done {
			s.mu.Lock()
			err := s.check.Commit(s.batch)
			s.mu.Unlock()
			s.breach(err)
		} else if s.fail != nil {
			if err := s.fail(); err != nil {
				return err
			}
		}
		return s.at(l, fmt.Sprintf("%s done=%t", op, done))
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	epoch, err := st.Lead(ctx, "test", time.Hour)
	if err != nil {
		s.t.Fatal(err)
	}
	tables, err := state.Open(ctx, watched{st, s})
	if err != nil {
		s.t.Fatal(err)
	}
	tables.SetEpoch(epoch)
	meta, err := st.Meta(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	caps := s.world.Config().Capabilities()
	a, err := simcloud.New("sim", simcloud.SettingsFor(cloud.InProcessURL, caps),
		simcloud.Access{Token: token, Owner: "broker", Client: &http.Client{Transport: &deadly{s, l, cloud.InProcess(s.world).Transport}}})
	if err != nil {
		s.t.Fatal(err)
	}
	account := &control.Account{Provider: managed.New(a, managed.Options{Owner: "broker", Jitter: func() float64 { return 0.5 }}), GuestEnd: true}
	log := slog.New(slog.NewTextHandler(s.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	b := control.New(s.set, tables, meta, []*control.Account{account}, market.New(), s.objects, s, log)
	var wg sync.WaitGroup
	wg.Go(func() { _ = tables.Run(ctx) })
	wg.Go(func() { _ = b.Run(ctx) })
	wg.Go(func() {
		for pause(ctx, lookEvery) {
			s.look(ctx, tables)
		}
	})
	s.mu.Lock()
	s.broker, s.st, s.dead = b, st, l
	s.mu.Unlock()
	s.stop = func() {
		s.mu.Lock()
		s.broker = nil
		s.mu.Unlock()
		l.kill(s)
		cancel()
		wg.Wait()
		if err := st.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

// rise starts the broker anew whenever it has been killed, until the test ends.
func (s *site) rise(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dead.crashed:
			s.stop()
			if !pause(ctx, 500*time.Millisecond) {
				s.start()
				return
			}
			s.start()
		}
	}
}

// close ends broker and world.
func (s *site) close() {
	if s.stop != nil {
		s.stop()
	}
	if s.looks == 0 {
		s.t.Error("the promises were never looked at")
	}
	s.world.Close()
	if err := s.folders.Close(); err != nil {
		s.t.Error(err)
	}
}

var errDown = errors.New("the broker is down")

func (s *site) up() *control.Broker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broker
}

// submit hands a spec in.
func (s *site) submit(text string) *queue.Job {
	s.t.Helper()
	j, err := spec.Parse("job.yaml", []byte(text))
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := s.up().Submit(context.Background(), control.Submission{Spec: j}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// await waits until the job is done, or fails after limit.
func (s *site) await(id string, limit time.Duration) *queue.Job {
	s.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(time.Second) {
		b := s.up()
		if b == nil {
			continue
		}
		j, err := b.Job(context.Background(), id)
		if err == nil && j.Done() {
			return j
		}
	}
	b := s.up()
	if b == nil {
		s.t.Fatalf("job %s: the broker is down after %v", id, limit)
	}
	for _, i := range b.Instances() {
		s.t.Logf("instance %s %s lease %v end %v attempts %d", i.ID, i.State, i.Lease, i.End, len(i.Attempts))
	}
	if d, _, ok := b.Decision(id); ok {
		s.t.Logf("decision: %+v", d)
	}
	j, err := b.Job(context.Background(), id)
	s.t.Fatalf("job %s is not done after %v: %+v, %v", id, limit, j, err)
	return nil
}

// quiet waits until every machine is settled.
func (s *site) quiet(limit time.Duration) {
	s.t.Helper()
	defer func() {
		if b := s.up(); b == nil {
			s.t.Error("the broker is down")
		}
	}()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(time.Second) {
		if b := s.up(); b != nil && len(b.Instances()) == 0 {
			return
		}
	}
	b := s.up()
	if b == nil {
		return
	}
	for _, i := range b.Instances() {
		s.t.Errorf("not settled after %v: %s %s %v", limit, i.ID, i.State, i.Gone)
	}
}

// boot is a machine: it joins and does what the broker desires, as the real agent
// does, with tasks that only take time. A task runs as many seconds as its
// command's second word says, saves every tenth of them when it has a checkpoint,
// and fails when the third word is "fail".
func (s *site) boot(ctx context.Context, g cloud.Guest) {
	set := map[string]string{}
	for line := range strings.Lines(g.UserData) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(k, "GPUBROKER_") {
			set[k] = v
		}
	}
	a := &fakeAgent{site: s, guest: g, instance: set["GPUBROKER_INSTANCE"], start: time.Now(), tasks: map[string]*fakeTask{}}
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
	a.run(ctx, set["GPUBROKER_TOKEN"])
}

// timer is the root timer that the user data arms: it ends the machine at the
// lease's end though the agent be dead.
func (a *fakeAgent) timer(ctx context.Context) {
	for pause(ctx, 2*time.Second) {
		if is(a.site.hung, a.instance) {
			continue
		}
		if time.Now().After(a.until()) {
			a.guest.PowerOff()
			return
		}
	}
}

func is(what func(string) bool, instance string) bool { return what != nil && what(instance) }

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
	cred     string
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
}

func (a *fakeAgent) ticks() agentapi.Ticks {
	a.sent = max(a.sent+1, agentapi.Ticks(time.Since(a.start)))
	return a.sent
}

func (a *fakeAgent) run(ctx context.Context, join string) {
	for a.cred == "" {
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
		a.cred = res.Credential
		a.setEnd(sent.Add(res.Lease.For.Std()))
	}
	for pause(ctx, a.beat()) {
		if is(a.site.agentDead, a.instance) {
			return
		}
		if is(a.site.hung, a.instance) {
			continue
		}
		if time.Now().After(a.until()) {
			a.guest.PowerOff()
			return
		}
		a.step(ctx)
		b := a.site.up()
		if b == nil || is(a.site.deaf, a.instance) {
			continue
		}
		sent := time.Now()
		d, err := b.Sync(ctx, a.cred, a.observe())
		if p, ok := errors.AsType[*control.Problem](err); ok && p.Status == 410 {
			a.tasks = map[string]*fakeTask{}
			return
		}
		if err != nil {
			continue
		}
		a.setEnd(sent.Add(d.Lease.For.Std()))
		a.revision = d.Revision
		if d.Leave {
			return
		}
		a.apply(d)
	}
}

// beat is how long the agent waits: less while something is about to happen.
func (a *fakeAgent) beat() time.Duration {
	next := 5 * time.Second
	for _, t := range a.tasks {
		if t.ended != nil || t.want.Stop != nil {
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
	for id, t := range a.tasks {
		x := agentapi.ObservedAttempt{ID: id, Token: t.want.Token, Phase: agentapi.Running, Busy: agentapi.Of(t.busy), Resumed: new(t.resumed)}
		for _, s := range t.saves {
			if s.Number > t.want.Committed {
				x.Saves = append(x.Saves, s)
			}
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
	if len(w.Resume) > 0 {
		t.resumed = w.Resume[0].Number
		id := queue.TaskID{Job: w.Task.Job, Index: w.Task.Index}
		m := a.site.manifest(id, w.Resume[0])
		t.base, _ = time.ParseDuration(m)
		t.last = t.base
	}
	return t
}

// step lets the tasks work on, and save.
func (a *fakeAgent) step(ctx context.Context) {
	for id, t := range a.tasks {
		if t.ended != nil {
			continue
		}
		t.busy = time.Since(t.began)
		work := min(t.base+t.busy, t.length)
		if c := t.want.Task.Checkpoint; c != nil && (work-t.last >= t.length/10 || t.want.Stop != nil && t.want.Stop.Save && work > t.last) {
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
		case work >= t.length && len(t.want.Task.Command) > 2 && t.want.Task.Command[2] == "fail":
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

// ledger sums what the broker has booked as cost.
func (s *site) ledger() money.Amount {
	s.t.Helper()
	var entries []budget.Entry
	for after := int64(0); ; {
		page, err := s.st.Entries(context.Background(), queue.EntryQuery{After: after, Limit: 1000})
		if err != nil {
			s.t.Fatal(err)
		}
		if len(page) == 0 {
			return budget.Sum(entries, budget.Ledger)
		}
		for _, e := range page {
			entries = append(entries, *e)
			after = e.Seq
		}
	}
}

// squared makes sure that the books are closed: what is booked is the invoice.
func (s *site) squared() {
	s.t.Helper()
	s.mu.Lock()
	err := s.check.Settled(s.world.Invoice().Total)
	s.mu.Unlock()
	s.breach(err)
	if got, want := s.ledger(), s.world.Invoice().Total; got != want || want == 0 {
		s.t.Errorf("the ledger sums to %v, the cloud's invoice to %v", got, want)
	}
	for _, m := range s.world.Truth() {
		if m.State != providers.Terminated {
			s.t.Errorf("machine %s is %s", m.ID, m.State)
		}
	}
}

// events returns everything that was recorded, oldest first.
func (s *site) events() (all []*queue.Event) {
	s.t.Helper()
	for after := int64(0); ; {
		page, err := s.st.Events(context.Background(), queue.EventQuery{After: after, Limit: 1000})
		if err != nil {
			s.t.Fatal(err)
		}
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
		after = page[len(page)-1].Seq
	}
}

// count counts the events of a kind.
func (s *site) count(kind string) (n int) {
	for _, e := range s.events() {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// overrun is what the ledger holds beyond reservations.
func (s *site) overrun() money.Amount {
	if a := s.check.Account(budget.Key{Budget: budget.Ledger}); a != nil {
		return a.Overrun
	}
	return 0
}
