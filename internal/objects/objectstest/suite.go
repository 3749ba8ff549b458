// Package objectstest holds what tests of object stores share: the conformance
// suite that every store passes, and transports and stores that fail on demand.
package objectstest

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpubroker/internal/objects"
)

// Run tests a store. It is given an empty one for each part, and a client that
// reaches the store's signed URLs.
func Run(t *testing.T, open func(t *testing.T) (objects.Store, *http.Client)) {
	t.Helper()
	for _, part := range []struct {
		name string
		run  func(*testing.T, objects.Store, *http.Client)
	}{
		{"objects", testObjects},
		{"conditions", testConditions},
		{"list", testList},
		{"keys", testKeys},
		{"signed", testSigned},
		{"uploads", testUploads},
		{"upload conditions", testUploadConditions},
		{"concurrent", testConcurrent},
		{"under", func(t *testing.T, s objects.Store, c *http.Client) {
			u, err := objects.Under(s, "deep/er")
			must(t, err)
			testObjects(t, u, c)
			testUploads(t, u, c)
			for i, err := range s.List(t.Context(), "") {
				must(t, err)
				if !strings.HasPrefix(i.Key, "deep/er/") {
					t.Errorf("object %s outside the prefix", i.Key)
				}
			}
		}},
	} {
		t.Run(part.name, func(t *testing.T) {
			s, c := open(t)
			part.run(t, s, c)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, what string, err error, code objects.Code) {
	t.Helper()
	if !objects.Is(err, code) {
		t.Errorf("%s: got %v, want code %s", what, err, code)
	}
}

func put(t *testing.T, s objects.Store, key, body string) objects.Info {
	t.Helper()
	info, err := s.Put(t.Context(), key, strings.NewReader(body), objects.PutOptions{})
	must(t, err)
	return info
}

func get(t *testing.T, s objects.Store, key string, r objects.Range) string {
	t.Helper()
	body, _, err := s.Get(t.Context(), key, r)
	must(t, err)
	defer body.Close()
	data, err := io.ReadAll(body)
	must(t, err)
	return string(data)
}

func testObjects(t *testing.T, s objects.Store, _ *http.Client) {
	ctx := t.Context()
	_, err := s.Stat(ctx, "a/b")
	wantCode(t, "stat of nothing", err, objects.NotFound)
	_, _, err = s.Get(ctx, "a/b", objects.Range{})
	wantCode(t, "get of nothing", err, objects.NotFound)
	must(t, s.Delete(ctx, "a/b"))

	body := strings.NewReader("hello, world")
	_, err = io.ReadAll(body) // Put begins at the start wherever the reader stands
	must(t, err)
	meta := map[string]string{"gpubroker-task": "j-1/2"}
	first, err := s.Put(ctx, "a/b", body, objects.PutOptions{Meta: meta})
	must(t, err)
	info, err := s.Stat(ctx, "a/b")
	must(t, err)
	if info.Key != "a/b" || info.Bytes != 12 || info.ETag == "" || info.ETag != first.ETag || strings.Contains(info.ETag, `"`) {
		t.Errorf("stat: %+v, put said %+v", info, first)
	}
	if time.Since(info.Modified).Abs() > time.Minute {
		t.Errorf("modified %s", info.Modified)
	}
	if d := cmp.Diff(meta, info.Meta); d != "" {
		t.Errorf("meta (-want +got):\n%s", d)
	}
	for _, r := range []struct {
		objects.Range
		want string
	}{
		{objects.Range{}, "hello, world"},
		{objects.Range{Offset: 7}, "world"},
		{objects.Range{Offset: 0, Length: 5}, "hello"},
		{objects.Range{Offset: 7, Length: 100}, "world"},
	} {
		if got := get(t, s, "a/b", r.Range); got != r.want {
			t.Errorf("range %+v: %q, want %q", r.Range, got, r.want)
		}
	}
	// Both writes name the same metadata: gofakes3 keeps names that a later write
	// does not mention, which S3 does not.
	meta = map[string]string{"gpubroker-task": "j-9/0"}
	second, err := s.Put(ctx, "a/b", strings.NewReader("changed"), objects.PutOptions{Meta: meta})
	must(t, err)
	if second.ETag == first.ETag {
		t.Error("the ETag did not change with the object")
	}
	info, err = s.Stat(ctx, "a/b")
	must(t, err)
	if d := cmp.Diff(meta, info.Meta); d != "" {
		t.Errorf("meta of the second object (-want +got):\n%s", d)
	}
	put(t, s, "a/empty", "")
	if got := get(t, s, "a/empty", objects.Range{}); got != "" {
		t.Errorf("empty object holds %q", got)
	}
	must(t, s.Delete(ctx, "a/b"))
	must(t, s.Delete(ctx, "a/empty"))
	must(t, s.Delete(ctx, "a/empty"))
	_, err = s.Stat(ctx, "a/b")
	wantCode(t, "stat of a deleted object", err, objects.NotFound)

	if _, err := objects.ReadAll(ctx, s, "none", 10); !objects.Is(err, objects.NotFound) {
		t.Errorf("read of nothing: %v", err)
	}
	put(t, s, "big", "0123456789")
	if data, err := objects.ReadAll(ctx, s, "big", 10); err != nil || string(data) != "0123456789" {
		t.Errorf("read: %q, %v", data, err)
	}
	_, err = objects.ReadAll(ctx, s, "big", 9)
	wantCode(t, "read over the limit", err, objects.Invalid)
	must(t, s.Delete(ctx, "big"))
}

func testConditions(t *testing.T, s objects.Store, _ *http.Client) {
	ctx := t.Context()
	try := func(cond objects.Cond) error {
		_, err := s.Put(ctx, "c/k", strings.NewReader("x"), objects.PutOptions{Cond: cond})
		return err
	}
	wantCode(t, "if-match of nothing", try(objects.Cond{IfMatch: "abc"}), objects.Exists)
	must(t, try(objects.Cond{IfAbsent: true}))
	wantCode(t, "if-absent of something", try(objects.Cond{IfAbsent: true}), objects.Exists)
	info, err := s.Stat(ctx, "c/k")
	must(t, err)
	wantCode(t, "if-match of another", try(objects.Cond{IfMatch: "abc"}), objects.Exists)
	must(t, try(objects.Cond{IfMatch: info.ETag}))
}

func testList(t *testing.T, s objects.Store, _ *http.Client) {
	keys := []string{"j/1/a/1/1", "j/1/a/1/manifest", "j/1/a/10/1", "j/1/b/1/1", "j/10/a/1/1", "k", "j-1"}
	for _, k := range keys {
		put(t, s, k, k)
	}
	for _, c := range []struct {
		prefix string
		want   []string
	}{
		{"", keys},
		{"j/1/", keys[:4]},
		{"j/1", keys[:5]},
		{"j/1/a/1/", keys[:2]},
		{"j/1/a/1", keys[:3]},
		{"j/2/", nil},
		{"k/", nil},
		{"j", slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == "k" })},
	} {
		var got []string
		for i, err := range s.List(t.Context(), c.prefix) {
			must(t, err)
			if i.Bytes != int64(len(i.Key)) || i.Modified.IsZero() {
				t.Errorf("%+v", i)
			}
			got = append(got, i.Key)
		}
		want := slices.Sorted(slices.Values(c.want))
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("list %q (-want +got):\n%s", c.prefix, d)
		}
	}
	// A listing may stop early.
	for _, err := range s.List(t.Context(), "") {
		must(t, err)
		break
	}
}

