// Package workdir packs the folder that a job runs in, and unpacks it on the
// machine. It links no SDK.
//
// The same files give the same archive: entries are in order, without owners and
// times, and of every mode only whether it can be executed is kept. An archive
// lies in the store under its digest, so that a folder is uploaded once however
// often it is submitted (with one version of this program: the compression is
// the Go library's).
package workdir

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// IgnoreFile lists what stays behind, see [ParseIgnore].
const IgnoreFile = ".gpubrokerignore"

// MaxBytes is how much a folder may hold by default. What is larger belongs into
// the store as an input.
const MaxBytes = 1 << 30

// maxEntries is how many files, folders and links an archive may hold.
const maxEntries = 200_000

// Packed describes an archive.
type Packed struct {
	Digest string // "sha256:…" of the archive
	Bytes  int64  // of the archive
	Files  int
	Size   int64 // of the files
}

// Key is where the archive lies in the store.
func (p Packed) Key() string { return Key(p.Digest) }

// Key is where the archive of a digest lies in the store.
func Key(digest string) string {
	return "workdirs/" + strings.TrimPrefix(digest, "sha256:") + ".tar.gz"
}

// TooLargeError says that a folder holds more than may be packed.
type TooLargeError struct {
	Limit   int64
	Largest []string // the largest things directly in the folder, with their sizes
}

// Error names the largest things, which are most likely what to ignore.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the folder holds more than %d MB: name what the job does not need in %s (largest: %s), or make it an input",
		e.Limit>>20, IgnoreFile, strings.Join(e.Largest, ", "))
}

// entry is a file, folder or link to be packed.
type entry struct {
	name string // slash-separated
	info fs.FileInfo
	link string
}

// Pack writes dir as a tar.gz to w. A limit of 0 means [MaxBytes]. Left out are
// .git, the ignore file, what it lists, and sockets, pipes and devices. A link is
// kept if it stays inside, else it is an error.
func Pack(ctx context.Context, dir string, w io.Writer, limit int64) (Packed, error) {
	if limit == 0 {
		limit = MaxBytes
	}
	p, err := pack(ctx, dir, w, limit)
	if err != nil {
		return Packed{}, fmt.Errorf("pack the folder %s: %w", dir, err)
	}
	return p, nil
}

func pack(ctx context.Context, dir string, w io.Writer, limit int64) (Packed, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Packed{}, err
	}
	defer root.Close()
	var ignore *Ignore
	text, err := root.ReadFile(IgnoreFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return Packed{}, err
	default:
		if ignore, err = ParseIgnore(string(text)); err != nil {
			return Packed{}, fmt.Errorf("%s: %w", IgnoreFile, err)
		}
	}
	entries, err := list(ctx, root, ignore, limit)
	if err != nil {
		return Packed{}, err
	}
	sum := sha256.New()
	out := &counter{w: io.MultiWriter(w, sum)}
	zip, err := gzip.NewWriterLevel(out, gzip.DefaultCompression)
	if err != nil {
		return Packed{}, err
	}
	to := tar.NewWriter(zip)
	var done Packed
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return Packed{}, err
		}
		n, err := add(to, root, e)
		if err != nil {
			return Packed{}, fmt.Errorf("%s: %w", e.name, err)
		}
		done.Size += n
		done.Files++
	}
	if err := errors.Join(to.Close(), zip.Close()); err != nil {
		return Packed{}, err
	}
	done.Digest, done.Bytes = "sha256:"+hex.EncodeToString(sum.Sum(nil)), out.n
	return done, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// list finds what is to be packed, in the order of names.
