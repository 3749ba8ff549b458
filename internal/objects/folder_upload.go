package objects

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"regexp"
	"strings"
	"time"
)

// uploadRecord is upload.json of an upload.
type uploadRecord struct {
	Key   string            `json:"key"`
	Meta  map[string]string `json:"meta,omitzero"`
	Begun time.Time         `json:"begun"`
}

var (
	uploadID = regexp.MustCompile(`^[A-Z2-7]{26}$`)
	partETag = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

func uploadDir(id string) string { return uploadsDir + "/" + id }

// partPath names a part by number and content, so that a part uploaded again
// never stands in for one that was confirmed.
func partPath(id string, number int, etag string) string {
	return fmt.Sprintf("%s/%05d-%s", uploadDir(id), number, etag)
}

// Begin implements [Store].
func (f *Folder) Begin(ctx context.Context, key string, meta map[string]string) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", invalid("begin", key, err)
	}
	if err := ctx.Err(); err != nil {
		return "", fail("begin", key, err)
	}
	id := rand.Text()
	data, err := json.Marshal(uploadRecord{Key: key, Meta: meta, Begun: f.sign.now().UTC()})
	if err != nil {
		return "", invalid("begin", key, err)
	}
	if err := f.writeSmall(ctx, uploadDir(id)+"/upload.json", data); err != nil {
		return "", fail("begin", key, err)
	}
	return id, nil
}

// upload reads an upload's record; NotFound if it is not this key's.
func (f *Folder) upload(key, id string) (uploadRecord, error) {
	if !uploadID.MatchString(id) {
		return uploadRecord{}, fmt.Errorf("upload %q: %w", id, fs.ErrNotExist)
	}
	data, err := f.root.ReadFile(uploadDir(id) + "/upload.json")
	if err != nil {
		return uploadRecord{}, fmt.Errorf("upload %s: %w", id, err)
	}
	var rec uploadRecord
	if err := json.Unmarshal(data, &rec); err != nil {
		return uploadRecord{}, fmt.Errorf("upload %s: %w", id, err)
	}
	if key != "" && rec.Key != key {
		return uploadRecord{}, fmt.Errorf("upload %s is of another key: %w", id, fs.ErrNotExist)
	}
	return rec, nil
}

// putPart stores one part and returns its ETag.
func (f *Folder) putPart(ctx context.Context, key, id string, number int, body io.Reader, size int64) (string, error) {
	if err := checkPart(number); err != nil {
		return "", invalid("put part", key, err)
	}
	if _, err := f.upload(key, id); err != nil {
		return "", fail("put part", key, err)
	}
	tmp, sum, err := f.temp(ctx, body, size)
	if err != nil {
		return "", fail("put part", key, err)
	}
	if err := f.root.Rename(tmp, partPath(id, number, sum)); err != nil {
		return "", fail("put part", key, errors.Join(err, f.root.Remove(tmp)))
	}
	return sum, fail("put part", key, f.syncDirs(uploadDir(id)))
}

// Complete implements [Store]. The parts are joined into one file, which takes
// the space of the object once more until it is done.
func (f *Folder) Complete(ctx context.Context, key, upload string, parts []Part, cond Cond) (Info, error) {
	rec, err := f.upload(key, upload)
	if err != nil {
		return Info{}, fail("complete", key, err)
	}
	if len(parts) == 0 {
		return Info{}, invalid("complete", key, errors.New("no parts"))
	}
	join := &joined{f: f, upload: upload, parts: parts}
	for i, p := range parts {
		etag := strings.Trim(p.ETag, `"`)
		if checkPart(p.Number) != nil || !partETag.MatchString(etag) || i > 0 && p.Number <= parts[i-1].Number {
			return Info{}, invalid("complete", key, fmt.Errorf("part %d with ETag %q: parts rise by number and bear the ETag of their PUT", p.Number, p.ETag))
		}
		if _, err := f.root.Lstat(partPath(upload, p.Number, etag)); err != nil {
			return Info{}, invalid("complete", key, fmt.Errorf("part %d: %w", p.Number, err))
		}
	}
	tmp, _, err := f.temp(ctx, join, -1)
	if err := errors.Join(err, join.Close()); err != nil {
		return Info{}, fail("complete", key, err)
	}
	info, err := f.present(ctx, key, tmp, PutOptions{Meta: rec.Meta, Cond: cond})
	if err != nil {
		return Info{}, fail("complete", key, err)
	}
	// The object stands; what is left of the upload is swept with the old ones if
	// this fails.
	_ = f.root.RemoveAll(uploadDir(upload))
	return info, nil
}

// joined reads parts one after another.
type joined struct {
	f      *Folder
	upload string
	parts  []Part
	file   io.ReadCloser
}

func (j *joined) Read(p []byte) (int, error) {
	for {
		if j.file == nil {
			if len(j.parts) == 0 {
				return 0, io.EOF
			}
			part := j.parts[0]
			file, err := j.f.root.Open(partPath(j.upload, part.Number, strings.Trim(part.ETag, `"`)))
			if err != nil {
				return 0, err
			}
			j.file, j.parts = file, j.parts[1:]
		}
		n, err := j.file.Read(p)
		if n > 0 {
			return n, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if err != nil {
			if err := j.Close(); err != nil {
				return 0, err
			}
		}
	}
}

func (j *joined) Close() error {
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	return err
}

// Abort implements [Store].
func (f *Folder) Abort(ctx context.Context, key, upload string) error {
	if err := ctx.Err(); err != nil {
		return fail("abort", key, err)
	}
	_, err := f.upload(key, upload)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fail("abort", key, err)
	}
	return fail("abort", key, f.root.RemoveAll(uploadDir(upload)))
}

// Uploads implements [Store].
func (f *Folder) Uploads(ctx context.Context, prefix string) iter.Seq2[Upload, error] {
	return func(yield func(Upload, error) bool) {
		entries, err := fs.ReadDir(f.root.FS(), uploadsDir)
		if err != nil {
			yield(Upload{}, fail("list uploads", prefix, err))
			return
		}
		for _, e := range entries {
			id := path.Base(e.Name())
			rec, err := f.upload("", id)
			if errors.Is(err, fs.ErrNotExist) {
				continue // ended meanwhile
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(Upload{}, fail("list uploads", prefix, err))
				return
			}
			if strings.HasPrefix(rec.Key, prefix) && !yield(Upload{Key: rec.Key, ID: id, Begun: rec.Begun}, nil) {
				return
			}
		}
	}
}
