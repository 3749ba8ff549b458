package simcloud

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sort"
	"sync"
	"time"

	"gpubroker/internal/simcloud/simapi"
	"gpubroker/providers"
)

// World is a cloud. Its methods are safe for concurrent use.
type World struct {
	cfg     Config
	log     *slog.Logger
	runner  Runner
	handler http.Handler

	mu        sync.Mutex
	now       time.Time // the moment that is being lived; never goes back
	start     time.Time
	due       []due    // the next one last
	offers    []*offer // by place
	byPlace   map[simapi.Place]*offer
	machines  []*machine // by number, forgotten ones included: the invoice needs them
	living    []*machine // those that hold capacity, by number
	byID      map[string]*machine
	byRequest map[string]*machine
	faults    []*fault
	faultSeq  uint64
	onMachine map[int][]simapi.Action
	selfEnd   providers.SelfEnd
	endAction providers.EndAction
	events    []simapi.Event
	eventSeq  int64
	notices   []*notice
	noticeSeq int64
	changed   chan struct{} // closed and renewed at each event and notice
	closed    bool

	wake   chan struct{}
	done   chan struct{}
	wg     sync.WaitGroup
	closer sync.Once
}

// maxEvents bounds the world's log; the older half is dropped beyond it.
const maxEvents = 200_000

// New starts a world at the present moment. A nil runner is a [Null] one whose
// machines do nothing; a nil log discards. Close ends it.
func New(cfg Config, runner Runner, log *slog.Logger) (*World, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if runner == nil {
		runner = &Null{}
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	now := moment(time.Now())
	w := &World{
		cfg: cfg, log: log, runner: runner, now: now, start: now,
		byPlace: map[simapi.Place]*offer{}, byID: map[string]*machine{}, byRequest: map[string]*machine{},
		onMachine: map[int][]simapi.Action{},
		selfEnd:   cfg.SelfEnd, endAction: cfg.EndAction,
		changed: make(chan struct{}), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	for i, c := range cfg.Offers {
		if err := w.addOffer(c, i); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(w.offers, func(a, b *offer) int { return comparePlaces(a.Place, b.Place) })
	for _, f := range cfg.Faults {
		w.addFault(f)
	}
	for _, a := range cfg.Script {
		if a.OnMachine > 0 {
			w.onMachine[a.OnMachine] = append(w.onMachine[a.OnMachine], a)
			continue
		}
		w.at(w.start.Add(a.At.D()), func() { w.runAction(a, nil) })
	}
	w.handler = Dialected(w)
	w.mu.Lock()
	w.advance(now)
	w.mu.Unlock()
	w.wg.Go(w.loop)
	return w, nil
}

// Close kills every machine, ends what waits, and returns when no goroutine of
// the world is left. The machines' bills stay open.
func (w *World) Close() {
	w.closer.Do(func() {
		w.enter()
		w.closed = true
		var dead []<-chan struct{}
		for _, m := range w.machines {
			if m.proc != nil && m.state() != providers.Terminated {
				dead = append(dead, m.proc.Kill())
			}
		}
		close(w.done)
		w.mu.Unlock()
		for _, d := range dead {
			<-d
		}
		w.wg.Wait()
		w.runner.Close()
	})
}

// Config returns the configuration with its defaults.
func (w *World) Config() Config { return w.cfg }

// enter locks the world and lives up to the present.
func (w *World) enter() {
	w.mu.Lock()
	w.advance(moment(time.Now()))
}

// moment strips the monotonic reading, so that every difference of times is the
// same here and in whoever reads them from the wire.
func moment(t time.Time) time.Time { return t.UTC().Round(0) }

// advance does what is due up to t, each at its own moment.
func (w *World) advance(t time.Time) {
	for n := len(w.due); !w.closed && n > 0 && !w.due[n-1].at.After(t); n = len(w.due) {
		d := w.due[n-1]
		w.due = slices.Delete(w.due, n-1, n)
		if d.at.After(w.now) {
			w.now = d.at
		}
		d.do()
	}
	if t.After(w.now) {
		w.now = t
	}
}

// loop wakes when something is due.
func (w *World) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		w.enter()
		next := time.Hour
		if n := len(w.due); n > 0 {
			next = max(time.Until(w.due[n-1].at), 0)
		}
		w.mu.Unlock()
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-w.wake:
		case <-w.done:
			return
		}
	}
}

// at has do called, locked, at t or as soon as may be, after all that is due at
// that moment already.
func (w *World) at(t time.Time, do func()) {
	i := sort.Search(len(w.due), func(i int) bool { return !w.due[i].at.After(t) })
	w.due = slices.Insert(w.due, i, due{t, do})
	if i == len(w.due)-1 {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// due is something that happens at a moment.
type due struct {
	at time.Time
	do func()
}

// random is a stream of its own for each purpose and number, so that what
// happens elsewhere does not change it.
func (w *World) random(purpose, number uint64) *rand.Rand {
	return rand.New(rand.NewPCG(w.cfg.Seed, purpose<<32|number))
}

// The purposes of random streams.
const (
	forWalk uint64 = iota + 1
	forBoot
	forEviction
	forChance
)

// note records an event and wakes those who wait for one.
func (w *World) note(kind string, m *machine, place, format string, args ...any) {
	w.eventSeq++
	e := simapi.Event{Seq: w.eventSeq, At: w.now, Kind: kind, Place: place, Text: fmt.Sprintf(format, args...)}
	if m != nil {
		e.Machine, e.Request, e.Place = m.id, m.req.Request, m.offer.Place.String()
	}
	if len(w.events) >= maxEvents {
		w.events = slices.Clone(w.events[maxEvents/2:])
	}
	w.events = append(w.events, e)
	level := slog.LevelInfo
	switch kind {
	case "price":
		level = slog.LevelDebug
	case "error":
		level = slog.LevelWarn
	}
	w.log.Log(context.Background(), level, "event", "kind", kind, "machine", e.Machine, "place", e.Place, "text", e.Text)
	w.signal()
}

func (w *World) signal() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// Events returns the world's log after a number, oldest first.
func (w *World) Events(after int64) []simapi.Event {
	w.enter()
	defer w.mu.Unlock()
	i, _ := slices.BinarySearchFunc(w.events, after+1, func(e simapi.Event, seq int64) int { return int(e.Seq - seq) })
	return slices.Clone(w.events[i:])
}

// About states the rules that hold now.
func (w *World) About() simapi.About {
	w.enter()
	cfg := w.cfg
	cfg.SelfEnd, cfg.EndAction = w.selfEnd, w.endAction
	about := simapi.About{Currency: cfg.Currency, Capabilities: cfg.Capabilities(), Now: w.now}
	w.mu.Unlock()
	if cfg.Dialect != nil && cfg.Dialect.Left != nil {
		about.Left = cfg.Dialect.Left(w)
	}
	return about
}
