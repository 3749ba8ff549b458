package objects

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Folder is a store in a folder of this machine. Objects are plain files under
// their keys; what else it must know lies in .gpubroker beside them:
//
//	.gpubroker/tmp/…            files being written
//	.gpubroker/meta/ab/abcd…    metadata of the object whose key has this SHA-256
//	.gpubroker/uploads/ID/…     parts of uploads, with upload.json
//
// Nothing outside the root is read or written, whatever links lie in it. IfAbsent
// holds among all processes, IfMatch among the users of one Folder.
type Folder struct {
	root *os.Root
	sign *Folders
	id   string // of the folder in signed URLs
	// locks guard the conditions and the metadata of keys, by their hash.
	locks [64]sync.Mutex
	// durable are folders whose own entry is known to be on the medium.
	durable struct {
		sync.Mutex
		dirs map[string]bool
	}
}

const (
	tmpDir     = reserved + "/tmp"
	metaDir    = reserved + "/meta"
	uploadsDir = reserved + "/uploads"
)

func openFolder(root, id string, sign *Folders) (*Folder, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder: %w", err)
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{tmpDir, metaDir, uploadsDir} {
		if err := r.MkdirAll(d, 0o755); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return &Folder{root: r, sign: sign, id: id}, nil
}

// String returns the folder's path.
func (f *Folder) String() string { return f.root.Name() }

// Close releases the folder.
func (f *Folder) Close() error { return f.root.Close() }

// fail gives err its code.
func fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	code := Invalid
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = Away
	case errors.Is(err, fs.ErrNotExist):
		code = NotFound
	case errors.Is(err, fs.ErrExist):
		code = Exists
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		code = Denied
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = Full
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ESTALE), errors.Is(err, syscall.ETIMEDOUT),
		errors.Is(err, syscall.ENOTCONN), errors.Is(err, io.ErrUnexpectedEOF):
		code = Away
	}
	return &Error{Op: op, Key: key, Code: code, Err: err}
}

func invalid(op, key string, err error) error {
	return &Error{Op: op, Key: key, Code: Invalid, Err: err}
}

func (f *Folder) lock(key string) *sync.Mutex {
	h := fnv.New32a()
	h.Write([]byte(key))
	m := &f.locks[h.Sum32()%uint32(len(f.locks))]
	m.Lock()
	return m
}

// Put implements [Store].
func (f *Folder) Put(ctx context.Context, key string, body io.ReadSeeker, opts PutOptions) (Info, error) {
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return Info{}, invalid("put", key, err)
	}
	return f.put(ctx, key, body, -1, opts)
}

// put writes size bytes of body, or all of them if size is negative.
func (f *Folder) put(ctx context.Context, key string, body io.Reader, size int64, opts PutOptions) (Info, error) {
	if err := CheckKey(key); err != nil {
		return Info{}, invalid("put", key, err)
	}
	tmp, _, err := f.temp(ctx, body, size)
	if err != nil {
		return Info{}, fail("put", key, err)
	}
	info, err := f.present(ctx, key, tmp, opts)
	return info, fail("put", key, err)
}

// temp writes a file under tmp and returns its name and the SHA-256 of what it
// holds. On an error nothing of it is left.
func (f *Folder) temp(ctx context.Context, body io.Reader, size int64) (name, sum string, err error) {
	name = tmpDir + "/" + rand.Text()
	file, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", "", err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(file, h), reader{ctx, body})
	if err == nil && size >= 0 && n != size {
		err = fmt.Errorf("got %d of %d bytes: %w", n, size, io.ErrUnexpectedEOF)
	}
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return "", "", errors.Join(err, f.root.Remove(name))
	}
	return name, hex.EncodeToString(h.Sum(nil)), nil
}

// reader stops when its context is over.
type reader struct {
	ctx context.Context //nolint:containedctx // lives as long as the call that made it
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// present gives the file tmp its key. Metadata is written before it, so that an
// object of ours is never seen without.
func (f *Folder) present(ctx context.Context, key, tmp string, opts PutOptions) (info Info, err error) {
	defer f.lock(key).Unlock()
	defer func() {
		if err != nil {
			if rm := f.root.Remove(tmp); rm != nil && !errors.Is(rm, fs.ErrNotExist) {
				err = errors.Join(err, rm)
			}
		}
	}()
	if want := opts.Cond.IfMatch; want != "" {
		now, err := f.stat(key)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Info{}, err
		}
		if now.ETag != want {
			return Info{}, fmt.Errorf("the object has changed: %w", fs.ErrExist)
		}
	}
	st, err := f.root.Stat(tmp)
	if err != nil {
		return Info{}, err
	}
	if err := f.writeMeta(ctx, key, st, opts.Meta); err != nil {
		return Info{}, err
	}
	if err := f.within(key, func() error { return f.move(tmp, key, opts.Cond.IfAbsent) }); err != nil {
		return Info{}, err
	}
	if err := f.syncDirs(path.Dir(key)); err != nil {
		return Info{}, err
	}
	info = describe(key, st)
	info.Meta = opts.Meta
	return info, nil
}

