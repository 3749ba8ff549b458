// Package s3 keeps objects in a bucket behind the S3 API: Amazon's, or another
// that speaks it. Credentials come from the SDK's own chain (environment, shared
// files, the machine's role).
//
// What a store must do beyond plain objects: multi-part uploads, user metadata,
// and signed URLs (version 4). If-None-Match and If-Match are sent where a write
// has a condition; since not every store heeds them on the completion of an
// upload, the object is looked at before as well.
package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"gpubroker/internal/objects"
)

// Open opens the bucket of s3://bucket?endpoint=…&region=…&path_style=…. With an
// endpoint (https://host:port) the bucket goes into the path unless path_style is
// false; the region is then us-east-1 if not given.
func Open(ctx context.Context, u *url.URL) (objects.Store, error) { return open(ctx, u, nil) }

// With opens buckets with a key of its own in place of the SDK's chain.
func With(access, secret string) objects.Opener {
	keys := credentials.NewStaticCredentialsProvider(access, secret, "")
	return func(ctx context.Context, u *url.URL) (objects.Store, error) { return open(ctx, u, keys) }
}

func open(ctx context.Context, u *url.URL, keys aws.CredentialsProvider) (objects.Store, error) {
	q := u.Query()
	for k := range q {
		if k != "endpoint" && k != "region" && k != "path_style" {
			return nil, fmt.Errorf("unknown setting %q: want endpoint, region or path_style", k)
		}
	}
	if u.Host == "" {
		return nil, errors.New("no bucket: want s3://bucket/prefix")
	}
	endpoint, region := q.Get("endpoint"), q.Get("region")
	style := endpoint != ""
	if s := q.Get("path_style"); s != "" {
		var err error
		if style, err = strconv.ParseBool(s); err != nil {
			return nil, fmt.Errorf("path_style %q: want true or false", s)
		}
	}
	if endpoint != "" {
		if e, err := url.Parse(endpoint); err != nil || e.Scheme != "https" && e.Scheme != "http" || e.Host == "" {
			return nil, fmt.Errorf("endpoint %q: want https://host", endpoint)
		}
		if region == "" {
			region = "us-east-1"
		}
	}
	cfg, err := config.LoadDefaultConfig(ctx, func(o *config.LoadOptions) error {
		if region != "" {
			o.Region = region
		}
		if keys != nil {
			o.Credentials = keys
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	if cfg.Region == "" {
		return nil, errors.New("no region: add ?region=… or set AWS_REGION")
	}
	return New(cfg, u.Host, func(o *s3.Options) {
		o.UsePathStyle = style
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
	}), nil
}

// Bucket is a store in a bucket.
type Bucket struct {
	name   string
	client *s3.Client
	signer *s3.PresignClient
}

// New returns the store of a bucket.
func New(cfg aws.Config, bucket string, opts ...func(*s3.Options)) *Bucket {
	// Checksums beyond those of the protocol are not understood by all that speak
	// S3, and a signed URL cannot hold the one of a body not yet known.
	base := func(o *s3.Options) {
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.DisableLogOutputChecksumValidationSkipped = true
	}
	c := s3.NewFromConfig(cfg, append([]func(*s3.Options){base}, opts...)...)
	return &Bucket{bucket, c, s3.NewPresignClient(c)}
}

// String returns the bucket's address.
func (b *Bucket) String() string { return "s3://" + b.name }

// fail gives an SDK error its code.
func fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &objects.Error{Op: op, Key: key, Code: code(err), Err: err}
}

// code follows docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; what
// an unknown store answers is told by the HTTP status.
func code(err error) objects.Code {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		switch e.ErrorCode() {
		case "NoSuchKey", "NoSuchUpload", "NotFound":
			return objects.NotFound
		case "PreconditionFailed", "ConditionalRequestConflict":
			return objects.Exists
		case "NoSuchBucket", "InvalidPart", "InvalidPartOrder", "EntityTooSmall", "EntityTooLarge":
			return objects.Invalid
		case "SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError", "ServiceUnavailable":
			return objects.Away
		case "QuotaExceeded", "XMinioStorageFull", "InsufficientStorage":
			return objects.Full
		}
	}
	resp, ok := errors.AsType[*awshttp.ResponseError](err)
	if !ok || resp.Response == nil || resp.HTTPStatusCode() == 0 {
		return objects.Away // no answer
	}
	switch s := resp.HTTPStatusCode(); {
	case s == http.StatusNotFound:
		return objects.NotFound
	case s == http.StatusPreconditionFailed, s == http.StatusConflict:
		return objects.Exists
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		return objects.Denied
	case s == http.StatusInsufficientStorage:
		return objects.Full
	case s == http.StatusTooManyRequests, s == http.StatusRequestTimeout, s >= 500:
		return objects.Away
	}
	return objects.Invalid
}

func check(op, key string) error {
	if err := objects.CheckKey(key); err != nil {
		return &objects.Error{Op: op, Key: key, Code: objects.Invalid, Err: err}
	}
	return nil
}

func unquote(etag *string) string { return strings.Trim(aws.ToString(etag), `"`) }

// conditions are the headers of a condition.
func conditions(c objects.Cond) (ifMatch, ifNoneMatch *string) {
	if c.IfMatch != "" {
		ifMatch = aws.String(`"` + c.IfMatch + `"`)
	}
	if c.IfAbsent {
		ifNoneMatch = aws.String("*")
	}
	return ifMatch, ifNoneMatch
}

// holds looks whether a condition holds now.
func (b *Bucket) holds(ctx context.Context, op, key string, c objects.Cond) error {
	if c == (objects.Cond{}) {
		return nil
	}
	info, err := b.Stat(ctx, key)
	absent := objects.Is(err, objects.NotFound)
	switch {
	case err != nil && !absent:
		return err
	case c.IfAbsent && !absent, c.IfMatch != "" && info.ETag != c.IfMatch:
		return &objects.Error{Op: op, Key: key, Code: objects.Exists, Err: errors.New("the condition does not hold")}
	}
	return nil
}

// Put implements [objects.Store].
func (b *Bucket) Put(ctx context.Context, key string, body io.ReadSeeker, opts objects.PutOptions) (objects.Info, error) {
	if err := check("put", key); err != nil {
		return objects.Info{}, err
	}
	size, err := body.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = body.Seek(0, io.SeekStart)
	}
	if err != nil {
		return objects.Info{}, &objects.Error{Op: "put", Key: key, Code: objects.Invalid, Err: err}
	}
	if err := b.holds(ctx, "put", key, opts.Cond); err != nil {
		return objects.Info{}, err
	}
	ifMatch, ifNone := conditions(opts.Cond)
	out, err := b.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &b.name, Key: &key, Body: body, ContentLength: &size, Metadata: opts.Meta,
		IfMatch: ifMatch, IfNoneMatch: ifNone,
	})
	if err != nil {
		return objects.Info{}, fail("put", key, missing(err, opts.Cond))
	}
	return objects.Info{Key: key, Bytes: size, ETag: unquote(out.ETag), Modified: time.Now().UTC(), Meta: opts.Meta}, nil
}

