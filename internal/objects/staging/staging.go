// Package staging makes a store of a bucket that can put, list and join objects
// but whose own multi-part uploads would not do: Google's take no condition when
// they are completed, and whoever may write a block of an Azure blob may also
// write the blob.
//
// The parts of an upload are objects of their own, under a reserved prefix that
// listings hide, so that a machine with a URL for a part can touch nothing else:
//
//	.gpubroker/uploads/KEY/ID/begun    when the upload began, with the object's metadata
//	.gpubroker/uploads/KEY/ID/00001    a part
//
// Complete joins them under the key within the store and removes them; the record
// goes last. A part that arrives after that shows as an upload of its own, and is
// aborted like others that are old.
package staging

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"gpubroker/internal/objects"
)

// Bucket is what a store of this kind must be able to do. Names are not checked:
// they may be reserved ones. Errors are [*objects.Error].
type Bucket interface {
	// Put, Get, Stat, Delete, SignGet and SignPut are those of [objects.Store].
	Put(ctx context.Context, name string, body io.ReadSeeker, opts objects.PutOptions) (objects.Info, error)
	Get(ctx context.Context, name string, r objects.Range) (io.ReadCloser, objects.Info, error)
	Stat(ctx context.Context, name string) (objects.Info, error)
	Delete(ctx context.Context, name string) error
	SignGet(ctx context.Context, name string, valid time.Duration) (string, error)
	SignPut(ctx context.Context, name string, valid time.Duration) (string, error)
	// List yields objects in the order of their names.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]
	// Join writes an object that consists of parts, if they are still as they were
	// listed. What it writes besides is named scratch and more.
	Join(ctx context.Context, name string, meta map[string]string, parts []Object, scratch string, cond objects.Cond) (objects.Info, error)
}

// Object is a listed object.
type Object struct {
	objects.Info
	// ETags are those that the answer to its PUT by a signed URL may have borne,
	// see [objects.PartETag].
	ETags []string
}

// New returns the store of a bucket.
func New(b Bucket) objects.Store { return &store{b} }

type store struct{ b Bucket }

const (
	uploads = ".gpubroker/uploads/"
	begun   = "begun"
	// scratch comes before what Join writes on its way.
	scratch = "join-"
)

var idForm = regexp.MustCompile(`^[A-Z2-7]{26}$`)

func dir(key, id string) string { return uploads + key + "/" + id + "/" }

func piece(number int) string { return fmt.Sprintf("%05d", number) }

// parse reads the name of a piece of an upload.
func parse(name string) (key, id, piece string, ok bool) {
	f := strings.Split(strings.TrimPrefix(name, uploads), "/")
	n := len(f)
	if n < 3 || !idForm.MatchString(f[n-2]) {
		return "", "", "", false
	}
	return strings.Join(f[:n-2], "/"), f[n-2], f[n-1], true
}

func invalid(op, key string, err error) error {
	return &objects.Error{Op: op, Key: key, Code: objects.Invalid, Err: err}
}

func check(op, key string) error {
	if err := objects.CheckKey(key); err != nil {
		return invalid(op, key, err)
	}
	return nil
}

// as gives an error of a step the name of what the caller asked for.
func as(op, key string, err error) error {
	if err == nil {
		return nil
	}
	c := &objects.Error{Op: op, Key: key, Code: objects.Away, Err: err}
	if e, ok := errors.AsType[*objects.Error](err); ok {
		c.Code = e.Code
	}
	return c
}

// Put implements [objects.Store].
func (s *store) Put(ctx context.Context, key string, body io.ReadSeeker, opts objects.PutOptions) (objects.Info, error) {
	if err := check("put", key); err != nil {
		return objects.Info{}, err
	}
	return s.b.Put(ctx, key, body, opts)
}

