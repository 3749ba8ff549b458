// Package objects keeps bytes under keys: in a folder of this machine, or in a
// bucket of a cloud. Packages objects/s3, objects/gcs and objects/azblob hold one
// kind of bucket each, and alone link what that takes.
//
// An object appears whole or not at all, and a write that returned nil survives a
// power cut as far as the medium can promise it. Machines without credentials
// read and write single objects by signed URLs that run out. A multi-part upload
// shows nothing under its key until Complete, which only the holder of the store
// can call: that is what makes an upload by a stale machine harmless.
//
// Keys are slash-separated paths as [CheckKey] permits. In a folder a key cannot
// be both an object and the parent of others; in a bucket it can, so do neither.
package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"strings"
	"time"
)

// MaxParts is the highest part number of an upload (S3: 1 to 10,000,
// docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html).
const MaxParts = 10_000

// Store is one bucket, one folder, or a prefix of either.
//
// All methods return an [*Error]. They are safe for concurrent use.
type Store interface {
	// Put writes body, from its start to its end, under key.
	Put(ctx context.Context, key string, body io.ReadSeeker, opts PutOptions) (Info, error)
	// Get reads an object or a range of it. The caller closes the reader. Info
	// describes the whole object.
	Get(ctx context.Context, key string, r Range) (io.ReadCloser, Info, error)
	// Stat describes an object.
	Stat(ctx context.Context, key string) (Info, error)
	// List yields the objects whose keys begin with prefix, in no stated order
	// and without Meta. It ends after the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete removes an object; one that is not there counts as removed.
	Delete(ctx context.Context, key string) error

	// SignGet and SignPut return URLs good for one method and key. [NewRequest]
	// makes a request of one, and [Stored] knows the answers to a PUT.
	SignGet(ctx context.Context, key string, valid time.Duration) (string, error)
	SignPut(ctx context.Context, key string, valid time.Duration) (string, error)

	// Begin starts a multi-part upload of an object that will bear meta.
	Begin(ctx context.Context, key string, meta map[string]string) (upload string, err error)
	// SignPart returns a URL to PUT one part to; [PartETag] names what was stored.
	// Of a part that is put again the last answer counts. All parts but the last
	// have at least 5 MiB.
	SignPart(ctx context.Context, key, upload string, number int, valid time.Duration) (string, error)
	// Complete makes the object from the parts, in order. NotFound means that the
	// upload is not known: never begun, aborted, or completed before. Some stores
	// then answer with the object that lies there: its Meta tells whose it is.
	Complete(ctx context.Context, key, upload string, parts []Part, cond Cond) (Info, error)
	// Abort forgets an upload; one that is not known counts as forgotten.
	Abort(ctx context.Context, key, upload string) error
	// Uploads yields the uploads begun and not ended whose keys begin with prefix.
	Uploads(ctx context.Context, prefix string) iter.Seq2[Upload, error]
}

// Info describes an object.
type Info struct {
	Key      string
	Bytes    int64
	ETag     string // changes whenever the object does; not quoted
	Modified time.Time
	Meta     map[string]string // from Stat and Get only
}

// Range is a piece of an object: Length bytes from Offset on, or all that follow
// if Length is 0.
type Range struct {
	Offset, Length int64
}

// PutOptions are what a Put may ask for.
type PutOptions struct {
	// Meta is kept with the object: lower-case names of letters, digits and
	// dashes, printable ASCII values, 2 KB at most.
	Meta map[string]string
	Cond Cond
}

// Cond is what must hold for a write; else it fails with Exists.
type Cond struct {
	IfAbsent bool   // there is no such object
	IfMatch  string // the object there has this ETag
}

// Part names an uploaded part by what the store answered to it.
type Part struct {
	Number int
	ETag   string
}

// Upload is a multi-part upload that has not ended.
type Upload struct {
	Key   string
	ID    string
	Begun time.Time
}

// Code says what kind of failure an [Error] is.
type Code string

// The codes.
const (
	NotFound Code = "not-found" // no such object or upload
	Exists   Code = "exists"    // the condition of a write does not hold
	Away     Code = "away"      // the store cannot be reached or fails; try again later
	Full     Code = "full"      // no space left
	Denied   Code = "denied"    // our credentials do not permit it
	Invalid  Code = "invalid"   // the request can never succeed
)

// Error is a failure of a store.
type Error struct {
	Op   string // what was tried, "put"
	Key  string
	Code Code
	Err  error
}

// Error says what failed, where and why, in one line.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s %q: %s", e.Op, e.Key, e.Code)
	}
	return fmt.Sprintf("%s %q: %s: %v", e.Op, e.Key, e.Code, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether err is an [*Error] of the given code.
func Is(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// reserved is the first element of keys that a folder store uses for itself.
const reserved = ".gpubroker"

// CheckKey says whether key may name an object: a clean relative path of valid
// UTF-8, at most 900 bytes, without control characters and backslashes, and not
// under ".gpubroker".
func CheckKey(key string) error {
	switch {
	case !fs.ValidPath(key) || key == ".":
		return fmt.Errorf("key %q is not a clean relative path", key)
	case len(key) > 900:
		return fmt.Errorf("key of %d bytes, at most 900", len(key))
	case strings.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' }):
		return fmt.Errorf("key %q has a control character or a backslash", key)
	case key == reserved || strings.HasPrefix(key, reserved+"/"):
		return fmt.Errorf("key %q: %s is reserved", key, reserved)
	}
	return nil
}

// checkPart says whether number may name a part.
func checkPart(number int) error {
	if number < 1 || number > MaxParts {
		return fmt.Errorf("part %d, want 1 to %d", number, MaxParts)
	}
	return nil
}

// ReadAll returns an object that is expected to be small; one over limit bytes is
// Invalid.
func ReadAll(ctx context.Context, s Store, key string, limit int64) ([]byte, error) {
	body, info, err := s.Get(ctx, key, Range{})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if info.Bytes > limit {
		return nil, &Error{Op: "read", Key: key, Code: Invalid, Err: fmt.Errorf("%d bytes, at most %d", info.Bytes, limit)}
	}
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	switch {
	case err != nil:
		return nil, &Error{Op: "read", Key: key, Code: Away, Err: err}
	case int64(len(data)) > limit:
		return nil, &Error{Op: "read", Key: key, Code: Invalid, Err: fmt.Errorf("more than %d bytes", limit)}
	}
	return data, nil
}

// AbortOlder aborts the uploads under prefix that began before a moment, and says
// how many. It goes on after a failure and returns all of them.
func AbortOlder(ctx context.Context, s Store, prefix string, before time.Time) (int, error) {
	var (
		n    int
		errs []error
	)
	for up, err := range s.Uploads(ctx, prefix) {
		if err != nil {
			errs = append(errs, err)
			break
		}
		if !up.Begun.Before(before) {
			continue
		}
		if err := s.Abort(ctx, up.Key, up.ID); err != nil {
			errs = append(errs, err)
			continue
		}
		n++
	}
	return n, errors.Join(errs...)
}
