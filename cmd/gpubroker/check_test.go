package main

import (
	"os"
	"path/filepath"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

func TestCheckSaysWhatServeWouldRefuse(t *testing.T) {
	t.Setenv("SIMCLOUD_TOKEN", "t")
	file := filepath.Join(t.TempDir(), "broker.yaml")
	for text, want := range map[string]string{
		`{name: sim, type: simcloud, settings: {endpoint: "http://127.0.0.1:1", token: "env:SIMCLOUD_TOKEN"}}`: "",
		`{name: a, type: aws, settings: {region: us-east-1, disk: 50GX}}
  - {name: l, type: lambda, settings: {key: "env:SIMCLOUD_TOKEN"}}
  - {name: r, type: runpod, settings: {key: "env:GPUBROKER_NOT_SET"}}`: `provider a: settings: disk: expected a size such as 512MiB, 4GiB or 50GB, found "50GX"
provider a: settings: unknown key "region"; did you mean "regions" or "by_region"?
provider l: ssh_key is missing: a launch names exactly one key of your account
provider r: key: secret env:GPUBROKER_NOT_SET: the environment variable is not set; set it where the program runs`,
	} {
		if err := os.WriteFile(file, []byte("providers:\n  - "+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := checkConfig(t.Context(), file); err != nil {
			got = err.Error()
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}
