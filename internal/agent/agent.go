package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/reason"
)

// ErrRefused means that the broker does not let this machine in: another one has
// joined under its name, or its token is not known.
var ErrRefused = errors.New("the broker refused this machine")

// Parts are what an agent is built from.
type Parts struct {
	Broker   Broker
	Store    http.RoundTripper // to object stores
	Executor Executor
	Metadata Metadata
	Clock    Clock
	Log      *slog.Logger
	Version  string
	// Command runs the commands of the settings (power off, end, rearm); nil
	// means sh.
	Command func(ctx context.Context, command string, env ...string) error
	Machine agentapi.Machine
}

// Agent is one agent with its state.
type Agent struct {
	Parts
	set   Settings
	log   *slog.Logger
	exec  Executor
	meta  Metadata
	lease *lease
	meter *meter
	store *http.Client

	ctx     context.Context //nolint:containedctx // the agent's life, which its attempts share
	changed chan struct{}   // the observed state changed
	sent    agentapi.Ticks  // of the last call
	id      identity

	mu       sync.Mutex
	attempts map[string]*attempt
	notice   *seenNotice
	revision string
	free     chan struct{} // closed and replaced when an attempt is removed
	running  sync.WaitGroup
	rearming atomic.Bool
}

// identity is what the agent keeps of its joining.
type identity struct {
	Nonce      string `json:"nonce"`
	Instance   string `json:"instance,omitzero"`
	Credential string `json:"credential,omitzero"`
}

// New makes an agent. The settings must have been checked.
func New(set Settings, p Parts) *Agent {
	if p.Command == nil {
		p.Command = shell
	}
	return &Agent{
		Parts: p, set: set, log: p.Log, exec: p.Executor, meta: p.Metadata,
		meter:    newMeter(set.Dir, p.Log, (*attempt).used),
		store:    &http.Client{Transport: p.Store, CheckRedirect: sameMethod},
		changed:  make(chan struct{}, 1),
		attempts: map[string]*attempt{}, free: make(chan struct{}),
	}
}

// sameMethod follows a redirect only as the same call: net/http would turn a PUT
// into a GET, whose success says nothing of what was sent.
func sameMethod(req *http.Request, via []*http.Request) error {
	if req.Method != via[0].Method || len(via) > 5 {
		return http.ErrUseLastResponse
	}
	return nil
}

