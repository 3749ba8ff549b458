package azblob

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/emulatortest"
	"gpubroker/internal/objects/objectstest"
)

func open(t *testing.T, o Options, address string) objects.Store {
	t.Helper()
	stores := &objects.Stores{Schemes: map[string]objects.Opener{"azblob": New(o)}}
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

var azurite = Options{Account: emulatortest.AzuriteAccount, Key: emulatortest.AzuriteKey}

func TestContainer(t *testing.T) {
	objectstest.Run(t, func(t *testing.T) (objects.Store, *http.Client) {
		return open(t, azurite, emulatortest.Azurite(t)), http.DefaultClient
	})
}

func put(t *testing.T, s objects.Store, key, body string) {
	t.Helper()
	_, err := s.Put(t.Context(), key, strings.NewReader(body), objects.PutOptions{})
	must(t, err)
}

func read(t *testing.T, s objects.Store, key string) string {
	t.Helper()
	data, err := objects.ReadAll(t.Context(), s, key, 1<<20)
	must(t, err)
	return string(data)
}

// A signed URL is good for one blob and one way: whoever holds that of a part can
// neither write the final blob nor commit one.
func TestSignedURLsReachOneBlob(t *testing.T) {
	s := open(t, azurite, emulatortest.Azurite(t))
	put(t, s, "k", "mine")
	id, err := s.Begin(t.Context(), "k", nil)
	must(t, err)
	part, err := s.SignPart(t.Context(), "k", id, 1, time.Minute)
	must(t, err)
	down, err := s.SignGet(t.Context(), "k", time.Minute)
	must(t, err)
	final, _, _ := strings.Cut(down, "?")
	_, signature, _ := strings.Cut(part, "?")
	late, err := s.SignGet(t.Context(), "k", -time.Minute)
	must(t, err)
	for _, c := range []struct{ what, method, to string }{
		{"the final blob by the URL of a part", "PUT", final + "?" + signature},
		{"a commit by the URL of a part", "PUT", final + "?comp=blocklist&" + signature},
		{"a read by the URL of a part", "GET", part},
		{"a write by a URL for reading", "PUT", down + "#x-ms-blob-type=BlockBlob"},
		{"a removal by the URL of a part", "DELETE", part},
		{"a URL that has run out", "GET", late},
	} {
		if code, body, _ := objectstest.Do(t, http.DefaultClient, c.method, c.to, "x"); code != http.StatusForbidden {
			t.Errorf("%s: HTTP %d %s", c.what, code, body)
		}
	}
	if got := read(t, s, "k"); got != "mine" {
		t.Errorf("the final blob holds %q", got)
	}
}

// network counts calls by what they do, and may answer or act before one.
type network struct {
	mu    sync.Mutex
	calls map[string]int
	first func(what string, r *http.Request) *http.Response
}

func (n *network) Do(r *http.Request) (*http.Response, error) {
	what := r.Method + " " + r.URL.Query().Get("comp")
	n.mu.Lock()
	if n.calls == nil {
		n.calls = map[string]int{}
	}
	n.calls[what]++
	first := n.first
	n.mu.Unlock()
	if first != nil {
		if resp := first(what, r); resp != nil {
			return resp, nil
		}
	}
	return http.DefaultClient.Do(r)
}

func answer(r *http.Request, status int, code, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{"X-Ms-Error-Code": {code}}, Request: r,
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

// begun uploads two parts of k.
func begun(t *testing.T, s objects.Store) (id string, parts []objects.Part) {
	t.Helper()
	id, err := s.Begin(t.Context(), "k", nil)
	must(t, err)
	for n := 1; n <= 2; n++ {
		to, err := s.SignPart(t.Context(), "k", id, n, time.Minute)
		must(t, err)
		_, _, etag := objectstest.Do(t, http.DefaultClient, "PUT", to, fmt.Sprintf("part %d,", n))
		parts = append(parts, objects.Part{Number: n, ETag: etag})
	}
	return id, parts
}

// A completion that was cut off before its commit goes on where it was, and the
// commit is sent once however it ends.
func TestCompleteGoesOn(t *testing.T) {
	n := &network{}
	o := azurite
	o.transport = n
	s := open(t, o, emulatortest.Azurite(t))
	id, parts := begun(t, s)
	n.first = func(what string, r *http.Request) *http.Response {
		if what == "PUT blocklist" {
			return answer(r, 503, "ServerBusy", "")
		}
		return nil
	}
	_, err := s.Complete(t.Context(), "k", id, parts, objects.Cond{})
	if !objects.Is(err, objects.Away) || n.calls["PUT blocklist"] != 1 || n.calls["PUT block"] != 2 {
		t.Fatalf("%v, calls %v", err, n.calls)
	}
	if _, err := s.Stat(t.Context(), "k"); !objects.Is(err, objects.NotFound) {
		t.Errorf("before the commit: %v", err)
	}
	for i, err := range s.List(t.Context(), "") {
		must(t, err)
		t.Errorf("before the commit %s is listed", i.Key)
	}
	n.first = nil
	_, err = s.Complete(t.Context(), "k", id, parts, objects.Cond{IfAbsent: true})
	must(t, err)
	if got := read(t, s, "k"); got != "part 1,part 2," || n.calls["PUT block"] != 2 {
		t.Errorf("completed as %q, calls %v", got, n.calls)
	}
}

// A write that comes between the copying and the commit makes the condition fail.
// Azure then has thrown the blocks away; Azurite keeps them.
func TestWriteBetween(t *testing.T) {
	for _, azure := range []bool{false, true} {
		address := emulatortest.Azurite(t)
		other := open(t, azurite, address)
		n := &network{}
		o := azurite
		o.transport = n
		s := open(t, o, address)
		id, parts := begun(t, s)
		n.first = func(what string, r *http.Request) *http.Response {
			if what != "PUT blocklist" {
				return nil
			}
			put(t, other, "k", "between")
			if azure {
				return answer(r, 400, "InvalidBlockList", "")
			}
			return nil
		}
		_, err := s.Complete(t.Context(), "k", id, parts, objects.Cond{IfAbsent: true})
		if !objects.Is(err, objects.Exists) {
			t.Errorf("as Azure does it %t: %v", azure, err)
		}
		if got := read(t, s, "k"); got != "between" {
			t.Errorf("as Azure does it %t: holds %q", azure, got)
		}
		n.first = nil
		_, err = s.Complete(t.Context(), "k", id, parts, objects.Cond{})
		must(t, err)
	}
}

// Writes under a condition are sent once.
func TestTries(t *testing.T) {
	n := &network{first: func(_ string, r *http.Request) *http.Response { return answer(r, 503, "ServerBusy", "") }}
	s := open(t, Options{Account: "a", Key: "a2V5", transport: n}, "azblob://c")
	_, err := s.Put(t.Context(), "k", strings.NewReader("x"), objects.PutOptions{Cond: objects.Cond{IfAbsent: true}})
	if !objects.Is(err, objects.Away) || n.calls["PUT "] != 1 {
		t.Errorf("a put under a condition: %v, calls %v", err, n.calls)
	}
	if err := s.Delete(t.Context(), "k"); !objects.Is(err, objects.Away) || n.calls["DELETE "] != 3 {
		t.Errorf("a delete: %v, calls %v", err, n.calls)
	}
}

func TestCodes(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		want   objects.Code
	}{
		{403, "AuthorizationFailure", objects.Denied},
		{401, "", objects.Denied},
		{404, "BlobNotFound", objects.NotFound},
		{404, "ContainerNotFound", objects.Invalid},
		{404, "", objects.NotFound},
		{409, "BlobAlreadyExists", objects.Exists},
		{409, "ContainerBeingDeleted", objects.Away},
		{412, "ConditionNotMet", objects.Exists},
		{400, "InvalidMetadata", objects.Invalid},
		{429, "", objects.Away},
		{500, "InternalError", objects.Away},
		{503, "ServerBusy", objects.Away},
		{507, "", objects.Full},
	} {
		n := &network{first: func(_ string, r *http.Request) *http.Response { return answer(r, c.status, c.code, "a\nb") }}
		s := open(t, Options{Account: "a", Key: "a2V5", transport: n}, "azblob://c")
		opts := objects.PutOptions{Cond: objects.Cond{IfMatch: "e"}}
		_, err := s.Put(t.Context(), "k", strings.NewReader("x"), opts)
		want := c.want
		if c.code == "BlobNotFound" {
			want = objects.Exists // in answer to If-Match
		}
		if !objects.Is(err, want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("put, %d %s: got %v, want %s", c.status, c.code, err, want)
		}
		if c.want == objects.Away {
			continue // it is tried again, which takes its time
		}
		if _, err := s.Stat(t.Context(), "k"); !objects.Is(err, c.want) {
			t.Errorf("stat, %d %s: got %v, want %s", c.status, c.code, err, c.want)
		}
	}
	s := open(t, Options{Account: "a", Key: "a2V5"}, "azblob://c?endpoint=http://127.0.0.1:1")
	opts := objects.PutOptions{Cond: objects.Cond{IfAbsent: true}}
	if _, err := s.Put(t.Context(), "k", strings.NewReader("x"), opts); !objects.Is(err, objects.Away) || strings.Contains(err.Error(), "127.0.0.1:1/") {
		t.Errorf("a closed port: %v", err)
	}
}

type identity struct{}

func (identity) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "secret-token", ExpiresOn: time.Now().Add(time.Hour)}, nil
}

