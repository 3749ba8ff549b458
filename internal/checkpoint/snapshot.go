package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrChanged says that a set was written to while it was being saved. It is
// dropped; the job completes another one later.
var ErrChanged = errors.New("the save was written to while it was taken")

// settle is how old a file's time of change must be for a later change to show
// in it: more than one tick of a kernel at 100 Hz, by which such times advance.
const settle = 20 * time.Millisecond

// Set is what a folder held at one moment, hard-linked aside, so that the job may
// rename and remove its own files while they are uploaded.
type Set struct {
	aside string
	files []setFile
	empty []string
	bytes int64
}

type setFile struct {
	File
	aside string // the link; "" for a symbolic link
	id    fileID
	grows bool // may be appended to while it is saved
}

// same reports whether a file's content, as far as it was taken, is as it was.
func (f *setFile) same(now fileID) bool {
	if f.grows {
		return now.inode == f.id.inode && now.bytes >= f.id.bytes
	}
	return now == f.id
}

// fileID changes whenever a file's content does, as far as its times tell.
type fileID struct {
	inode    uint64
	bytes    int64
	modified int64 // unix nanoseconds
}

// Temporary reports whether a file or folder of this name is taken for one that
// is still being written, and left out of saves: it begins with "tmp-", "tmp_" or
// ".tmp", ends with ".part", ".partial" or "~", or has ".tmp" before its end or
// before another dot.
func Temporary(name string) bool {
	for _, p := range []string{"tmp-", "tmp_", ".tmp"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	for _, s := range []string{".part", ".partial", "~", ".tmp"} {
		if strings.HasSuffix(name, s) {
			return true
		}
	}
	return strings.Contains(name, ".tmp.")
}

// Snapshot takes aside what dir holds: regular files, links that stay inside, and
// empty folders. [Temporary] names are left out, and so are sockets, pipes and
// devices. The folder aside must be on the same file system and is made; Close
// removes it. [ErrChanged] says that the folder did not hold still.
//
// Files that fit one of the patterns appended are ones that the job only ever
// appends to (as [Watch] reads a marker): they may grow while they are saved, and
// are taken at the length they had.
func Snapshot(ctx context.Context, dir, aside string, appended ...string) (*Set, error) {
	set, err := snapshot(ctx, dir, aside, appended)
	if err != nil {
		return nil, fmt.Errorf("take the save in %s aside: %w", dir, err)
	}
	return set, nil
}

func snapshot(ctx context.Context, dir, aside string, appended []string) (_ *Set, err error) {
	if err := os.Mkdir(aside, 0o700); err != nil {
		return nil, err
	}
	s := &Set{aside: aside}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	before, err := scan(dir, appended)
	if err != nil {
		return nil, err
	}
	var newest int64
	for i, f := range before.files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if f.Link == "" {
			f.aside = filepath.Join(aside, strconv.Itoa(i))
			if err := os.Link(filepath.Join(dir, filepath.FromSlash(f.Path)), f.aside); err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return nil, fmt.Errorf("%s: %w", f.Path, ErrChanged)
				}
				return nil, err
			}
			if !f.grows {
				newest = max(newest, f.id.modified)
			}
		}
		s.files = append(s.files, f)
		s.bytes += f.Bytes
	}
	s.empty = before.empty
	// A write within the tick of the last one leaves the time as it was: wait until
	// that tick is over, then look again.
	if young := time.Until(time.Unix(0, newest).Add(settle)); young > 0 && young <= settle {
		select {
		case <-time.After(young):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	after, err := scan(dir, appended)
	if err != nil {
		return nil, err
	}
	// What is taken, with its links, against what is there now.
	if taken := (&scanned{s.files, s.empty}); !taken.equal(after) {
		return nil, ErrChanged
	}
	if err := s.Changed(); err != nil {
		return nil, err
	}
	return s, nil
}

// scanned is what a folder holds, by path.
type scanned struct {
	files []setFile
	empty []string
}

// equal reports whether b, the later one, holds what a does.
func (a *scanned) equal(b *scanned) bool {
	return slices.Equal(a.empty, b.empty) && slices.EqualFunc(a.files, b.files, func(x, y setFile) bool {
		return x.Path == y.Path && x.same(y.id) && x.Link == y.Link && x.Mode == y.Mode
	})
}

// scan reads what a folder holds. Files that fit a pattern of appended may grow.
func scan(dir string, appended []string) (*scanned, error) {
	var s scanned
	children := map[string]int{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && name != dir {
			return nil // gone meanwhile
		}
		if err != nil {
			return err
		}
		if name == dir {
			return nil
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if Temporary(d.Name()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err := checkPath(rel); err != nil {
			return err
		}
		if d.IsDir() {
			children[parent(rel)]++
			s.empty = append(s.empty, rel)
			return nil
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		f := setFile{File: File{Path: rel, Mode: uint32(st.Mode().Perm())}}
		switch {
		case st.Mode().IsRegular():
			f.Bytes, f.id = st.Size(), identify(st)
			f.grows = slices.ContainsFunc(appended, func(p string) bool { return matches(p, rel) })
		case st.Mode()&fs.ModeSymlink != 0:
			if f.Link, err = os.Readlink(name); err != nil {
				return err
			}
			f.Mode = 0o777
			if err := checkLink(rel, f.Link); err != nil {
				return fmt.Errorf("%s: %w", rel, err)
			}
		default:
			return nil
		}
		children[parent(rel)]++
		s.files = append(s.files, f)
		return nil
	})
	s.empty = slices.DeleteFunc(s.empty, func(d string) bool { return children[d] > 0 })
	slices.Sort(s.empty)
	slices.SortFunc(s.files, func(a, b setFile) int { return strings.Compare(a.Path, b.Path) })
	return &s, err
}

func parent(rel string) string {
	if i := strings.LastIndexByte(rel, '/'); i >= 0 {
		return rel[:i]
	}
	return "."
}

// Bytes is the size of all files of the set.
func (s *Set) Bytes() int64 { return s.bytes }

// Files is their number.
func (s *Set) Files() int { return len(s.files) }

// Changed returns [ErrChanged] if a file of the set was written to since.
func (s *Set) Changed() error {
	for _, f := range s.files {
		if f.aside == "" {
			continue
		}
		st, err := os.Lstat(f.aside)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		if !f.same(identify(st)) {
			return fmt.Errorf("%s: %w", f.Path, ErrChanged)
		}
	}
	return nil
}

// Close removes what was taken aside.
func (s *Set) Close() error { return os.RemoveAll(s.aside) }
