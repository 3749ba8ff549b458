package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpubroker/internal/store"
)

// TestCopies does to a store what people do to files.
func TestCopies(t *testing.T) {
	move := func(t *testing.T, from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	copyFile := func(t *testing.T, from, to string) { // onto the same inode, if there is one
		t.Helper()
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	remove := func(t *testing.T, path string) {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		do     func(t *testing.T, path, backup string) (now string)
		copied string // what the store says, "" for none
	}{
		"nothing": {func(t *testing.T, path, _ string) string { return path }, ""},
		"copied elsewhere": {func(t *testing.T, path, _ string) string {
			to := filepath.Join(filepath.Dir(path), "copy.db")
			copyFile(t, path, to)
			return to
		}, "it was made as"},
		"moved": {func(t *testing.T, path, _ string) string {
			to := path + ".new"
			move(t, path, to)
			return to
		}, "it was made as"},
		"moved with its mark": {func(t *testing.T, path, _ string) string {
			to := path + ".new"
			move(t, path, to)
			move(t, path+".mark", to+".mark")
			return to
		}, "it was made as"},
		"replaced by a copy": {func(t *testing.T, path, _ string) string {
			copyFile(t, path, path+".x")
			move(t, path+".x", path)
			return path
		}, "it was made as"},
		"older copy put back": {func(t *testing.T, path, backup string) string {
			copyFile(t, backup, path)
			return path
		}, "older copy"},
		"mark lost": {func(t *testing.T, path, _ string) string {
			remove(t, path+".mark")
			return path
		}, "missing"},
		"mark garbled": {func(t *testing.T, path, _ string) string {
			if err := os.WriteFile(path+".mark", []byte("hello\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}, "unreadable"},
		"file lost": {func(t *testing.T, path, _ string) string {
			remove(t, path)
			return path
		}, "the file is new"},
		"file emptied": {func(t *testing.T, path, _ string) string {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
			return path
		}, "the file is new"},
		"all lost": {func(t *testing.T, path, _ string) string {
			remove(t, path)
			remove(t, path+".mark")
			return path
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "broker.db")
			backup := filepath.Join(t.TempDir(), "backup.db")
			s := open(t, path)
			put(t, s, 3)
			shut(t, s)
			copyFile(t, path, backup)
			s = open(t, path)
			put(t, s, 3)
			shut(t, s)

			path = c.do(t, path, backup)
			check := func(s *store.Store) {
				t.Helper()
				m, err := s.Meta(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if m.Copied != (c.copied != "") || !strings.Contains(m.Why, c.copied) {
					t.Fatalf("meta is %+v, want %q", m, c.copied)
				}
			}
			s = open(t, path)
			check(s)
			put(t, s, 20) // work done since does not make it the original
			check(s)
			shut(t, s)
			s = open(t, path)
			check(s)

			before := lastEvent(t, s)
			m, err := s.Adopt(t.Context())
			if err != nil || m.Copied {
				t.Fatal(m, err)
			}
			put(t, s, 1)
			shut(t, s)
			s = open(t, path)
			if again, err := s.Meta(t.Context()); err != nil || again != m {
				t.Errorf("adopted as %+v, then %+v, %v", m, again, err)
			}
			if after := lastEvent(t, s); after != before+1 {
				t.Errorf("event %d after adopting at %d", after, before)
			}
		})
	}
}
