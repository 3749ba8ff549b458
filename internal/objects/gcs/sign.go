package gcs

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/compute/metadata"

	"gpubroker/internal/objects"
)

// account is who we are to Google. It is found out when it is first needed.
type account struct {
	given    []byte
	emulated bool // no tokens, and any key will do

	mu    sync.Mutex
	known *identity
}

// identity holds what tokens and signatures are made with.
type identity struct {
	creds *auth.Credentials // nil when emulated
	email string            // of the service account whose signature counts
	key   *rsa.PrivateKey   // nil: Google signs
}

// scopes are read and write of objects, and the signing of URLs.
var scopes = []string{"https://www.googleapis.com/auth/devstorage.read_write", "https://www.googleapis.com/auth/iam"}

func (a *account) identity(ctx context.Context) (*identity, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known != nil {
		return a.known, nil
	}
	find := a.find
	if a.emulated {
		find = a.emulate
	}
	id, err := find(ctx)
	if err == nil {
		a.known = id
	}
	return id, err
}

func (a *account) emulate(context.Context) (*identity, error) {
	id := &identity{email: "nobody@emulator.invalid"}
	if err := id.read(a.given); err != nil || id.key != nil {
		return id, err
	}
	var err error
	id.key, err = rsa.GenerateKey(rand.Reader, 2048)
	return id, err
}

func (a *account) find(ctx context.Context) (*identity, error) {
	opts := &credentials.DetectOptions{Scopes: scopes}
	id := &identity{}
	var err error
	if len(a.given) > 0 {
		var file struct{ Type credentials.CredType }
		if json.Unmarshal(a.given, &file) != nil {
			return nil, errors.New("the credentials are not JSON: want the file that Google makes for a service account")
		}
		id.creds, err = credentials.NewCredentialsFromJSON(file.Type, a.given, opts)
	} else {
		id.creds, err = credentials.DetectDefault(opts)
	}
	if err != nil {
		return nil, fmt.Errorf("credentials for Google: %w; set GOOGLE_APPLICATION_CREDENTIALS, or credentials in the configuration", err)
	}
	text := id.creds.JSON()
	if len(text) == 0 {
		if id.email, err = metadata.EmailWithContext(ctx, "default"); err != nil {
			return nil, fmt.Errorf("ask for the machine's service account: %w", err)
		}
		return id, nil
	}
	if err := id.read(text); err != nil {
		return nil, err
	}
	if id.email == "" {
		return nil, errors.New("credentials for Google: a person's cannot sign URLs; use a service account's, or gcloud auth application-default login --impersonate-service-account=ACCOUNT")
	}
	return id, nil
}