// Run runs the agent until the context ends (nil), or the broker refuses it
// ([ErrRefused]). Whatever it started has ended when it returns; attempts stay on
// disk for the next agent.
func (a *Agent) Run(ctx context.Context) error {
	if err := os.MkdirAll(a.attemptDir(""), 0o700); err != nil {
		return fmt.Errorf("agent: make the state folder: %w", err)
	}
	unlock, err := lockFolder(a.set.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	if a.lease, err = openLease(a.set.Dir, a.Clock, a.set.Lease, a.rearm); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	a.ctx = ctx
	defer a.exec.Close()
	defer a.running.Wait()
	defer cancel()
	if err := a.openIdentity(); err != nil {
		return err
	}
	for _, what := range a.exec.Limits() {
		a.log.Warn("this machine does not allow all", "what", what)
	}
	if err := a.recover(ctx); err != nil {
		return err
	}
	a.running.Go(func() { a.watchLease(ctx) })
	a.running.Go(func() { a.watchNotices(ctx) })
	a.running.Go(func() { a.meter.run(ctx) })
	for ctx.Err() == nil {
		if a.id.Credential == "" {
			if err := a.join(ctx); err != nil {
				return err
			}
			continue
		}
		a.follow(ctx)
		if pause(ctx, backoff(1, time.Second, lastRetry)) != nil {
			break
		}
	}
	return nil
}

// lockFolder keeps a second agent out.
func lockFolder(dir string) (func(), error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("agent: lock the state folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("agent: another agent runs on %s; stop it or choose another GPUBROKER_DIR: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

func (a *Agent) identityPath() string { return filepath.Join(a.set.Dir, "identity.json") }

// openIdentity takes up the credential and the nonce, which is drawn once.
func (a *Agent) openIdentity() error {
	known, err := readJSON(a.identityPath(), &a.id)
	if err != nil {
		return err
	}
	if a.set.Instance != "" && a.id.Instance != "" && a.id.Instance != a.set.Instance {
		// A disk that was copied to another machine: its credential is not ours.
		a.id, known = identity{}, false
	}
	if known && a.id.Nonce != "" {
		return nil
	}
	a.id = identity{Nonce: rand.Text()}
	return writeJSON(a.identityPath(), a.id)
}

// recover takes up what an earlier agent left: nothing of it may go on running,
// and what it had finished or saved is still sent.
func (a *Agent) recover(ctx context.Context) error {
	cleanCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := a.exec.Clean(cleanCtx, a.attemptDir("")); err != nil {
		a.log.Error("leftovers still run", "err", err)
	}
	entries, err := os.ReadDir(a.attemptDir(""))
	if err != nil {
		return fmt.Errorf("agent: read the state folder: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(a.attemptDir(""), e.Name())
		var rec record
		known, err := readJSON(filepath.Join(dir, "record.json"), &rec)
		if err != nil || !known {
			a.log.Warn("a folder without a record is removed", "folder", dir, "err", err)
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("agent: clean the state folder: %w", err)
			}
			continue
		}
		if rec.Ended == nil {
			rec.Ended = &agentapi.Ended{Layer: layerAgent, Reason: reason.New("agent_restarted")}
		}
		if rec.Phase != agentapi.PhaseEnded {
			rec.Phase = agentapi.Uploading
		}
		a.log.Info("took up an attempt of an earlier agent", "attempt", rec.ID, "phase", rec.Phase)
		a.start(rec, agentapi.DesiredAttempt{})
	}
	return nil
}

func (a *Agent) attemptDir(id string) string {
	if id == "" {
		return filepath.Join(a.set.Dir, "attempts")
	}
	return filepath.Join(a.set.Dir, "attempts", strings.ReplaceAll(id, "/", "_"))
}

// start begins or takes up an attempt.
func (a *Agent) start(rec record, want agentapi.DesiredAttempt) {
	t := newAttempt(a, rec)
	t.want = want
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		a.log.Error("cannot make the attempt's folder", "attempt", rec.ID, "err", err)
	}
	a.mu.Lock()
	a.attempts[rec.ID] = t
	a.mu.Unlock()
	t.set(func(*record) {})
	a.running.Go(t.run)
}

// remove forgets an attempt of which nothing is left.
func (a *Agent) remove(t *attempt) {
	a.mu.Lock()
	if a.attempts[t.id] == t {
		delete(a.attempts, t.id)
	}
	close(a.free)
	a.free = make(chan struct{})
	a.mu.Unlock()
	a.poke()
}

// list is every attempt on the machine, by id.
func (a *Agent) list() []*attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]*attempt, 0, len(a.attempts))
	for _, t := range a.attempts {
		all = append(all, t)
	}
	slices.SortFunc(all, func(x, y *attempt) int { return strings.Compare(x.id, y.id) })
	return all
}

// slotFree waits until no attempt that is being dropped still holds t's slot.
func (a *Agent) slotFree(ctx context.Context, t *attempt) error {
	for {
		a.mu.Lock()
		free := a.free
		a.mu.Unlock()
		taken := false
		for _, other := range a.list() {
			if other == t {
				continue
			}
			other.mu.Lock()
			taken = taken || other.forget && other.want.Slot == t.want.Slot && other.rec.Phase != agentapi.PhaseEnded
			other.mu.Unlock()
		}
		if !taken {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-free:
		}
	}
}

// poke says that the observed state changed.
func (a *Agent) poke() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// rearm runs the owner's command with the seconds that are left. One at a time:
// the next grant comes soon enough.
func (a *Agent) rearm(left time.Duration) {
	if a.set.Rearm == "" || !a.rearming.CompareAndSwap(false, true) {
		return
	}
	a.running.Go(func() {
		defer a.rearming.Store(false)
		ctx, cancel := context.WithTimeout(a.ctx, 30*time.Second)
		defer cancel()
		if err := a.Command(ctx, a.set.Rearm, fmt.Sprintf("GPUBROKER_SECONDS=%d", int64(left/time.Second))); err != nil {
			a.log.Error("the machine's own end could not be moved", "err", err)
		}
	})
}

// killAll ends everything at once and waits for it.
func (a *Agent) killAll() {
	all := a.list()
	for _, t := range all {
		t.drop()
	}
	for _, t := range all {
		<-t.done
	}
}

// Look finds out what the machine has. What cannot be read is left unknown.
func Look(dir string) agentapi.Machine {
	return agentapi.Machine{
		Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Memory: memoryBytes(), Disk: diskFree(dir), GPUs: gpuNames(),
	}
}
