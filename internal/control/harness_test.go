package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/budget"
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
	file    string        // of the store
	every   time.Duration // how often the promises are compared with the world, and an agent calls at least
	calls   time.Duration // how often an agent calls at most; 0 is as often as that
	saves   time.Duration // how much work an agent does between saves; 0 is a tenth of the task
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

	notice  func(instance string) *agentapi.Notice      // that an agent reads on its machine
	usage   func(busy time.Duration) *queue.Usage       // that an agent tells of a task that has run so long
	pace    func(instance string) float64               // how many times as long as it says a task takes there
	broken  map[int64]string                            // checkpoints that cannot be read, and why
	foreign func(request string) bool                   // machines that are not this store's
	wrap    func(providers.Provider) providers.Provider // round the adapter; nil leaves it bare

	mets   []agentapi.DesiredAttempt // of members of gangs, when they began
	mu     sync.Mutex
	agents map[string]*fakeAgent // by instance
	broker *control.Broker       // nil while it is down
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
	s := &site{t: t, dir: t.TempDir(), file: "store.db", every: 5 * time.Second, agents: map[string]*fakeAgent{}}
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
	s.objects = &aged{Store: folder, at: map[string]time.Time{}}
	s.set = control.Settings{
		Owner: "broker", PublicURL: "http://broker.internal",
		AgentDigests: map[string]string{"amd64": "00"},
		Plan:         scheduler.Settings{Lease: 20 * time.Minute, Idle: 30 * time.Second, Stale: scheduler.Stale{Spot: time.Hour, OnDemand: time.Hour}},
	}
	s.check, s.lag = invariant.New(nil), 5*time.Second+cfg.ListLag.D()
	return s
}

// aged is an object store whose objects are as old as virtual time says.
type aged struct {
	objects.Store
	mu sync.Mutex
	at map[string]time.Time
}

func (a *aged) Put(ctx context.Context, key string, body io.ReadSeeker, o objects.PutOptions) (objects.Info, error) {
	info, err := a.Store.Put(ctx, key, body, o)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.at[key] = time.Now()
	}
	return info, err
}

func (a *aged) List(ctx context.Context, prefix string) iter.Seq2[objects.Info, error] {
	return func(yield func(objects.Info, error) bool) {
		for i, err := range a.Store.List(ctx, prefix) {
			a.mu.Lock()
			if at, ok := a.at[i.Key]; ok {
				i.Modified = at
			}
			a.mu.Unlock()
			if !yield(i, err) {
				return
			}
		}
	}
}

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
			if s.foreign != nil && s.foreign(m.Request) {
				continue
			}
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
	// In the writer: a commit is in the store before memory shows it.
	_ = tables.Do(ctx, func(*state.Tx) error {
		stored, err := state.Open(ctx, tables.Store(), slog.New(slog.DiscardHandler))
		switch {
		case err == nil:
			s.breach(invariant.Tables(tables.View(), stored.View()))
		case ctx.Err() == nil:
			s.breach(err)
		}
		return err
	})
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
	st, err := store.Open(ctx, filepath.Join(s.dir, s.file), store.Options{Fault: func(op string, done bool) error {
		if op != "commit" {
			return nil
		}
		if done {
			s.mu.Lock()
			err := s.check.Commit(s.batch)
			s.mu.Unlock()
			s.breach(err)
		} else {
			var err error
			s.rig(func() {
				if s.fail != nil {
					err = s.fail()
				}
			})
			if err != nil {
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
	tables, err := state.Open(ctx, watched{st, s}, slog.New(slog.DiscardHandler))
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
	adapter := providers.Provider(a)
	if s.wrap != nil {
		adapter = s.wrap(a)
	}
	account := &control.Account{Provider: managed.New(adapter, managed.Options{Owner: "broker", Jitter: func() float64 { return 0.5 }}), GuestEnd: true}
	log := slog.New(slog.NewTextHandler(s.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	b := control.New(s.set, tables, meta, []*control.Account{account}, market.New(), s.objects, s, log)
	var wg sync.WaitGroup
	wg.Go(func() { _ = tables.Run(ctx) })
	wg.Go(func() { _ = b.Run(ctx) })
	wg.Go(func() {
		for pause(ctx, s.every) {
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

// slow lets a long time pass in few steps: everybody looks seldom.
func (s *site) slow() {
	s.stop()
	s.every = 5 * time.Minute
	m := time.Minute
	s.set.Every = control.Every{Observe: m, Lease: m, Terminate: m, Silence: 10 * m, Lost: 15 * m, Offers: 10 * m, Sweep: time.Hour}
	s.start()
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

func (s *site) up() *control.Broker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broker
}

// met notes that a member of a gang begins.
func (s *site) met(w agentapi.DesiredAttempt) {
	s.rig(func() { s.mets = append(s.mets, w) })
}

// submit hands a spec in.
func (s *site) submit(text string) *queue.Job {
	s.t.Helper()
	j, err := spec.Reader{Scenarios: s.set.Scenarios}.Parse("job.yaml", []byte(text))
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := s.up().Submit(context.Background(), control.Submission{Spec: j, Anywhere: true}, nil)
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
	if a := s.account(budget.Key{Budget: budget.Ledger}); a != nil {
		return a.Overrun
	}
	return 0
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

func (s *site) agentOf(instance string) *fakeAgent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agents[instance]
}

// record, account and commits are what the checker knows.
func (s *site) record(instance string) (i *queue.Instance) {
	s.rig(func() { i = s.check.Instances()[instance] })
	return i
}

func (s *site) account(k budget.Key) (a *budget.Account) {
	s.rig(func() { a = s.check.Account(k) })
	return a
}

func (s *site) commits() (n int) {
	s.rig(func() { n = s.check.Commits() })
	return n
}
