package agent

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/reason"
)

// execute runs the command to its end and writes down how it ended.
func (t *attempt) execute(cmd Command) {
	cmd.Output = t.logs
	saves, err := t.startSaving()
	var proc Process
	if err == nil {
		if proc, err = t.a.exec.Start(cmd); err != nil {
			err = agentError(err)
		}
	}
	if err != nil {
		saves.finish(false)
		t.endStaging(err)
		return
	}
	began := time.Now()
	t.mu.Lock()
	t.began, t.moved = began, began
	t.mu.Unlock()
	t.set(func(r *record) { r.Phase = agentapi.Running })
	t.log.Info("the command runs")
	t.a.meter.watch(t, proc, t.rec.Task.GPUs)

	exited := make(chan Exit, 1)
	go func() { exited <- proc.Wait() }()
	exit, order := t.attend(proc, exited)
	usage := t.a.meter.done(t)
	t.touch()
	if t.ctx.Err() != nil {
		saves.finish(false)
		return
	}
	end := t.judge(exit, order)
	t.log.Info("the command ended", "code", exit.Code, "signal", exit.Signal, "layer", end.Layer, "why", end.Reason.String())
	if exit.Err != nil || exit.Code != 0 || order != nil {
		text := end.Reason.String()
		if exit.Err != nil {
			text += ": " + exit.Err.Error()
		}
		t.logs.Note(text)
	}
	busy := time.Since(began)
	t.set(func(r *record) { r.Busy, r.Ended, r.Phase, r.Usage = busy, &end, agentapi.Uploading, usage })
	// A success needs no save, and one that was cancelled has no use for it.
	saves.finish(!succeeded(&end) && (order == nil || order.save))
}

// attend watches over the running command: it ends it when it is asked to, and
// after the longest time that the task may take.
func (t *attempt) attend(proc Process, exited <-chan Exit) (Exit, *stopOrder) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	var order *stopOrder
	var deadline time.Time // when it is killed
	killed := t.ctx.Done()
	for {
		t.mu.Lock()
		changed := t.changed
		if t.order != nil {
			o := *t.order
			grace := o.grace
			if grace <= 0 {
				grace = t.rec.Task.StopGrace.Std()
			}
			if order == nil {
				deadline = time.Now().Add(grace)
			}
			if !o.by.IsZero() && (order == nil || !o.by.Equal(order.by)) {
				// What it leaves is to be sent before the machine goes.
				last := o.by.Add(-min(time.Until(o.by)/4, sendReserve))
				if deadline.After(last) {
					deadline = last
				}
			}
			first := order == nil
			order = &o
			t.mu.Unlock()
			if first && !t.helps() { // a helper is there until the first member's end, or its grace
				t.signal(proc)
			}
		} else {
			t.mu.Unlock()
		}
		select {
		case exit := <-exited:
			return exit, order
		case <-killed:
			proc.Kill()
			killed = nil
		case <-changed:
		case <-tick.C:
			t.touch()
			if order != nil && !time.Now().Before(deadline) {
				proc.Kill()
			}
			if limit := t.rec.Task.MaxDuration.Std(); limit > 0 && time.Since(t.began) > limit {
				t.stop(stopOrder{why: reason.New("max_duration", "limit", limit), layer: layerTask})
			}
		}
	}
}

// sendReserve is the time before the machine goes in which nothing runs any more,
// and only what is left is sent; of a short notice it is a quarter.
const sendReserve = 5 * time.Second

func (t *attempt) signal(proc Process) {
	t.set(func(r *record) { r.Phase = agentapi.Stopping })
	sig, ok := signals[t.rec.Task.StopSignal]
	if !ok {
		sig = syscall.SIGTERM
	}
	if err := proc.Signal(sig); err != nil {
		t.log.Warn("cannot signal the command; it is killed after its grace", "err", err)
	}
}

// signals are those that may be a task's stop signal; any other is SIGTERM.
var signals = map[string]syscall.Signal{
	"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "SIGHUP": syscall.SIGHUP, "SIGQUIT": syscall.SIGQUIT,
	"SIGUSR1": syscall.SIGUSR1, "SIGUSR2": syscall.SIGUSR2, "SIGKILL": syscall.SIGKILL,
}

// judge says how the command ended and whose doing it was. After a stop signal
// exit code 0 is no success, and is not told: a program that saves and leaves in
// good order exits so, with its work half done.
func (t *attempt) judge(exit Exit, order *stopOrder) agentapi.Ended {
	var end agentapi.Ended
	if exit.Signal != 0 {
		end.Signal = signalName(exit.Signal)
	} else if exit.Code >= 0 {
		end.ExitCode = new(exit.Code)
	}
	end.Layer = layerTask
	switch {
	case order == nil && t.helps():
		end = agentapi.Ended{Layer: layerAgent, Reason: reason.New("setup_failed", "what", "sshd ended by itself; the log says why")}
	case order != nil:
		end.Layer, end.Reason = order.layer, order.why
		if exit.Code == 0 {
			end.ExitCode = nil
		}
	case exit.OOM:
		end.Reason = reason.New("out_of_memory")
	case exit.Code < 0 && exit.Signal == 0:
		end.Layer, end.Reason = layerAgent, reason.New("setup_failed", "what", exit.Err)
	case exit.Code == 0:
		end.Reason = reason.New("succeeded")
	case diskFull(t.dir):
		end.Layer, end.Reason = layerMachine, reason.New("disk_full")
		if disk := t.rec.Task.Disk; disk > 0 && folderBytes(t.work()) > disk {
			end.Layer = layerTask
		}
	case exit.Signal != 0:
		end.Reason = reason.New("signal", "signal", end.Signal)
	default:
		end.Reason = reason.New("exit_code", "code", exit.Code)
	}
	return end
}

func signalName(sig syscall.Signal) string {
	for name, s := range signals {
		if s == sig {
			return name
		}
	}
	return sig.String()
}

// folderBytes is the size of the files below a folder; what cannot be read is
// not counted.
func folderBytes(root string) int64 {
	var n int64
	_ = filepath.WalkDir(root, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // the rest still counts
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	return n
}
