package spec

import (
	"slices"
	"strings"
	"testing"
)

// A preset may stand where the saves are described: it is the same preset.
func TestPresetUnderCheckpoint(t *testing.T) {
	const run = "\nrun: {command: [gmx, mdrun]}\n"
	at, err := Parse("job", []byte("name: md\npreset: gromacs"+run))
	if err != nil {
		t.Fatal(err)
	}
	under, err := Parse("job", []byte("name: md\ncheckpoint: {preset: gromacs}"+run))
	if err != nil {
		t.Fatal(err)
	}
	if string(at.Canonical()) != string(under.Canonical()) {
		t.Errorf("%s\n%s", at.Canonical(), under.Canonical())
	}
	for _, text := range []string{"checkpoint: {preset: gromax}", "preset: ffmpeg\ncheckpoint: {preset: gromacs}"} {
		if _, err := Parse("job", []byte("name: md\n"+text+run)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// What is appended to is named by the preset or the job, and well.
func TestAppend(t *testing.T) {
	parse := func(checkpoint string) (*Job, error) {
		return Parse("job", []byte("name: md\ncheckpoint: "+checkpoint+"\nrun: {command: [x]}\n"))
	}
	for text, want := range map[string][]string{
		`{dir: ckpt}`:                                  nil,
		`{dir: ckpt, append: "*.log"}`:                 {"*.log"},
		`{preset: gromacs, append: [md.log, a/*.xtc]}`: {"md.log", "a/*.xtc"},
		`{preset: openfoam}`:                           {"log.*", "*.dat"},
	} {
		j, err := parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := j.WithDefaults().Checkpoint.Append; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	for _, bad := range []string{"/var/log/x", "../x", "a[", "run/**/x.log", "a//b", ""} {
		_, err := parse(`{dir: ckpt, append: ["` + bad + `"]}`)
		if err == nil || !strings.Contains(err.Error(), "checkpoint.append[0]") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
