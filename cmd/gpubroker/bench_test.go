//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkIdle builds both programs as they are released and runs a broker that
// has nothing to do: alone, and with the simulated cloud as its provider. It
// reports the time until the broker answers, and then over 10 s what it holds in
// memory and uses of a processor. The goal is 60 MB.
func BenchmarkIdle(b *testing.B) {
	bin := b.TempDir()
	build := exec.CommandContext(b.Context(), "go", "build", "-ldflags", "-s -w", "-o", bin+"/", ".", "../gpubroker-agent")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	bytesOf := func(name string) float64 {
		st, err := os.Stat(filepath.Join(bin, name))
		if err != nil {
			b.Fatal(err)
		}
		return float64(st.Size())
	}
	b.Run("alone", func(b *testing.B) {
		idle(b, filepath.Join(bin, "gpubroker"), "")
		b.ReportMetric(bytesOf("gpubroker")/1e6, "broker-MB")
		b.ReportMetric(bytesOf("gpubroker-agent")/1e6, "agent-MB")
	})
	b.Run("simcloud", func(b *testing.B) {
		const address = "127.0.0.1:18700"
		program(b, "SIMCLOUD_TOKEN=bench", filepath.Join(bin, "gpubroker"), "simcloud", "--listen", address)
		idle(b, filepath.Join(bin, "gpubroker"), `
providers:
  - name: sim
    type: simcloud
    allow_guest_end: true
    settings: {endpoint: "http://`+address+`", token: "env:SIMCLOUD_TOKEN"}
`)
	})
}

// program starts one that is interrupted when the benchmark ends, and returns
// its process id.
func program(b *testing.B, env, name string, args ...string) int {
	b.Helper()
	var log bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			b.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			b.Errorf("%s %s: %v\n%s", name, args[0], err, log.Bytes())
		}
	})
	return cmd.Process.Pid
}

func idle(b *testing.B, broker, providers string) {
	b.Helper()
	const watched = 10 * time.Second
	var up time.Duration
	var memory, private, used float64
	for b.Loop() {
		dir := b.TempDir()
		config := filepath.Join(dir, "gpubroker.yaml")
		if err := os.WriteFile(config, fmt.Appendf(nil, "data_dir: %s\nlisten: 127.0.0.1:0\n%s", dir, providers), 0o600); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		pid := program(b, "SIMCLOUD_TOKEN=bench", broker, "serve", "--config", config)
		for !answers(b, filepath.Join(dir, "client.json")) {
			if time.Since(start) > time.Minute {
				b.Fatal("the broker does not answer")
			}
			time.Sleep(time.Millisecond)
		}
		up += time.Since(start)
		before := processor(b, pid)
		time.Sleep(watched)
		used += (processor(b, pid) - before).Seconds() / watched.Seconds() * 1000
		memory += status(b, pid, "VmRSS") / 1e6
		private += status(b, pid, "RssAnon") / 1e6
	}
	b.ReportMetric(float64(up.Milliseconds())/float64(b.N), "start-ms")
	b.ReportMetric(memory/float64(b.N), "RSS-MB")
	b.ReportMetric(private/float64(b.N), "private-MB")
	b.ReportMetric(used/float64(b.N), "cpu-ms/s")
}

// answers reports whether the broker that a client file names is healthy.
func answers(b *testing.B, file string) bool {
	b.Helper()
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	var known struct{ URL string }
	if err := errors.Join(err, json.Unmarshal(text, &known)); err != nil {
		b.Fatal(err)
	}
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, known.URL+"/healthz", http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// status reads a figure in bytes of a process.
func status(b *testing.B, pid int, name string) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name+":" {
			n, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				b.Fatal(err)
			}
			return n * 1024
		}
	}
	b.Fatalf("the kernel does not say %s", name)
	return 0
}

// processor is how much processor time a process has used, in ticks of 10 ms.
func processor(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	// The name in brackets may hold blanks; the fields after it do not.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err := strconv.ParseInt(f[11], 10, 64)
	system, e := strconv.ParseInt(f[12], 10, 64)
	if err := errors.Join(err, e); err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
