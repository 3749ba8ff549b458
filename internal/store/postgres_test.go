package store_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpubroker/internal/pgtest"
	"gpubroker/internal/store"
	"gpubroker/queue"
)

func TestPostgresCopies(t *testing.T) {
	address := pgtest.Database(t)
	s := open(t, address)
	put(t, s, 1)
	first, err := s.Meta(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shut(t, s)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/")
	pgtest.Exec(t, "CREATE DATABASE "+name+"_copy TEMPLATE "+name)
	defer pgtest.Exec(t, "DROP DATABASE "+name+"_copy WITH (FORCE)")
	u.Path += "_copy"

	s = open(t, u.String())
	defer s.Close()
	if m, err := s.Meta(t.Context()); err != nil || !m.Copied || !strings.Contains(m.Why, "database") || m.Generation != first.Generation {
		t.Fatalf("a copied database says %+v, %v", m, err)
	}
	if m, err := s.Adopt(t.Context()); err != nil || m.Copied || m.Generation == first.Generation {
		t.Fatalf("adopted: %+v, %v", m, err)
	}
	if m, err := open(t, address).Meta(t.Context()); err != nil || m != first {
		t.Fatalf("the original says %+v, %v; before %+v", m, err, first)
	}
}

func TestPostgresRefusals(t *testing.T) {
	address := pgtest.Database(t)
	s := open(t, address)
	epoch := leads(t, s)

	_, err := store.Open(t.Context(), address+"&synchronous_commit=off", store.Options{})
	if err == nil || !strings.Contains(err.Error(), "synchronous_commit") {
		t.Errorf("with synchronous_commit off: %v", err)
	}
	_, err = store.Open(t.Context(), "postgres://ann:secret@/nowhere?host="+t.TempDir(), store.Options{})
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("with no server: %v", err)
	}

	// The server's own words for a full disk.
	for _, statement := range []string{
		`CREATE FUNCTION nospace() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no space' USING ERRCODE = '53100'; END $$`,
		`CREATE TRIGGER nospace BEFORE INSERT ON events EXECUTE FUNCTION nospace()`,
	} {
		if _, err := s.Writer().Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, s.Commit(t.Context(), &queue.Batch{
		Epoch: epoch, Settings: []*queue.Setting{{Key: "a"}}, Events: []*queue.Event{{Seq: 1}},
	}), queue.ErrFull, "free space")
	if im, err := s.Load(t.Context()); err != nil || len(im.Settings) != 0 {
		t.Errorf("half of a batch: %v, %v", im.Settings, err)
	}

	if _, err := s.Writer().Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)`); err != nil {
		t.Fatal(err)
	}
	_, err = store.Open(t.Context(), address, store.Options{})
	wantError(t, err, queue.ErrNewer, "99")
}

func TestPostgresReplicasStartAtOnce(t *testing.T) {
	address := pgtest.Database(t)
	generations := make([]string, 4)
	var wg sync.WaitGroup
	for i := range generations {
		wg.Go(func() {
			s, err := store.Open(t.Context(), address, store.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			m, err := s.Meta(t.Context())
			if err != nil || m.Copied {
				t.Error(m, err)
			}
			generations[i] = m.Generation
		})
	}
	wg.Wait()
	for _, g := range generations {
		if g != generations[0] {
			t.Fatalf("generations %v", generations)
		}
	}
}

// TestPostgresCutCommit cuts the connection around COMMIT: the store asks what
// became of it, and is right.
func TestPostgresCutCommit(t *testing.T) {
	for name, c := range map[string]struct {
		cut     cut
		down    bool // and stays away
		want    error
		written bool
	}{
		"before the server has it":          {cutRequest, false, nil, false},
		"after the server has done it":      {cutAnswer, false, nil, true},
		"after, and the server stays away":  {cutAnswer, true, queue.ErrUnknown, true},
		"before, and the server stays away": {cutRequest, true, queue.ErrUnknown, false},
		"not at all":                        {0, false, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			address := pgtest.Database(t)
			p := newProxy(t, address)
			s := open(t, p.url)
			epoch := leads(t, s)
			p.armed.Store(int32(c.cut))
			p.stayDown.Store(c.down)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := s.Commit(ctx, &queue.Batch{Epoch: epoch, Events: []*queue.Event{{Seq: 1}}})
			switch {
			case c.want != nil:
				if !errors.Is(err, c.want) {
					t.Errorf("error is %v, want %v", err, c.want)
				}
			case c.written && err != nil, !c.written && err == nil, errors.Is(err, queue.ErrUnknown):
				t.Errorf("error is %v, written %v", err, c.written)
			}
			if written := lastEvent(t, open(t, address)) == 1; written != c.written {
				t.Errorf("written %v, want %v", written, c.written)
			}
			if c.want == nil { // the store goes on
				commit(t, s, &queue.Batch{Epoch: epoch, Events: []*queue.Event{{Seq: 2}}})
			}
		})
	}
}

type cut int32

const (
	cutRequest cut = iota + 1 // when the client sends COMMIT
	cutAnswer                 // when the server answers it
)

// proxy stands before the server and cuts a connection at COMMIT, once.
type proxy struct {
	url      string
	armed    atomic.Int32
	stayDown atomic.Bool
	down     atomic.Bool
}

func newProxy(t *testing.T, address string) *proxy {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	server := filepath.Join(query.Get("host"), ".s.PGSQL.5432")
	folder, err := os.MkdirTemp("", "proxy") // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(folder, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); os.RemoveAll(folder) })
	query.Set("host", folder)
	u.RawQuery = query.Encode()
	p := &proxy{url: u.String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			if p.down.Load() {
				client.Close()
				continue
			}
			backend, err := net.Dial("unix", server)
			if err != nil {
				t.Error(err)
				client.Close()
				continue
			}
			go p.carry(client, backend, cutRequest, "commit\x00")
			go p.carry(backend, client, cutAnswer, "COMMIT\x00")
		}
	}()
	return p
}

func (p *proxy) carry(from, to net.Conn, at cut, sign string) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if bytes.Contains(buf[:n], []byte(sign)) && p.armed.CompareAndSwap(int32(at), 0) {
			p.down.Store(p.stayDown.Load())
			return
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return // one side has gone
		}
	}
}