// Without a shared key URLs are signed by a user delegation key, which is asked
// for once for as long as it outlives them.
func TestUserDelegation(t *testing.T) {
	n := &network{first: func(what string, r *http.Request) *http.Response {
		if what != "POST userdelegationkey" || r.Header.Get("Authorization") != "Bearer secret-token" {
			t.Errorf("%s %v", what, r.Header)
		}
		body, err := io.ReadAll(r.Body)
		must(t, err)
		var asked struct{ Start, Expiry string }
		must(t, xml.Unmarshal(body, &asked))
		start, end := asked.Start, asked.Expiry
		return answer(r, 200, "", `<?xml version="1.0"?><UserDelegationKey><SignedOid>oid</SignedOid><SignedTid>tid</SignedTid><SignedStart>`+start+
			`</SignedStart><SignedExpiry>`+end+`</SignedExpiry><SignedService>b</SignedService><SignedVersion>2024-11-04</SignedVersion><Value>a2V5</Value></UserDelegationKey>`)
	}}
	s := open(t, Options{Account: "acct", credential: identity{}, transport: n}, "azblob://c/p")
	sign := func(valid time.Duration) url.Values {
		t.Helper()
		signed, err := s.SignGet(t.Context(), "k", valid)
		must(t, err)
		u, err := url.Parse(signed)
		must(t, err)
		if u.Host != "acct.blob.core.windows.net" || u.Path != "/c/p/k" {
			t.Errorf("signed %s", signed)
		}
		q := u.Query()
		if q.Get("skoid") != "oid" || q.Get("sp") != "r" || q.Get("spr") != "https" || q.Get("se") > q.Get("ske") {
			t.Errorf("signed %v", q)
		}
		return q
	}
	first := sign(time.Hour)
	sign(2 * time.Hour)
	if n.calls["POST userdelegationkey"] != 1 {
		t.Errorf("calls %v", n.calls)
	}
	sign(24 * time.Hour)
	long := sign(1000 * time.Hour)
	if n.calls["POST userdelegationkey"] != 3 {
		t.Errorf("calls %v", n.calls)
	}
	if d := age(t, long["ske"][0]); d > 7*24*time.Hour || d < 6*24*time.Hour {
		t.Errorf("the longest key is good for %s", d)
	}
	if d := age(t, first["ske"][0]); d > 4*time.Hour {
		t.Errorf("the first key is good for %s", d)
	}
}

