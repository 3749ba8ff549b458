package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/store"
	"gpubroker/queue"
)

func open(t testing.TB, url string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), url, store.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func leads(t testing.TB, s *store.Store) int64 {
	t.Helper()
	epoch, err := s.Lead(t.Context(), "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return epoch
}

// put commits n events, each in a batch of its own.
func put(t testing.TB, s *store.Store, n int) {
	t.Helper()
	epoch := leads(t, s)
	for range n {
		commit(t, s, &queue.Batch{Epoch: epoch, Events: []*queue.Event{{Seq: lastEvent(t, s) + 1, Kind: "x"}}})
	}
}

func lastEvent(t testing.TB, s *store.Store) int64 {
	t.Helper()
	im, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return im.EventSeq
}

func shut(t testing.TB, s *store.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantError checks the kind and that the message says what it has to.
func wantError(t testing.TB, err, kind error, says ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error is %v, want %v", err, kind)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q has more than one line", err)
	}
}

func TestURLs(t *testing.T) {
	folder := t.TempDir()
	for _, url := range []string{
		filepath.Join(folder, "plain.db"), "sqlite:" + filepath.Join(folder, "a b?c%d#e.db"), "sqlite://" + filepath.Join(folder, "slashes.db"),
	} {
		put(t, open(t, url), 1)
	}
	for _, name := range []string{"plain.db", "a b?c%d#e.db", "slashes.db"} {
		if st, err := os.Stat(filepath.Join(folder, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want a file that only its owner reads", name, st, err)
		}
	}
	for url, says := range map[string]string{
		"mysql://host/db":                   "mysql",
		"sqlite:":                           "empty",
		filepath.Join(folder, "no", "x.db"): "folder does not exist",
		folder:                              folder,
		"postgres://u:secret@%zz/":          "PostgreSQL address",
	} {
		_, err := store.Open(t.Context(), url, store.Options{})
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestSecondBroker(t *testing.T) {
	path := filepath.Join(t.TempDir(), "broker.db")
	first := open(t, path)
	_, err := store.Open(t.Context(), path, store.Options{})
	wantError(t, err, queue.ErrLocked, path, strconv.Itoa(os.Getpid()), "stop it")
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	_, err = store.Open(t.Context(), link, store.Options{})
	wantError(t, err, queue.ErrLocked, path)
	put(t, first, 1) // it is not disturbed
	shut(t, first)
	if m, err := open(t, link).Meta(t.Context()); err != nil || m.Copied {
		t.Errorf("opened through a link: %+v, %v", m, err)
	}
}

func TestNewerSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "broker.db")
	s := open(t, path)
	if _, err := s.Writer().Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`); err != nil {
		t.Fatal(err)
	}
	shut(t, s)
	for range 2 { // also the second time: nothing was changed by the first
		_, err := store.Open(t.Context(), path, store.Options{})
		wantError(t, err, queue.ErrNewer, path, "99")
	}
}

func TestDamagedFile(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "broker.db")
	s := open(t, whole)
	put(t, s, 500)
	shut(t, s)
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	garbage := make([]byte, len(content))
	copy(garbage, "this is not a database, but somebody's diary\n")
	hole := append([]byte{}, content...)
	for i := 4096; i < len(hole); i++ {
		hole[i] = 0xa5
	}
	for name, bad := range map[string][]byte{
		"garbage": garbage, "torn": content[:len(content)/3], "cut in the first page": content[:1000], "overwritten": hole,
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(whole, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := store.Open(t.Context(), whole, store.Options{})
			if err == nil {
				defer s.Close()
				_, err = s.Load(t.Context())
			}
			if err == nil {
				_, err = s.Events(t.Context(), queue.EventQuery{Limit: 1000})
			}
			wantError(t, err, queue.ErrDamaged, whole, "backup")
		})
	}
}

func TestFull(t *testing.T) {
	big := &queue.Batch{}
	for i := range 2000 {
		big.Settings = append(big.Settings, &queue.Setting{Key: fmt.Sprint("s", i), Value: []byte(`"` + strings.Repeat("x", 1000) + `"`)})
	}
	check := func(t *testing.T, s *store.Store, room func()) {
		big.Epoch = leads(t, s)
		put(t, s, 1)
		for range 2 {
			wantError(t, s.Commit(t.Context(), big), queue.ErrFull, "free space")
		}
		if im, err := s.Load(t.Context()); err != nil || len(im.Settings) != 0 || im.EventSeq != 1 {
			t.Fatalf("after a refused commit: %d settings, event %d, %v", len(im.Settings), im.EventSeq, err)
		}
		room()
		commit(t, s, big) // with room it goes on
	}
	t.Run("page limit", func(t *testing.T) {
		s := open(t, filepath.Join(t.TempDir(), "broker.db"))
		var was int64
		if err := s.Writer().QueryRow(`PRAGMA max_page_count`).Scan(&was); err != nil {
			t.Fatal(err)
		}
		pages := func(n int64) {
			if _, err := s.Writer().Exec(fmt.Sprint("PRAGMA max_page_count = ", n)); err != nil {
				t.Fatal(err)
			}
		}
		pages(200)
		check(t, s, func() { pages(was) })
	})
	t.Run("disk", func(t *testing.T) {
		folder := smallDisk(t, 2<<20)
		s := open(t, filepath.Join(folder, "broker.db"))
		check(t, s, func() { resizeDisk(t, folder, 64<<20) })
	})
}

func TestLockedByAnotherProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "broker.db")
	synctest.Test(t, func(t *testing.T) {
		s := open(t, path)
		epoch := leads(t, s)
		other, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		other.SetMaxOpenConns(1)
		if _, err := other.Exec(`BEGIN IMMEDIATE`); err != nil {
			t.Fatal(err)
		}
		batch := &queue.Batch{Epoch: epoch, Events: []*queue.Event{{Seq: 1}}}
		wantError(t, s.Commit(t.Context(), batch), queue.ErrLocked, path, "other program")
		if seq := lastEvent(t, s); seq != 0 {
			t.Errorf("event %d", seq)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantError(t, s.Commit(ctx, batch), context.DeadlineExceeded)
		if _, err := other.Exec(`COMMIT`); err != nil {
			t.Fatal(err)
		}
		commit(t, s, batch)
	})
}

func TestFaultHook(t *testing.T) {
	broken := errors.New("broken")
	for name, fault := range map[string]func() error{
		"error": func() error { return broken },
		"panic": func() error { panic(broken) },
	} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, done %v", name, after), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "broker.db")
				var seen []string
				armed := false
				s, err := store.Open(t.Context(), path, store.Options{Fault: func(op string, done bool) error {
					seen = append(seen, fmt.Sprint(op, " ", done))
					if armed && done == after {
						return fault()
					}
					return nil
				}})
				if err != nil {
					t.Fatal(err)
				}
				epoch := leads(t, s)
				armed = true
				err = func() (err error) {
					defer func() {
						if r := recover(); r != nil {
							err = r.(error)
						}
					}()
					return s.Commit(t.Context(), &queue.Batch{Epoch: epoch, Events: []*queue.Event{{Seq: 1}}})
				}()
				if !errors.Is(err, broken) {
					t.Fatalf("error is %v", err)
				}
				if want := "lead false,lead true,commit false"; !strings.HasPrefix(strings.Join(seen, ","), want) {
					t.Errorf("hook was called for %v", seen)
				}
				shut(t, s) // abandoned
				s = open(t, path)
				if m, err := s.Meta(t.Context()); err != nil || m.Copied {
					t.Errorf("opened again: %+v, %v", m, err)
				}
				if written := lastEvent(t, s) == 1; written != after {
					t.Errorf("written %v", written)
				}
			})
		}
	}
}

// TestKill kills a process that commits, and opens what it left.
func TestKill(t *testing.T) {
	if path := os.Getenv("GPUBROKER_STORE_CHILD"); path != "" {
		s := open(t, path)
		epoch := leads(t, s)
		for seq := lastEvent(t, s) + 1; ; seq++ {
			commit(t, s, &queue.Batch{Epoch: epoch, Events: []*queue.Event{{Seq: seq}}})
			fmt.Println("committed", seq)
		}
	}
	path := filepath.Join(t.TempDir(), "broker.db")
	generation := ""
	for round := range 4 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
		cmd.Env = append(os.Environ(), "GPUBROKER_STORE_CHILD="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var last int64
		for range 10 * (round + 1) {
			if _, err := fmt.Fscanf(out, "committed %d\n", &last); err != nil {
				t.Fatal("the child: ", err)
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(out) // until the pipe breaks
		cmd.Wait()                 // it was killed
		for line := range strings.Lines(string(rest)) {
			fmt.Sscanf(line, "committed %d\n", &last)
		}
		s := open(t, path) // the lock went with the process
		if seq := lastEvent(t, s); seq < last {
			t.Errorf("event %d was acknowledged, the last stored is %d", last, seq)
		}
		m, err := s.Meta(t.Context())
		if err != nil || m.Copied || generation != "" && m.Generation != generation {
			t.Errorf("after a kill: %+v, %v, generation before %s", m, err, generation)
		}
		generation = m.Generation
		shut(t, s)
	}
}

// TestPlans keeps the queries that run often from reading whole tables.
func TestPlans(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "broker.db"))
	whole := map[string]string{ // tables that a query is meant to read from end to end
		"accounts.load": "accounts", "documents.cooldowns_load": "cooldowns", "documents.settings_load": "settings", "documents.tokens_load": "tokens",
	}
	for _, name := range []string{
		"jobs.load", "tasks.load", "attempts.load", "checkpoints.load", "instances.load", "accounts.load", "holds.load",
		"documents.cooldowns_load", "documents.settings_load", "documents.tokens_load", "events.last", "entries.last",
		"jobs.insert", "jobs.update", "tasks.insert", "tasks.update", "attempts.insert", "attempts.update", "checkpoints.update",
		"instances.update", "accounts.update", "holds.update", "store.fence",
		"jobs.get", "jobs.page", "jobs.page_open", "jobs.page_key", "tasks.get", "tasks.page", "attempts.get", "attempts.page",
		"attempts.page_job", "attempts.page_instance", "checkpoints.of_task", "instances.get", "instances.page", "accounts.of_budget",
		"holds.of_instance", "entries.page", "entries.page_job", "entries.page_instance", "events.page", "events.page_last",
		"events.page_job", "events.page_job_last", "inputs.get", "jobs.old", "instances.old", "jobs.prune", "tasks.prune",
		"attempts.prune", "checkpoints.prune", "holds.prune", "inputs.prune", "instances.prune", "events.prune",
	} {
		text := s.Query(name)
		var args []any
		for n := 1; strings.Contains(text, fmt.Sprint("$", n)); n++ {
			args = append(args, "1")
		}
		for _, step := range plan(t, s, text, args) {
			words := strings.Fields(step)
			switch {
			case words[0] != "SCAN" || strings.Contains(step, "USING"), // by an index, in its order
				strings.Contains(step, "jsonb_each"), words[1] == "e", words[1] == "r", // the parameter
				strings.Contains(step, "CONSTANT ROW"), words[1] == whole[name]:
			default:
				t.Errorf("%s reads a whole table: %s", name, step)
			}
		}
	}
}

func plan(t *testing.T, s *store.Store, query string, args []any) (steps []string) {
	t.Helper()
	rows, err := s.Reader().Query("EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatal(query, err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, step)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return steps
}
