package control

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/internal/publish"
	"gpubroker/internal/reason"
	"gpubroker/internal/spec"
	"gpubroker/internal/spec/template"
	"gpubroker/internal/state"
	"gpubroker/queue"
)

// done reports whether an attempt's output is in its place.
func (b *Broker) done(attempt string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isPublished[attempt]
}

// publish puts an attempt's uploaded output in its place, apart from the call
// that reported it. The fence is in the tables already: only the attempt whose
// Publish is set writes the task's output.
func (b *Broker) publish(ctx context.Context, id string, out agentapi.Output) {
	view := b.state.View()
	a := view.Attempt(id)
	if a == nil || a.Publish != out.Digest || b.done(id) {
		return
	}
	if t := view.Task(a.TaskID); t == nil || t.Attempt != id {
		return
	}
	ctx = context.WithoutCancel(ctx)
	b.act("publish/"+id, func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
		defer cancel()
		stage, rule, err := b.stageOf(ctx, view, a)
		if err == nil {
			_, err = stage.Publish(ctx, out, rule, b.knownOutput)
		}
		b.mu.Lock()
		switch {
		case err == nil:
			b.isPublished[id] = true
			delete(b.published, id)
		case final(err):
			b.published[id] = err.Error()
		}
		b.mu.Unlock()
		if err != nil {
			b.complain("publish", fmt.Errorf("output of %s: %w", a.TaskID, err))
			if !final(err) {
				return // the agent reports it again
			}
		}
		err = b.state.Do(ctx, func(tx *state.Tx) error {
			a := tx.EditAttempt(id)
			if a == nil {
				return nil
			}
			if t := tx.EditTask(a.TaskID); t != nil && t.Attempt == id && b.done(id) {
				t.Output = out.Digest
				if j := tx.Job(a.Job); j != nil {
					tx.EmitTask("output.published", j, a, reason.New("published", "files", len(out.Files)))
				}
			}
			return nil
		})
		if err != nil {
			b.complain("publish", err)
		}
	})
}

// final reports whether an output can never be published.
func final(err error) bool {
	_, foreign := errors.AsType[*publish.ForeignError](err)
	_, lost := errors.AsType[*publish.LostError](err)
	return foreign || lost
}