func list(ctx context.Context, root *os.Root, ignore *Ignore, limit int64) ([]entry, error) {
	var (
		entries []entry
		total   int64
	)
	top := map[string]int64{}
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || name == "." {
			return err
		}
		if name == ".git" || name == IgnoreFile || ignore.Match(name, d.IsDir()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := entry{name: name, info: info}
		switch {
		case d.IsDir(), info.Mode().IsRegular():
		case info.Mode()&fs.ModeSymlink != 0:
			if e.link, err = root.Readlink(name); err != nil {
				return err
			}
			e.link = filepath.ToSlash(e.link)
			if err := inside(name, e.link); err != nil {
				return err
			}
		default:
			return nil
		}
		if info.Mode().IsRegular() {
			first, _, _ := strings.Cut(name, "/")
			top[first] += info.Size()
			total += info.Size()
		}
		if len(entries) == maxEntries {
			return fmt.Errorf("more than %d files: name what the job does not need in %s", maxEntries, IgnoreFile)
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if total > limit {
		return nil, &TooLargeError{limit, largest(top)}
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return entries, nil
}

func largest(top map[string]int64) []string {
	var names []string
	for n := range top {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int {
		if top[a] != top[b] {
			return int(max(-1, min(1, top[b]-top[a])))
		}
		return strings.Compare(a, b)
	})
	names = names[:min(3, len(names))]
	for i, n := range names {
		names[i] = fmt.Sprintf("%s %d MB", n, top[n]>>20)
	}
	return names
}

// inside says whether a link at name may point to target: relative, with ".."
// only in front and no more of them than there are folders above.
func inside(name, target string) error {
	up, rest := 0, target
	for rest == ".." || strings.HasPrefix(rest, "../") {
		rest = strings.TrimPrefix(strings.TrimPrefix(rest, ".."), "/")
		up++
	}
	if path.IsAbs(target) || target == "" || rest != "" && !fs.ValidPath(rest) || up > strings.Count(name, "/") {
		return fmt.Errorf("link %s to %q leads out of the folder, or is not written as a plain relative path", name, target)
	}
	return nil
}

func add(to *tar.Writer, root *os.Root, e entry) (int64, error) {
	h := &tar.Header{Name: e.name, Mode: 0o644, Format: tar.FormatPAX}
	switch {
	case e.info.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, e.name+"/", 0o755
	case e.link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
	default:
		h.Typeflag, h.Size = tar.TypeReg, e.info.Size()
		if e.info.Mode()&0o111 != 0 {
			h.Mode = 0o755
		}
	}
	if err := to.WriteHeader(h); err != nil {
		return 0, err
	}
	if h.Typeflag != tar.TypeReg {
		return 0, nil
	}
	file, err := root.Open(e.name)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	// One byte more than announced fails in the writer, one less here.
	n, err := io.Copy(to, file)
	if err == nil && n != h.Size {
		err = errors.New("the file changed while it was packed")
	}
	return n, err
}

// Unpack reads an archive that Pack wrote into dir, which is made if it is not
// there. Nothing outside dir is written whatever the archive says; more than
// limit bytes (0 means [MaxBytes]) are refused, and so is everything but files,
// folders and links that stay inside. Files that are there already are an error.
func Unpack(ctx context.Context, r io.Reader, dir string, limit int64) error {
	if limit == 0 {
		limit = MaxBytes
	}
	if err := unpack(ctx, r, dir, limit); err != nil {
		return fmt.Errorf("unpack into %s: %w", dir, err)
	}
	return nil
}

func unpack(ctx context.Context, r io.Reader, dir string, limit int64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	zip, err := gzip.NewReader(bufio.NewReaderSize(r, 64<<10))
	if err != nil {
		return fmt.Errorf("not a tar.gz: %w", err)
	}
	from := tar.NewReader(zip)
	var total int64
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(h.Name, "/")
		switch {
		case n == maxEntries:
			return fmt.Errorf("more than %d entries", maxEntries)
		case !fs.ValidPath(name) || name == ".":
			return fmt.Errorf("entry %q is not a clean relative path", h.Name)
		case h.Size < 0 || h.Size > limit-total:
			return fmt.Errorf("more than %d bytes", limit)
		}
		total += h.Size
		if err := extract(root, from, h, name); err != nil {
			return fmt.Errorf("entry %q: %w", h.Name, err)
		}
	}
	// The digest of gzip covers its own end only.
	if _, err := io.Copy(io.Discard, zip); err != nil {
		return err
	}
	return zip.Close()
}

func extract(root *os.Root, from io.Reader, h *tar.Header, name string) error {
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o755)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		if err := inside(name, h.Linkname); err != nil {
			return err
		}
		return root.Symlink(filepath.FromSlash(h.Linkname), name)
	case tar.TypeReg:
		mode := fs.FileMode(0o644)
		if h.Mode&0o111 != 0 {
			mode = 0o755
		}
		file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		n, err := io.Copy(file, io.LimitReader(from, h.Size))
		if err == nil && n != h.Size {
			err = io.ErrUnexpectedEOF
		}
		return errors.Join(err, file.Close())
	}
	return fmt.Errorf("type %q: want a file, a folder or a link", h.Typeflag)
}