// read takes key and account from a credentials file. Errors do not repeat it.
func (id *identity) read(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	var file struct {
		Email string `json:"client_email"`
		Key   string `json:"private_key"`
		As    string `json:"service_account_impersonation_url"` // …/serviceAccounts/EMAIL:generateAccessToken
	}
	if json.Unmarshal(text, &file) != nil {
		return errors.New("the credentials are not JSON")
	}
	if file.Key == "" {
		if _, rest, ok := strings.Cut(file.As, "/serviceAccounts/"); ok {
			id.email, _, _ = strings.Cut(rest, ":")
		}
		return nil
	}
	id.email = file.Email
	block, _ := pem.Decode([]byte(file.Key))
	if block == nil {
		return errors.New("private_key of the credentials is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	}
	private, ok := key.(*rsa.PrivateKey)
	if err != nil || !ok {
		return errors.New("private_key of the credentials is no RSA key")
	}
	id.key = private
	return nil
}

// token is "" where none is to be sent.
func (a *account) token(ctx context.Context) (string, error) {
	id, err := a.identity(ctx)
	if err != nil || id.creds == nil {
		return "", err
	}
	t, err := id.creds.Token(ctx)
	if err != nil {
		return "", tokenError(err)
	}
	return t.Value, nil
}

// SignGet implements [staging.Bucket].
func (b *bucket) SignGet(ctx context.Context, name string, valid time.Duration) (string, error) {
	return b.sign(ctx, http.MethodGet, name, valid)
}

// SignPut implements [staging.Bucket].
func (b *bucket) SignPut(ctx context.Context, name string, valid time.Duration) (string, error) {
	return b.sign(ctx, http.MethodPut, name, valid)
}

// longest is how long a signed URL may be valid.
const longest = 7 * 24 * time.Hour

const algorithm = "GOOG4-RSA-SHA256"

// sign makes a URL as cloud.google.com/storage/docs/authentication/signatures says,
// of signature version 4.
func (b *bucket) sign(ctx context.Context, method, name string, valid time.Duration) (string, error) {
	id, err := b.account.identity(ctx)
	if err != nil {
		return "", fail("sign", name, err)
	}
	query, text := b.toSign(id.email, method, name, b.now().UTC(), min(valid, longest))
	var signature []byte
	if id.key != nil {
		sum := sha256.Sum256([]byte(text))
		signature, err = rsa.SignPKCS1v15(rand.Reader, id.key, crypto.SHA256, sum[:])
	} else {
		signature, err = b.signBlob(ctx, id.email, []byte(text))
	}
	if err != nil {
		return "", fail("sign", name, err)
	}
	return b.endpoint + b.path(name) + "?" + query + "&X-Goog-Signature=" + hex.EncodeToString(signature), nil
}

// path is an object's under the XML API.
func (b *bucket) path(name string) string { return "/" + b.name + "/" + escape(name, true) }

// toSign returns the query of a signed URL and what is to be signed for it.
func (b *bucket) toSign(email, method, name string, at time.Time, valid time.Duration) (query, text string) {
	scope := at.Format("20060102") + "/auto/storage/goog4_request"
	query = strings.Join([]string{ // in order of their names
		"X-Goog-Algorithm=" + algorithm,
		"X-Goog-Credential=" + escape(email+"/"+scope, false),
		"X-Goog-Date=" + at.Format("20060102T150405Z"),
		"X-Goog-Expires=" + strconv.FormatInt(int64(max(valid, time.Second)/time.Second), 10),
		"X-Goog-SignedHeaders=host",
	}, "&")
	_, host, _ := strings.Cut(b.endpoint, "://")
	request := strings.Join([]string{method, b.path(name), query, "host:" + host, "", "host", "UNSIGNED-PAYLOAD"}, "\n")
	sum := sha256.Sum256([]byte(request))
	text = strings.Join([]string{algorithm, at.Format("20060102T150405Z"), scope, hex.EncodeToString(sum[:])}, "\n")
	return query, text
}

// escape percent-encodes all but the unreserved characters of RFC 3986, and
// slashes if they are to stay.
func escape(s string, slashes bool) string {
	var out strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~", c) >= 0, c == '/' && slashes:
			out.WriteByte(c)
		default:
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}

// iam is where Google signs for service accounts
// (cloud.google.com/iam/docs/reference/credentials/rest).
const iam = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"

// signBlob has Google sign with a key that only it holds.
func (b *bucket) signBlob(ctx context.Context, email string, text []byte) ([]byte, error) {
	in := struct {
		Payload []byte `json:"payload"`
	}{text}
	var out struct {
		Signed []byte `json:"signedBlob"`
	}
	err := b.json(ctx, true, http.MethodPost, iam+url.PathEscape(email)+":signBlob", in, &out)
	if err != nil {
		if code(err) == objects.Denied {
			return nil, &denied{fmt.Errorf("%s may not sign URLs for itself: give it the role Service Account Token Creator on itself: %w", email, err)}
		}
		return nil, err
	}
	if len(bytes.TrimSpace(out.Signed)) == 0 {
		return nil, errors.New("no signature in the answer of Google")
	}
	return out.Signed, nil
}
