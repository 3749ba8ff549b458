package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/workdir"
)

// stage makes the workspace: the job's files, the input, the checkpoint to
// resume from. It starts the sending of the log.
func (t *attempt) stage(ctx context.Context) (Command, error) {
	t.mu.Lock()
	task := t.rec.Task
	t.mu.Unlock()
	// An earlier try of this attempt may have left something.
	if err := os.RemoveAll(t.work()); err != nil {
		return Command{}, agentError(err)
	}
	for _, dir := range []string{t.work(), t.tmp()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return Command{}, agentError(err)
		}
	}
	if err := t.openLogs(task.ProgressLog); err != nil {
		return Command{}, err
	}
	if err := t.a.slotFree(ctx, t); err != nil {
		return Command{}, err
	}
	if task.Workdir != nil {
		archive := filepath.Join(t.dir, "workdir.tar.gz")
		if err := t.fetch(ctx, *task.Workdir, archive); err != nil {
			return Command{}, err
		}
		if err := t.unpack(ctx, archive); err != nil {
			return Command{}, fmt.Errorf("agent: the working folder: %w", err)
		}
		if err := os.Remove(archive); err != nil {
			return Command{}, agentError(err)
		}
	}
	for _, f := range task.Fetch {
		path, err := t.local(f.Path)
		if err != nil {
			return Command{}, err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return Command{}, agentError(err)
		}
		if err := t.fetch(ctx, f, path); err != nil {
			return Command{}, err
		}
	}
	resumed, err := t.restore(ctx)
	if err != nil {
		return Command{}, err
	}
	t.set(func(r *record) { r.Resumed = &resumed })
	var gang *agentapi.Gang
	if task.Nodes > 1 {
		if gang, err = t.meet(ctx, &task); err != nil {
			return Command{}, err
		}
	}
	return t.command(task, resumed, gang)
}

func (t *attempt) tmp() string { return filepath.Join(t.dir, "tmp") }

// local is a path of the spec within the workspace.
func (t *attempt) local(path string) (string, error) {
	if !filepath.IsLocal(path) {
		return "", fmt.Errorf("agent: path %q leads out of the workspace", path)
	}
	return filepath.Join(t.work(), path), nil
}

// fetch gets one file.
func (t *attempt) fetch(ctx context.Context, f agentapi.Fetch, path string) error {
	from := func(ctx context.Context, stale string) (string, error) { return t.url(ctx, "GET "+f.Name, stale) }
	if f.URL != "" {
		from = func(context.Context, string) (string, error) { return t.fresh(f), nil }
	}
	if err := t.moves.Fetch(ctx, cmp.Or(f.Path, f.Name), from, path, f.Digest, f.Bytes); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}

// unpack writes the archive of a working folder into the workspace. How much it
// may hold was decided when it was taken in.
func (t *attempt) unpack(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	return workdir.Unpack(ctx, f, t.work(), math.MaxInt64)
}

// fresh is the URL of a file as the broker signed it last.
func (t *attempt) fresh(f agentapi.Fetch) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, now := range append(slices.Clip(t.want.Task.Fetch), deref(t.want.Task.Workdir)) {
		if now.Name == f.Name && now.Path == f.Path && now.URL != "" {
			return now.URL
		}
	}
	return f.URL
}

func deref(f *agentapi.Fetch) agentapi.Fetch {
	if f == nil {
		return agentapi.Fetch{}
	}
	return *f
}

// restore brings back the newest checkpoint that is whole, and returns its
// number, 0 for none.
func (t *attempt) restore(ctx context.Context) (int64, error) {
	t.mu.Lock()
	spec, from := t.rec.Task.Checkpoint, t.want.Resume
	t.mu.Unlock()
	if spec == nil {
		return 0, nil
	}
	dir, err := t.local(spec.Dir)
	if err != nil {
		return 0, err
	}
	m, broken, err := checkpoint.Newest(ctx, t.moves, from, dir)
	if len(broken) > 0 {
		t.set(func(r *record) { r.Broken = broken })
	}
	if err != nil {
		return 0, fmt.Errorf("agent: %w", err)
	}
	if m == nil {
		return 0, nil
	}
	t.resumed = m
	return m.Number, nil
}

