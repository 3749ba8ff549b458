package agent

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"gpubroker/internal/agentapi"
)

// What a program prints can be no number, which no report could hold.
func TestProgressIsANumber(t *testing.T) {
	l, err := openLog(filepath.Join(t.TempDir(), "log"), `loss (\S+)`)
	if err != nil {
		t.Fatal(err)
	}
	defer l.file.Close()
	if _, err := l.Write([]byte("loss nan\n")); err != nil {
		t.Fatal(err)
	}
	if units, _ := l.progress(); units != nil {
		t.Errorf("read %v", *units)
	}
	if _, err := l.Write([]byte("loss 0.5\nloss NaN\nloss -inf\n")); err != nil {
		t.Fatal(err)
	}
	units, _ := l.progress()
	if units == nil || *units != 0.5 {
		t.Errorf("read %v, want 0.5", units)
	}
	if _, err := json.Marshal(agentapi.ObservedAttempt{Units: units}); err != nil {
		t.Error(err)
	}
}

// Outputs that do not fit one report are told one after another.
func TestLargeOutputsTakeTurns(t *testing.T) {
	a := New(Settings{Dir: t.TempDir()}, Parts{Clock: newTestClock(), Log: testLog(t)})
	a.ctx = t.Context()
	for id, size := range map[string]int{"a": agentapi.MaxOutput - 10, "b": 11, "c": 10} {
		a.attempts[id] = newAttempt(a, record{ID: id, Output: &agentapi.Output{Digest: id}, OutputSize: size})
	}
	told := ""
	for _, seen := range a.observe().Attempts {
		if seen.Output != nil {
			told += seen.Output.Digest
		}
	}
	if told != "ac" {
		t.Errorf("told the outputs of %q, want a and c", told)
	}
}