// missing reads "no such key" in answer to If-Match as a condition that does not
// hold.
func missing(err error, c objects.Cond) error {
	if c.IfMatch != "" && code(err) == objects.NotFound {
		return &smithy.GenericAPIError{Code: "PreconditionFailed", Message: err.Error()}
	}
	return err
}

// Get implements [objects.Store].
func (b *Bucket) Get(ctx context.Context, key string, r objects.Range) (io.ReadCloser, objects.Info, error) {
	if err := check("get", key); err != nil {
		return nil, objects.Info{}, err
	}
	in := &s3.GetObjectInput{Bucket: &b.name, Key: &key}
	switch {
	case r.Offset < 0 || r.Length < 0:
		return nil, objects.Info{}, &objects.Error{Op: "get", Key: key, Code: objects.Invalid, Err: fmt.Errorf("range %+v", r)}
	case r.Length > 0:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1))
	case r.Offset > 0:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", r.Offset))
	}
	out, err := b.client.GetObject(ctx, in)
	if err != nil {
		return nil, objects.Info{}, fail("get", key, err)
	}
	size := aws.ToInt64(out.ContentLength)
	if _, total, ok := strings.Cut(aws.ToString(out.ContentRange), "/"); ok {
		if n, err := strconv.ParseInt(total, 10, 64); err == nil {
			size = n
		}
	}
	return out.Body, objects.Info{
		Key: key, Bytes: size, ETag: unquote(out.ETag), Modified: aws.ToTime(out.LastModified).UTC(), Meta: out.Metadata,
	}, nil
}

// Stat implements [objects.Store].
func (b *Bucket) Stat(ctx context.Context, key string) (objects.Info, error) {
	if err := check("stat", key); err != nil {
		return objects.Info{}, err
	}
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	if err != nil {
		return objects.Info{}, fail("stat", key, err)
	}
	return objects.Info{
		Key: key, Bytes: aws.ToInt64(out.ContentLength), ETag: unquote(out.ETag),
		Modified: aws.ToTime(out.LastModified).UTC(), Meta: out.Metadata,
	}, nil
}

// List implements [objects.Store].
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[objects.Info, error] {
	return func(yield func(objects.Info, error) bool) {
		pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield(objects.Info{}, fail("list", prefix, err))
				return
			}
			for _, o := range page.Contents {
				info := objects.Info{
					Key: aws.ToString(o.Key), Bytes: aws.ToInt64(o.Size), ETag: unquote(o.ETag),
					Modified: aws.ToTime(o.LastModified).UTC(),
				}
				if objects.CheckKey(info.Key) == nil && !yield(info, nil) {
					return
				}
			}
		}
	}
}

