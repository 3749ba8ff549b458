package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpubroker/internal/pgtest"
	"gpubroker/internal/store"
	"gpubroker/queue"
)

// engines runs a benchmark on both, under a leader.
func engines(b *testing.B, run func(b *testing.B, s *store.Store, path string, epoch int64)) {
	for _, name := range []string{"sqlite", "postgres"} {
		b.Run(name, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "broker.db")
			url := path
			if name == "postgres" {
				url = pgtest.Database(b)
			}
			s, err := store.Open(b.Context(), url, store.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			epoch, err := s.Lead(b.Context(), "bench", 24*time.Hour)
			if err != nil {
				b.Fatal(err)
			}
			run(b, s, path, epoch)
		})
	}
}

func benchJob(id string, count int) *queue.Job {
	return &queue.Job{ID: id, Version: 1, Project: "media", Queue: "overnight", Count: count, Spec: []byte(`{}`), Accepted: time.Now().UTC()}
}

// placement is a task's first row and its attempt, as a pass writes them.
func placement(job string, i int) (*queue.Task, *queue.Attempt) {
	id := queue.TaskID{Job: job, Index: i}
	a := &queue.Attempt{
		ID: fmt.Sprintf("0190a0c2-6b7e-7c3e-8f43-%012d", i), TaskID: id, Version: 1, Number: 1,
		Token: "5e884898da28047151d0e56f8dc62927", Instance: "0190a0c2-6b7e-7c3e-8f43-1234567890ab",
		State: queue.AttemptAssigned, Created: time.Now().UTC(),
	}
	return &queue.Task{TaskID: id, Version: 1, State: queue.TaskRunning, Attempt: a.ID, Attempts: 1}, a
}

func commit(b testing.TB, s *store.Store, batch *queue.Batch) {
	if err := s.Commit(b.Context(), batch); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPlacements commits 1,000 placements at once: 1,000 tasks, 1,000
// attempts and their job. The goal is 15,000 placements a second.
func BenchmarkPlacements(b *testing.B) {
	engines(b, func(b *testing.B, s *store.Store, _ string, epoch int64) {
		const n = 1000
		j := benchJob("0190a0c2-6b7e-7c3e-8f43-1234567890aa", 1<<40)
		commit(b, s, &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{j}})
		i := 0
		for b.Loop() {
			j.Version++
			batch := &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{j}}
			for range n {
				task, a := placement(j.ID, i)
				batch.Tasks, batch.Attempts = append(batch.Tasks, task), append(batch.Attempts, a)
				i++
			}
			commit(b, s, batch)
		}
		b.ReportMetric(float64(i)/b.Elapsed().Seconds(), "placements/s")
	})
}

// BenchmarkCommit commits one changed job and an event.
func BenchmarkCommit(b *testing.B) {
	engines(b, func(b *testing.B, s *store.Store, _ string, epoch int64) {
		j := benchJob("job", 10)
		commit(b, s, &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{j}})
		for b.Loop() {
			j.Version++
			commit(b, s, &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{j}, Events: []*queue.Event{{Seq: j.Version, Kind: "job", Job: j.ID}}})
		}
		b.ReportMetric(float64(j.Version)/b.Elapsed().Seconds(), "commits/s")
	})
}

// BenchmarkLoad loads 10,000 instances, 10,000 running tasks and their attempts.
func BenchmarkLoad(b *testing.B) {
	engines(b, func(b *testing.B, s *store.Store, _ string, epoch int64) {
		const n = 10_000
		batch := &queue.Batch{Epoch: epoch, Jobs: []*queue.Job{benchJob("job", n)}}
		for i := range n {
			task, a := placement("job", i)
			batch.Tasks, batch.Attempts = append(batch.Tasks, task), append(batch.Attempts, a)
			batch.Instances = append(batch.Instances, &queue.Instance{
				ID: fmt.Sprint("i", i), Version: 1, State: queue.InstanceReady, Project: "media", Provider: "aws", Region: "eu-west-1",
				Zone: "eu-west-1a", Type: "g6.xlarge", Kind: "spot", GPU: "l4", GPUs: 1, Slots: 2, Price: 1, Bound: 2, OnDemand: 3,
				SelfEnd: "rolling", Requested: a.Created, Launched: a.Created, Ready: a.Created, Lease: a.Created, End: a.Created, Boot: a.Created,
			})
		}
		commit(b, s, batch)
		for b.Loop() {
			im, err := s.Load(b.Context())
			if err != nil || len(im.Instances) != n || len(im.Tasks) != n || len(im.Attempts) != n {
				b.Fatal(err, len(im.Instances), len(im.Tasks), len(im.Attempts))
			}
		}
	})
}

// BenchmarkInputs stores the inputs of 1,000,000 tasks in calls of 20 chunks.
// The goals are 10 s and 100 bytes of disk for each task.
func BenchmarkInputs(b *testing.B) {
	engines(b, func(b *testing.B, s *store.Store, path string, _ int64) {
		const n = 1_000_000
		jobs := 0
		for b.Loop() {
			job := fmt.Sprint("job", jobs)
			jobs++
			var chunks []*queue.Inputs
			for i := range n {
				if i%queue.ChunkSize == 0 {
					chunks = append(chunks, &queue.Inputs{Job: job, Chunk: i / queue.ChunkSize})
				}
				c := chunks[len(chunks)-1]
				// Names as a camera or a crawler makes them: a part that counts and
				// one that does not repeat.
				c.Values = append(c.Values, fmt.Sprintf("s3://footage/incoming/2026-03-%02d/clip-%07d-%08x.mov", i%28, i, uint32(i)*2654435761))
				if len(chunks) == 20 && len(c.Values) == queue.ChunkSize {
					if err := s.PutInputs(b.Context(), chunks); err != nil {
						b.Fatal(err)
					}
					chunks = chunks[:0]
				}
			}
			if len(chunks) > 0 {
				b.Fatal("inputs are left over")
			}
		}
		b.ReportMetric(b.Elapsed().Seconds()/float64(jobs), "s/million")
		files, err := filepath.Glob(path + "*") // with the log that is not merged yet
		if err != nil {
			b.Fatal(err)
		}
		var bytes int64
		for _, f := range files {
			st, err := os.Stat(f)
			if err != nil {
				b.Fatal(err)
			}
			bytes += st.Size()
		}
		if bytes > 0 {
			b.ReportMetric(float64(bytes)/float64(jobs)/n, "disk-bytes/task")
		}
	})
}

// BenchmarkOpen opens a store of this version again.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "broker.db")
	for b.Loop() {
		s, err := store.Open(b.Context(), path, store.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
