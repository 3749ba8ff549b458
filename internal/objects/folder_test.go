package objects_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/objectstest"
)

var testKey = bytes.Repeat([]byte("k"), 32)

func openFolder(t *testing.T, root string) (*objects.Folders, *objects.Folder) {
	t.Helper()
	fs, err := objects.NewFolders("http://broker.test", testKey, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fs.Close() })
	f, err := fs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return fs, f
}

func TestFolder(t *testing.T) {
	objectstest.Run(t, func(t *testing.T) (objects.Store, *http.Client) {
		fs, f := openFolder(t, t.TempDir())
		return f, (&objectstest.Transport{Handler: fs}).Client()
	})
}

// A signed URL is good for its method, key, part and time, and for nothing else.
func TestSignedURLs(t *testing.T) {
	now := time.Now()
	fs, err := objects.NewFolders("http://broker.test", testKey, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Close()
	root := t.TempDir()
	f, err := fs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	c := (&objectstest.Transport{Handler: fs}).Client()
	put, err := f.SignPut(t.Context(), "j/0/a1/1/1", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, spoiled := range []struct{ name, method, url string }{
		{"method", "GET", put},
		{"key", "PUT", strings.Replace(put, "a1", "a2", 1)},
		{"traversal", "PUT", strings.Replace(put, "a1/1/1", "a1/1/../../../../x", 1)},
		{"encoded traversal", "PUT", strings.Replace(put, "a1/1/1", "..%2f..%2fx", 1)},
		{"expiry", "PUT", strings.Replace(put, "expires=", "expires=9", 1)},
		{"part", "PUT", put + "&upload=AAAAAAAAAAAAAAAAAAAAAAAAAA&part=1"},
		{"no signature", "PUT", put[:strings.Index(put, "&sig=")]},
	} {
		if code, body, _ := objectstest.Do(t, c, spoiled.method, spoiled.url, "x"); code != http.StatusForbidden {
			t.Errorf("%s: %d %s", spoiled.name, code, body)
		}
	}
	now = now.Add(59 * time.Second)
	if code, body, _ := objectstest.Do(t, c, "PUT", put, "x"); code != 200 {
		t.Fatalf("put: %d %s", code, body)
	}
	now = now.Add(2 * time.Second)
	if code, _, _ := objectstest.Do(t, c, "PUT", put, "x"); code != http.StatusForbidden {
		t.Errorf("an expired URL: %d", code)
	}
	if code, _, _ := objectstest.Do(t, c, "DELETE", put, ""); code != http.StatusMethodNotAllowed {
		t.Errorf("delete: %d", code)
	}
	if _, err := objects.NewFolders("http://x", testKey[:31], time.Now); err == nil {
		t.Error("a short key was taken")
	}
}

// A torn PUT leaves what was there before, and nothing else.
func TestTornPut(t *testing.T) {
	root := t.TempDir()
	fs, f := openFolder(t, root)
	tr := &objectstest.Transport{Handler: fs}
	if _, err := f.Put(t.Context(), "k", strings.NewReader("before"), objects.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	url, err := f.SignPut(t.Context(), "k", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for n := range int64(6) {
		tr.Spoil(func(int, *http.Request) objectstest.Fault { return objectstest.Fault{Tear: new(n)} })
		if resp, err := tr.Client().Do(request(t, url, "after!")); err == nil {
			resp.Body.Close()
			t.Fatalf("torn at %d: status %d", n, resp.StatusCode)
		}
		data, err := os.ReadFile(filepath.Join(root, "k"))
		if err != nil || string(data) != "before" {
			t.Errorf("torn at %d: holds %q, %v", n, data, err)
		}
	}
	left, err := os.ReadDir(filepath.Join(root, ".gpubroker", "tmp"))
	if err != nil || len(left) != 0 {
		t.Errorf("left under tmp: %v, %v", left, err)
	}
}

func request(t *testing.T, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// No link in the folder leads out of it.
func TestFolderStaysInside(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	_, f := openFolder(t, root)
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Get(t.Context(), "link/secret", objects.Range{}); err == nil {
		t.Error("read through a link")
	}
	if _, err := f.Put(t.Context(), "link/new", strings.NewReader("x"), objects.PutOptions{}); err == nil {
		t.Error("wrote through a link")
	}
}

// What a crash leaves at any step of a write is either the old object with its
// metadata or the new one with its own.
func TestMetadataAcrossCrash(t *testing.T) {
	root := t.TempDir()
	_, f := openFolder(t, root)
	write := func(body, task string) {
		t.Helper()
		opts := objects.PutOptions{Meta: map[string]string{"gpubroker-task": task}}
		if _, err := f.Put(t.Context(), "k", strings.NewReader(body), opts); err != nil {
			t.Fatal(err)
		}
	}
	write("one", "t1")
	old, err := os.Stat(filepath.Join(root, "k"))
	if err != nil {
		t.Fatal(err)
	}
	write("two", "t2")
	// The rename of the second write never reached the medium: the metadata did.
	if err := os.WriteFile(filepath.Join(root, "k"), []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(root, "k"), old.ModTime(), old.ModTime()); err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat(t.Context(), "k")
	if err != nil || info.Meta["gpubroker-task"] != "t1" {
		t.Errorf("%+v, %v", info, err)
	}
	// Somebody else's file under the same name has no metadata of ours.
	if err := os.WriteFile(filepath.Join(root, "k"), []byte("foreign"), 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err = f.Stat(t.Context(), "k"); err != nil || len(info.Meta) != 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

// What a writer that died has left goes when the folder is next opened, unless it
// may still be written.
func TestLeftoversGo(t *testing.T) {
	root := t.TempDir()
	openFolder(t, root)
	file := func(name string, age time.Duration) string {
		path := filepath.Join(root, ".gpubroker", "tmp", name)
		at := time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	young, old := file("YOUNG", 23*time.Hour), file("OLD", 25*time.Hour)
	openFolder(t, root)
	if _, err := os.Stat(young); err != nil {
		t.Error("a young file was removed")
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("an old file was left")
	}
}

func TestOpenFolder(t *testing.T) {
	fs, _ := openFolder(t, t.TempDir())
	stores := &objects.Stores{Folders: fs}
	root := t.TempDir()
	a, err := stores.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	b, err := stores.Open(t.Context(), "file://"+root+"/")
	if err != nil {
		t.Fatal(err)
	}
	if a != b {
		t.Error("one folder, two stores: conditions would not hold")
	}
	for _, bad := range []string{"", "file://host/x", "file:///x?y=z", "gs://x"} {
		if _, err := stores.Open(t.Context(), bad); err == nil {
			t.Errorf("%q was opened", bad)
		}
	}
}

func TestSplit(t *testing.T) {
	for _, c := range [][3]string{
		{"s3://b/done/x.mp4?region=r", "s3://b?region=r", "done/x.mp4"},
		{"s3://b/done/", "s3://b", "done/"},
		{"s3://b/clip#1.mp4", "s3://b", "clip#1.mp4"},
		{"s3://b/100%.mp4", "s3://b", "100%.mp4"},
		{"s3://b/a%20b", "s3://b", "a%20b"},
		{"s3://b/what?.mov", "s3://b", "what?.mov"},
		{"s3://b/?/x?region=r&endpoint=http://h:9/", "s3://b?region=r&endpoint=http://h:9/", "?/x"},
		{"/out/x.mp4", "/out", "x.mp4"},
		{"file:///out/run/", "/out/run", ""},
		{"x.mp4", ".", "x.mp4"},
		{"/x", "/", "x"},
	} {
		store, key, err := objects.Split(c[0])
		if err != nil || store != c[1] || key != c[2] {
			t.Errorf("%s: %q, %q, %v", c[0], store, key, err)
		}
	}
	if store, key, err := objects.Split("s3:///x"); err == nil {
		t.Errorf("an address without a bucket: %q, %q", store, key)
	}
}
