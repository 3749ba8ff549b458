package store

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"gpubroker/internal/durable"
)

func newGeneration() string {
	b := make([]byte, 8)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// mark is the file beside a SQLite store that remembers how far the store has
// come. It is written after each commit and not synced, so it may be behind the
// store and is never ahead of it. A nil mark does nothing.
type mark struct {
	path string

	mu         sync.Mutex
	file       *os.File
	known      bool // the file held a mark
	generation string
	commits    int64
}

const markLine = "gpubroker mark 1 generation %16s commits %020d\n"

// openMark reads the mark, if there is one. A file that is not a mark counts as
// none.
func openMark(path string) (*mark, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return &mark{path: path}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("store: the mark beside the file: %w", err)
	}
	m := &mark{path: path, file: f}
	text, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store: the mark beside the file: %w", err), f.Close())
	}
	n, err := fmt.Sscanf(string(text), markLine, &m.generation, &m.commits)
	m.known = n == 2 && err == nil
	return m, nil
}

// begin gives a new store its mark. If the mark of an older one is there, which
// has done something, it returns why the new one is not to be trusted.
func (m *mark) begin(generation string) (why string, err error) {
	if m == nil {
		return "", nil
	}
	if m.known && m.commits > 0 {
		return fmt.Sprintf("the file is new, and %s says that a store with %d commits was here", m.path, m.commits), nil
	}
	return "", m.reset(generation, 0)
}

// compare returns why a store with this generation and these commits is not the
// one that the mark was written for, or "".
func (m *mark) compare(generation string, commits int64) string {
	switch {
	case m == nil:
		return ""
	case !m.known:
		return fmt.Sprintf("its mark %s is missing or unreadable", m.path)
	case m.generation != generation:
		return fmt.Sprintf("its generation is %s, and %s was written for %s", generation, m.path, m.generation)
	case m.commits > commits:
		return fmt.Sprintf("it has %d commits, and %s says that there were %d: an older copy was put back", commits, m.path, m.commits)
	}
	return ""
}

// note records that so many commits were made. Fewer than before, as an older
// copy makes, change nothing, and neither does a store whose mark is lost.
func (m *mark) note(commits int64) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known || commits <= m.commits {
		return nil
	}
	m.commits = commits
	return m.put()
}

// reset begins a generation, and is on the disk when it returns.
func (m *mark) reset(generation string, commits int64) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		f, err := os.OpenFile(m.path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		m.file = f
	}
	m.generation, m.commits, m.known = generation, commits, true
	if err := m.put(); err != nil {
		return err
	}
	if err := m.file.Sync(); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(m.path))
}

func (m *mark) put() error {
	_, err := m.file.WriteAt(fmt.Appendf(nil, markLine, m.generation, m.commits), 0)
	return err
}

func (m *mark) close() error {
	if m == nil || m.file == nil {
		return nil
	}
	return m.file.Close()
}
