package gcs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/emulatortest"
	"gpubroker/internal/objects/gcs"
	"gpubroker/internal/objects/objectstest"
)

func open(t *testing.T, address string) objects.Store {
	t.Helper()
	stores := &objects.Stores{Schemes: map[string]objects.Opener{"gs": gcs.New(gcs.Options{})}}
	s, err := stores.Open(t.Context(), address)
	must(t, err)
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBucket(t *testing.T) {
	objectstest.Run(t, func(t *testing.T) (objects.Store, *http.Client) {
		return open(t, emulatortest.GCS(t)), http.DefaultClient
	})
}

// between puts a handler before the emulator; it is asked first and may answer.
func between(t *testing.T, address string, first func(w http.ResponseWriter, r *http.Request) (done bool)) (front string) {
	t.Helper()
	bucket, query, _ := strings.Cut(address, "?")
	q, err := url.ParseQuery(query)
	must(t, err)
	back, err := url.Parse(q.Get("endpoint"))
	must(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(back) }}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !first(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return bucket + "?endpoint=" + url.QueryEscape(srv.URL)
}

// More parts than one call composes are joined in order by a tree of calls. Only
// the last writes the object, under its condition, and of the rest nothing is left.
func TestManyParts(t *testing.T) {
	var composed, conditions atomic.Int64
	s := open(t, between(t, emulatortest.GCS(t), func(_ http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/compose") {
			return false
		}
		composed.Add(1)
		body, err := io.ReadAll(r.Body)
		must(t, err)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var in struct {
			SourceObjects []struct {
				Name, Generation    string
				ObjectPreconditions struct{ IfGenerationMatch string }
			}
			Destination struct{ Metadata map[string]string }
		}
		must(t, json.Unmarshal(body, &in))
		for _, o := range in.SourceObjects {
			if o.Generation == "" || o.ObjectPreconditions.IfGenerationMatch != o.Generation {
				t.Errorf("%s is composed without its generation: %+v", o.Name, o)
			}
		}
		final := strings.Contains(r.URL.Path, "/o/big/compose")
		if has := r.URL.Query().Get("ifGenerationMatch") == "0" && in.Destination.Metadata["who"] == "me"; has != final {
			t.Errorf("%s?%s with %v", r.URL.Path, r.URL.RawQuery, in.Destination.Metadata)
		} else if has {
			conditions.Add(1)
		}
		return false
	}))
	const n = 1100 // three levels: 35, 2, 1
	id, err := s.Begin(t.Context(), "big", map[string]string{"who": "me"})
	must(t, err)
	var parts []objects.Part
	want := ""
	for i := range n {
		text := fmt.Sprintf("%d,", i)
		want += text
		to, err := s.SignPart(t.Context(), "big", id, i+1, time.Hour)
		must(t, err)
		_, _, etag := objectstest.Do(t, http.DefaultClient, "PUT", to, text)
		parts = append(parts, objects.Part{Number: i + 1, ETag: etag})
	}
	info, err := s.Complete(t.Context(), "big", id, parts, objects.Cond{IfAbsent: true})
	must(t, err)
	got, err := objects.ReadAll(t.Context(), s, "big", 1<<20)
	must(t, err)
	if string(got) != want || info.Bytes != int64(len(want)) || info.Meta["who"] != "me" {
		t.Errorf("joined %d bytes, %+v", len(got), info)
	}
	if composed.Load() != 35+2+1 || conditions.Load() != 1 {
		t.Errorf("composed %d times, %d of them under the condition", composed.Load(), conditions.Load())
	}
	for up, err := range s.Uploads(t.Context(), "") {
		must(t, err)
		t.Errorf("left over: %+v", up)
	}
}

