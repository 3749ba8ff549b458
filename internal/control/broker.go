package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/budget"
	"gpubroker/internal/egress"
	"gpubroker/internal/gpu"
	"gpubroker/internal/market"
	"gpubroker/internal/money"
	"gpubroker/internal/objects"
	"gpubroker/internal/publish"
	"gpubroker/internal/scenario"
	"gpubroker/internal/state"
	"gpubroker/internal/window"
	"gpubroker/providers/managed"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// Account is a provider with what the configuration says of its use.
type Account struct {
	*managed.Provider
	Type     string   // "aws", "simcloud", …
	Projects []string // that may use it; empty means all
	GuestEnd bool     // machines that only end themselves are accepted
	Limits   scheduler.Limits
	// Hosts is set for machines that people own.
	Hosts Hosts
}

// Hosts tells which request an owned machine is bound to. It is an ability of
// the hosts adapter.
type Hosts interface {
	// Knows reports whether the account has a machine of that name.
	Knows(host string) bool
	// Waiting notes that the machine's agent waits for work, and returns the
	// instance that it is to be; ok is false while there is none.
	Waiting(host string) (instance string, ok bool)
}

// Settings are the owner's wishes, from the configuration.
type Settings struct {
	Owner     string         // the broker's name, in every machine's tags
	PublicURL string         // how agents reach us
	Currency  money.Currency // the ledger's; "" means USD
	CA        string         // PEM of the authority that signs our certificate; "" without TLS
	Budgets   []budget.Budget
	Teams     map[string]string // project → team
	Queues    map[string]Queue
	Rules     map[string]scheduler.Rules // by project
	Plan      scheduler.Settings
	// ShareWindow is how far back a project's money counts against its turn; 0
	// means a day.
	ShareWindow time.Duration
	// Keep is how many checkpoints of a task are kept.
	Keep int
	// AgentDigests are the digests of the agent program by architecture, and
	// AgentURL where a machine gets it.
	AgentDigests map[string]string

	// Locations are the places that jobs may name; Closed those that none may.
	Locations []Location
	Closed    []string
	// ObjectsAt is where the broker's own objects lie, and Buckets where buckets of
	// each scheme lie of which no location says more.
	ObjectsAt egress.Place
	Buckets   map[string]egress.Place
	// Secrets are the references that jobs may use.
	Secrets map[string]bool

	// Scenarios are the kinds of work that jobs may name; nil means those built in.
	Scenarios *scenario.Set

	Every Every
}

// Queue is a named set of defaults and rules. Its limits stand in Settings.Plan.
type Queue struct {
	Priority int
	Window   *window.Window
	Projects []string         // that may submit; empty means all
	Deadline *window.Deadline // of jobs that name none
	Rules    scheduler.Rules
}

// Every is how often the loops look when nothing wakes them. Zero fields take
// the defaults of [Every.withDefaults].
type Every struct {
	Observe   time.Duration // list of each provider
	Lease     time.Duration
	Terminate time.Duration
	Silence   time.Duration // an agent unheard for so long is looked for
	Lost      time.Duration // and for so long is given up
	Offers    time.Duration
	Quotas    time.Duration // limits of each account
	Sweep     time.Duration // objects and old rows
}

func (e Every) withDefaults() Every {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&e.Observe, 5*time.Second)
	def(&e.Lease, 2*time.Second)
	def(&e.Terminate, 2*time.Second)
	def(&e.Silence, 10*time.Second)
	def(&e.Lost, 28*time.Second)
	def(&e.Offers, 30*time.Second)
	def(&e.Quotas, time.Hour)
	def(&e.Sweep, 10*time.Minute)
	return e
}

