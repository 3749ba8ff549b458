package demo

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"gpubroker/internal/api"
	"gpubroker/internal/reason"
	"gpubroker/queue"
)

// However long names and reasons are, a line fits 100 columns, and is cut at a word.
func TestLinesFit(t *testing.T) {
	var out bytes.Buffer
	s := &show{out: &out, start: time.Now(), names: map[string]string{"j1": "nightly-ladder-of-a-long-name"}}
	for kind := range told {
		for _, why := range []reason.Reason{
			{},
			reason.New("launch_failed", "code", "no_capacity", "market", "sim/sim-east/sim-east-a/cpu8/on-demand"),
			reason.New("launching", "market", "sim/sim-east/sim-east-a/cpu8/on-demand"),
			reason.New("lost", "since", "06:00:00Z"), reason.New("preempted_notice", "notice", "5s"),
			reason.New("lease_ended", "why", strings.Repeat("the budget has no room ", 10)),
		} {
			index := 12
			s.event(api.Event{Event: &queue.Event{Kind: kind, Job: "j1", Index: &index, Reason: why}, Text: why.String()})
			s.event(api.Event{Event: &queue.Event{Kind: kind, Instance: "i1m8nj0ce32ecban6f", Reason: why}, Text: why.String()})
		}
	}
	busy := &state{jobs: []api.Job{
		{Name: "nightly-ladder", Tasks: 24, Counts: queue.Counts{Succeeded: 11, Running: 12}},
		{Name: "render-dawn", Tasks: 1, Counts: queue.Counts{Running: 1}},
		{Name: "render-dusk", Tasks: 1},
		{Name: "steady-index", Tasks: 1, Counts: queue.Counts{Succeeded: 1}},
	}}
	s.status(busy)
	if !strings.Contains(out.String(), "ladder 11/24 12▸, dawn ▸, dusk ·, index ✓ | 0 spot, 0 steady | $0.00 spent, $0.00 held\n") {
		t.Errorf("the status is not shown whole:\n%s", out.String())
	}
	s.trouble(errors.New("no broker answers at http://127.0.0.1:7743: " + strings.Repeat("connection refused, ", 8)))
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
		if cutAt := strings.Index(line, "…\n"); cutAt > 0 && !strings.ContainsAny(line[cutAt-1:cutAt], "abcdefghijklmnopqrstuvwxyz0123456789") {
			t.Errorf("not cut at a word: %s", line)
		}
		if strings.ContainsAny(line, "\x1b\r") {
			t.Errorf("codes of a terminal in a file: %q", line)
		}
	}
}