// openLogs opens the log and starts to send it.
func (t *attempt) openLogs(pattern string) error {
	logs, err := openLog(filepath.Join(t.dir, "log"), pattern)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.logs = logs
	at := t.rec.Log
	t.mu.Unlock()
	go func() {
		defer close(t.logSent)
		err := logs.send(t.ctx, t.logOver, at, func(ctx context.Context, name string, off, size int64) error {
			_, _, err := t.moves.Put(ctx, name, logs.file, off, size)
			return err
		}, func(at logPosition) { t.set(func(r *record) { r.Log = at }) })
		if err != nil && t.ctx.Err() == nil {
			t.log.Error("the rest of the log cannot be sent", "err", err)
		}
	}()
	return nil
}

// command fills in what the command sees. gang is nil for a task on one machine.
func (t *attempt) command(task agentapi.Task, resumed int64, gang *agentapi.Gang) (Command, error) {
	input := task.Input
	if task.InputPath != "" {
		var err error
		if input, err = t.local(task.InputPath); err != nil {
			return Command{}, err
		}
	}
	output := ""
	if task.Output != nil {
		var err error
		if output, err = t.local(task.Output.Path); err != nil {
			return Command{}, err
		}
		dir := filepath.Dir(output)
		if task.Output.Folder {
			dir = output
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return Command{}, agentError(err)
		}
	}
	fill := strings.NewReplacer("{{input}}", input, "{{output}}", output)
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin",
		"HOME": t.work(), "TMPDIR": t.tmp(), "LANG": "C.UTF-8", "PWD": t.work(),
	}
	for k, v := range task.Env {
		env[k] = fill.Replace(v)
	}
	maps.Copy(env, task.Secrets)
	devices := make([]string, len(task.GPUs))
	for i, n := range task.GPUs {
		devices[i] = strconv.Itoa(n)
	}
	maps.Copy(env, map[string]string{
		"CUDA_VISIBLE_DEVICES": strings.Join(devices, ","),
		"ROCR_VISIBLE_DEVICES": strings.Join(devices, ","),
		"CUDA_DEVICE_ORDER":    "PCI_BUS_ID", // the order that the numbers are counted in
		"GPUBROKER_JOB":        task.Job,
		"GPUBROKER_TASK":       task.Name,
		"GPUBROKER_INDEX":      strconv.Itoa(task.Index),
		"GPUBROKER_ATTEMPT":    strconv.Itoa(task.Number),
		"GPUBROKER_INPUT":      input,
		"GPUBROKER_OUTPUT":     output,
		"GPUBROKER_RESUME":     strconv.FormatInt(resumed, 10),
		"GPUBROKER_SAVE_NOW":   t.saveNow(),
	})
	if c := task.Checkpoint; c != nil {
		dir, err := t.local(c.Dir)
		if err != nil {
			return Command{}, err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return Command{}, agentError(err)
		}
		env["GPUBROKER_CHECKPOINT_DIR"] = dir
		env["GPUBROKER_CHECKPOINT_INTERVAL"] = strconv.FormatFloat(c.Interval.Std().Seconds(), 'f', -1, 64)
	}
	if gang != nil {
		own, err := t.gangEnv(&task, gang)
		if err != nil {
			return Command{}, err
		}
		maps.Copy(env, own)
		if task.Launcher == agentapi.MPI {
			if task.Rank > 0 {
				for name := range task.Secrets {
					delete(env, name)
				}
				args, err := t.mpiServer(gang, task.Rank, list(env))
				return Command{ID: t.id, Args: args, Dir: t.work(), Env: list(env), Memory: task.Memory}, err
			}
			if own, err = t.mpiClient(gang); err != nil {
				return Command{}, err
			}
			maps.Copy(env, own)
		}
	}
	args := make([]string, 0, len(task.Command))
	for _, arg := range task.Command {
		args = append(args, fill.Replace(arg))
	}
	if task.Shell != "" {
		args = []string{"/bin/sh", "-c", fill.Replace(task.Shell)}
	}
	if len(args) == 0 || args[0] == "" {
		return Command{}, errors.New("agent: the task has neither command nor shell")
	}
	return Command{ID: t.id, Args: args, Dir: t.work(), Env: list(env), Memory: task.Memory}, nil
}

// list is an environment as a process takes it.
func list(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}