// A part that is not what the machine said it sent completes nothing.
func TestOtherPart(t *testing.T) {
	s := open(t, emulatortest.GCS(t))
	id, err := s.Begin(t.Context(), "k", nil)
	must(t, err)
	to, err := s.SignPart(t.Context(), "k", id, 1, time.Hour)
	must(t, err)
	_, _, first := objectstest.Do(t, http.DefaultClient, "PUT", to, "first")
	objectstest.Do(t, http.DefaultClient, "PUT", to, "second")
	if _, err := s.Complete(t.Context(), "k", id, []objects.Part{{Number: 1, ETag: first}}, objects.Cond{}); !objects.Is(err, objects.Invalid) {
		t.Errorf("completed with another part: %v", err)
	}
	// Google's XML API answers the MD5.
	if _, err := s.Complete(t.Context(), "k", id, []objects.Part{{Number: 1, ETag: `"a9f0e61a137d86aa9db53465e0801612"`}}, objects.Cond{}); err != nil {
		t.Errorf("completed by MD5: %v", err)
	}
}

// What is written is sent once: an answer that is lost must not make a write under
// a condition fail. Reads are tried three times.
func TestTries(t *testing.T) {
	var sent atomic.Int64
	s := open(t, between(t, emulatortest.GCS(t), func(w http.ResponseWriter, _ *http.Request) bool {
		sent.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}))
	for _, c := range []struct {
		what string
		call func() error
		want int64
	}{
		{"put", func() error {
			_, err := s.Put(t.Context(), "k", strings.NewReader("x"), objects.PutOptions{Cond: objects.Cond{IfAbsent: true}})
			return err
		}, 1},
		{"begin", func() error { _, err := s.Begin(t.Context(), "k", nil); return err }, 1},
		{"stat", func() error { _, err := s.Stat(t.Context(), "k"); return err }, 3},
		{"delete", func() error { return s.Delete(t.Context(), "k") }, 3},
	} {
		sent.Store(0)
		if err := c.call(); !objects.Is(err, objects.Away) || sent.Load() != c.want {
			t.Errorf("%s: sent %d times, %v; want %d times", c.what, sent.Load(), err, c.want)
		}
	}
}

func TestCodes(t *testing.T) {
	status, body := 0, ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	s := open(t, "gs://bucket?endpoint="+url.QueryEscape(srv.URL))
	stat := func() error { _, err := s.Stat(t.Context(), "k"); return err }
	put := func() error {
		_, err := s.Put(t.Context(), "k", strings.NewReader("x"), objects.PutOptions{})
		return err
	}
	for _, c := range []struct {
		status int
		body   string
		call   func() error
		want   objects.Code
	}{
		{401, ``, stat, objects.Denied},
		{403, `{"error": {"errors": [{"reason": "forbidden"}], "message": "sa does not have\nstorage.objects.get"}}`, stat, objects.Denied},
		{403, `{"error": {"errors": [{"reason": "rateLimitExceeded"}]}}`, put, objects.Away},
		{404, `{"error": {"errors": [{"reason": "notFound"}]}}`, stat, objects.NotFound},
		{404, `{"error": {"errors": [{"reason": "notFound"}]}}`, put, objects.Invalid}, // the bucket
		{412, `{"error": {"errors": [{"reason": "conditionNotMet"}]}}`, put, objects.Exists},
		{429, ``, put, objects.Away},
		{500, `<html>`, put, objects.Away},
		{507, ``, put, objects.Full},
		{400, `{"error": {"errors": [{"reason": "invalid"}]}}`, put, objects.Invalid},
		{200, `no JSON`, put, objects.Away},
	} {
		status, body = c.status, c.body
		err := c.call()
		if !objects.Is(err, c.want) {
			t.Errorf("%d %s: got %v, want %s", c.status, c.body, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %v", err)
		}
	}
	srv.Close()
	if err := put(); !objects.Is(err, objects.Away) || errors.As(err, new(*url.Error)) {
		t.Errorf("a closed port: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	stores := &objects.Stores{Schemes: map[string]objects.Opener{"gs": gcs.New(gcs.Options{Credentials: []byte("hunter2")})}}
	for _, c := range []struct{ address, want string }{
		{"gs://b?reqion=x", `unknown setting "reqion"`},
		{"gs:///x", "no bucket"},
		{"gs://b?endpoint=nowhere", "want https://host"},
		{"gs://b?endpoint=https://h/path", "want https://host"},
		{"gs://b", "not JSON"},
	} {
		_, err := stores.Open(t.Context(), c.address)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %q", c.address, err, c.want)
		}
	}
}