// Broker runs the loops over one store.
type Broker struct {
	set      Settings
	log      *slog.Logger
	state    *state.State
	accounts map[string]*Account
	market   *market.Market
	objects  objects.Store // checkpoints, logs, work folders
	targets  Targets
	facts    *gpu.Table
	egress   *egress.Table
	specs    *specs
	meta     queue.Meta
	inputs   *inputs
	shares   shares
	shelves  shelves // of learned rates, as read last
	spots    *spots
	tables   *tables
	memo     scheduler.Memo // the schedule loop's alone

	// What is not durable, and need not be: it is found out anew after a start.
	mu          sync.Mutex
	calling     map[string]bool           // calls under way, by key
	listed      map[string]time.Time      // when each provider's list was first and last complete
	seen        map[string]time.Time      // when each agent last called
	listened    time.Time                 // when it was last looked at who is silent
	sent        map[string]agentapi.Ticks // of each agent's newest call, by instance and boot
	isPublished map[string]bool           // attempts whose output is in its place
	stages      map[string]*publish.Stage
	published   map[string]string    // attempt → why its output could not be published
	limits      map[string]limits    // by provider
	joined      map[string]time.Time // by provider: when a machine there last called in for the first time
	watching    map[string]*tail
	progress    map[string]Progress
	decisions   map[string]scheduler.Decision // by job, of the last pass
	passed      time.Time
	complained  map[string]time.Time // failures that were logged, by their text
	strays      map[string]bool      // ended machines without a record in the tables that were looked into
	pressed     map[string]time.Time // when a provider was last asked for the end of a machine
	acts        sync.WaitGroup
	retrying    sync.Mutex
	planning    sync.Mutex
}

// Targets opens the store that a job's outputs go to, by URL.
type Targets interface {
	Open(ctx context.Context, url string) (store objects.Store, key string, err error)
}

// Progress is what an agent last said of an attempt.
type Progress struct {
	At    time.Time     `json:"at"`
	Phase string        `json:"phase"`
	Share *float64      `json:"share,omitempty"`
	Units *float64      `json:"units,omitempty"`
	Busy  time.Duration `json:"busy"`
	Usage *queue.Usage  `json:"usage,omitempty"`
}

// New makes a broker over an opened state. It does nothing before Run.
func New(set Settings, st *state.State, meta queue.Meta, accounts []*Account, m *market.Market, obj objects.Store, targets Targets, log *slog.Logger) *Broker {
	set.Every = set.Every.withDefaults()
	if set.Keep <= 0 {
		set.Keep = 3
	}
	if set.Scenarios == nil {
		set.Scenarios = scenario.Builtin()
	}
	b := &Broker{
		set: set, log: log, state: st, meta: meta, market: m, objects: obj, targets: targets,
		accounts: map[string]*Account{}, facts: gpu.Builtin(), egress: egress.Builtin(), specs: newSpecs(set.Scenarios),
		calling: map[string]bool{}, listed: map[string]time.Time{}, seen: map[string]time.Time{},
		sent: map[string]agentapi.Ticks{}, isPublished: map[string]bool{}, stages: map[string]*publish.Stage{}, published: map[string]string{}, watching: map[string]*tail{},
		progress: map[string]Progress{}, decisions: map[string]scheduler.Decision{}, complained: map[string]time.Time{}, pressed: map[string]time.Time{}, strays: map[string]bool{},
		limits: map[string]limits{}, joined: map[string]time.Time{},
	}
	for _, a := range accounts {
		b.accounts[a.Name()] = a
	}
	b.shares.window = set.ShareWindow
	b.spots, b.tables = newSpots(), newTables()
	b.inputs = &inputs{store: st.Store()}
	return b
}

// now is the broker's time, which never goes back. Only the timers of silence
// run by the monotonic clock alone: a clock that is set makes nobody silent.
func (b *Broker) now() time.Time { return b.state.Now() }

// Scenarios returns the kinds of work that jobs may name.
func (b *Broker) Scenarios() *scenario.Set { return b.set.Scenarios }

// State returns the broker's tables.
func (b *Broker) State() *state.State { return b.state }

