package agent

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"gpubroker/internal/agentapi"
)

// End actions of a grant.
const (
	actionStopTasks = "stop-tasks"
	actionPowerOff  = "poweroff"
	actionAPI       = "api"
)

// afterReboot is how long a machine that was restarted waits for a grant: the
// readings that its lease was kept in are gone with the old boot.
const afterReboot = agentapi.Ticks(2 * time.Minute)

// leaseRecord is the lease on disk.
type leaseRecord struct {
	Boot    string         `json:"boot"`
	End     agentapi.Ticks `json:"end"`
	For     agentapi.Ticks `json:"for"` // length of the last grant
	Action  string         `json:"action"`
	CloudID string         `json:"cloud_id,omitzero"`
}

// lease knows until when the machine may live.
type lease struct {
	clock Clock
	dir   string
	rearm func(left time.Duration)

	mu   sync.Mutex
	rec  leaseRecord
	kept agentapi.Ticks // the end on disk
}

// openLease takes up the lease on disk, or lease 0, which counts from boot.
func openLease(dir string, clock Clock, first time.Duration, rearm func(time.Duration)) (*lease, error) {
	l := &lease{clock: clock, dir: dir, rearm: rearm}
	known, err := readJSON(l.path(), &l.rec)
	if err != nil {
		return nil, err
	}
	switch {
	case !known:
		l.rec = leaseRecord{Boot: clock.Boot(), End: agentapi.Ticks(first), For: agentapi.Ticks(first), Action: actionStopTasks}
		// An owner's machine may have been up for days before it joins.
		if now := clock.Now(); l.rec.End < now+afterReboot {
			l.rec.End = now + afterReboot
		}
	case l.rec.Boot != clock.Boot():
		l.rec.Boot, l.rec.End, l.rec.For = clock.Boot(), clock.Now()+afterReboot, afterReboot
	default:
		l.kept = l.rec.End
		return l, nil
	}
	return l, l.store()
}

func (l *lease) path() string { return filepath.Join(l.dir, "lease.json") }

// store writes the lease and the machine's own deadline.
func (l *lease) store() error {
	if err := writeJSON(l.path(), l.rec); err != nil {
		return err
	}
	seconds := (int64(l.rec.End) + int64(time.Second) - 1) / int64(time.Second)
	if err := writeWhole(filepath.Join(l.dir, "deadline"), []byte(strconv.FormatInt(seconds, 10)+"\n")); err != nil {
		return err
	}
	l.kept = l.rec.End
	return nil
}

// grant takes up a grant that answers a request sent at sent. Answers come in
// order, so the newest counts, also where it is the earlier end. A grant of
// nothing changes nothing.
func (l *lease) grant(sent agentapi.Ticks, g agentapi.Grant) error {
	if g.For <= 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	length := agentapi.Ticks(g.For.Std())
	rec := leaseRecord{Boot: l.clock.Boot(), End: sent + length, For: length, Action: g.Action, CloudID: g.CloudID}
	if rec.Action == "" {
		rec.Action = actionStopTasks
	}
	// The broker answers every few seconds; the disk need not hear of an end that
	// is less than one from what it holds.
	if moved := time.Duration(rec.End - l.kept).Abs(); moved < time.Second && l.rec.Action == rec.Action && l.rec.CloudID == rec.CloudID {
		l.rec.End = min(l.rec.End, rec.End)
		return nil
	}
	l.rec = rec
	if l.rearm != nil {
		l.rearm(time.Duration(rec.End - l.clock.Now()))
	}
	return l.store()
}

// left is the time to the end; it is negative after it.
func (l *lease) left() (time.Duration, leaseRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.rec.End - l.clock.Now()), l.rec
}

// shell runs a command of the settings.
func shell(ctx context.Context, command string, env ...string) error {
	c := exec.CommandContext(ctx, "sh", "-c", command)
	c.Env = append(c.Environ(), env...)
	return c.Run()
}

// watchLease ends attempts in time and does the end action at the end. It looks
// every second: a timer would sleep through a suspension.
func (a *Agent) watchLease(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var again time.Time // of the end action; zero before the end
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		left, rec := a.lease.left()
		if left > 0 {
			again = time.Time{}
			for _, t := range a.list() {
				if left <= t.lead(time.Duration(rec.For)) {
					t.stop(leaseStop(left))
				}
			}
			continue
		}
		for _, t := range a.list() {
			t.stop(leaseStop(0))
		}
		// What can fail is tried again; stopping the tasks was all of it elsewhere.
		if now := time.Now(); again.IsZero() || rec.Action != actionStopTasks && now.After(again) {
			a.endAction(ctx, rec)
			again = now.Add(time.Minute)
		}
	}
}

// endAction does what the grant says is done at the lease's end.
func (a *Agent) endAction(ctx context.Context, rec leaseRecord) {
	a.log.Warn("the lease is over", "action", rec.Action)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	switch rec.Action {
	case actionPowerOff:
		id, err := a.meta.CloudID(ctx)
		if err != nil || id == "" || id != rec.CloudID {
			a.log.Error("not powered off: the metadata does not name the machine of the grant", "want", rec.CloudID, "have", id, "err", err)
			return
		}
		if err := a.Command(ctx, a.set.PowerOff); err != nil {
			a.log.Error("powering off failed", "err", err)
		}
	case actionAPI:
		if a.set.End == "" {
			a.log.Error("the machine cannot delete itself: GPUBROKER_END is not set")
		} else if err := a.Command(ctx, a.set.End); err != nil {
			a.log.Error("the command that deletes the machine failed", "err", err)
		}
	}
}
