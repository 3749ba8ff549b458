package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"sync"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/reason"
)

// finish sends what the command left: the output of a success, and the rest of
// the log. The last save was sent before.
func (t *attempt) finish() {
	t.mu.Lock()
	rec := t.rec
	t.mu.Unlock()
	if rec.Phase == agentapi.Uploading {
		ctx, cancel := t.untilTaken()
		defer cancel()
		if t.logs == nil { // taken up after a restart
			if err := t.openLogs(""); err != nil {
				t.log.Error("the log cannot be sent", "err", err)
				close(t.logSent)
			}
		}
		if succeeded(rec.Ended) {
			if rec.Task.Output != nil && rec.Task.Leads() {
				if end := t.publish(ctx, rec); end != nil {
					t.log.Warn("the output was not kept", "why", end.Reason.String())
					if t.logs != nil {
						t.logs.Note(end.Reason.String())
					}
					t.set(func(r *record) { r.Ended = end })
				}
			}
		}
		if t.logs != nil {
			t.logs.finish()
		}
		close(t.logOver)
		select {
		case <-t.logSent:
		case <-ctx.Done():
		}
		if t.ctx.Err() != nil {
			return
		}
		t.set(func(r *record) { r.Phase = agentapi.PhaseEnded })
	}
	// The workspace is no longer needed, and the next attempt needs its room.
	for _, dir := range []string{t.work(), t.tmp()} {
		if err := os.RemoveAll(dir); err != nil {
			t.log.Error("cannot remove the workspace", "err", err)
		}
	}
}

func succeeded(end *agentapi.Ended) bool {
	return end != nil && end.ExitCode != nil && *end.ExitCode == 0 && end.Reason.Code == "succeeded"
}

// untilTaken is a context that ends when the machine is taken, or when the
// attempt has been asked to stop and its grace is over.
func (t *attempt) untilTaken() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(t.ctx)
	go func() {
		var since time.Time // the order
		for {
			t.mu.Lock()
			changed := t.changed
			order, grace := t.order, t.rec.Task.StopGrace.Std()
			t.mu.Unlock()
			var late <-chan time.Time
			var timer *time.Timer
			if order != nil {
				if since.IsZero() {
					since = time.Now()
				}
				by := order.by
				if by.IsZero() {
					// The store may be slow to take the last save; it is away when
					// it takes longer than this.
					by = since.Add(max(order.grace, grace) + sendGrace)
				}
				timer = time.NewTimer(time.Until(by))
				late = timer.C
			}
			select {
			case <-ctx.Done():
			case <-changed:
			case <-late:
				cancel(errStopped)
			}
			if timer != nil {
				timer.Stop()
			}
			if ctx.Err() != nil {
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// sendGrace is how long a stopped attempt on a machine that stays may take to
// send what it left.
const sendGrace = 10 * time.Minute

// publish sends the output and waits for the broker to publish it. It returns
// nil when that is done, else how the attempt ended instead.
func (t *attempt) publish(ctx context.Context, rec record) *agentapi.Ended {
	if rec.Output == nil {
		out, err := t.sendOutput(ctx, *rec.Task.Output)
		if err != nil {
			return t.outputFailed(rec.Ended, err)
		}
		text, err := json.Marshal(out)
		if err != nil {
			return t.outputFailed(rec.Ended, err)
		}
		if len(text) > agentapi.MaxOutput {
			return t.outputFailed(rec.Ended, tooMany(len(out.Files)))
		}
		t.set(func(r *record) { r.Output, r.OutputSize = out, len(text) })
		rec.Output = out
	}
	var failed string
	err := t.wait(ctx, func() bool {
		failed = t.want.PublishErr
		return failed != "" || t.want.Published == rec.Output.Digest
	})
	if err == nil && failed == "" {
		return nil
	}
	if failed != "" {
		err = fmt.Errorf("%w: %s", errOutput, failed)
	}
	return t.outputFailed(rec.Ended, err)
}

// errOutput marks an output that is at fault itself.
var errOutput = errors.New("output")

func (t *attempt) outputFailed(was *agentapi.Ended, err error) *agentapi.Ended {
	end := agentapi.Ended{ExitCode: was.ExitCode, Layer: layerAgent, Reason: reason.New("output_failed", "what", err)}
	if o, ok := t.stopping(); ok && errors.Is(err, errStopped) {
		end.Layer, end.Reason = o.layer, o.why
	} else if errors.Is(err, errOutput) {
		end.Layer = layerTask
	}
	return &end
}

// fileListed is the least that a file takes in the JSON of an output, beside its
// name: its size, digest and one part.
const fileListed = 150

func tooMany(files int) error {
	return fmt.Errorf("%w: its list of %d files is too long to be told; pack them into archives, or split the task", errOutput, files)
}

// sendOutput sends the parts of what the task left.
func (t *attempt) sendOutput(ctx context.Context, spec agentapi.OutputSpec) (*agentapi.Output, error) {
	root, err := t.local(spec.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errOutput, err)
	}
	names, err := outputNames(root, spec.Folder)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errOutput, err)
	}
	listed := 0
	for _, name := range names {
		listed += len(name) + fileListed
	}
	if listed > agentapi.MaxOutput {
		return nil, tooMany(len(names)) // before anything is sent
	}
	out := &agentapi.Output{Files: make([]agentapi.OutputFile, 0, len(names))}
	for _, name := range names {
		file, err := t.sendFile(ctx, filepath.Join(root, filepath.FromSlash(name)), name)
		if err != nil {
			return nil, err
		}
		out.Files = append(out.Files, file)
	}
	out.Digest = outputDigest(out.Files)
	return out, nil
}