func testKeys(t *testing.T, s objects.Store, _ *http.Client) {
	ctx := t.Context()
	for _, key := range []string{
		"", ".", "..", "../x", "a/../b", "/etc/passwd", "a//b", "a/", "a\x00b", "a\nb", `a\b`, "\xff", ".gpubroker/meta/x",
		strings.Repeat("x", 1000),
	} {
		_, err := s.Put(ctx, key, strings.NewReader("x"), objects.PutOptions{})
		wantCode(t, fmt.Sprintf("put %q", key), err, objects.Invalid)
		_, err = s.SignPut(ctx, key, time.Minute)
		wantCode(t, fmt.Sprintf("sign %q", key), err, objects.Invalid)
		_, err = s.Begin(ctx, key, nil)
		wantCode(t, fmt.Sprintf("begin %q", key), err, objects.Invalid)
	}
	for _, key := range []string{"a b/ü?&#%.mp4", "+", "a=b&c", "日本/語", "..a"} {
		put(t, s, key, key)
		if got := get(t, s, key, objects.Range{}); got != key {
			t.Errorf("%q holds %q", key, got)
		}
	}
}

// Do makes one request of a signed URL and returns status, body, and the ETag as
// [objects.PartETag] has it.
func Do(t *testing.T, c *http.Client, method, url, body string, header ...string) (int, string, string) {
	t.Helper()
	req, err := objects.NewRequest(t.Context(), method, url, strings.NewReader(body))
	must(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	must(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(data), objects.PartETag(resp.Header, crc32.Checksum([]byte(body), objects.SumTable()))
}

func testSigned(t *testing.T, s objects.Store, c *http.Client) {
	ctx := t.Context()
	for _, key := range []string{"s/1", "s/ü &?+%2F.bin"} {
		up, err := s.SignPut(ctx, key, time.Minute)
		must(t, err)
		down, err := s.SignGet(ctx, key, time.Minute)
		must(t, err)
		if code, _, _ := Do(t, c, "GET", down, ""); code != 404 {
			t.Errorf("get of nothing: %d", code)
		}
		if code, body, _ := Do(t, c, "PUT", up, "signed"); !objects.Stored(code) {
			t.Fatalf("put: %d %s", code, body)
		}
		if code, body, _ := Do(t, c, "GET", down, ""); code != 200 || body != "signed" {
			t.Errorf("get: %d %q", code, body)
		}
		if code, body, _ := Do(t, c, "GET", down, "", "Range", "bytes=2-3"); code != 206 || body != "gn" {
			t.Errorf("range: %d %q", code, body)
		}
		if got := get(t, s, key, objects.Range{}); got != "signed" {
			t.Errorf("%s holds %q", key, got)
		}
	}
}

func upload(t *testing.T, s objects.Store, c *http.Client, key, id string, number int, body string) objects.Part {
	t.Helper()
	url, err := s.SignPart(t.Context(), key, id, number, time.Minute)
	must(t, err)
	code, answer, etag := Do(t, c, "PUT", url, body)
	if !objects.Stored(code) || etag == "" {
		t.Fatalf("put part: %d %s (ETag %q)", code, answer, etag)
	}
	return objects.Part{Number: number, ETag: etag}
}

// partSize is the least that S3 takes for a part that is not the last.
const partSize = 5 << 20

func testUploads(t *testing.T, s objects.Store, c *http.Client) {
	ctx := t.Context()
	meta := map[string]string{"gpubroker-attempt": "a-7"}
	id, err := s.Begin(ctx, "u/x.mp4", meta)
	must(t, err)
	open := func() (ups []objects.Upload) {
		for up, err := range s.Uploads(ctx, "u/") {
			must(t, err)
			ups = append(ups, up)
		}
		return ups
	}
	if ups := open(); len(ups) != 1 || ups[0].ID != id || ups[0].Key != "u/x.mp4" || time.Since(ups[0].Begun).Abs() > time.Minute {
		t.Errorf("open uploads %+v", ups)
	}
	late, err := s.SignPart(ctx, "u/x.mp4", id, 1, time.Minute)
	must(t, err)
	one, two := strings.Repeat("1", partSize), strings.Repeat("2", 1000)
	parts := []objects.Part{upload(t, s, c, "u/x.mp4", id, 1, one), upload(t, s, c, "u/x.mp4", id, 2, two)}
	// The same part again, as after an answer that was lost: the last answer counts.
	parts[0] = upload(t, s, c, "u/x.mp4", id, 1, one)
	_, err = s.Stat(ctx, "u/x.mp4")
	wantCode(t, "an unfinished upload", err, objects.NotFound)
	for i, err := range s.List(ctx, "") {
		must(t, err)
		t.Errorf("an unfinished upload shows as %s", i.Key)
	}
	if _, err := s.Complete(ctx, "u/x.mp4", id, []objects.Part{{Number: 1, ETag: strings.Repeat("0", 64)}}, objects.Cond{}); err == nil {
		t.Error("completed with a part that was never uploaded")
	}
	info, err := s.Complete(ctx, "u/x.mp4", id, parts, objects.Cond{})
	must(t, err)
	st, err := s.Stat(ctx, "u/x.mp4")
	must(t, err)
	if st.Bytes != partSize+1000 || st.ETag != info.ETag {
		t.Errorf("completed: %+v, stat %+v", info, st)
	}
	if d := cmp.Diff(meta, st.Meta); d != "" {
		t.Errorf("meta (-want +got):\n%s", d)
	}
	if got := get(t, s, "u/x.mp4", objects.Range{}); got != one+two {
		t.Error("the parts are not joined in order")
	}
	gone := func(what string, parts ...objects.Part) {
		t.Helper()
		got, err := s.Complete(ctx, "u/x.mp4", id, parts, objects.Cond{})
		if !objects.Is(err, objects.NotFound) && (err != nil || got.ETag != info.ETag || got.Meta["gpubroker-attempt"] != "a-7") {
			t.Errorf("%s: %+v, %v; want code not-found or the object that lies there", what, got, err)
		}
	}
	gone("complete again", parts...)
	// A part that arrives when all is over changes nothing and can be cleaned up.
	Do(t, c, "PUT", late, "late")
	gone("complete with a late part", objects.Part{Number: 1, ETag: parts[0].ETag})
	if got := get(t, s, "u/x.mp4", objects.Range{}); got != one+two {
		t.Error("a late part changed the object")
	}
	must(t, s.Abort(ctx, "u/x.mp4", id))
	if ups := open(); len(ups) != 0 {
		t.Errorf("a late part is left as %+v", ups)
	}

	id, err = s.Begin(ctx, "u/x.mp4", nil)
	must(t, err)
	other := upload(t, s, c, "u/x.mp4", id, 1, "other")
	must(t, s.Abort(ctx, "u/x.mp4", id))
	if ups := open(); len(ups) != 0 {
		t.Errorf("aborted uploads are open: %+v", ups)
	}
	gone("complete of an aborted upload", other)
	if st, err = s.Stat(ctx, "u/x.mp4"); err != nil || st.ETag != info.ETag {
		t.Errorf("an aborted upload changed the object: %+v, %v", st, err)
	}

	for range 2 {
		_, err = s.Begin(ctx, "u/y", nil)
		must(t, err)
	}
	if n, err := objects.AbortOlder(ctx, s, "u/", time.Now().Add(-time.Hour)); n != 0 || err != nil {
		t.Errorf("aborted %d young uploads, %v", n, err)
	}
	if n, err := objects.AbortOlder(ctx, s, "u/", time.Now().Add(time.Hour)); n != 2 || err != nil {
		t.Errorf("aborted %d of 2 old uploads, %v", n, err)
	}
	must(t, s.Delete(ctx, "u/x.mp4"))
}

func testUploadConditions(t *testing.T, s objects.Store, c *http.Client) {
	ctx := t.Context()
	complete := func(body string, cond objects.Cond) (objects.Info, error) {
		id, err := s.Begin(ctx, "u/c", nil)
		must(t, err)
		part := upload(t, s, c, "u/c", id, 1, body)
		return s.Complete(ctx, "u/c", id, []objects.Part{part}, cond)
	}
	first, err := complete("1", objects.Cond{IfAbsent: true})
	must(t, err)
	_, err = complete("2", objects.Cond{IfAbsent: true})
	wantCode(t, "if-absent of something", err, objects.Exists)
	_, err = complete("3", objects.Cond{IfMatch: "abc"})
	wantCode(t, "if-match of another", err, objects.Exists)
	if got := get(t, s, "u/c", objects.Range{}); got != "1" {
		t.Errorf("a refused upload wrote %q", got)
	}
	_, err = complete("4", objects.Cond{IfMatch: first.ETag})
	must(t, err)
	if got := get(t, s, "u/c", objects.Range{}); got != "4" {
		t.Errorf("holds %q", got)
	}
}

// testConcurrent has many writers of one key and its neighbours: every read is of
// one write, whole, and folders that empty do not trip writers.
func testConcurrent(t *testing.T, s objects.Store, _ *http.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for n := range 20 {
				body := bytes.Repeat([]byte{byte('a' + w)}, 1000+n)
				if _, err := s.Put(ctx, "x/y/same", bytes.NewReader(body), objects.PutOptions{}); err != nil {
					t.Errorf("put: %v", err)
				}
				own := fmt.Sprintf("x/z/%d", w)
				if _, err := s.Put(ctx, own, bytes.NewReader(body), objects.PutOptions{}); err != nil {
					t.Errorf("put: %v", err)
				}
				if err := s.Delete(ctx, own); err != nil {
					t.Errorf("delete: %v", err)
				}
				got, err := objects.ReadAll(ctx, s, "x/y/same", 2000)
				if err != nil {
					t.Errorf("get: %v", err)
					continue
				}
				if len(got) < 1000 || bytes.Count(got, got[:1]) != len(got) {
					t.Errorf("a read of %d bytes mixes two writes", len(got))
				}
			}
		})
	}
	wg.Wait()
}
