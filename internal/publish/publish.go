// Package publish makes the output of a task appear under its final key, once.
//
// The agent uploads parts of multi-part uploads to the final keys by signed URLs;
// nothing shows there until the broker completes them, which it does only after
// the transaction that says that this attempt publishes this digest. An attempt
// that is no longer the task's can upload what it likes: nobody completes it.
//
// Everything here may be repeated after a crash between any two steps. Whose an
// object is stands in its metadata (gpubroker-task, gpubroker-attempt), set when
// its upload begins; upload ids are kept as small records beside the attempt's
// saves. Files of an output appear one by one; all are checked before the first.
package publish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/queue"
)

// Rule says what happens to an object that is already under a final key and was
// not put there by this attempt. One that is known to be the same output is
// always left as it is, and counts as published.
type Rule string

// The rules; "" is ReplaceOwn.
const (
	ReplaceOwn Rule = "replace-own" // the same task's is replaced, a foreign one is an error
	Overwrite  Rule = "overwrite"   // it is replaced, whosever it is
	Skip       Rule = "skip"        // the same task's is replaced, a foreign one stays and counts as published
)

// Names of the metadata of published objects.
const (
	metaTask    = "gpubroker-task"    // "job/index"
	metaAttempt = "gpubroker-attempt" // id
)

// Target is where an output goes.
type Target struct {
	Store objects.Store
	// Key is the final key, or, of a folder, what the keys of its files begin with:
	// "" or a path that ends with a slash.
	Key    string
	Folder bool
}

func (t Target) key(name string) (string, error) {
	switch {
	case !t.Folder && name != "":
		return "", fmt.Errorf("file %q of an output that is one file", name)
	case t.Folder && name == "":
		return "", errors.New("a file without a name in an output that is a folder")
	case t.Folder:
		if err := objects.CheckKey(name); err != nil {
			return "", err
		}
		if t.Key != "" && !strings.HasSuffix(t.Key, "/") {
			return "", fmt.Errorf("output folder %q does not end with a slash", t.Key)
		}
	}
	key := t.Key + name
	return key, objects.CheckKey(key)
}

// Stage is the output of one attempt on its way. It may be made anew at any time.
type Stage struct {
	records objects.Store
	target  Target
	task    queue.TaskID
	attempt string
	prefix  string

	mu      sync.Mutex
	uploads map[string]record
}

// record is what must be remembered of an upload.
type record struct {
	File   string `json:"file"`
	Key    string `json:"key"`
	Upload string `json:"upload"`
}

// NewStage returns the stage of an attempt; records is the store of checkpoints.
func NewStage(records objects.Store, target Target, task queue.TaskID, attempt string) (*Stage, error) {
	p, err := checkpoint.AttemptPrefix(task, attempt)
	if err != nil {
		return nil, fmt.Errorf("output: %w", err)
	}
	return &Stage{
		records: records, target: target, task: task, attempt: attempt, prefix: p + "out/",
		uploads: map[string]record{},
	}, nil
}

func (s *Stage) meta() map[string]string {
	return map[string]string{metaTask: s.task.String(), metaAttempt: s.attempt}
}

func (s *Stage) recordKey(file string) string {
	h := sha256.Sum256([]byte(file))
	return s.prefix + hex.EncodeToString(h[:16])
}

