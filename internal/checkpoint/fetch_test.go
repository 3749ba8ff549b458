package checkpoint_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpubroker/internal/checkpoint"
	"gpubroker/internal/objects"
	"gpubroker/internal/objects/objectstest"
)

// An object arrives whole through whatever the connection does, and what can
// never arrive is an error.
func TestFetch(t *testing.T) {
	body := strings.Repeat("0123456789", 1000)
	sum := checkpoint.Digest([]byte(body))
	size := int64(len(body))
	cut := func(at int64) func(int, *http.Request) objectstest.Fault {
		return func(n int, _ *http.Request) objectstest.Fault {
			if n < 3 {
				return objectstest.Fault{Tear: new(at)}
			}
			return objectstest.Fault{}
		}
	}
	status := func(code, times int) func(int, *http.Request) objectstest.Fault {
		return func(n int, _ *http.Request) objectstest.Fault {
			if n < times {
				return objectstest.Fault{Status: code}
			}
			return objectstest.Fault{}
		}
	}
	for _, c := range []struct {
		name, key, want string
		size            int64
		spoil           func(int, *http.Request) objectstest.Fault
		most            int64  // bytes that may go by; 0 means the object's own
		fails           string // "" means that it arrives
	}{
		{name: "plain", key: "in", want: sum, size: size},
		{name: "unchecked", key: "in"},
		{name: "torn three times", key: "in", want: sum, size: size, spoil: cut(1000), most: 4 * size},
		{name: "a sick store", key: "in", want: sum, spoil: status(503, 10)},
		{name: "URLs that ran out", key: "in", want: sum, spoil: status(403, 3)},
		{name: "throttled for long", key: "in", want: sum, spoil: status(429, 10)},
		{name: "refused for good", key: "in", spoil: status(403, 1000), fails: "answered 403"},
		{name: "not there", key: "none", fails: "it is not there"},
		{name: "another digest", key: "in", want: checkpoint.Digest([]byte("x")), fails: "its digest is", most: 2 * size},
		{name: "another size", key: "in", size: 3, fails: "10000 bytes instead of 3", most: 2 * size},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, to := objectstest.Dir(t), filepath.Join(t.TempDir(), "file")
			synctest.Test(t, func(t *testing.T) {
				w := newWorldIn(t, root)
				_, err := w.store.Put(t.Context(), "in", strings.NewReader(body), objects.PutOptions{})
				must(t, err)
				m := &checkpoint.Transfer{Client: w.net.Client(), Log: quiet}
				w.net.Spoil(c.spoil)
				url := func(ctx context.Context, _ string) (string, error) { return w.store.SignGet(ctx, c.key, time.Hour) }
				err = m.Fetch(t.Context(), "the input", url, to, c.want, c.size)
				if c.fails != "" {
					if err == nil || !strings.Contains(err.Error(), c.fails) || strings.Contains(err.Error(), "sig=") {
						t.Errorf("%v, want %q and no URL", err, c.fails)
					}
				} else {
					must(t, err)
					if got, err := os.ReadFile(to); err != nil || string(got) != body {
						t.Errorf("%d bytes, %v", len(got), err)
					}
				}
				if _, _, got := w.net.Counts(); got > max(c.most, size) {
					t.Errorf("%d bytes went by", got)
				}
			})
		})
	}
}

// A store that takes the connection and then says nothing is left and asked again.
func TestFetchLeavesAStoreThatHangs(t *testing.T) {
	to := filepath.Join(t.TempDir(), "file")
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if asked++; asked == 1 {
				<-r.Context().Done()
				return nil, context.Cause(r.Context())
			}
			return nil, fmt.Errorf("asked again")
		})}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		m := &checkpoint.Transfer{Client: client, Log: quiet}
		err := m.Fetch(ctx, "x", func(context.Context, string) (string, error) { return "http://store.test/x", nil }, to, "", 0)
		if err == nil || asked < 2 {
			t.Errorf("asked %d times, %v", asked, err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
