package s3_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/objectstest"
	"gpubroker/internal/objects/s3"
)

// fake serves an S3 API in this process.
func fake(t *testing.T) (address string, srv *httptest.Server) {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	srv = httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(srv.Close)
	return "s3://bucket?endpoint=" + url.QueryEscape(srv.URL), srv
}

func open(t *testing.T, address string) objects.Store {
	t.Helper()
	stores := &objects.Stores{Schemes: map[string]objects.Opener{"s3": s3.Open}}
	s, err := stores.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBucket(t *testing.T) {
	objectstest.Run(t, func(t *testing.T) (objects.Store, *http.Client) {
		address, srv := fake(t)
		return open(t, address), srv.Client()
	})
}

// A store that does not answer is away, and an answer of 403 is no such thing.
func TestCodes(t *testing.T) {
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	for _, c := range []struct {
		status int
		body   string
		want   objects.Code
	}{
		{403, `<Error><Code>AccessDenied</Code></Error>`, objects.Denied},
		{500, `<Error><Code>InternalError</Code></Error>`, objects.Away},
		{503, `<Error><Code>SlowDown</Code></Error>`, objects.Away},
		{507, ``, objects.Full},
		{404, `<Error><Code>NoSuchBucket</Code></Error>`, objects.Invalid},
		{404, `<Error><Code>NoSuchKey</Code></Error>`, objects.NotFound},
	} {
		_, _ = fake(t)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		}))
		s := open(t, "s3://bucket?endpoint="+url.QueryEscape(srv.URL))
		_, _, err := s.Get(t.Context(), "k", objects.Range{})
		if !objects.Is(err, c.want) {
			t.Errorf("%d %s: got %v, want %s", c.status, c.body, err, c.want)
		}
		srv.Close()
		if _, _, err = s.Get(t.Context(), "k", objects.Range{}); !objects.Is(err, objects.Away) {
			t.Errorf("a closed port: %v", err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	address, _ := fake(t)
	stores := &objects.Stores{Schemes: map[string]objects.Opener{"s3": s3.Open}}
	for _, c := range []struct{ address, want string }{
		{address + "&reqion=x", `unknown setting "reqion"`},
		{"s3:///x?region=a", "no bucket"},
		{"s3://b?endpoint=nowhere", "want https://host"},
		{address + "&path_style=maybe", "path_style"},
		{"s3://key:secret@b?region=a", "credentials do not belong"},
		{"gs://b", "no store knows gs://"},
		{"/some/folder", "folders cannot be used"},
		{address[:9] + "/../x" + address[9:], "not a clean"},
	} {
		_, err := stores.Open(t.Context(), c.address)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.address, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error gives the secret away: %v", err)
		}
	}
}