// within makes the folder of a name and then puts something there. Delete removes
// folders as they become empty, perhaps between the two, or while the first looks
// whether what is in its way is a folder: both are tried again.
func (f *Folder) within(name string, put func() error) error {
	for try := 0; ; try++ {
		err := f.root.MkdirAll(path.Dir(name), 0o755)
		gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist)
		if err == nil {
			err = put()
			gone = errors.Is(err, fs.ErrNotExist)
		}
		if !gone || try == 10 {
			return err
		}
	}
}

func (f *Folder) move(tmp, key string, ifAbsent bool) error {
	if st, err := f.root.Lstat(key); err == nil && st.IsDir() {
		return fmt.Errorf("there are objects under %s/", key)
	}
	if !ifAbsent {
		return f.root.Rename(tmp, key)
	}
	err := f.root.Link(tmp, key)
	switch {
	case err == nil:
		return f.root.Remove(tmp)
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist):
		return err
	}
	// A file system without hard links.
	if _, err := f.root.Lstat(key); err == nil {
		return fs.ErrExist
	}
	return f.root.Rename(tmp, key)
}

// maxDurable bounds what is remembered of folders.
const maxDurable = 10_000

// syncDirs makes the entries of dir durable, and dir itself.
func (f *Folder) syncDirs(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // folders cannot be synced there, and need not be
	}
	for d := dir; ; d = path.Dir(d) {
		file, err := f.root.Open(d)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed with its last object meanwhile
		}
		if err != nil {
			return err
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return err
		}
		f.durable.Lock()
		known := d == "." || f.durable.dirs[d]
		f.durable.Unlock()
		if known {
			break
		}
	}
	f.durable.Lock()
	defer f.durable.Unlock()
	if len(f.durable.dirs) > maxDurable || f.durable.dirs == nil {
		f.durable.dirs = map[string]bool{}
	}
	for d := dir; d != "."; d = path.Dir(d) {
		f.durable.dirs[d] = true
	}
	return nil
}

func describe(key string, st fs.FileInfo) Info {
	return Info{
		Key: key, Bytes: st.Size(), Modified: st.ModTime().UTC(),
		ETag: fmt.Sprintf("%x-%x", st.ModTime().UnixNano(), st.Size()),
	}
}

// metaEntry is the metadata of the file of one size and time. Two entries are
// kept, of the object before and after a write, so that a crash between the
// metadata and the object leaves either right.
type metaEntry struct {
	Key  string            `json:"key"`
	ETag string            `json:"etag"`
	Meta map[string]string `json:"meta"`
}

func metaPath(key string) string {
	h := sha256.Sum256([]byte(key))
	s := hex.EncodeToString(h[:])
	return metaDir + "/" + s[:2] + "/" + s
}