func age(t *testing.T, at string) time.Duration {
	t.Helper()
	end, err := time.Parse(time.RFC3339, at)
	must(t, err)
	return time.Until(end)
}

// A key is sent to nobody but its own account's service.
func TestOpen(t *testing.T) {
	for _, c := range []struct{ account, endpoint, want string }{
		{"a", "", "https://a.blob.core.windows.net"},
		{"a", "http://127.0.0.1:10000", "http://127.0.0.1:10000/a"},
		{"a", "http://localhost:10000/", "http://localhost:10000/a"},
		{"a", "http://127.0.0.1:10000/b", "http://127.0.0.1:10000/b"},
		{"a", "https://blobs.example.org", "https://blobs.example.org"},
	} {
		if got, err := serviceURL(c.account, c.endpoint); err != nil || got != c.want {
			t.Errorf("%s at %s: %s, %v; want %s", c.account, c.endpoint, got, err, c.want)
		}
	}
	p := &pool{o: Options{Account: "a", Key: "a2V5", credential: identity{}}, known: map[string]*account{}}
	for _, name := range []string{"a", "b"} {
		a, err := p.account(name, "https://x")
		must(t, err)
		if (a.shared != nil) != (name == "a") {
			t.Errorf("account %s: shared key %t", name, a.shared != nil)
		}
	}
	stores := &objects.Stores{Schemes: map[string]objects.Opener{"azblob": New(Options{Account: "a", Key: "hunter2!"})}}
	for _, c := range []struct{ address, want string }{
		{"azblob://c?acount=x", `unknown setting "acount"`},
		{"azblob:///x", "no container"},
		{"azblob://c?endpoint=nowhere", "want https://host"},
		{"azblob://c", "not base64"},
	} {
		_, err := stores.Open(t.Context(), c.address)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %q", c.address, err, c.want)
		}
	}
	t.Setenv("AZURE_STORAGE_ACCOUNT", "")
	stores.Schemes["azblob"] = New(Options{})
	if _, err := stores.Open(t.Context(), "azblob://c"); err == nil || !strings.Contains(err.Error(), "no storage account") {
		t.Errorf("no account: %v", err)
	}
}
