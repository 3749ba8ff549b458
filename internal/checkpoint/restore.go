package checkpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"time"

	"gpubroker/internal/agentapi"
)

// BrokenError says that a checkpoint cannot be used, now or later: a file is
// missing, short, or not what its digest says. The one before is taken instead.
type BrokenError struct {
	Number int64
	What   string
}

// Error says what is broken.
func (e *BrokenError) Error() string {
	return fmt.Sprintf("checkpoint %d is broken: %s", e.Number, e.What)
}

// Broken tells the broker.
func (e *BrokenError) Broken() agentapi.Broken {
	return agentapi.Broken{Number: e.Number, What: e.What}
}

// badTries is how often an object must read wrong before the checkpoint is given
// up: the wire may be at fault once.
const badTries = 3

// Restore downloads a checkpoint into dir; nothing of it appears before all of it
// is there. Files that dir holds already, from a working folder or an input, stay
// where the checkpoint has none of their name. What is wrong with the checkpoint itself
// is a [*BrokenError]; a store that is away is waited for as long as ctx lasts.
// The manifest URL of c is tried first, then "get/manifest/N".
func Restore(ctx context.Context, t *Transfer, c agentapi.Resume, dir string) (*Manifest, error) {
	m, err := restore(ctx, t, c, dir)
	if err != nil {
		return nil, fmt.Errorf("resume from checkpoint %d: %w", c.Number, err)
	}
	return m, nil
}

func restore(ctx context.Context, t *Transfer, c agentapi.Resume, dir string) (_ *Manifest, err error) {
	broken := func(format string, a ...any) error {
		return &BrokenError{c.Number, fmt.Sprintf(format, a...)}
	}
	data, err := t.manifest(ctx, c)
	if err != nil {
		if b, ok := errors.AsType[*badObject](err); ok {
			return nil, broken("manifest: %s", b.what)
		}
		return nil, err
	}
	m, err := Parse(data)
	if err != nil {
		return nil, broken("%v", err)
	}
	if m.Number != c.Number {
		return nil, broken("the manifest is of save %d", m.Number)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".gpubroker-restore-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := t.fill(ctx, m, tmp); err != nil {
		if b, ok := errors.AsType[*badObject](err); ok {
			return nil, broken("%s", b.what)
		}
		return nil, err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		if err := m.moveOver(tmp, dir); err != nil {
			return nil, fmt.Errorf("put it into %s: %w", dir, err)
		}
		return m, nil
	}
	if err := os.Rename(tmp, dir); err != nil {
		return nil, err
	}
	return m, nil
}

