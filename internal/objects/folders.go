package objects

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Path is where [Folders] serves signed URLs.
const Path = "/objects/v1/"

// maxPut is the largest body of one PUT, as on S3.
const maxPut = 5 << 30

// leftover is how old a file under tmp must be that nobody can still be writing:
// other processes may use the folder.
const leftover = 24 * time.Hour

// Folders opens folders and serves their signed URLs over HTTP. A URL is signed
// with HMAC-SHA256 over method, folder, key, upload, part and expiry; it works
// after a restart as soon as the folder has been opened again.
type Folders struct {
	base string
	key  []byte
	now  func() time.Time

	mu   sync.Mutex
	open map[string]*Folder
}

// NewFolders returns a Folders for the address that machines reach us under, such
// as https://broker.example:8443, and a secret of at least 32 bytes that outlives
// restarts.
func NewFolders(base string, key []byte, now func() time.Time) (*Folders, error) {
	if len(key) < 32 {
		return nil, fmt.Errorf("the key that signs URLs has %d bytes, at least 32 are needed", len(key))
	}
	return &Folders{base: strings.TrimSuffix(base, "/"), key: key, now: now, open: map[string]*Folder{}}, nil
}

// Open returns the store of a folder, which is made if it is not there. The same
// folder gives the same store.
func (s *Folders) Open(root string) (*Folder, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("open the folder %s: %w", root, err)
	}
	id := folderID(root)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.open[id]; ok {
		return f, nil
	}
	f, err := openFolder(root, id, s)
	if err != nil {
		return nil, fmt.Errorf("open the folder %s: %w", root, err)
	}
	if err := f.clean(s.now().Add(-leftover)); err != nil {
		return nil, errors.Join(fmt.Errorf("open the folder %s: %w", root, err), f.Close())
	}
	s.open[id] = f
	return f, nil
}

// Close closes all folders.
func (s *Folders) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for id, f := range s.open {
		errs = append(errs, f.Close())
		delete(s.open, id)
	}
	return errors.Join(errs...)
}

func (s *Folders) signature(method, folder, key, upload, part, expires string) string {
	m := hmac.New(sha256.New, s.key)
	fmt.Fprintf(m, "gpubroker-objects-1\n%s\n%s\n%q\n%q\n%s\n%s\n", method, folder, key, upload, part, expires)
	return hex.EncodeToString(m.Sum(nil))
}

func (f *Folder) signURL(method, key, upload, part string, valid time.Duration) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", invalid("sign", key, err)
	}
	expires := strconv.FormatInt(f.sign.now().Add(valid).Unix(), 10)
	q := url.Values{"expires": {expires}, "sig": {f.sign.signature(method, f.id, key, upload, part, expires)}}
	if upload != "" {
		q.Set("upload", upload)
		q.Set("part", part)
	}
	return f.sign.base + Path + f.id + "/" + (&url.URL{Path: key}).EscapedPath() + "?" + q.Encode(), nil
}

// SignGet implements [Store].
func (f *Folder) SignGet(_ context.Context, key string, valid time.Duration) (string, error) {
	return f.signURL(http.MethodGet, key, "", "", valid)
}

// SignPut implements [Store].
func (f *Folder) SignPut(_ context.Context, key string, valid time.Duration) (string, error) {
	return f.signURL(http.MethodPut, key, "", "", valid)
}

// SignPart implements [Store].
func (f *Folder) SignPart(_ context.Context, key, upload string, number int, valid time.Duration) (string, error) {
	if err := checkPart(number); err != nil {
		return "", invalid("sign", key, err)
	}
	if !uploadID.MatchString(upload) {
		return "", &Error{Op: "sign", Key: key, Code: NotFound, Err: fmt.Errorf("upload %q", upload)}
	}
	return f.signURL(http.MethodPut, key, upload, strconv.Itoa(number), valid)
}

// ServeHTTP serves GET (with ranges), HEAD and PUT of signed URLs under [Path].
// The answers: 200 or 206, 400, 403 (bad or expired signature), 404, 405, 411,
// 413, 412, 503 (try again), 507 (disk full).
func (s *Folders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if method != http.MethodGet && method != http.MethodPut {
		w.Header().Set("Allow", "GET, HEAD, PUT")
		http.Error(w, "only GET, HEAD and PUT", http.StatusMethodNotAllowed)
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, Path)
	id, key, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 {
		http.Error(w, "no such object", http.StatusNotFound)
		return
	}
	q := r.URL.Query()
	upload, part, expires := q.Get("upload"), q.Get("part"), q.Get("expires")
	want := s.signature(method, id, key, upload, part, expires)
	if !hmac.Equal([]byte(want), []byte(q.Get("sig"))) {
		http.Error(w, "the signature does not match: ask for a new URL", http.StatusForbidden)
		return
	}
	if at, err := strconv.ParseInt(expires, 10, 64); err != nil || s.now().Unix() > at {
		http.Error(w, "the URL has expired: ask for a new one", http.StatusForbidden)
		return
	}
	s.mu.Lock()
	f := s.open[id]
	s.mu.Unlock()
	if f == nil {
		http.Error(w, "the folder is not open: ask for a new URL", http.StatusForbidden)
		return
	}
	if method == http.MethodGet {
		f.serveGet(w, r, key)
		return
	}
	f.servePut(w, r, key, upload, part)
}

func (f *Folder) serveGet(w http.ResponseWriter, r *http.Request, key string) {
	file, err := f.root.Open(key)
	if err != nil {
		answer(w, fail("get", key, notDir(err)))
		return
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil || !st.Mode().IsRegular() {
		http.Error(w, "no such object", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+describe(key, st).ETag+`"`)
	http.ServeContent(w, r, "", st.ModTime(), file)
}

func (f *Folder) servePut(w http.ResponseWriter, r *http.Request, key, upload, part string) {
	switch {
	case r.ContentLength < 0:
		http.Error(w, "a Content-Length is needed", http.StatusLengthRequired)
		return
	case r.ContentLength > maxPut:
		http.Error(w, "more than 5 GiB in one request", http.StatusRequestEntityTooLarge)
		return
	}
	body := http.MaxBytesReader(w, r.Body, r.ContentLength)
	var etag string
	if upload == "" {
		info, err := f.put(r.Context(), key, body, r.ContentLength, PutOptions{})
		if err != nil {
			answer(w, err)
			return
		}
		etag = info.ETag
	} else {
		number, err := strconv.Atoi(part)
		if err == nil {
			etag, err = f.putPart(r.Context(), key, upload, number, body, r.ContentLength)
		}
		if err != nil {
			answer(w, err)
			return
		}
	}
	w.Header().Set("ETag", `"`+etag+`"`)
	w.WriteHeader(http.StatusOK)
}

// answer turns an error into a status.
func answer(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	if e, ok := errors.AsType[*Error](err); ok {
		switch e.Code {
		case NotFound:
			status = http.StatusNotFound
		case Exists:
			status = http.StatusPreconditionFailed
		case Away:
			status = http.StatusServiceUnavailable
		case Full:
			status = http.StatusInsufficientStorage
		case Denied:
			status = http.StatusInternalServerError
		case Invalid:
		}
	}
	http.Error(w, err.Error(), status)
}
