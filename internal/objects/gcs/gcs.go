// Package gcs keeps objects in a bucket of Google Cloud Storage, over its JSON and
// XML APIs (cloud.google.com/storage/docs/json_api, …/xml-api). They are few and
// plain calls; Google's own client library would add 9 MB to the program for them.
//
// An object's ETag is its generation. Multi-part uploads are those of package
// staging: parts are put to a reserved prefix by signed URLs, and composed under a
// condition.
//
// What is written is sent once: a write whose answer is lost is not repeated here,
// since under a condition it would seem to have failed. Reads are repeated twice.
package gcs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/staging"
)

// public is where Google serves buckets.
const public = "https://storage.googleapis.com"

// Options are what all buckets share.
type Options struct {
	// Credentials is a credentials file's text (a service account's key, or a
	// configuration of federation or impersonation). Without it Google's chain is
	// used: GOOGLE_APPLICATION_CREDENTIALS, gcloud's own file, the machine's account.
	Credentials []byte
}

// New returns what opens the buckets of gs://bucket?endpoint=….
//
// URLs are signed with the service account's key, or, where there is none, by
// Google (IAM signBlob), which takes a call each and the role Service Account
// Token Creator of the account on itself.
//
// An endpoint with http:// is an emulator: it is sent no token, and without a key
// of a service account URLs bear a signature of a key made up for the purpose.
func New(o Options) objects.Opener {
	google, emulated := &account{given: o.Credentials}, &account{given: o.Credentials, emulated: true}
	shared := client()
	return func(ctx context.Context, u *url.URL) (objects.Store, error) {
		q := u.Query()
		for k := range q {
			if k != "endpoint" {
				return nil, fmt.Errorf("unknown setting %q: want endpoint", k)
			}
		}
		if u.Host == "" {
			return nil, errors.New("no bucket: want gs://bucket/prefix")
		}
		b := &bucket{name: u.Host, endpoint: public, account: google, http: shared, now: time.Now}
		if e := q.Get("endpoint"); e != "" {
			at, err := url.Parse(e)
			if err != nil || at.Scheme != "https" && at.Scheme != "http" || at.Host == "" || strings.Trim(at.Path, "/") != "" {
				return nil, fmt.Errorf("endpoint %q: want https://host", e)
			}
			b.endpoint = at.Scheme + "://" + at.Host
			if at.Scheme == "http" {
				b.account = emulated
			}
		}
		// Credentials that are missing or cannot sign are told now.
		if _, err := b.account.identity(ctx); err != nil {
			return nil, err
		}
		return staging.New(b), nil
	}
}

// bucket is a [staging.Bucket].
type bucket struct {
	name     string
	endpoint string // "https://host"
	account  *account
	http     *http.Client
	now      func() time.Time
}

// resource is an object as the JSON API describes it.
type resource struct {
	Name       string            `json:"name"`
	Size       int64             `json:"size,string"`
	Generation int64             `json:"generation,string"`
	Updated    time.Time         `json:"updated"`
	MD5        string            `json:"md5Hash"` // base64; composed objects have none
	CRC32C     string            `json:"crc32c"`  // base64 of 4 bytes, the highest first
	Metadata   map[string]string `json:"metadata"`
}

func (r resource) info() objects.Info {
	return objects.Info{
		Key: r.Name, Bytes: r.Size, ETag: strconv.FormatInt(r.Generation, 10),
		Modified: r.Updated.UTC(), Meta: r.Metadata,
	}
}

// listed adds what the answer to a PUT may have called the object: Google's XML
// API answers the MD5 of one that is not composed.
func (r resource) listed() staging.Object {
	o := staging.Object{Info: r.info()}
	o.Meta = nil
	if sum, err := base64.StdEncoding.DecodeString(r.MD5); err == nil && len(sum) > 0 {
		o.ETags = append(o.ETags, hex.EncodeToString(sum))
	}
	if sum, err := base64.StdEncoding.DecodeString(r.CRC32C); err == nil && len(sum) == 4 {
		o.ETags = append(o.ETags, objects.SumETag(uint32(sum[0])<<24|uint32(sum[1])<<16|uint32(sum[2])<<8|uint32(sum[3])))
	}
	return o
}

func (b *bucket) all() string { return b.endpoint + "/storage/v1/b/" + url.PathEscape(b.name) + "/o" }

func (b *bucket) object(name string) string { return b.all() + "/" + url.PathEscape(name) }

// condition turns a condition into query parameters.
func condition(c objects.Cond) (url.Values, error) {
	q := url.Values{}
	if c.IfAbsent {
		q.Set("ifGenerationMatch", "0")
	}
	if c.IfMatch != "" {
		n, err := strconv.ParseInt(c.IfMatch, 10, 64)
		if err != nil || n <= 0 || c.IfAbsent {
			return nil, &answer{status: http.StatusPreconditionFailed, text: "no object has this generation"}
		}
		q.Set("ifGenerationMatch", c.IfMatch)
	}
	return q, nil
}