// moveOver moves the files of the checkpoint from one folder into another beside
// it, over what stands in their way.
func (m *Manifest) moveOver(from, to string) error {
	root, err := os.OpenRoot(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer root.Close()
	from, to = filepath.Base(from), filepath.Base(to)
	made := map[string]bool{".": true}
	var folder func(name string) error
	folder = func(name string) error {
		if made[name] {
			return nil
		}
		if err := folder(path.Dir(name)); err != nil {
			return err
		}
		if st, err := root.Lstat(name); err == nil && !st.IsDir() {
			if err := root.Remove(name); err != nil {
				return err
			}
		}
		made[name] = true
		return root.MkdirAll(name, 0o755)
	}
	for _, name := range m.Empty {
		if err := folder(path.Join(to, name)); err != nil {
			return err
		}
	}
	for _, f := range m.Files {
		at := path.Join(to, f.Path)
		if err := folder(path.Dir(at)); err != nil {
			return err
		}
		if st, err := root.Lstat(at); err == nil && st.IsDir() {
			if err := root.RemoveAll(at); err != nil {
				return err
			}
		}
		if err := root.Rename(path.Join(from, f.Path), at); err != nil {
			return err
		}
	}
	return root.RemoveAll(from)
}

// badObject is an object that is not what it should be.
type badObject struct{ what string }

func (b *badObject) Error() string { return b.what }

func (t *Transfer) manifest(ctx context.Context, c agentapi.Resume) ([]byte, error) {
	var data []byte
	name := fmt.Sprintf("get/manifest/%d", c.Number)
	err := t.get(ctx, name, c.Manifest, -1, c.Digest, func() io.Writer {
		data = nil
		return writerFunc(func(p []byte) (int, error) {
			if len(data)+len(p) > MaxManifest {
				return 0, &badObject{fmt.Sprintf("more than %d bytes", MaxManifest)}
			}
			data = append(data, p...)
			return len(p), nil
		})
	})
	return data, err
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// get downloads an object of n bytes (negative: any number) and a digest into
// what open returns, which is called anew for each try.
func (t *Transfer) get(ctx context.Context, name, first string, n int64, want string, open func() io.Writer) error {
	bad := 0
	return t.repeat(ctx, "download "+name,
		func(stale string) (string, error) {
			if stale == "" && first != "" {
				return first, nil
			}
			return t.URLs.Get(ctx, name, stale)
		},
		func(url string) error {
			err := t.getOnce(ctx, url, n, want, open())
			if b, ok := errors.AsType[*badObject](err); ok {
				if bad++; bad < badTries {
					return &again{b, true}
				}
				return b
			}
			return err
		})
}

func (t *Transfer) getOnce(ctx context.Context, url string, n int64, want string, to io.Writer) error {
	ctx, w := t.watch(ctx)
	defer w.stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return &again{redact(ctx, err), true}
	}
	resp, err := t.Client.Do(req)
	if err != nil {
		return &again{redact(ctx, err), false}
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return &badObject{"it is not there"}
	default:
		return refused(resp)
	}
	if n >= 0 && resp.ContentLength >= 0 && resp.ContentLength != n {
		return &badObject{fmt.Sprintf("%d bytes instead of %d", resp.ContentLength, n)}
	}
	h := sha256.New()
	body := &moved{r: resp.Body, w: w}
	limit := io.Reader(body)
	if n >= 0 {
		limit = io.LimitReader(body, n+1)
	}
	got, err := io.Copy(io.MultiWriter(h, to), limit)
	switch {
	case body.failed != nil:
		return &again{redact(ctx, body.failed), false}
	case err != nil:
		return err
	case n >= 0 && got != n:
		return &badObject{fmt.Sprintf("%d bytes instead of %d", got, n)}
	}
	if sum := digest(h.Sum(nil)); sum != want {
		return &badObject{fmt.Sprintf("its digest is %s instead of %s", sum, want)}
	}
	return nil
}

// fill makes the files of m under dir.
func (t *Transfer) fill(ctx context.Context, m *Manifest, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, d := range m.Empty {
		if err := root.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	type piece struct {
		file   int
		offset int64
		Part
	}
	var pieces []piece
	for i, f := range m.Files {
		if err := root.MkdirAll(path.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if f.Link != "" {
			continue
		}
		file, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(file.Truncate(f.Bytes), file.Close()); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		offset := int64(0)
		for _, p := range f.Parts {
			pieces = append(pieces, piece{i, offset, p})
			offset += p.Bytes
		}
	}
	err = each(ctx, uploads, len(pieces), func(ctx context.Context, i int) error {
		p := pieces[i]
		f := m.Files[p.file]
		file, err := root.OpenFile(f.Path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		err = t.get(ctx, "get/part/"+p.Key, "", p.Bytes, p.Digest, func() io.Writer {
			return io.NewOffsetWriter(file, p.offset)
		})
		if b, ok := errors.AsType[*badObject](err); ok {
			err = &badObject{fmt.Sprintf("part %s of %s: %s", p.Key, f.Path, b.what)}
		}
		return errors.Join(err, file.Close())
	})
	if err != nil {
		return err
	}
	// Links and modes come last: parts were written through neither. Nothing is
	// synced, since a machine that loses its power restores anew.
	for _, f := range m.Files {
		if f.Link != "" {
			if err := root.Symlink(filepath.FromSlash(f.Link), f.Path); err != nil {
				return err
			}
			continue
		}
		if err := root.Chmod(f.Path, fs.FileMode(f.Mode)); err != nil {
			return err
		}
	}
	return nil
}

// Newest restores the first of the checkpoints, newest first, that is not broken.
// It returns nil without an error if none is left, and says which were broken. A
// checkpoint is given up only for what is wrong with itself.
func Newest(ctx context.Context, t *Transfer, from []agentapi.Resume, dir string) (*Manifest, []agentapi.Broken, error) {
	var broken []agentapi.Broken
	for _, c := range from {
		m, err := Restore(ctx, t, c, dir)
		if b, ok := errors.AsType[*BrokenError](err); ok {
			broken = append(broken, b.Broken())
			continue
		}
		return m, broken, err
	}
	return nil, broken, nil
}

// Fits reports whether so many bytes go up within a time at the measured rate,
// with a fifth of it to spare. Without a measurement it tries.
func (t *Transfer) Fits(bytes int64, in time.Duration) bool {
	rate := t.Rate()
	return rate == 0 || float64(bytes) <= rate*in.Seconds()*0.8
}
