package azure

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

type said struct {
	Source string
	Status int
	Header map[string]string
	Body   json.RawMessage
	Want   struct {
		Code    providers.Code
		Scope   providers.ErrScope
		Outcome providers.Outcome
		After   int `json:"retry_after_seconds"`
	}
}

// TestErrorTable: what answers of Azure mean, by their bodies. The text alone was
// shortened and made anonymous.
func TestErrorTable(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.json")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var s said
			if err := json.Unmarshal(data, &s); err != nil || s.Source == "" {
				t.Fatalf("%v, source %q", err, s.Source)
			}
			body := []byte(s.Body)
			var plain string
			if json.Unmarshal(s.Body, &plain) == nil {
				body = []byte(plain)
			}
			header := http.Header{}
			for k, v := range s.Header {
				header.Set(k, v)
			}
			e := judge(rest.Answer{Status: s.Status, Header: header, Body: body})
			got := s.Want
			got.Code, got.Scope, got.Outcome, got.After = e.Code, e.Scope, e.Outcome, int(e.RetryAfter/time.Second)
			if diff := cmp.Diff(s.Want, got); diff != "" {
				t.Errorf("%s: %s", s.Body, diff)
			}
		})
	}
}

// TestTableIsWhole: each rule has a code and a scope of the contract, and no
// refusal that certainly made nothing is of unknown outcome by mistake.
func TestTableIsWhole(t *testing.T) {
	for code, r := range byCode {
		if _, ok := providers.Reactions()[r.code]; !ok || r.scope == "" || r.outcome == "" {
			t.Errorf("%s: %+v", code, r)
		}
		if later := r.code == providers.Unavailable || r.code == providers.Conflict; later != (r.outcome == providers.OutcomeUnknown) {
			t.Errorf("%s is %s with the outcome %s", code, r.code, r.outcome)
		}
	}
}
