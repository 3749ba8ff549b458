// Package azblob keeps objects as block blobs in a container of Azure Blob Storage.
//
// Multi-part uploads are those of package staging: parts are blobs under a
// reserved prefix, put by signed URLs (SAS) that are good for that blob alone.
// Completing copies them, within the service and part by part, into blocks of the
// final blob (Put Block From URL), and commits the list of blocks under the
// write's condition. Blocks are not put to the final blob by signed URL: one that
// permits a block of a blob permits to commit it as well.
//
// A write under a condition is sent once, since it would seem to have failed if
// its answer were lost and it were sent again; the rest is repeated twice.
//
// Azure takes letters, digits and underscores in names of metadata: dashes are
// kept as underscores.
package azblob

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"golang.org/x/sync/errgroup"

	"gpubroker/internal/objects"
	"gpubroker/internal/objects/staging"
)

// bucket is a [staging.Bucket].
type bucket struct {
	name    string
	client  *container.Client
	account *account
}

func (b *bucket) blob(name string) *blockblob.Client { return b.client.NewBlockBlobClient(name) }

// under gives a write its condition, and a context in which it is sent only once.
func under(ctx context.Context, c objects.Cond) (context.Context, *blob.AccessConditions) {
	if c == (objects.Cond{}) {
		return ctx, nil
	}
	m := &blob.ModifiedAccessConditions{}
	if c.IfAbsent {
		m.IfNoneMatch = new(azcore.ETagAny)
	}
	if c.IfMatch != "" {
		m.IfMatch = new(azcore.ETag(`"` + c.IfMatch + `"`))
	}
	once := policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: -1})
	return once, &blob.AccessConditions{ModifiedAccessConditions: m}
}

func encode(meta map[string]string) map[string]*string {
	out := make(map[string]*string, len(meta))
	for k, v := range meta {
		out[strings.ReplaceAll(k, "-", "_")] = &v
	}
	return out
}

func decode(meta map[string]*string) map[string]string {
	out := make(map[string]string, len(meta))
	for k, v := range meta {
		if v != nil {
			out[strings.ReplaceAll(strings.ToLower(k), "_", "-")] = *v
		}
	}
	return out
}

// value is what a pointer of the SDK points at, if it does.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func unquote(e *azcore.ETag) string { return strings.Trim(string(value(e)), `"`) }

// Put implements [staging.Bucket].
func (b *bucket) Put(ctx context.Context, name string, body io.ReadSeeker, opts objects.PutOptions) (objects.Info, error) {
	size, err := body.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = body.Seek(0, io.SeekStart)
	}
	if err != nil {
		return objects.Info{}, &objects.Error{Op: "put", Key: name, Code: objects.Invalid, Err: err}
	}
	ctx, cond := under(ctx, opts.Cond)
	out, err := b.blob(name).Upload(ctx, streaming.NopCloser(body), &blockblob.UploadOptions{
		Metadata: encode(opts.Meta), AccessConditions: cond,
	})
	if err != nil {
		return objects.Info{}, fail("put", name, missing(err, opts.Cond))
	}
	return objects.Info{Key: name, Bytes: size, ETag: unquote(out.ETag), Modified: value(out.LastModified).UTC(), Meta: opts.Meta}, nil
}

// missing reads "no such blob" in answer to If-Match as a condition that does not
// hold.
func missing(err error, c objects.Cond) error {
	if c.IfMatch != "" && bloberror.HasCode(err, bloberror.BlobNotFound) {
		return &objects.Error{Code: objects.Exists, Err: err}
	}
	return err
}

// Get implements [staging.Bucket].
func (b *bucket) Get(ctx context.Context, name string, r objects.Range) (io.ReadCloser, objects.Info, error) {
	out, err := b.blob(name).DownloadStream(ctx, &blob.DownloadStreamOptions{
		Range: blob.HTTPRange{Offset: r.Offset, Count: r.Length},
	})
	if err != nil {
		return nil, objects.Info{}, fail("get", name, err)
	}
	size := value(out.ContentLength)
	if _, total, ok := strings.Cut(value(out.ContentRange), "/"); ok {
		if _, err := fmt.Sscan(total, &size); err != nil {
			size = value(out.ContentLength)
		}
	}
	return out.Body, objects.Info{
		Key: name, Bytes: size, ETag: unquote(out.ETag), Modified: value(out.LastModified).UTC(), Meta: decode(out.Metadata),
	}, nil
}

// Stat implements [staging.Bucket].
func (b *bucket) Stat(ctx context.Context, name string) (objects.Info, error) {
	out, err := b.blob(name).GetProperties(ctx, nil)
	if err != nil {
		return objects.Info{}, fail("stat", name, err)
	}
	return objects.Info{
		Key: name, Bytes: value(out.ContentLength), ETag: unquote(out.ETag),
		Modified: value(out.LastModified).UTC(), Meta: decode(out.Metadata),
	}, nil
}