// outputDigest is the digest of an output: SHA-256 over one line per file in the
// order of their names, each the quoted name, the size and the file's digest.
func outputDigest(files []agentapi.OutputFile) string {
	sorted := append([]agentapi.OutputFile(nil), files...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Name < sorted[j].Name })
	h := sha256.New()
	for _, f := range sorted {
		fmt.Fprintf(h, "%q %d %s\n", f.Name, f.Bytes, f.Digest)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// outputNames lists the files of an output: regular ones, by slash-separated
// names relative to the folder, or "" for the single file.
func outputNames(root string, folder bool) ([]string, error) {
	info, err := os.Stat(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the command left nothing at %s", filepath.Base(root))
	case err != nil:
		return nil, err
	case folder != info.IsDir():
		return nil, fmt.Errorf("%s: want folder=%t, the command left folder=%t", filepath.Base(root), folder, info.IsDir())
	case !folder:
		return []string{""}, nil
	}
	var names []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		// A link is followed if it leads to a file; its target is what counts.
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			return err
		}
		name, err := filepath.Rel(root, path)
		names = append(names, filepath.ToSlash(name))
		return err
	})
	sort.Strings(names)
	return names, err
}

// sendAtOnce is how many parts of a file are under way at a time.
const sendAtOnce = 4

// sendFile sends one file in parts. An empty file has none: the broker makes it, since
// not every store takes an empty part.
func (t *attempt) sendFile(ctx context.Context, path, name string) (agentapi.OutputFile, error) {
	file := agentapi.OutputFile{Name: name}
	f, err := os.Open(path)
	if err != nil {
		return file, fmt.Errorf("%w: %w", errOutput, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return file, fmt.Errorf("%w: %w", errOutput, err)
	}
	file.Bytes = info.Size()
	n := int((file.Bytes + agentapi.PartSize - 1) / agentapi.PartSize)
	file.Parts = make([]agentapi.Part, n)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var sending sync.WaitGroup
	turns := make(chan struct{}, sendAtOnce)
	whole := sha256.New()
	for i := range n {
		off := int64(i) * agentapi.PartSize
		size := min(agentapi.PartSize, file.Bytes-off)
		if _, err := io.Copy(whole, io.NewSectionReader(f, off, size)); err != nil {
			cancel(err)
			break
		}
		turns <- struct{}{}
		sending.Go(func() {
			defer func() { <-turns }()
			etag, _, err := t.moves.Put(ctx, outputPart(name, i+1), f, off, size)
			if err != nil {
				cancel(err)
				return
			}
			file.Parts[i] = agentapi.Part{Number: i + 1, ETag: etag, Bytes: size}
		})
	}
	sending.Wait()
	file.Digest = "sha256:" + hex.EncodeToString(whole.Sum(nil))
	if err := context.Cause(ctx); err != nil {
		return file, err
	}
	return file, nil
}

// outputPart is the name of a part. The file's name may itself hold slashes; the
// number follows the last one.
func outputPart(name string, number int) string {
	return "out/" + name + "/" + strconv.Itoa(number)
}