// Get implements [objects.Store].
func (s *store) Get(ctx context.Context, key string, r objects.Range) (io.ReadCloser, objects.Info, error) {
	if err := check("get", key); err != nil {
		return nil, objects.Info{}, err
	}
	if r.Offset < 0 || r.Length < 0 {
		return nil, objects.Info{}, invalid("get", key, fmt.Errorf("range %+v", r))
	}
	return s.b.Get(ctx, key, r)
}

// Stat implements [objects.Store].
func (s *store) Stat(ctx context.Context, key string) (objects.Info, error) {
	if err := check("stat", key); err != nil {
		return objects.Info{}, err
	}
	return s.b.Stat(ctx, key)
}

// List implements [objects.Store].
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[objects.Info, error] {
	return func(yield func(objects.Info, error) bool) {
		for o, err := range s.b.List(ctx, prefix) {
			if err != nil {
				yield(objects.Info{}, err)
				return
			}
			if objects.CheckKey(o.Key) == nil && !yield(o.Info, nil) {
				return
			}
		}
	}
}

// Delete implements [objects.Store].
func (s *store) Delete(ctx context.Context, key string) error {
	if err := check("delete", key); err != nil {
		return err
	}
	return s.b.Delete(ctx, key)
}

// SignGet implements [objects.Store].
func (s *store) SignGet(ctx context.Context, key string, valid time.Duration) (string, error) {
	if err := check("sign", key); err != nil {
		return "", err
	}
	return s.b.SignGet(ctx, key, valid)
}

// SignPut implements [objects.Store].
func (s *store) SignPut(ctx context.Context, key string, valid time.Duration) (string, error) {
	if err := check("sign", key); err != nil {
		return "", err
	}
	return s.b.SignPut(ctx, key, valid)
}

// Begin implements [objects.Store].
func (s *store) Begin(ctx context.Context, key string, meta map[string]string) (string, error) {
	if err := check("begin", key); err != nil {
		return "", err
	}
	id := rand.Text()
	_, err := s.b.Put(ctx, dir(key, id)+begun, bytes.NewReader(nil), objects.PutOptions{Meta: meta})
	if err != nil {
		return "", as("begin", key, err)
	}
	return id, nil
}

// SignPart implements [objects.Store].
func (s *store) SignPart(ctx context.Context, key, upload string, number int, valid time.Duration) (string, error) {
	if err := check("sign", key); err != nil {
		return "", err
	}
	if number < 1 || number > objects.MaxParts {
		return "", invalid("sign", key, fmt.Errorf("part %d, want 1 to %d", number, objects.MaxParts))
	}
	if !idForm.MatchString(upload) {
		return "", unknown("sign", key, upload)
	}
	url, err := s.b.SignPut(ctx, dir(key, upload)+piece(number), valid)
	return url, as("sign", key, err)
}

func unknown(op, key, upload string) error {
	return &objects.Error{Op: op, Key: key, Code: objects.NotFound, Err: fmt.Errorf("there is no upload %q", upload)}
}

// Complete implements [objects.Store].
func (s *store) Complete(ctx context.Context, key, upload string, parts []objects.Part, cond objects.Cond) (objects.Info, error) {
	if err := check("complete", key); err != nil {
		return objects.Info{}, err
	}
	if !idForm.MatchString(upload) {
		return objects.Info{}, unknown("complete", key, upload)
	}
	at := dir(key, upload)
	rec, err := s.b.Stat(ctx, at+begun)
	if objects.Is(err, objects.NotFound) {
		return objects.Info{}, unknown("complete", key, upload)
	}
	if err != nil {
		return objects.Info{}, as("complete", key, err)
	}
	if err := s.holds(ctx, key, cond); err != nil {
		return objects.Info{}, err
	}
	chosen, err := s.choose(ctx, at, key, parts)
	if err != nil {
		return objects.Info{}, err
	}
	info, err := s.b.Join(ctx, key, rec.Meta, chosen, at+scratch, cond)
	if err != nil {
		return objects.Info{}, as("complete", key, err)
	}
	// The object stands; what is left of the upload goes when it is aborted.
	_ = s.clear(ctx, at)
	return info, nil
}

