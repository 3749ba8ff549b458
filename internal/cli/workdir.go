package cli

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
	"strings"
	"time"

	"gpubroker/internal/api/client"
)

// ignoreFile lists what of a work folder is not uploaded: one pattern a line. A
// pattern without a slash matches names at any depth, one with a slash paths from
// the folder on; a slash at the end means folders; # begins a comment.
const ignoreFile = ".gpubrokerignore"

// uploadWorkdir hands a folder in and returns what the spec calls it. A folder of
// the same content is sent once.
func (a *app) uploadWorkdir(ctx context.Context, c *client.Client, dir string) (ref string, err error) {
	f, err := os.CreateTemp("", "gpubroker-workdir-*.tar.gz")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	p := a.progress("packing the work folder", 0)
	sum := sha256.New()
	n, err := pack(ctx, dir, io.MultiWriter(f, sum, p))
	p.done()
	if err != nil {
		return "", fmt.Errorf("workdir: %w", err)
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	have, err := c.Workdir(ctx, digest)
	if err != nil {
		return "", err
	}
	if have.Have {
		return have.Ref, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	length, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	p = a.progress(fmt.Sprintf("uploading the work folder (%s)", plural(n, "file")), length)
	defer p.done()
	put, err := c.PutWorkdir(ctx, digest, io.TeeReader(f, p), length)
	return put.Ref, err
}

// pack writes a folder as tar.gz: the same bytes for the same content, whoever
// owns it and whenever it was written. It returns the number of files.
func pack(ctx context.Context, dir string, w io.Writer) (files int, err error) {
	ignored, err := readIgnore(filepath.Join(dir, ignoreFile))
	if err != nil {
		return 0, err
	}
	zw := gzip.NewWriter(w)
	tw := tar.NewWriter(zw)
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || name == dir {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if ignored.match(rel, d.IsDir()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		packed, err := packOne(tw, name, rel, d)
		if packed {
			files++
		}
		return err
	})
	return files, errors.Join(err, tw.Close(), zw.Close())
}

func packOne(tw *tar.Writer, name, rel string, d fs.DirEntry) (file bool, err error) {
	info, err := d.Info()
	if err != nil {
		return false, err
	}
	h := &tar.Header{Name: rel, Mode: int64(info.Mode().Perm()), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	switch {
	case d.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, rel+"/"
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(name); err != nil {
			return false, err
		}
	case info.Mode().IsRegular():
		h.Typeflag, h.Size, file = tar.TypeReg, info.Size(), true
	default:
		return false, nil // a socket, a device: no content
	}
	if err := tw.WriteHeader(h); err != nil || !file {
		return file, err
	}
	f, err := os.Open(name)
	if err != nil {
		return true, err
	}
	defer f.Close()
	if _, err := io.Copy(tw, f); err != nil {
		return true, fmt.Errorf("%s: %w", rel, err)
	}
	return true, nil
}

// ignore is the patterns of what is left out.
type ignore []string

func readIgnore(name string) (ignore, error) {
	out := ignore{".git/", ignoreFile}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for n := 1; s.Scan(); n++ {
		p := strings.TrimSpace(s.Text())
		if p == "" || strings.HasPrefix(p, "#") {
			continue
		}
		if strings.HasPrefix(p, "!") || strings.Contains(p, "**") {
			return nil, usage("%s:%d: %q: patterns are names or paths with *, ? and [a-z]; ! and ** are not known", name, n, p)
		}
		if _, err := path.Match(strings.Trim(p, "/"), ""); err != nil {
			return nil, usage("%s:%d: %q: a bracket does not end", name, n, p)
		}
		out = append(out, p)
	}
	return out, s.Err()
}

func (g ignore) match(rel string, folder bool) bool {
	for _, p := range g {
		if strings.HasSuffix(p, "/") && !folder {
			continue
		}
		p = strings.TrimSuffix(p, "/")
		subject := rel
		if !strings.Contains(p, "/") {
			subject = path.Base(rel)
		}
		if ok, err := path.Match(strings.TrimPrefix(p, "/"), subject); ok && err == nil {
			return true
		}
	}
	return false
}

// progress tells how far a transfer is, from two seconds on: on a terminal once a
// second in one line, else every ten seconds.
type progress struct {
	a     *app
	what  string
	total int64 // 0 when it is not known
	sent  int64
	began time.Time
	told  time.Time
}

func (a *app) progress(what string, total int64) *progress {
	return &progress{a: a, what: what, total: total, began: time.Now()}
}

func (p *progress) Write(b []byte) (int, error) {
	p.sent += int64(len(b))
	now, every := time.Now(), 10*time.Second
	if isTerminal(p.a.Err) {
		every = time.Second
	}
	if now.Sub(p.began) < 2*time.Second || now.Sub(p.told) < every {
		return len(b), nil
	}
	p.told = now
	text := p.what + ": " + size(p.sent)
	if p.total > 0 {
		text += " of " + size(p.total)
	}
	if isTerminal(p.a.Err) {
		text = "\r\033[K" + text
	} else {
		text += "\n"
	}
	_, err := io.WriteString(p.a.Err, text)
	return len(b), err
}

func (p *progress) done() {
	if !p.told.IsZero() && isTerminal(p.a.Err) {
		fmt.Fprint(p.a.Err, "\r\033[K")
	}
}
