//go:build linux

package api_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpubroker/internal/api"
	"gpubroker/internal/api/client"
	"gpubroker/internal/control"
	"gpubroker/internal/market"
	"gpubroker/internal/spec"
	"gpubroker/internal/state"
	"gpubroker/internal/store"
	"gpubroker/scheduler"
)

// BenchmarkSubmit hands in jobs of 1,000,000 tasks through the API, over a
// loopback connection and by the client that the command line uses: tasks that
// differ by their index, and one for each line of a file. The goals are 10 s,
// 100 bytes of disk and 64 bytes of memory for each task.
func BenchmarkSubmit(b *testing.B) {
	const n = 1_000_000
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	lines := make([]string, n)
	for i := range lines {
		// Names as a camera or a crawler makes them: a part that counts and one that
		// does not repeat.
		lines[i] = fmt.Sprintf("s3://footage/incoming/2026-03-%02d/clip-%07d-%08x.mov", i%28, i, uint32(i)*2654435761)
	}
	for _, kind := range []string{"count", "file"} {
		b.Run(kind, func(b *testing.B) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			path := filepath.Join(b.TempDir(), "store.db")
			st, err := store.Open(ctx, path, store.Options{})
			check(err)
			epoch, err := st.Lead(ctx, "bench", time.Hour)
			check(err)
			tables, err := state.Open(ctx, st, slog.New(slog.DiscardHandler))
			check(err)
			tables.SetEpoch(epoch)
			meta, err := st.Meta(ctx)
			check(err)
			log := slog.New(slog.DiscardHandler)
			broker := control.New(control.Settings{Owner: "broker", Plan: scheduler.Settings{Lease: 20 * time.Minute}}, tables, meta, nil, market.New(), nil, nil, log)
			stopped := make(chan struct{})
			go func() { defer close(stopped); _ = tables.Run(ctx) }()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			check(err)
			srv := &http.Server{Handler: api.New(broker, api.Options{Log: log}), BaseContext: func(net.Listener) context.Context { return ctx }}
			go func() { _ = srv.Serve(l) }()
			text, row := api.NewToken("bench", api.Admin, nil, time.Now().UTC(), time.Time{})
			check(tables.Do(ctx, func(tx *state.Tx) error { tx.PutToken(row); return nil }))
			c, err := client.New(client.Settings{URL: "http://" + l.Addr().String(), Token: text})
			check(err)
			tasks := "{count: 1000000}"
			if kind == "file" {
				tasks = "{file: clips.txt}"
			}
			s, err := spec.Parse("job", []byte("{name: bench, project: lab, tasks: "+tasks+", run: {command: [work, \"{{input}}\"]}}"))
			if kind == "count" {
				s, err = spec.Parse("job", []byte("{name: bench, project: lab, tasks: "+tasks+", run: {command: [work, \"{{index}}\"]}}"))
			}
			check(err)
			request := api.SubmitRequest{Spec: s.Canonical()}
			if kind == "file" {
				request.Inputs = lines
			}
			held, kept, jobs := memory(), size(b, path), 0
			for b.Loop() {
				j, err := c.Submit(ctx, request)
				check(err)
				if j.Tasks != n {
					b.Fatalf("%d tasks are accepted", j.Tasks)
				}
				jobs++
			}
			tasksIn := float64(jobs) * n
			b.ReportMetric(b.Elapsed().Seconds()/float64(jobs), "s/million")
			b.ReportMetric(float64(size(b, path)-kept)/tasksIn, "disk-B/task")
			b.ReportMetric(float64(max(0, memory()-held))/tasksIn, "mem-B/task")
			cancel()
			check(srv.Close())
			<-stopped
			check(st.Close())
		})
	}
}

// size is what a store takes on the disk, with the log that is not merged yet.
func size(b *testing.B, path string) int64 {
	b.Helper()
	files, err := filepath.Glob(path + "*")
	var sum int64
	for _, f := range files {
		st, e := os.Stat(f)
		err = errors.Join(err, e)
		if e == nil {
			sum += st.Size()
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	return sum
}