// Delete implements [objects.Store].
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := check("delete", key); err != nil {
		return err
	}
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: &key})
	if err != nil && code(err) == objects.NotFound {
		return nil
	}
	return fail("delete", key, err)
}

// SignGet implements [objects.Store].
func (b *Bucket) SignGet(ctx context.Context, key string, valid time.Duration) (string, error) {
	if err := check("sign", key); err != nil {
		return "", err
	}
	r, err := b.signer.PresignGetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: &key}, s3.WithPresignExpires(valid))
	if err != nil {
		return "", fail("sign", key, err)
	}
	return r.URL, nil
}

// SignPut implements [objects.Store].
func (b *Bucket) SignPut(ctx context.Context, key string, valid time.Duration) (string, error) {
	if err := check("sign", key); err != nil {
		return "", err
	}
	r, err := b.signer.PresignPutObject(ctx, &s3.PutObjectInput{Bucket: &b.name, Key: &key}, s3.WithPresignExpires(valid))
	if err != nil {
		return "", fail("sign", key, err)
	}
	return r.URL, nil
}

// Begin implements [objects.Store].
func (b *Bucket) Begin(ctx context.Context, key string, meta map[string]string) (string, error) {
	if err := check("begin", key); err != nil {
		return "", err
	}
	out, err := b.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &b.name, Key: &key, Metadata: meta})
	if err != nil {
		return "", fail("begin", key, err)
	}
	return aws.ToString(out.UploadId), nil
}

// SignPart implements [objects.Store].
func (b *Bucket) SignPart(ctx context.Context, key, upload string, number int, valid time.Duration) (string, error) {
	if err := check("sign", key); err != nil {
		return "", err
	}
	if number < 1 || number > objects.MaxParts {
		return "", &objects.Error{Op: "sign", Key: key, Code: objects.Invalid, Err: fmt.Errorf("part %d", number)}
	}
	r, err := b.signer.PresignUploadPart(ctx, &s3.UploadPartInput{
		Bucket: &b.name, Key: &key, UploadId: &upload, PartNumber: aws.Int32(int32(number)),
	}, s3.WithPresignExpires(valid))
	if err != nil {
		return "", fail("sign", key, err)
	}
	return r.URL, nil
}

// Complete implements [objects.Store].
func (b *Bucket) Complete(ctx context.Context, key, upload string, parts []objects.Part, cond objects.Cond) (objects.Info, error) {
	if err := check("complete", key); err != nil {
		return objects.Info{}, err
	}
	if len(parts) == 0 {
		return objects.Info{}, &objects.Error{Op: "complete", Key: key, Code: objects.Invalid, Err: errors.New("no parts")}
	}
	if err := b.holds(ctx, "complete", key, cond); err != nil {
		return objects.Info{}, err
	}
	done := make([]types.CompletedPart, len(parts))
	for i, p := range parts {
		if p.Number < 1 || p.Number > objects.MaxParts {
			return objects.Info{}, &objects.Error{Op: "complete", Key: key, Code: objects.Invalid, Err: fmt.Errorf("part %d", p.Number)}
		}
		done[i] = types.CompletedPart{
			PartNumber: aws.Int32(int32(p.Number)),
			ETag:       aws.String(`"` + strings.Trim(p.ETag, `"`) + `"`),
		}
	}
	ifMatch, ifNone := conditions(cond)
	_, err := b.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &b.name, Key: &key, UploadId: &upload,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: done},
		IfMatch:         ifMatch, IfNoneMatch: ifNone,
	})
	if err != nil {
		return objects.Info{}, fail("complete", key, err)
	}
	return b.Stat(ctx, key)
}

// Abort implements [objects.Store].
func (b *Bucket) Abort(ctx context.Context, key, upload string) error {
	if err := check("abort", key); err != nil {
		return err
	}
	_, err := b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &b.name, Key: &key, UploadId: &upload})
	if err != nil && code(err) == objects.NotFound {
		return nil
	}
	return fail("abort", key, err)
}

// Uploads implements [objects.Store].
func (b *Bucket) Uploads(ctx context.Context, prefix string) iter.Seq2[objects.Upload, error] {
	return func(yield func(objects.Upload, error) bool) {
		pages := s3.NewListMultipartUploadsPaginator(b.client, &s3.ListMultipartUploadsInput{Bucket: &b.name, Prefix: &prefix})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield(objects.Upload{}, fail("list uploads", prefix, err))
				return
			}
			for _, u := range page.Uploads {
				up := objects.Upload{Key: aws.ToString(u.Key), ID: aws.ToString(u.UploadId), Begun: aws.ToTime(u.Initiated).UTC()}
				if !yield(up, nil) {
					return
				}
			}
		}
	}
}