// Run works until ctx ends, and returns when every call under way has.
func (b *Broker) Run(ctx context.Context) error {
	if err := b.adopt(ctx); err != nil {
		b.complain("adopt", err) // the agents report their saves again
	}
	if err := b.shares.load(ctx, b.state.Store(), b.now()); err != nil {
		b.complain("shares", err) // turns are by what lives alone
	}
	g, ctx := errgroup.WithContext(ctx)
	loop := func(name string, period time.Duration, wake bool, step func(context.Context) (time.Duration, error)) {
		g.Go(func() error { return b.loop(ctx, name, period, wake, step) })
	}
	loop("schedule", scheduleEvery, true, b.schedule)
	loop("launch", 5*time.Second, true, b.launch)
	loop("lease", b.set.Every.Lease, false, b.lease)
	loop("ends", b.set.Every.Lease, true, b.moveEnds)
	loop("terminate", b.set.Every.Terminate, true, b.terminate)
	loop("settle", b.set.Every.Terminate, true, b.settle)
	loop("silence", time.Second, false, b.silence)
	loop("sweep", b.set.Every.Sweep, false, b.sweep)
	g.Go(func() error { return b.tables.build(ctx, b.state.Poke) })
	for _, a := range b.accounts {
		loop("observe", b.set.Every.Observe, false, func(ctx context.Context) (time.Duration, error) {
			return 0, b.observe(ctx, a)
		})
		loop("offers", b.set.Every.Offers, false, func(ctx context.Context) (time.Duration, error) { return b.offers(ctx, a) })
		if a.Quotas != nil {
			loop("quotas", quotaLook, false, func(ctx context.Context) (time.Duration, error) { return 0, b.quotas(ctx, a) })
		}
		if a.Interruptions != nil {
			g.Go(func() error { return b.interruptions(ctx, a) })
		}
	}
	err := g.Wait()
	b.acts.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// settleTime batches changes that come together: a pass sees them all. A loop
// whose step takes longer rests as long as that, a second at most: changes that
// never end do not keep it busy for ever.
const settleTime = 20 * time.Millisecond

// loop runs step now, then whenever its time comes or, with wake, something
// changed. A step says when to be run again at the latest; 0 means period.
func (b *Broker) loop(ctx context.Context, name string, period time.Duration, wake bool, step func(context.Context) (time.Duration, error)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	changed := make(<-chan struct{})
	var took time.Duration
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-changed:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(min(max(settleTime, took), time.Second)):
			}
		}
		if wake {
			changed = b.state.Watch("")
		}
		begun := time.Now()
		again, err := step(ctx)
		took = time.Since(begun)
		if err != nil && ctx.Err() == nil {
			b.complain(name, err)
		}
		if again <= 0 || again > period {
			again = period
		}
		timer.Reset(again)
	}
}

// complain logs a failure, the same one at most once a minute.
func (b *Broker) complain(loop string, err error) {
	key := loop + ": " + err.Error()
	b.mu.Lock()
	last, known := b.complained[key]
	if !known || time.Since(last) > time.Minute {
		b.complained[key] = time.Now()
		if len(b.complained) > 1000 {
			clear(b.complained)
		}
		b.mu.Unlock()
		b.log.Warn("loop failed, will try again", "loop", loop, "error", err)
		return
	}
	b.mu.Unlock()
}

// act runs a slow call apart, once per key at a time.
func (b *Broker) act(key string, fn func()) { b.actAll([]string{key}, func([]string) { fn() }) }

// actAll is act for one call that is about several keys: those that no other
// call is about.
func (b *Broker) actAll(keys []string, fn func(free []string)) {
	var free []string
	b.mu.Lock()
	for _, key := range keys {
		if !b.calling[key] {
			b.calling[key] = true
			free = append(free, key)
		}
	}
	b.mu.Unlock()
	if len(free) == 0 {
		return
	}
	b.acts.Go(func() {
		defer func() {
			b.mu.Lock()
			for _, key := range free {
				delete(b.calling, key)
			}
			b.mu.Unlock()
		}()
		fn(free)
	})
}

func (b *Broker) busy(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calling[key]
}

// budgets are the configured ones and the ledger.
func (b *Broker) budgets() []budget.Budget {
	return append([]budget.Budget{{Name: budget.Ledger, Scope: budget.Org}}, b.set.Budgets...)
}

func (b *Broker) payer(i *queue.Instance) budget.Payer {
	return budget.Payer{Team: b.set.Teams[i.Project], Project: i.Project, Job: i.Payer}
}