// knownOutput is the digest of what an attempt has published, from the books.
func (b *Broker) knownOutput(ctx context.Context, _, attempt string) (string, error) {
	a, err := b.state.Store().Attempt(ctx, attempt)
	switch {
	case errors.Is(err, queue.ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	case a.Outcome != queue.Succeeded:
		return "", nil
	}
	return a.Publish, nil
}

// ruleOf turns the spec's word into a rule: what the same task put there before
// is always replaced.
func ruleOf(onExists string) publish.Rule {
	switch onExists {
	case "overwrite":
		return publish.Overwrite
	case "skip":
		return publish.Skip
	default:
		return publish.ReplaceOwn
	}
}

// stageOf is the output of an attempt on its way, and the rule for what is there
// already.
func (b *Broker) stageOf(ctx context.Context, view *state.Tables, a *queue.Attempt) (*publish.Stage, publish.Rule, error) {
	j := view.Job(a.Job)
	if j == nil {
		return nil, "", fmt.Errorf("job %s is not in the tables", a.Job)
	}
	s, err := b.specs.of(j)
	if err != nil {
		return nil, "", err
	}
	rule := ruleOf(s.Outputs.OnExists)
	b.mu.Lock()
	stage := b.stages[a.ID]
	b.mu.Unlock()
	if stage != nil {
		return stage, rule, nil
	}
	input, err := b.inputs.of(ctx, s, j, a.Index)
	if err != nil {
		return nil, "", err
	}
	to := template.Render(s.Outputs.To, template.ForTask(j.ID, j.Name, a.Index, input))
	store, key, err := b.open(ctx, j, to)
	if err != nil {
		return nil, "", fmt.Errorf("output %s: %w", to, err)
	}
	stage, err = publish.NewStage(b.objects, publish.Target{Store: store, Key: key, Folder: isFolder(s.Outputs)}, a.TaskID, a.ID)
	if err != nil {
		return nil, "", err
	}
	b.mu.Lock()
	b.stages[a.ID] = stage
	b.mu.Unlock()
	return stage, rule, nil
}

func isFolder(o *spec.Outputs) bool {
	return strings.HasSuffix(o.To, "/") || strings.HasSuffix(o.From, "/")
}

// tail is the live log of one attempt, while somebody watches.
type tail struct {
	watchers int
	next     int64 // offset that the agent is asked for
	pieces   []agentapi.Tail
	changed  chan struct{}
}

// tail takes a piece of live log from an agent.
func (b *Broker) tail(attempt string, piece *agentapi.Tail) {
	if piece == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.watching[attempt]
	if w == nil || piece.Offset > w.next {
		return
	}
	if skip := w.next - piece.Offset; skip >= int64(len(piece.Data)) {
		return
	} else if skip > 0 {
		piece = &agentapi.Tail{Offset: w.next, Data: piece.Data[skip:]}
	}
	w.pieces = append(w.pieces, *piece)
	if extra := len(w.pieces) - 256; extra > 0 {
		w.pieces = slices.Clone(w.pieces[extra:])
	}
	w.next = piece.Offset + int64(len(piece.Data))
	close(w.changed)
	w.changed = make(chan struct{})
}

// Logs yields an attempt's log from an offset: what is in the object store, and
// with follow what comes until the attempt ends.
func (b *Broker) Logs(ctx context.Context, a *queue.Attempt, from int64, follow bool, yield func([]byte) error) error {
	at := int64(0)
	emit := func(data []byte, offset int64) error {
		if offset+int64(len(data)) <= from {
			return nil
		}
		if offset < from {
			data, offset = data[from-offset:], from
		}
		from = offset + int64(len(data))
		return yield(data)
	}
	stored := func() error {
		prefix, err := checkpoint.LogKey(a.TaskID, a.ID, 1)
		if err != nil {
			return err
		}
		prefix = path.Dir(prefix)
		for n := int64(1); ; n++ {
			data, err := b.readLog(ctx, fmt.Sprintf("%s/%d", prefix, n))
			if err != nil {
				return err
			}
			if data == nil {
				return nil
			}
			if err := emit(data, at); err != nil {
				return err
			}
			at += int64(len(data))
		}
	}
	if !follow {
		return stored()
	}
	if err := stored(); err != nil {
		return err
	}
	return b.follow(ctx, a.ID, from, emit, func() error { at = 0; return stored() })
}

// follow passes on live pieces until the attempt has ended.
func (b *Broker) follow(ctx context.Context, id string, from int64, emit func([]byte, int64) error, rest func() error) error {
	b.mu.Lock()
	w := b.watching[id]
	if w == nil {
		w = &tail{next: from, changed: make(chan struct{})}
		b.watching[id] = w
	}
	w.watchers++
	b.mu.Unlock()
	b.state.Wake("instance/" + b.instanceOf(id))
	defer func() {
		b.mu.Lock()
		if w.watchers--; w.watchers == 0 {
			delete(b.watching, id)
		}
		b.mu.Unlock()
	}()
	for {
		b.mu.Lock()
		pieces, changed := slices.Clone(w.pieces), w.changed
		b.mu.Unlock()
		for _, p := range pieces {
			if err := emit(p.Data, p.Offset); err != nil {
				return err
			}
		}
		a := b.state.View().Attempt(id)
		if a == nil || a.State == queue.AttemptEnded {
			return rest()
		}
		ended := b.state.Watch("job/" + a.Job)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-ended:
		}
	}
}

func (b *Broker) instanceOf(attempt string) string {
	if a := b.state.View().Attempt(attempt); a != nil {
		return a.Instance
	}
	return ""
}

// readLog returns a piece of log, nil when there is no such piece yet.
func (b *Broker) readLog(ctx context.Context, key string) ([]byte, error) {
	data, err := objects.ReadAll(ctx, b.objects, key, agentapi.PartSize)
	if objects.Is(err, objects.NotFound) {
		return nil, nil
	}
	return data, err
}
