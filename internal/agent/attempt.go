package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/reason"
	"gpubroker/queue"
)

// Layers of an end: whose doing it was.
const (
	layerTask    = "task"
	layerMachine = "machine"
	layerAgent   = "agent"
)

// errForgotten ends what is done for an attempt that the broker no longer wants.
var errForgotten = errors.New("the broker no longer wants the attempt")

// errStopped ends the staging of an attempt that is asked to stop.
var errStopped = errors.New("the attempt was asked to stop")

// record is an attempt on disk: enough to report it, and to send what it left,
// after a restart of the agent. It holds neither secrets nor signed URLs.
type record struct {
	ID      string           `json:"id"`
	Token   string           `json:"token"`
	Task    agentapi.Task    `json:"task"`
	Phase   agentapi.Phase   `json:"phase"`
	Busy    time.Duration    `json:"busy"`
	Resumed *int64           `json:"resumed,omitzero"`
	Ended   *agentapi.Ended  `json:"ended,omitzero"`
	Log     logPosition      `json:"log"`
	Output  *agentapi.Output `json:"output,omitzero"`
	// OutputSize is the length of Output as JSON.
	OutputSize int               `json:"output_size,omitzero"`
	Broken     []agentapi.Broken `json:"broken,omitzero"`
	// SaveNumber is the last number that a save was sent under; Saves are complete
	// and not yet committed.
	SaveNumber int64           `json:"save_number,omitzero"`
	Saves      []agentapi.Save `json:"saves,omitzero"`
	Usage      *queue.Usage    `json:"usage,omitempty"`
	// At is where the others of its gang reach it, once all is staged.
	At *queue.Endpoint `json:"at,omitempty"`
}

// stopOrder is the wish that an attempt ends, whoever has it.
type stopOrder struct {
	why   reason.Reason
	layer string
	grace time.Duration // from the signal to the kill; 0 means the task's own
	by    time.Time     // nothing is left after it; zero means no such moment
	save  bool
}

// attempt is one attempt on this machine. Its goroutine goes from phase to
// phase; everything else reads and asks.
type attempt struct {
	a    *Agent
	id   string
	dir  string // holds record.json, log, work, saves
	log  *slog.Logger
	ctx  context.Context //nolint:containedctx // ends with the attempt, not with a call
	kill context.CancelCauseFunc
	done chan struct{} // the goroutine is over

	moves   *checkpoint.Transfer
	resumed *checkpoint.Manifest // what the goroutine restored

	logOver chan struct{} // closed when nothing more comes into the log
	logSent chan struct{} // closed when all of it was sent

	keeping sync.Mutex // one write of the record at a time

	mu      sync.Mutex
	want    agentapi.DesiredAttempt
	rec     record
	logs    *logSink
	order   *stopOrder
	began   time.Time // the command's start; zero before
	moved   time.Time // last progress, log line or save
	units   *float64
	urls    map[string]string // by method and name
	refused map[string]string // the URL that the store last refused, by the same
	wanted  map[string]bool   // asked for and not yet there
	changed chan struct{}     // closed and replaced at each change of want, order or urls
	saving  *saving           // while the command runs
	answers int               // of the broker, that named the attempt
	forget  bool              // the broker has it in its books, or does not want it
	told    time.Time         // progress was last told
	idled   bool              // a stall was told
	asked   bool              // to save soon
	untold  bool              // the usage in the record was not told yet
}

func newAttempt(a *Agent, rec record) *attempt {
	ctx, kill := context.WithCancelCause(a.ctx)
	t := &attempt{
		a: a, id: rec.ID, dir: a.attemptDir(rec.ID), rec: rec,
		log: a.log.With("attempt", rec.ID, "job", rec.Task.Job, "index", rec.Task.Index),
		ctx: ctx, kill: kill, done: make(chan struct{}), logOver: make(chan struct{}), logSent: make(chan struct{}),
		changed: make(chan struct{}), moved: time.Now(),
		urls: map[string]string{}, refused: map[string]string{}, wanted: map[string]bool{},
	}
	t.moves = &checkpoint.Transfer{URLs: attemptURLs{t}, Client: a.store, Log: t.log}
	return t
}

func (t *attempt) work() string { return filepath.Join(t.dir, "work") }