func (f *Folder) readMeta(key string) ([]metaEntry, error) {
	data, err := f.root.ReadFile(metaPath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var entries []metaEntry
	if err := json.Unmarshal(data, &entries); err != nil {
		return nil, fmt.Errorf("metadata in %s: %w", metaPath(key), err)
	}
	return entries, nil
}

func (f *Folder) writeMeta(ctx context.Context, key string, st fs.FileInfo, meta map[string]string) error {
	entries, err := f.readMeta(key)
	if err != nil {
		return err
	}
	if len(meta) == 0 && len(entries) == 0 {
		return nil
	}
	var keep []metaEntry
	if now, err := f.root.Stat(key); err == nil {
		for _, e := range entries {
			if e.ETag == describe(key, now).ETag {
				keep = append(keep, e)
			}
		}
	}
	keep = append(keep, metaEntry{Key: key, ETag: describe(key, st).ETag, Meta: meta})
	data, err := json.Marshal(keep)
	if err != nil {
		return err
	}
	return f.writeSmall(ctx, metaPath(key), data)
}

// writeSmall replaces a file of our own, atomically.
func (f *Folder) writeSmall(ctx context.Context, name string, data []byte) error {
	tmp, _, err := f.temp(ctx, bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	if err := f.within(name, func() error { return f.root.Rename(tmp, name) }); err != nil {
		return errors.Join(err, f.root.Remove(tmp))
	}
	return f.syncDirs(path.Dir(name))
}

func (f *Folder) stat(key string) (Info, error) {
	st, err := f.root.Stat(key)
	if err != nil {
		return Info{}, err
	}
	if !st.Mode().IsRegular() {
		return Info{}, fmt.Errorf("not a file: %w", fs.ErrNotExist)
	}
	info := describe(key, st)
	entries, err := f.readMeta(key)
	if err != nil {
		return Info{}, err
	}
	for _, e := range entries {
		if e.ETag == info.ETag {
			info.Meta = e.Meta
		}
	}
	return info, nil
}

// Stat implements [Store].
func (f *Folder) Stat(ctx context.Context, key string) (Info, error) {
	if err := CheckKey(key); err != nil {
		return Info{}, invalid("stat", key, err)
	}
	if err := ctx.Err(); err != nil {
		return Info{}, fail("stat", key, err)
	}
	info, err := f.stat(key)
	return info, fail("stat", key, notDir(err))
}

// notDir reads "a/b" under a file "a" as an object that is not there.
func notDir(err error) error {
	if errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

// Get implements [Store].
func (f *Folder) Get(ctx context.Context, key string, r Range) (io.ReadCloser, Info, error) {
	if err := CheckKey(key); err != nil {
		return nil, Info{}, invalid("get", key, err)
	}
	file, err := f.root.Open(key)
	if err != nil {
		return nil, Info{}, fail("get", key, notDir(err))
	}
	st, err := file.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("not a file: %w", fs.ErrNotExist)
	}
	if err == nil && (r.Offset < 0 || r.Length < 0 || r.Offset > st.Size()) {
		err = invalid("get", key, fmt.Errorf("range %d+%d of an object of %d bytes", r.Offset, r.Length, st.Size()))
	}
	if err != nil {
		return nil, Info{}, fail("get", key, errors.Join(err, file.Close()))
	}
	n := st.Size() - r.Offset
	if r.Length > 0 {
		n = min(n, r.Length)
	}
	info := describe(key, st)
	if entries, err := f.readMeta(key); err == nil {
		for _, e := range entries {
			if e.ETag == info.ETag {
				info.Meta = e.Meta
			}
		}
	}
	return &section{reader{ctx, io.NewSectionReader(file, r.Offset, n)}, file}, info, nil
}

type section struct {
	io.Reader
	io.Closer
}

// List implements [Store].
func (f *Folder) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		start := "."
		if i := strings.LastIndexByte(prefix, '/'); i > 0 {
			start = prefix[:i]
			if err := CheckKey(start); err != nil {
				yield(Info{}, invalid("list", prefix, err))
				return
			}
		}
		err := fs.WalkDir(f.root.FS(), start, func(name string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			switch {
			case errors.Is(notDir(err), fs.ErrNotExist):
				return nil // gone since its folder was read, or nothing under the prefix
			case err != nil:
				return err
			case d.IsDir() && name == reserved:
				return fs.SkipDir
			case d.IsDir() && name != "." && !strings.HasPrefix(name+"/", prefix) && !strings.HasPrefix(prefix, name+"/"):
				return fs.SkipDir
			case !d.Type().IsRegular() || !strings.HasPrefix(name, prefix) || CheckKey(name) != nil:
				return nil
			}
			st, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if !yield(describe(name, st), nil) {
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			yield(Info{}, fail("list", prefix, err))
		}
	}
}

// Delete implements [Store]. Folders that become empty go too.
func (f *Folder) Delete(ctx context.Context, key string) error {
	if err := CheckKey(key); err != nil {
		return invalid("delete", key, err)
	}
	if err := ctx.Err(); err != nil {
		return fail("delete", key, err)
	}
	defer f.lock(key).Unlock()
	if st, err := f.root.Lstat(key); err == nil && st.IsDir() {
		return nil // no object
	}
	for _, name := range []string{key, metaPath(key)} {
		if err := notDir(f.root.Remove(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fail("delete", key, err)
		}
	}
	for dir := path.Dir(key); dir != "."; dir = path.Dir(dir) {
		f.durable.Lock()
		err := f.root.Remove(dir)
		if err == nil {
			delete(f.durable.dirs, dir)
		}
		f.durable.Unlock()
		if err != nil {
			break // not empty
		}
	}
	return nil
}

// clean removes what writers that died left under tmp before a moment.
func (f *Folder) clean(before time.Time) error {
	entries, err := fs.ReadDir(f.root.FS(), tmpDir)
	if err != nil {
		return fail("clean", tmpDir, err)
	}
	var errs []error
	for _, e := range entries {
		st, err := e.Info()
		if err != nil || !st.ModTime().Before(before) {
			continue
		}
		if err := f.root.Remove(path.Join(tmpDir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fail("clean", e.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// folderID names a folder in signed URLs.
func folderID(root string) string {
	h := sha256.Sum256([]byte(filepath.Clean(root)))
	return hex.EncodeToString(h[:8])
}
