package spec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Source is where inputs are listed and read when an array is expanded. A
// location is a URL such as s3://bucket/key, or a path.
type Source interface {
	// List yields the location of every file below the prefix, in a stable
	// order, each beginning with the prefix. An error ends it.
	List(ctx context.Context, prefix string) iter.Seq2[string, error]
	// Open reads one file.
	Open(ctx context.Context, location string) (io.ReadCloser, error)
}

// Scale is a Source that can tell how large a file is without reading it.
type Scale interface {
	Weigh(ctx context.Context, location string) (bytes int64, err error)
}

// ErrNoTasks says that an array has nothing in it.
var ErrNoTasks = errors.New("no tasks")

// Expand yields the input of each task in order, without holding them: the
// empty string for a job without an array and for count. It stops at the first
// error, which is [ErrNoTasks] when nothing matches, and after [MaxTasks].
func (j *Job) Expand(ctx context.Context, source Source) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		n := 0
		for input, err := range j.inputs(ctx, source) {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil && n == MaxTasks {
				err = fmt.Errorf("expand tasks of %s: more than %d; split the job", j.Name, MaxTasks)
			}
			if err != nil {
				yield("", err)
				return
			}
			n++
			if !yield(input, nil) {
				return
			}
		}
		if n == 0 {
			what := "the list is empty"
			if t := j.Tasks; t != nil && t.Glob != "" {
				what = fmt.Sprintf("nothing matches %q", t.Glob)
			} else if t != nil && t.File != "" {
				what = fmt.Sprintf("%s has no lines", t.File)
			}
			yield("", fmt.Errorf("expand tasks of %s: %s: %w", j.Name, what, ErrNoTasks))
		}
	}
}

func (j *Job) inputs(ctx context.Context, source Source) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		switch t := j.Tasks; {
		case t == nil && j.Users != nil:
			for range j.Users.Count {
				if !yield("", nil) {
					return
				}
			}
		case t == nil:
			yield("", nil)
		case t.Count > 0:
			for range t.Count {
				if !yield("", nil) {
					return
				}
			}
		case t.List != nil:
			for _, item := range t.List {
				if !yield(item, nil) {
					return
				}
			}
		case t.Glob != "":
			for name, err := range source.List(ctx, globPrefix(t.Glob)) {
				if err != nil {
					yield("", fmt.Errorf("list %s: %w", globPrefix(t.Glob), err))
					return
				}
				if matchGlob(t.Glob, name) && !yield(name, nil) {
					return
				}
			}
		case t.File != "":
			lines(ctx, source, t.File, yield)
		}
	}
}

// maxLine bounds one input.
const maxLine = 64 << 10

func lines(ctx context.Context, source Source, file string, yield func(string, error) bool) {
	r, err := source.Open(ctx, file)
	if err != nil {
		yield("", fmt.Errorf("open the list of tasks: %w", err))
		return
	}
	defer func() { _ = r.Close() }() // read only
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	n := 0
	for s.Scan() {
		n++
		line := strings.TrimSpace(s.Text())
		if strings.ContainsRune(line, 0) {
			yield("", fmt.Errorf("%s:%d: a zero byte; expected one input per line", file, n))
			return
		}
		if line != "" && !yield(line, nil) {
			return
		}
	}
	if err := s.Err(); err != nil {
		yield("", fmt.Errorf("%s:%d: %w", file, n+1, err))
	}
}

const wildcards = `*?[\`

// globPrefix is what to list: everything up to the folder that holds the first
// wildcard.
func globPrefix(pattern string) string {
	if i := strings.IndexAny(pattern, wildcards); i >= 0 {
		pattern = pattern[:i]
	}
	return pattern[:strings.LastIndexByte(pattern, '/')+1]
}

func checkGlob(pattern string) error {
	scheme, rest, isURL := strings.Cut(pattern, "://")
	if isURL {
		bucket, _, _ := strings.Cut(rest, "/")
		if bucket == "" && scheme != "file" || strings.ContainsAny(bucket, wildcards) {
			return fmt.Errorf("the bucket of %q has to be named", pattern)
		}
		var unknown error
		checkLocation("tasks.glob", pattern, func(_, hint, format string, args ...any) {
			unknown = errors.New(fmt.Sprintf(format, args...) + "; " + hint)
		})
		if unknown != nil {
			return unknown
		}
	}
	for segment := range strings.SplitSeq(pattern, "/") {
		if _, err := path.Match(segment, ""); err != nil {
			return fmt.Errorf("the pattern %q has a bracket or a backslash that does not end", segment)
		}
		if strings.Contains(segment, "**") && segment != "**" {
			return fmt.Errorf("** stands alone between slashes, not in %q", segment)
		}
	}
	if !strings.ContainsAny(pattern, "*?[") {
		return fmt.Errorf("%q has no wildcard; use list for single files", pattern)
	}
	return nil
}

// matchGlob matches segment by segment: ** is any number of folders, *, ? and
// [a-z] stay inside one. Names that begin with a dot are matched like others.
func matchGlob(pattern, name string) bool {
	p, n := strings.Split(pattern, "/"), strings.Split(name, "/")
	// reach[k]: the pattern so far matches the first k segments of the name.
	reach := make([]bool, len(n)+1)
	reach[0] = true
	for _, segment := range p {
		next := make([]bool, len(n)+1)
		for k := range reach {
			switch {
			case segment == "**":
				next[k] = reach[k] || k > 0 && next[k-1]
			case k > 0 && reach[k-1]:
				ok, err := path.Match(segment, n[k-1])
				next[k] = ok && err == nil
			}
		}
		reach = next
	}
	return reach[len(n)]
}

// Local reads files of this machine. Relative paths are below Dir.
type Local struct{ Dir string }

func (l Local) path(location string) (string, error) {
	if p, ok := strings.CutPrefix(location, "file://"); ok {
		return filepath.FromSlash(p), nil
	}
	if strings.Contains(location, "://") {
		return "", fmt.Errorf("%s is not on this machine", location)
	}
	p := filepath.FromSlash(location)
	if !filepath.IsAbs(p) {
		p = filepath.Join(l.Dir, p)
	}
	return p, nil
}

// List walks the folder of the prefix in lexical order. Symbolic links to files
// count as files; links to folders are not followed.
func (l Local) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		root, err := l.path(prefix)
		if err != nil {
			yield("", err)
			return
		}
		if root == "" {
			root = "."
		}
		stop := errors.New("stop")
		err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil || d.IsDir() {
				return err
			}
			if !d.Type().IsRegular() {
				if info, err := os.Stat(p); err != nil || !info.Mode().IsRegular() {
					return nil // a dangling link, a socket: no file to work on
				}
			}
			rel, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			if !yield(prefix+filepath.ToSlash(rel), nil) {
				return stop
			}
			return nil
		})
		if err != nil && !errors.Is(err, stop) {
			yield("", err)
		}
	}
}

// Weigh returns a file's size.
func (l Local) Weigh(_ context.Context, location string) (int64, error) {
	p, err := l.path(location)
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(p)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Open opens a file.
func (l Local) Open(_ context.Context, location string) (io.ReadCloser, error) {
	p, err := l.path(location)
	if err != nil {
		return nil, err
	}
	return os.Open(p)
}
