package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"gpubroker/internal/api/client"
	"gpubroker/internal/workdir"
)

// uploadWorkdir hands a folder in and returns what the spec calls it. A folder of
// the same content is sent once.
func (a *app) uploadWorkdir(ctx context.Context, c *client.Client, dir string) (ref string, err error) {
	f, err := os.CreateTemp("", "gpubroker-workdir-*.tar.gz")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	p := a.progress("packing the work folder", 0)
	packed, err := workdir.Pack(ctx, dir, io.MultiWriter(f, p), 0)
	p.done()
	if err != nil {
		return "", fmt.Errorf("workdir: %w", err)
	}
	digest := strings.TrimPrefix(packed.Digest, "sha256:")
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
	p = a.progress(fmt.Sprintf("uploading the work folder (%s)", plural(packed.Files, "file")), packed.Bytes)
	defer p.done()
	put, err := c.PutWorkdir(ctx, digest, io.TeeReader(f, p), packed.Bytes)
	return put.Ref, err
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