// SignPart implements [checkpoint.Outputs]: it begins the upload of a file when
// its first part is asked for.
func (s *Stage) SignPart(ctx context.Context, scope checkpoint.Scope, file string, part int, valid time.Duration) (string, error) {
	if scope.Task != s.task || scope.Attempt != s.attempt {
		return "", fmt.Errorf("sign an output of attempt %s for attempt %s", s.attempt, scope.Attempt)
	}
	key, err := s.target.key(file)
	if err != nil {
		return "", &objects.Error{Op: "sign", Key: file, Code: objects.Invalid, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, err := s.upload(ctx, file)
	if objects.Is(err, objects.NotFound) {
		rec, err = s.begin(ctx, file, key)
	}
	if err != nil {
		return "", fmt.Errorf("begin the upload of output %q: %w", key, err)
	}
	return s.target.Store.SignPart(ctx, rec.Key, rec.Upload, part, valid)
}

// upload reads the record of a file; NotFound if there is none. The caller holds
// mu.
func (s *Stage) upload(ctx context.Context, file string) (record, error) {
	if rec, ok := s.uploads[file]; ok {
		return rec, nil
	}
	rec, err := s.read(ctx, s.recordKey(file))
	if err != nil {
		return record{}, err
	}
	s.uploads[file] = rec
	return rec, nil
}

func (s *Stage) read(ctx context.Context, key string) (record, error) {
	data, err := objects.ReadAll(ctx, s.records, key, 16<<10)
	if err != nil {
		return record{}, err
	}
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return record{}, fmt.Errorf("record %s: %w", key, err)
	}
	return rec, nil
}

// begin begins an upload and records it. Should two do so at once, the first
// record holds and the other's upload is given up.
func (s *Stage) begin(ctx context.Context, file, key string) (record, error) {
	id, err := s.target.Store.Begin(ctx, key, s.meta())
	if err != nil {
		return record{}, err
	}
	rec := record{file, key, id}
	data, err := json.Marshal(rec)
	if err != nil {
		return record{}, err
	}
	opts := objects.PutOptions{Cond: objects.Cond{IfAbsent: true}}
	_, err = s.records.Put(ctx, s.recordKey(file), bytes.NewReader(data), opts)
	if objects.Is(err, objects.Exists) {
		if err := s.target.Store.Abort(ctx, key, id); err != nil {
			return record{}, err
		}
		return s.upload(ctx, file)
	}
	if err != nil {
		return record{}, err
	}
	s.uploads[file] = rec
	return rec, nil
}

// How says how a file came to be published.
type How string

// The ways.
const (
	Written How = "written" // now
	There   How = "there"   // by this attempt, before
	Same    How = "same"    // by another task, with the same output
	Skipped How = "skipped" // a foreign object was left as it is
)

// Published is one file under its final key.
type Published struct {
	Key   string
	Bytes int64
	How   How
}

// ForeignError says that a final key is taken by an object that the rule does not
// permit to replace.
type ForeignError struct {
	Key  string
	Task string // whose it is; "" when it is none of ours
	Rule Rule
}

// Error says what to do about it.
func (e *ForeignError) Error() string {
	whose := "an object that no task of ours made"
	if e.Task != "" {
		whose = "the output of task " + e.Task
	}
	return fmt.Sprintf("output %q would replace %s: remove it, or set on_exists to overwrite or skip", e.Key, whose)
}

// LostError says that an output cannot be published, now or later, since parts of
// it are not in the store: the task must run again.
type LostError struct {
	Key string
	Err error
}

// Error says what is lost.
func (e *LostError) Error() string {
	return fmt.Sprintf("parts of output %q are not in the store: %v", e.Key, e.Err)
}

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Err }

// Known tells the digest of the output that an attempt of a task ("job/index")
// has published, "" if it has not or if that is not known.
type Known func(ctx context.Context, task, attempt string) (digest string, err error)

// Publish makes the output appear. It is called after the transaction that lets
// this attempt publish it, and called again until it returns nil, a
// [*ForeignError] or a [*LostError]; any other error is of the store and passes.
// known may be nil.
func (s *Stage) Publish(ctx context.Context, out agentapi.Output, rule Rule, known Known) ([]Published, error) {
	if err := s.check(out); err != nil {
		return nil, &LostError{s.target.Key, err}
	}
	// All keys are looked at before the first object is made.
	for _, f := range out.Files {
		if _, err := s.decide(ctx, out.Digest, f, rule, known); err != nil {
			return nil, err
		}
	}
	done := make([]Published, 0, len(out.Files))
	for _, f := range out.Files {
		p, err := s.publish(ctx, out.Digest, f, rule, known)
		if err != nil {
			return done, err
		}
		done = append(done, p)
	}
	return done, nil
}

// check makes sure that what the agent says makes sense.
func (s *Stage) check(out agentapi.Output) error {
	if !s.target.Folder && len(out.Files) != 1 {
		return fmt.Errorf("%d files in an output that is one file", len(out.Files))
	}
	seen := map[string]bool{}
	for _, f := range out.Files {
		if _, err := s.target.key(f.Name); err != nil {
			return err
		}
		if seen[f.Name] {
			return fmt.Errorf("file %q is listed twice", f.Name)
		}
		seen[f.Name] = true
		var n int64
		for i, p := range f.Parts {
			if p.Number != i+1 || p.ETag == "" || p.Bytes < 0 {
				return fmt.Errorf("file %q: part %d bears number %d, ETag %q, %d bytes", f.Name, i+1, p.Number, p.ETag, p.Bytes)
			}
			n += p.Bytes
		}
		if n != f.Bytes {
			return fmt.Errorf("file %q: parts of %d bytes, the file has %d", f.Name, n, f.Bytes)
		}
	}
	return nil
}

// verdict is what is to be done about one file.
type verdict struct {
	how  How
	cond objects.Cond
}