// notify wakes whatever waits for a change. The lock is held.
func (t *attempt) notify() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// wait blocks until ok, which is called with the lock held, or ctx ends.
func (t *attempt) wait(ctx context.Context, ok func() bool) error {
	for {
		t.mu.Lock()
		done, changed := ok(), t.changed
		t.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// update takes up the broker's wish.
func (t *attempt) update(d agentapi.DesiredAttempt) {
	t.mu.Lock()
	t.want = d
	for _, m := range []struct {
		method string
		urls   map[string]string
	}{{"PUT", d.Put}, {"GET", d.Get}} {
		for name, url := range m.urls {
			key := m.method + " " + name
			if t.refused[key] != url {
				t.urls[key] = url
				delete(t.wanted, key)
			}
		}
	}
	t.answers++
	t.committed(d.Committed)
	t.forgetURLs(d.Committed)
	forget := d.Recorded
	t.notify()
	t.mu.Unlock()
	if d.Stop != nil {
		o := stopOrder{why: d.Stop.Why, layer: layerAgent, grace: d.Stop.Grace.Std(), save: d.Stop.Save}
		if d.Stop.In > 0 {
			o.by = time.Now().Add(d.Stop.In.Std())
		}
		t.stop(o)
	}
	if forget {
		t.drop()
	}
}

// drop kills the attempt if it still runs, and forgets it.
func (t *attempt) drop() {
	t.mu.Lock()
	t.forget = true
	t.mu.Unlock()
	t.kill(errForgotten)
}

// wants reports whether it still waits for one of the URLs that it asked for.
func (t *attempt) wants(asked agentapi.Want) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range asked.Put {
		if t.wanted["PUT "+name] {
			return true
		}
	}
	for _, name := range asked.Get {
		if t.wanted["GET "+name] {
			return true
		}
	}
	return false
}

// stop asks the attempt to end. The first order's reason counts; a later one can
// only make it end earlier.
func (t *attempt) stop(o stopOrder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rec.Phase == agentapi.PhaseEnded {
		return
	}
	switch {
	case t.order == nil:
		t.order = &o
		t.log.Info("stopping", "why", o.why.String())
	case !o.by.IsZero() && (t.order.by.IsZero() || o.by.Before(t.order.by.Add(-time.Second))):
		t.order.by = o.by
	default:
		return
	}
	t.notify()
}

func (t *attempt) stopping() (stopOrder, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.order == nil {
		return stopOrder{}, false
	}
	return *t.order, true
}

// lead is how long before the lease's end the attempt gets its stop signal: its
// grace, and time to send what it then saved.
func (t *attempt) lead(lease time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return min(t.rec.Task.StopGrace.Std()+15*time.Second, lease/4)
}

// set changes the record and tells the broker.
func (t *attempt) set(change func(*record)) {
	t.keep(change)
	t.a.poke()
}

// used keeps what the command has used so far. It is told with the next call,
// whenever that is.
func (t *attempt) used(u *queue.Usage) {
	t.keep(func(r *record) {
		if r.Ended == nil { // else it has the last word already
			r.Usage = u
		}
	})
	t.mu.Lock()
	t.untold = true
	t.mu.Unlock()
}

// keep changes the record: on disk first, so that what the broker is told is known
// to a restarted agent. change may be called twice and must depend on the record
// alone.
func (t *attempt) keep(change func(*record)) {
	t.keeping.Lock()
	defer t.keeping.Unlock()
	t.mu.Lock()
	rec := t.rec
	change(&rec)
	t.mu.Unlock()
	rec.Task.Secrets, rec.Task.Fetch, rec.Task.Workdir = nil, nil, nil
	if err := writeJSON(filepath.Join(t.dir, "record.json"), rec); err != nil {
		// A restarted agent would know less; what runs goes on.
		t.log.Error("cannot keep the attempt's record", "err", err)
	}
	t.mu.Lock()
	change(&t.rec)
	t.notify()
	t.mu.Unlock()
}

// observe is the attempt as the broker is told, and the length of its output in
// it.
func (t *attempt) observe() (agentapi.ObservedAttempt, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := agentapi.ObservedAttempt{
		ID: t.id, Token: t.rec.Token, Phase: t.rec.Phase, Busy: agentapi.Of(t.busy()),
		Broken: t.rec.Broken, Resumed: t.rec.Resumed, Output: t.rec.Output, LogSize: t.rec.Log.Sent, Ended: t.rec.Ended,
		Saves: t.rec.Saves, At: t.rec.At,
	}
	o.Units, o.Progress = t.units, t.progress()
	if t.untold || t.rec.Ended != nil {
		o.Usage, t.untold = t.rec.Usage, false
	}
	if t.rec.Phase == agentapi.Running {
		o.Idle = agentapi.Of(time.Since(t.moved))
	}
	for key := range t.wanted {
		if name, ok := cutMethod(key, "PUT"); ok {
			o.Want.Put = append(o.Want.Put, name)
		} else if name, ok := cutMethod(key, "GET"); ok {
			o.Want.Get = append(o.Want.Get, name)
		}
	}
	if t.want.Watch != nil && t.logs != nil {
		if data, off := t.logs.tail(*t.want.Watch); len(data) > 0 {
			o.Tail = &agentapi.Tail{Offset: off, Data: data}
		}
	}
	return o, t.rec.OutputSize
}

// busy is how long the command has run. The lock is held. It is counted by Go's
// monotonic clock, which stands still while the machine is suspended.
func (t *attempt) busy() time.Duration {
	if t.began.IsZero() || t.rec.Ended != nil {
		return t.rec.Busy
	}
	return time.Since(t.began)
}

// progress is the share of the work done, when it is known. The lock is held.
func (t *attempt) progress() *float64 {
	if t.units == nil || t.rec.Task.ProgressOf <= 0 {
		return nil
	}
	return new(min(max(*t.units/t.rec.Task.ProgressOf, 0), 1))
}

// touch looks at the log's progress, and tells the broker of it now and then.
func (t *attempt) touch() {
	units, last := t.logs.progress()
	t.mu.Lock()
	fresh := units != nil && (t.units == nil || *t.units != *units)
	if fresh {
		t.units, t.moved = units, time.Now()
	}
	if last.After(t.moved) {
		t.moved = last
	}
	tell := fresh && time.Since(t.told) >= t.a.set.Report
	watched := t.want.Watch != nil && t.logs.bytes() > *t.want.Watch
	stalled := t.rec.Task.Stall > 0 && time.Since(t.moved) >= t.rec.Task.Stall.Std()
	tell = tell || stalled && !t.idled
	t.idled = stalled
	if tell {
		t.told = time.Now()
	}
	t.mu.Unlock()
	if tell || watched {
		t.a.poke()
	}
}

// forgetURLs drops the URLs of what has arrived. The lock is held.
func (t *attempt) forgetURLs(committed int64) {
	for key := range t.urls {
		kind, rest, _ := strings.Cut(strings.TrimPrefix(key, "PUT "), "/")
		number, _, _ := strings.Cut(rest, "/")
		n, err := strconv.ParseInt(number, 10, 64)
		if err == nil && (kind == "save" && n <= committed || kind == "log" && n <= t.rec.Log.Chunk) {
			delete(t.urls, key)
			delete(t.refused, key)
		}
	}
}

// attemptURLs hands out the signed URLs that the broker grants one attempt.
type attemptURLs struct{ t *attempt }

// Put waits for a URL to upload to, other than the stale one.
func (u attemptURLs) Put(ctx context.Context, name, stale string) (string, error) {
	return u.t.url(ctx, "PUT "+name, stale)
}

// Get waits for a URL to download from, other than the stale one.
func (u attemptURLs) Get(ctx context.Context, name, stale string) (string, error) {
	return u.t.url(ctx, "GET "+name, stale)
}

// url waits for a signed URL and asks the broker for it if need be.
func (t *attempt) url(ctx context.Context, key, stale string) (string, error) {
	t.mu.Lock()
	if stale != "" {
		t.refused[key] = stale
		if t.urls[key] == stale {
			delete(t.urls, key)
		}
	}
	t.mu.Unlock()
	var url string
	asked := false
	err := t.wait(ctx, func() bool {
		url = t.urls[key]
		if url == "" && !asked {
			asked, t.wanted[key] = true, true
			t.a.poke()
		}
		return url != ""
	})
	if err != nil {
		t.mu.Lock()
		delete(t.wanted, key)
		t.mu.Unlock()
	}
	return url, err
}

// run takes the attempt from where it stands to its end.
func (t *attempt) run() {
	defer close(t.done)
	defer t.clean()
	t.mu.Lock()
	phase := t.rec.Phase
	t.mu.Unlock()
	if phase == agentapi.Staging || phase == agentapi.Running || phase == agentapi.Stopping {
		t.begin()
	}
	if t.ctx.Err() != nil {
		return
	}
	t.finish()
	// Ended, until the broker has it in its books.
	<-t.ctx.Done()
}

// clean removes what the attempt left, unless the agent itself is ending: the
// next one takes it up.
func (t *attempt) clean() {
	t.mu.Lock()
	forget := t.forget
	t.mu.Unlock()
	if t.logs != nil {
		t.logs.finish()
		t.logs.file.Close()
	}
	if !forget {
		return
	}
	if err := os.RemoveAll(t.dir); err != nil {
		t.log.Error("cannot remove the workspace", "err", err)
	}
	t.a.remove(t)
}

// begin stages and runs the command.
func (t *attempt) begin() {
	ctx, cancel := context.WithCancelCause(t.ctx)
	defer cancel(nil)
	go func() {
		if t.wait(ctx, func() bool { return t.order != nil }) == nil {
			cancel(errStopped)
		}
	}()
	cmd, err := t.stage(ctx)
	if err != nil {
		if t.ctx.Err() == nil {
			t.endStaging(err)
		}
		return
	}
	cancel(nil)
	t.execute(cmd)
}

// endStaging says why the command never began.
func (t *attempt) endStaging(err error) {
	end := agentapi.Ended{Layer: layerTask, Reason: reason.New("setup_failed", "what", err)}
	if o, ok := t.stopping(); ok {
		end = agentapi.Ended{Layer: o.layer, Reason: o.why}
	} else if errors.Is(err, syscall.ENOSPC) {
		end = agentapi.Ended{Layer: layerMachine, Reason: reason.New("disk_full")}
	} else if errors.Is(err, errAgent) {
		end.Layer = layerAgent
	}
	t.log.Warn("staging failed", "err", err)
	if t.logs != nil { // it is what failed otherwise
		t.logs.Note(end.Reason.String())
	}
	t.set(func(r *record) { r.Ended, r.Phase = &end, agentapi.Uploading })
}

// errAgent marks a failure that is neither the task's nor the machine's doing.
var errAgent = errors.New("the agent failed")

func agentError(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return fmt.Errorf("%w: %w", errAgent, err)
}
