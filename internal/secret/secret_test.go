package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRef(t *testing.T) {
	for _, text := range []string{"env:HF_TOKEN", "file:/run/secrets/x"} {
		var r Ref
		if err := r.UnmarshalText([]byte(text)); err != nil || r.String() != text {
			t.Errorf("%s: %v, %v", text, r, err)
		}
	}
	for _, text := range []string{"hunter2", "env:", "env:a b hunter2", "file:hunter2", "HF_TOKEN", ""} {
		var r Ref
		err := r.UnmarshalText([]byte(text))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestReadAndNeverShow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPUBROKER_TEST_SECRET", "hunter2")
	for _, ref := range []string{"env:GPUBROKER_TEST_SECRET", "file:" + path} {
		v, err := Ref{ref}.Read()
		if err != nil || v.Reveal() != "hunter2" {
			t.Fatalf("%s: %q, %v", ref, v.Reveal(), err)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v, "in", struct{ V Value }{v})
		b, err := json.Marshal(map[string]any{"v": v})
		if err != nil {
			t.Fatal(err)
		}
		if shown := fmt.Sprintf("%v %+v %#v %s %q", v, v, v, v, v) + log.String() + string(b); strings.Contains(shown, "hunter2") {
			t.Errorf("shown: %s", shown)
		}
	}
	for _, ref := range []string{"env:GPUBROKER_TEST_UNSET", "file:" + path + ".missing"} {
		if _, err := (Ref{ref}).Read(); err == nil || !strings.Contains(err.Error(), ref) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}
