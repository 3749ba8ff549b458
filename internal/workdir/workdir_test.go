package workdir_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/workdir"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, dir, name, text string, mode fs.FileMode) {
	t.Helper()
	file := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.WriteFile(file, []byte(text), mode))
	must(t, os.Chmod(file, mode))
}

func pack(t *testing.T, dir string) ([]byte, workdir.Packed) {
	t.Helper()
	var b bytes.Buffer
	p, err := workdir.Pack(t.Context(), dir, &b, 0)
	must(t, err)
	if p.Bytes != int64(b.Len()) {
		t.Errorf("says %d bytes, wrote %d", p.Bytes, b.Len())
	}
	return b.Bytes(), p
}

func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			got[rel] = "folder"
		case st.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			got[rel] = "-> " + to
			return err
		default:
			data, err := os.ReadFile(name)
			got[rel] = st.Mode().String() + " " + string(data)
			return err
		}
		return nil
	}))
	return got
}

func TestPackAndUnpack(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "run.sh", "#!/bin/sh\n", 0o700)
	write(t, dir, "src/main.py", "print()", 0o600)
	write(t, dir, "src/main.pyc", "x", 0o644)
	write(t, dir, ".git/config", "x", 0o644)
	write(t, dir, "data/big.bin", "x", 0o644)
	write(t, dir, "data.txt", "kept", 0o644)
	write(t, dir, workdir.IgnoreFile, "# comment\n*.pyc\n/data/\n", 0o644)
	must(t, os.MkdirAll(filepath.Join(dir, "empty"), 0o755))
	must(t, os.Symlink("../run.sh", filepath.Join(dir, "src/link")))
	archive, p := pack(t, dir)

	// The same content gives the same bytes, whatever its times and place.
	other := t.TempDir()
	must(t, os.CopyFS(other, os.DirFS(dir)))
	must(t, os.Chtimes(filepath.Join(other, "run.sh"), time.Unix(1, 0), time.Unix(1, 0)))
	if again, q := pack(t, other); q != p || !bytes.Equal(again, archive) {
		t.Errorf("%+v, then %+v", p, q)
	}
	write(t, other, "src/main.py", "print(1)", 0o600)
	if _, q := pack(t, other); q.Digest == p.Digest {
		t.Error("other content, the same digest")
	}
	if !strings.HasPrefix(p.Key(), "workdirs/") || !strings.HasSuffix(p.Key(), ".tar.gz") || strings.Contains(p.Key(), ":") {
		t.Errorf("key %s", p.Key())
	}

	to := filepath.Join(t.TempDir(), "work")
	must(t, workdir.Unpack(t.Context(), bytes.NewReader(archive), to, 0))
	want := map[string]string{
		"run.sh": "-rwxr-xr-x #!/bin/sh\n", "src": "folder", "src/main.py": "-rw-r--r-- print()",
		"src/link": "-> ../run.sh", "data.txt": "-rw-r--r-- kept", "empty": "folder",
	}
	if d := cmp.Diff(want, tree(t, to)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// Cut anywhere, it is refused.
	for n := 0; n < len(archive); n += 7 {
		if err := workdir.Unpack(t.Context(), bytes.NewReader(archive[:n]), filepath.Join(t.TempDir(), "x"), 0); err == nil {
			t.Errorf("cut at %d of %d, taken", n, len(archive))
		}
	}
}

func TestPackRefuses(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "models/a", strings.Repeat("x", 3000), 0o644)
	write(t, dir, "b", "x", 0o644)
	_, err := workdir.Pack(t.Context(), dir, &bytes.Buffer{}, 3000)
	if e, ok := errors.AsType[*workdir.TooLargeError](err); !ok || !strings.HasPrefix(e.Largest[0], "models ") {
		t.Errorf("got %v, want a TooLargeError", err)
	}
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	if _, err := workdir.Pack(t.Context(), dir, &bytes.Buffer{}, 0); err == nil || !strings.Contains(err.Error(), "out") {
		t.Errorf("a link out: %v", err)
	}
	write(t, dir, workdir.IgnoreFile, "out\n[\n", 0o644)
	if _, err := workdir.Pack(t.Context(), dir, &bytes.Buffer{}, 0); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a bad pattern: %v", err)
	}
}

// archive makes a tar.gz of any headers.
func archive(t testing.TB, hs ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range hs {
		if h.Typeflag == tar.TypeReg {
			h.Size = 1
		}
		must(t, w.WriteHeader(&h))
		if h.Size > 0 {
			_, err := w.Write([]byte("x"))
			must(t, err)
		}
	}
	must(t, errors.Join(w.Close(), z.Close()))
	return b.Bytes()
}

// Nothing outside the folder is written, whatever the archive says.
func TestUnpackStaysInside(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	for name, a := range map[string][]byte{
		"traversal":         archive(t, file("../evil")),
		"deep traversal":    archive(t, file("a/../../evil")),
		"absolute":          archive(t, file("/tmp/evil")),
		"link out":          archive(t, link("l", "../..")),
		"absolute link":     archive(t, link("l", "/tmp")),
		"link up and down":  archive(t, link("a/l", "b/../../..")),
		"through a link":    archive(t, link("l", "."), file("l/../../evil")),
		"file over a link":  archive(t, link("l", "target"), file("l")),
		"file twice":        archive(t, file("a"), file("a")),
		"hard link":         archive(t, tar.Header{Typeflag: tar.TypeLink, Name: "l", Linkname: "/etc/passwd"}),
		"device":            archive(t, tar.Header{Typeflag: tar.TypeChar, Name: "d"}),
		"pipe":              archive(t, tar.Header{Typeflag: tar.TypeFifo, Name: "d"}),
		"more than allowed": archive(t, file("1"), file("2"), file("3"), file("4")),
		"no archive":        []byte("hello"),
	} {
		top := t.TempDir()
		must(t, os.WriteFile(filepath.Join(top, "target"), []byte("safe"), 0o644))
		if err := workdir.Unpack(t.Context(), bytes.NewReader(a), filepath.Join(top, "work"), 3); err == nil {
			t.Errorf("%s: taken", name)
		}
		left, err := os.ReadDir(top)
		must(t, err)
		for _, e := range left {
			if e.Name() != "work" && e.Name() != "target" {
				t.Errorf("%s: wrote %s", name, e.Name())
			}
		}
		if data, err := os.ReadFile(filepath.Join(top, "target")); err != nil || string(data) != "safe" {
			t.Errorf("%s: the file outside holds %q, %v", name, data, err)
		}
	}
}

func TestIgnore(t *testing.T) {
	ig, err := workdir.ParseIgnore("*.bin\n!keep.bin\n/top\ncache/\na/**/z\nlogs/*.txt\nx/**\n")
	must(t, err)
	for name, want := range map[string]bool{
		"a.bin": true, "deep/er/a.bin": true, "keep.bin": false, "deep/keep.bin": false, "a.bin2": false,
		"top": true, "deep/top": false, "cache/": true, "deep/cache/": true, "cache": false,
		"a/z": true, "a/b/z": true, "a/b/c/z": true, "b/a/z": false,
		"logs/1.txt": true, "logs/d/1.txt": false, "d/logs/1.txt": false, "x/1": true, "x/": false,
	} {
		n, folder := strings.CutSuffix(name, "/")
		if got := ig.Match(n, folder); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	for _, bad := range []string{"[", "!", "/", "a//b", "../x"} {
		if _, err := workdir.ParseIgnore(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
