package spec

import "testing"

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