// Put implements [staging.Bucket].
func (b *bucket) Put(ctx context.Context, name string, body io.ReadSeeker, opts objects.PutOptions) (objects.Info, error) {
	size, err := body.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = body.Seek(0, io.SeekStart)
	}
	if err != nil {
		return objects.Info{}, &objects.Error{Op: "put", Key: name, Code: objects.Invalid, Err: err}
	}
	q, err := condition(opts.Cond)
	if err != nil {
		return objects.Info{}, fail("put", name, err)
	}
	q.Set("uploadType", "multipart")
	head, err := json.Marshal(map[string]any{"name": name, "contentType": contentType, "metadata": opts.Meta})
	if err != nil {
		return objects.Info{}, &objects.Error{Op: "put", Key: name, Code: objects.Invalid, Err: err}
	}
	// multipart/related of two parts: what the object is called, and its bytes.
	boundary := rand.Text()
	before := fmt.Sprintf("--%s\r\nContent-Type: application/json\r\n\r\n%s\r\n--%s\r\nContent-Type: %s\r\n\r\n", boundary, head, boundary, contentType)
	after := fmt.Sprintf("\r\n--%s--\r\n", boundary)
	source := &guarded{r: body}
	defer source.end()
	var r resource
	err = b.call(ctx, false, func() (*http.Request, error) {
		to := b.endpoint + "/upload/storage/v1/b/" + url.PathEscape(b.name) + "/o?" + q.Encode()
		whole := io.MultiReader(strings.NewReader(before), io.LimitReader(source, size), strings.NewReader(after))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, whole)
		if err != nil {
			return nil, err
		}
		req.ContentLength = int64(len(before)) + size + int64(len(after))
		req.Header.Set("Content-Type", "multipart/related; boundary="+boundary)
		return req, nil
	}, &r)
	if err != nil {
		return objects.Info{}, fail("put", name, bucketMissing(err))
	}
	return r.info(), nil
}

// contentType is that of all objects: what they hold is not our concern.
const contentType = "application/octet-stream"

// Get implements [staging.Bucket]. The XML API answers metadata beside the bytes.
func (b *bucket) Get(ctx context.Context, name string, r objects.Range) (io.ReadCloser, objects.Info, error) {
	resp, err := b.send(ctx, true, func() (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.endpoint+b.path(name), http.NoBody)
		if err != nil {
			return nil, err
		}
		switch {
		case r.Length > 0:
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1))
		case r.Offset > 0:
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-", r.Offset))
		}
		// Objects marked as compressed come as they are stored.
		req.Header.Set("Accept-Encoding", "gzip")
		return req, nil
	})
	if err != nil {
		return nil, objects.Info{}, fail("get", name, err)
	}
	info := objects.Info{Key: name, Bytes: resp.ContentLength, ETag: resp.Header.Get("X-Goog-Generation"), Meta: map[string]string{}}
	if _, total, ok := strings.Cut(resp.Header.Get("Content-Range"), "/"); ok {
		if n, err := strconv.ParseInt(total, 10, 64); err == nil {
			info.Bytes = n
		}
	}
	if at, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		info.Modified = at.UTC()
	}
	for h, v := range resp.Header {
		if k, ok := strings.CutPrefix(strings.ToLower(h), "x-goog-meta-"); ok {
			info.Meta[k] = v[0]
		}
	}
	return resp.Body, info, nil
}

// Stat implements [staging.Bucket].
func (b *bucket) Stat(ctx context.Context, name string) (objects.Info, error) {
	var r resource
	if err := b.json(ctx, true, http.MethodGet, b.object(name), nil, &r); err != nil {
		return objects.Info{}, fail("stat", name, err)
	}
	return r.info(), nil
}

// List implements [staging.Bucket].
func (b *bucket) List(ctx context.Context, prefix string) iter.Seq2[staging.Object, error] {
	return func(yield func(staging.Object, error) bool) {
		q := url.Values{"prefix": {prefix}, "fields": {"nextPageToken,items(name,size,generation,updated,md5Hash,crc32c)"}}
		for {
			var page struct {
				Items []resource `json:"items"`
				Next  string     `json:"nextPageToken"`
			}
			if err := b.json(ctx, true, http.MethodGet, b.all()+"?"+q.Encode(), nil, &page); err != nil {
				yield(staging.Object{}, fail("list", prefix, bucketMissing(err)))
				return
			}
			for _, r := range page.Items {
				if !yield(r.listed(), nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			q.Set("pageToken", page.Next)
		}
	}
}

// Delete implements [staging.Bucket].
func (b *bucket) Delete(ctx context.Context, name string) error {
	err := b.json(ctx, true, http.MethodDelete, b.object(name), nil, nil)
	if err != nil && code(err) == objects.NotFound {
		return nil
	}
	return fail("delete", name, err)
}

// json makes a call whose request and answer, if any, are JSON.
func (b *bucket) json(ctx context.Context, repeat bool, method, to string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	return b.call(ctx, repeat, func() (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
		if err == nil && in != nil {
			req.Header.Set("Content-Type", "application/json")
		}
		return req, err
	}, out)
}