func (s *Stage) decide(ctx context.Context, digest string, f agentapi.OutputFile, rule Rule, known Known) (verdict, error) {
	key, err := s.target.key(f.Name)
	if err != nil {
		return verdict{}, err
	}
	info, err := s.target.Store.Stat(ctx, key)
	if objects.Is(err, objects.NotFound) {
		return verdict{Written, objects.Cond{IfAbsent: true}}, nil
	}
	if err != nil {
		return verdict{}, fmt.Errorf("look at what is under the output's key: %w", err)
	}
	task, attempt := info.Meta[metaTask], info.Meta[metaAttempt]
	own := task == s.task.String()
	if own && attempt == s.attempt {
		if info.Bytes != f.Bytes {
			return verdict{}, &LostError{key, fmt.Errorf("published with %d bytes instead of %d", info.Bytes, f.Bytes)}
		}
		return verdict{how: There}, nil
	}
	if task != "" && known != nil && info.Bytes == f.Bytes {
		was, err := known(ctx, task, attempt)
		if err != nil {
			return verdict{}, fmt.Errorf("look up the output of task %s: %w", task, err)
		}
		if was == digest {
			return verdict{how: Same}, nil
		}
	}
	replace := verdict{Written, objects.Cond{IfMatch: info.ETag}}
	switch {
	case rule == Overwrite, own:
		return replace, nil
	case rule == Skip:
		return verdict{how: Skipped}, nil
	}
	return verdict{}, &ForeignError{key, task, rule}
}

// rounds is how often a key may change under our hands before we give up.
const rounds = 5

func (s *Stage) publish(ctx context.Context, digest string, f agentapi.OutputFile, rule Rule, known Known) (Published, error) {
	key, err := s.target.key(f.Name)
	if err != nil {
		return Published{}, err
	}
	var lost error
	for range rounds {
		v, err := s.decide(ctx, digest, f, rule, known)
		if err != nil {
			return Published{}, err
		}
		if v.how != Written {
			return Published{key, f.Bytes, v.how}, nil
		}
		if lost != nil {
			return Published{}, &LostError{key, lost}
		}
		info, err := s.write(ctx, key, f, v.cond)
		switch {
		case err == nil:
			if info.Meta[metaAttempt] != s.attempt {
				// A store that answers with what lies there.
				lost = fmt.Errorf("the store completed nothing: it has the object of attempt %q", info.Meta[metaAttempt])
				continue
			}
			if info.Bytes != f.Bytes {
				return Published{}, &LostError{key, fmt.Errorf("published with %d bytes instead of %d", info.Bytes, f.Bytes)}
			}
			return Published{key, f.Bytes, Written}, nil
		case objects.Is(err, objects.Exists):
			// Somebody else was there between the look and the write: look again.
		case objects.Is(err, objects.NotFound), objects.Is(err, objects.Invalid):
			// An upload that is gone may have been completed by us, with an answer that
			// was lost: look again, once.
			lost = err
		default:
			return Published{}, fmt.Errorf("publish output %q: %w", key, err)
		}
	}
	return Published{}, fmt.Errorf("publish output %q: it changes each time it is looked at", key)
}

func (s *Stage) write(ctx context.Context, key string, f agentapi.OutputFile, cond objects.Cond) (objects.Info, error) {
	if f.Bytes == 0 {
		return s.target.Store.Put(ctx, key, bytes.NewReader(nil), objects.PutOptions{Meta: s.meta(), Cond: cond})
	}
	s.mu.Lock()
	rec, err := s.upload(ctx, f.Name)
	s.mu.Unlock()
	if err != nil {
		return objects.Info{}, err
	}
	if rec.Key != key {
		return objects.Info{}, &objects.Error{
			Op: "publish", Key: key, Code: objects.Invalid,
			Err: fmt.Errorf("its parts were uploaded for %q", rec.Key),
		}
	}
	parts := make([]objects.Part, len(f.Parts))
	for i, p := range f.Parts {
		parts[i] = objects.Part{Number: p.Number, ETag: p.ETag}
	}
	return s.target.Store.Complete(ctx, key, rec.Upload, parts, cond)
}

// Drop gives up what the attempt uploaded and did not publish. It is called once
// the attempt has ended, and may be repeated.
func (s *Stage) Drop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for i, err := range s.records.List(ctx, s.prefix) {
		if err != nil {
			errs = append(errs, err)
			break
		}
		rec, err := s.read(ctx, i.Key)
		if objects.Is(err, objects.NotFound) {
			continue
		}
		if err == nil {
			err = s.target.Store.Abort(ctx, rec.Key, rec.Upload)
		}
		if err == nil {
			err = s.records.Delete(ctx, i.Key)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	clear(s.uploads)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("give up the output of attempt %s: %w", s.attempt, err)
	}
	return nil
}