// List implements [staging.Bucket].
func (b *bucket) List(ctx context.Context, prefix string) iter.Seq2[staging.Object, error] {
	return func(yield func(staging.Object, error) bool) {
		pages := b.client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{Prefix: &prefix})
		for pages.More() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield(staging.Object{}, fail("list", prefix, err))
				return
			}
			for _, i := range page.Segment.BlobItems {
				if i.Properties == nil {
					continue
				}
				o := staging.Object{Info: objects.Info{
					Key: value(i.Name), Bytes: value(i.Properties.ContentLength), ETag: unquote(i.Properties.ETag),
					Modified: value(i.Properties.LastModified).UTC(),
				}}
				o.ETags = []string{o.ETag}
				if !yield(o, nil) {
					return
				}
			}
		}
	}
}

// Delete implements [staging.Bucket].
func (b *bucket) Delete(ctx context.Context, name string) error {
	_, err := b.blob(name).Delete(ctx, nil)
	if bloberror.HasCode(err, bloberror.BlobNotFound) {
		return nil
	}
	return fail("delete", name, err)
}

// SignGet implements [staging.Bucket].
func (b *bucket) SignGet(ctx context.Context, name string, valid time.Duration) (string, error) {
	return b.sign(ctx, name, "r", valid)
}

// SignPut implements [staging.Bucket].
func (b *bucket) SignPut(ctx context.Context, name string, valid time.Duration) (string, error) {
	signed, err := b.sign(ctx, name, "w", valid)
	if err != nil {
		return "", err
	}
	// Azure wants to be told what kind of blob it is to make.
	return objects.SignedURL(signed, map[string][]string{"x-ms-blob-type": {"BlockBlob"}}), nil
}

// atOnce is how many parts are copied at a time, and copyValid how long the
// service may read one.
const (
	atOnce    = 8
	copyValid = time.Hour
)

// Join implements [staging.Bucket]. Blocks that a call before has copied are not
// copied again.
func (b *bucket) Join(ctx context.Context, name string, meta map[string]string, parts []staging.Object, _ string, cond objects.Cond) (objects.Info, error) {
	to := b.blob(name)
	copied, err := uncommitted(ctx, to)
	if err != nil {
		return objects.Info{}, fail("join", name, err)
	}
	ids := make([]string, len(parts))
	var size int64
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, p := range parts {
		size += p.Bytes
		ids[i] = blockID(p.Key, p.ETag)
		if copied[ids[i]] {
			continue
		}
		g.Go(func() error {
			from, err := b.sign(each, p.Key, "r", copyValid)
			if err != nil {
				return err
			}
			_, err = to.StageBlockFromURL(each, ids[i], from, &blockblob.StageBlockFromURLOptions{
				SourceModifiedAccessConditions: &blob.SourceModifiedAccessConditions{SourceIfMatch: new(azcore.ETag(`"` + p.ETag + `"`))},
			})
			return fail("copy", p.Key, err)
		})
	}
	if err := g.Wait(); err != nil {
		return objects.Info{}, err
	}
	// Sent once in any case: what a repeated commit would find is its own work.
	once, conditions := under(policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: -1}), cond)
	out, err := to.CommitBlockList(once, ids, &blockblob.CommitBlockListOptions{Metadata: encode(meta), AccessConditions: conditions})
	if bloberror.HasCode(err, bloberror.InvalidBlockList) {
		// Every write of a blob throws blocks away that are not in it.
		return objects.Info{}, &objects.Error{Op: "join", Key: name, Code: objects.Exists, Err: fmt.Errorf("another write came between: %w", short(err))}
	}
	if err != nil {
		return objects.Info{}, fail("join", name, missing(err, cond))
	}
	return objects.Info{Key: name, Bytes: size, ETag: unquote(out.ETag), Modified: value(out.LastModified).UTC(), Meta: meta}, nil
}

// blockID names a block by the part that it is copied from. All names of a blob's
// blocks must have one length.
func blockID(part, etag string) string {
	sum := sha256.Sum256([]byte(part + "\n" + etag))
	return base64.StdEncoding.EncodeToString([]byte(hex.EncodeToString(sum[:16])))
}

// uncommitted are the blocks of a blob that are not part of it yet.
func uncommitted(ctx context.Context, b *blockblob.Client) (map[string]bool, error) {
	out, err := b.GetBlockList(ctx, blockblob.BlockListTypeUncommitted, nil)
	if bloberror.HasCode(err, bloberror.BlobNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, block := range out.UncommittedBlocks {
		ids[value(block.Name)] = true
	}
	return ids, nil
}
