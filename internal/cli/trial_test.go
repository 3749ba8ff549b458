package cli

import (
	"strings"
	"testing"

	"gpubroker/internal/spec"
)

func TestShareOfTasks(t *testing.T) {
	for _, row := range []struct {
		sample      string
		tasks, want int // -1: refused
	}{
		{"2%", 240, 5},
		{"2%", 10, 1},
		{"100%", 7, 7},
		{"0.5 %", 1000, 5},
		{"3", 240, 3},
		{"3", 2, 2},
		{"1", 1, 1},
		{"0", 5, -1},
		{"0%", 5, -1},
		{"-1", 5, -1},
		{"101%", 5, -1},
		{"1.5", 5, -1},
		{"two", 5, -1},
		{"", 5, -1},
		{"NaN", 5, -1},
		{"inf", 5, -1},
	} {
		n, err := share(row.sample, row.tasks)
		if row.want < 0 && err == nil || row.want >= 0 && (err != nil || n != row.want) {
			t.Errorf("%q of %d tasks: %d, %v, want %d", row.sample, row.tasks, n, err, row.want)
		}
	}
}

// Results of a trial never lie where the job's own results go, and always below
// their folder, to which the project has access.
func TestResultsOfATrialAreApart(t *testing.T) {
	for to, want := range map[string]string{
		"s3://done/{{stem}}.mp4":         "s3://done/T/l4/{{stem}}.mp4",
		"s3://done/films/{{stem}}/x.mp4": "s3://done/films/T/l4/{{stem}}/x.mp4",
		"s3://done/films/f{{index}}.mp4": "s3://done/films/T/l4/f{{index}}.mp4",
		"s3://bucket/model.bin":          "s3://bucket/T/l4/model.bin",
		"/data/out/":                     "/data/out/T/l4/",
		"out.txt":                        "T/l4/out.txt",
		"{{name}}/{{index}}":             "T/l4/{{name}}/{{index}}",
	} {
		if got := apart(to, "T/"+plainName("l4")+"/"); got != want {
			t.Errorf("%s: %s, want %s", to, got, want)
		}
	}
	if got := trialName(strings.Repeat("n", 63), "trial-20261105-220000", strings.Repeat("g", 60)); len(got) > 100 {
		t.Errorf("a name of %d letters: %s", len(got), got)
	}
	if got := plainName("RTX 4090/../x"); got != "RTX-4090----x" {
		t.Errorf("%s", got)
	}
}

func TestEachGPUIsTriedOnce(t *testing.T) {
	j, err := spec.Parse("job.yaml", []byte("name: x\nrun: {command: [x]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for on, want := range map[string]string{
		"l4,t4":         "",
		"l4,l4":         "--on names l4 twice",
		"l4,L4":         "--on: l4 and L4 are both l4; each GPU is tried once",
		"h100,h100-sxm": "--on: h100 and h100-sxm are both h100-sxm-80gb; each GPU is tried once",
		"l4,l5":         `no GPU is named "l5"; did you mean "l4"?`,
		"h100-sxm,a100": "",
	} {
		err := candidates(j, strings.Split(on, ","))
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("--on %s: %v, want %s", on, err, want)
		}
	}
}