// holds looks whether a condition holds now: before the parts are joined, which
// takes its time, and since not every store heeds it then.
func (s *store) holds(ctx context.Context, key string, c objects.Cond) error {
	if c == (objects.Cond{}) {
		return nil
	}
	info, err := s.b.Stat(ctx, key)
	absent := objects.Is(err, objects.NotFound)
	switch {
	case err != nil && !absent:
		return as("complete", key, err)
	case c.IfAbsent && !absent, c.IfMatch != "" && info.ETag != c.IfMatch:
		return &objects.Error{Op: "complete", Key: key, Code: objects.Exists, Err: errors.New("the condition does not hold")}
	}
	return nil
}

// choose finds the parts that an upload is to be completed with.
func (s *store) choose(ctx context.Context, at, key string, parts []objects.Part) ([]Object, error) {
	if len(parts) == 0 {
		return nil, invalid("complete", key, errors.New("no parts"))
	}
	there := map[string]Object{}
	for o, err := range s.b.List(ctx, at) {
		if err != nil {
			return nil, as("complete", key, err)
		}
		there[strings.TrimPrefix(o.Key, at)] = o
	}
	chosen := make([]Object, len(parts))
	for i, p := range parts {
		if p.Number < 1 || p.Number > objects.MaxParts || i > 0 && p.Number <= parts[i-1].Number {
			return nil, invalid("complete", key, fmt.Errorf("part %d: parts rise from 1 to %d", p.Number, objects.MaxParts))
		}
		o, ok := there[piece(p.Number)]
		if !ok {
			return nil, invalid("complete", key, fmt.Errorf("part %d is not there", p.Number))
		}
		if !slices.Contains(o.ETags, strings.Trim(p.ETag, `"`)) {
			return nil, invalid("complete", key, fmt.Errorf("part %d is not the one with ETag %s", p.Number, p.ETag))
		}
		chosen[i] = o
	}
	return chosen, nil
}

// atOnce is how many objects are removed at a time.
const atOnce = 16

// clear removes what there is of an upload, its record last.
func (s *store) clear(ctx context.Context, at string) error {
	var names []string
	for o, err := range s.b.List(ctx, at) {
		if err != nil {
			return err
		}
		// What lies deeper is of another key.
		if rest := strings.TrimPrefix(o.Key, at); rest != begun && !strings.Contains(rest, "/") {
			names = append(names, o.Key)
		}
	}
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, name := range names {
		g.Go(func() error { return s.b.Delete(each, name) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return s.b.Delete(ctx, at+begun)
}

// Abort implements [objects.Store].
func (s *store) Abort(ctx context.Context, key, upload string) error {
	if err := check("abort", key); err != nil {
		return err
	}
	if !idForm.MatchString(upload) {
		return nil
	}
	return as("abort", key, s.clear(ctx, dir(key, upload)))
}

// Uploads implements [objects.Store].
func (s *store) Uploads(ctx context.Context, prefix string) iter.Seq2[objects.Upload, error] {
	return func(yield func(objects.Upload, error) bool) {
		// The pieces of an upload follow each other.
		var now objects.Upload
		for o, err := range s.b.List(ctx, uploads+prefix) {
			if err != nil {
				yield(objects.Upload{}, as("list uploads", prefix, err))
				return
			}
			key, id, piece, ok := parse(o.Key)
			if !ok || !strings.HasPrefix(key, prefix) {
				continue
			}
			if key != now.Key || id != now.ID {
				if now.ID != "" && !yield(now, nil) {
					return
				}
				now = objects.Upload{Key: key, ID: id, Begun: o.Modified}
			}
			if piece == begun {
				now.Begun = o.Modified
			}
		}
		if now.ID != "" {
			yield(now, nil)
		}
	}
}
