package gcs

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/auth"

	"gpubroker/internal/objects"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What is signed, as Google's own conformance tests have it
// (github.com/googleapis/conformance-tests, storage/v1/v4_signatures.json).
func TestSignedText(t *testing.T) {
	const email = "test-iam-credentials@dummy-project-id.iam.gserviceaccount.com"
	const query = "X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Credential=test-iam-credentials%40dummy-project-id.iam.gserviceaccount.com%2F20190201%2Fauto%2Fstorage%2Fgoog4_request&X-Goog-Date=20190201T090000Z&X-Goog-Expires=10&X-Goog-SignedHeaders=host"
	at := time.Date(2019, 2, 1, 9, 0, 0, 0, time.UTC)
	for _, c := range []struct{ method, name, sum string }{
		{"GET", "test-object", "00e2fb794ea93d7adb703edaebdd509821fcc7d4f1a79ac5c8d2b394df109320"},
		{"PUT", "test-object", "78742860705da91404222d5d66ff89850292471199c3c2808d116ad12e6177b4"},
	} {
		b := &bucket{name: "test-bucket", endpoint: public}
		got, text := b.toSign(email, c.method, c.name, at, 10*time.Second)
		if got != query {
			t.Errorf("%s: query %s\nwant %s", c.method, got, query)
		}
		want := "GOOG4-RSA-SHA256\n20190201T090000Z\n20190201/auto/storage/goog4_request\n" + c.sum
		if text != want {
			t.Errorf("%s: to sign %q\nwant %q", c.method, text, want)
		}
	}
	b := &bucket{name: "test-bucket"}
	if got, want := b.path("path/with/slashes/under_score/amper&sand/file.ext"), "/test-bucket/path/with/slashes/under_score/amper%26sand/file.ext"; got != want {
		t.Errorf("path %s, want %s", got, want)
	}
}

// transport answers requests in this process.
type transport func(r *http.Request) (int, string)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := f(r)
	return &http.Response{
		StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body)), Request: r,
	}, nil
}

type token string

func (t token) Token(context.Context) (*auth.Token, error) { return &auth.Token{Value: string(t)}, nil }

// A machine's account has no key: Google signs for it.
func TestGoogleSigns(t *testing.T) {
	var asked []byte
	status := 200
	id := &identity{email: "broker@p.iam.gserviceaccount.com", creds: auth.NewCredentials(&auth.CredentialsOptions{TokenProvider: token("secret-token")})}
	b := &bucket{
		name: "b", endpoint: public, account: &account{known: id}, now: time.Now,
		http: &http.Client{Transport: transport(func(r *http.Request) (int, string) {
			if r.URL.String() != iam+"broker@p.iam.gserviceaccount.com:signBlob" || r.Header.Get("Authorization") != "Bearer secret-token" {
				t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
			}
			var in struct{ Payload []byte }
			must(t, json.NewDecoder(r.Body).Decode(&in))
			asked = in.Payload
			return status, `{"keyId": "k", "signedBlob": "c2lnbmVk"}`
		})},
	}
	signed, err := b.SignPut(t.Context(), "a b", time.Hour)
	must(t, err)
	u, err := url.Parse(signed)
	must(t, err)
	if got := u.Query().Get("X-Goog-Signature"); got != hex.EncodeToString([]byte("signed")) {
		t.Errorf("signature %q", got)
	}
	if !strings.HasPrefix(string(asked), algorithm+"\n") {
		t.Errorf("asked to sign %q", asked)
	}
	if !strings.HasPrefix(signed, public+"/b/a%20b?") || u.Query().Get("X-Goog-Expires") != "3600" {
		t.Errorf("signed %s", signed)
	}
	status = 403
	if _, err = b.SignPut(t.Context(), "a", time.Hour); !objects.Is(err, objects.Denied) || !strings.Contains(err.Error(), "Service Account Token Creator") {
		t.Errorf("refused: %v", err)
	}
	if strings.Contains(err.Error(), "secret-token") {
		t.Errorf("the error gives the token away: %v", err)
	}
}

// A URL is valid for a week at most.
func TestLongestSignature(t *testing.T) {
	b := &bucket{name: "b", endpoint: public, account: &account{emulated: true}, now: time.Now}
	signed, err := b.SignGet(t.Context(), "k", 1000*time.Hour)
	must(t, err)
	if !strings.Contains(signed, "&X-Goog-Expires=604800&") {
		t.Errorf("signed %s", signed)
	}
}

func keyFile(t *testing.T, key *rsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "sa@p.iam.gserviceaccount.com", "private_key_id": "1",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": "https://oauth2.invalid/token",
	})
	must(t, err)
	return text
}

func TestCredentials(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	const impersonation = `{"type": "impersonated_service_account", "service_account_impersonation_url":
		"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/sa@p.iam.gserviceaccount.com:generateAccessToken",
		"source_credentials": {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}}`
	for _, c := range []struct {
		name, text, email string
		key               bool
		fault             string
	}{
		{"a service account's key", string(keyFile(t, key)), "sa@p.iam.gserviceaccount.com", true, ""},
		{"impersonation", impersonation, "sa@p.iam.gserviceaccount.com", false, ""},
		{"a person's", `{"type": "authorized_user", "client_id": "c", "client_secret": "hunter2", "refresh_token": "hunter2"}`, "", false, "cannot sign"},
		{"not JSON", "hunter2", "", false, "not JSON"},
		{"no PEM", `{"type": "service_account", "client_email": "e", "private_key": "hunter2"}`, "", false, "PEM"},
		{"an unknown type", `{"type": "hunter3"}`, "", false, "credentials for Google"},
	} {
		id, err := (&account{given: []byte(c.text)}).identity(t.Context())
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v, want %q", c.name, err, c.fault)
			}
			continue
		}
		if err != nil || id.email != c.email || (id.key != nil) != c.key {
			t.Errorf("%s: %+v, %v", c.name, id, err)
		}
	}
}

// A signature is that of the key over what Google will see.
func TestKeySigns(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	b := &bucket{name: "b", endpoint: public, account: &account{given: keyFile(t, key)}, now: func() time.Time { return at }}
	signed, err := b.SignGet(t.Context(), "ü/1", time.Minute)
	must(t, err)
	u, err := url.Parse(signed)
	must(t, err)
	signature, err := hex.DecodeString(u.Query().Get("X-Goog-Signature"))
	must(t, err)
	query, _, _ := strings.Cut(u.RawQuery, "&X-Goog-Signature=")
	request := sha256.Sum256([]byte("GET\n" + u.EscapedPath() + "\n" + query + "\nhost:storage.googleapis.com\n\nhost\nUNSIGNED-PAYLOAD"))
	text := sha256.Sum256([]byte(algorithm + "\n20260301T000000Z\n20260301/auto/storage/goog4_request\n" + hex.EncodeToString(request[:])))
	must(t, rsa.VerifyPKCS1v15(&key.PublicKey, crypto.SHA256, text[:], signature))
}
