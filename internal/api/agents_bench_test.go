//go:build linux

package api_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/api"
	"gpubroker/internal/control"
	"gpubroker/internal/market"
	"gpubroker/internal/objects"
	"gpubroker/internal/spec"
	"gpubroker/internal/state"
	"gpubroker/internal/store"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

// agents is how many agents hang on one broker in the benchmark: both ends of
// their connections are in this process, which must be allowed 20,000 files.
const agents = 9_500

// BenchmarkAgents hangs 9,500 agents, each with a running task, on one broker
// over loopback connections, and reports what each costs in memory while nothing
// happens, and how long a report that changes nothing takes.
func BenchmarkAgents(b *testing.B) {
	limit := syscall.Rlimit{Cur: 2*agents + 500, Max: 2*agents + 500}
	var had syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &had); err == nil {
		limit.Max = max(limit.Max, had.Max)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		b.Skipf("%d open files are not allowed here: %v", limit.Cur, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir := b.TempDir()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	st, err := store.Open(ctx, filepath.Join(dir, "store.db"), store.Options{})
	check(err)
	epoch, err := st.Lead(ctx, "bench", time.Hour)
	check(err)
	tables, err := state.Open(ctx, st, slog.New(slog.DiscardHandler))
	check(err)
	tables.SetEpoch(epoch)
	meta, err := st.Meta(ctx)
	check(err)
	folders, err := objects.NewFolders("http://objects.internal", []byte(strings.Repeat("k", 32)), time.Now)
	check(err)
	kept, err := folders.Open(filepath.Join(dir, "objects"))
	check(err)
	log := slog.New(slog.DiscardHandler)
	broker := control.New(control.Settings{Owner: "broker", Plan: scheduler.Settings{Lease: 20 * time.Minute}}, tables, meta, nil, market.New(), kept, nil, log)
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = tables.Run(ctx) }()

	before := memory()
	job, err := spec.Parse("job", []byte("{name: bench, project: lab, tasks: {count: 10000}, run: {command: [work]}}"))
	check(err)
	row, err := broker.Submit(ctx, control.Submission{Spec: job}, nil)
	check(err)
	for from := 0; from < agents; from += 500 {
		check(tables.Do(ctx, func(tx *state.Tx) error {
			j := tx.EditJob(row.ID)
			for n := from; n < from+500; n++ {
				id := fmt.Sprintf("i%05d", n)
				sum := sha256.Sum256([]byte(id))
				tx.AddInstance(&queue.Instance{
					ID: id, State: queue.InstanceReady, Project: "lab", Provider: "sim", Region: "r", Zone: "z", Type: "t", Kind: "spot",
					GPU: "l4", GPUs: 1, Slots: 1, Requested: tx.Now, Launched: tx.Now, Ready: tx.Now, Lease: tx.Now.Add(time.Hour),
					Credential: hex.EncodeToString(sum[:]),
				})
				task := tx.AddTask(&queue.Task{TaskID: queue.TaskID{Job: row.ID, Index: n}})
				j.Next++
				if err := queue.SetTask(j, task, queue.TaskRunning); err != nil {
					return err
				}
				a := tx.AddAttempt(&queue.Attempt{
					ID: fmt.Sprintf("a%05d", n), TaskID: task.TaskID, Token: tx.NewToken(), Number: 1, Instance: id,
					State: queue.AttemptRunning, Created: tx.Now, Started: tx.Now,
				})
				task.Attempt, task.Attempts = a.ID, 1
			}
			return nil
		}))
	}
	perTask := float64(memory()-before) / agents

	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	srv := &http.Server{Handler: api.New(broker, api.Options{Log: log}), BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() { _ = srv.Serve(l) }()
	before = memory()
	held := make([]*wire, agents)
	var syncs time.Duration
	for n := range held {
		w, err := dial(l.Addr().String(), fmt.Sprintf("i%05d", n))
		check(err)
		held[n] = w
		start := time.Now()
		check(w.report(0)) // is answered at once: the agent follows nothing yet
		syncs += time.Since(start)
	}
	for _, w := range held {
		check(w.send(agentapi.MaxWait))
	}
	perConnection := float64(memory()-before) / agents
	for _, w := range held {
		check(w.receive())
	}
	n := 0
	for b.Loop() {
		check(held[n%agents].report(0))
		n++
	}
	b.ReportMetric(perTask, "B/task")
	b.ReportMetric(perConnection, "B/connection")
	b.ReportMetric(float64(syncs.Microseconds())/agents, "µs/first-sync")
	for _, w := range held {
		check(w.conn.Close())
	}
	cancel()
	check(srv.Close())
	<-stopped
	check(errors.Join(st.Close(), folders.Close()))
}

// memory is what is in use after a collection: heap and stacks.
func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// wire is an agent's connection, without what a real client costs.
type wire struct {
	conn     net.Conn
	id       string
	revision string
	sent     agentapi.Ticks
}

func dial(address, id string) (*wire, error) {
	conn, err := net.Dial("tcp", address)
	return &wire{conn: conn, id: id}, err
}

func (w *wire) report(wait time.Duration) error {
	if err := w.send(wait); err != nil {
		return err
	}
	return w.receive()
}

func (w *wire) send(wait time.Duration) error {
	w.sent++
	body, err := json.Marshal(agentapi.Observed{
		Instance: w.id, BootID: "b", Sent: w.sent, Revision: w.revision, Wait: agentapi.Of(wait), Attempts: []agentapi.ObservedAttempt{},
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w.conn, "POST %s HTTP/1.1\r\nHost: broker\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", agentapi.PathSync, w.id, len(body), body)
	return err
}

func (w *wire) receive() error {
	res, err := http.ReadResponse(bufio.NewReader(w.conn), nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var d agentapi.Desired
	if err := json.NewDecoder(res.Body).Decode(&d); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("agent %s: %s", w.id, res.Status)
	}
	w.revision = d.Revision
	return nil
}
