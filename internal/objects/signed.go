package objects

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// SignedURL puts behind a signed URL the headers that its request must bear, as a
// fragment ("#x-ms-blob-type=BlockBlob"): what is handed out stays one string, and
// a fragment is never sent.
func SignedURL(signed string, headers url.Values) string { return signed + "#" + headers.Encode() }

// NewRequest returns the request of a signed URL, with the headers that it names.
func NewRequest(ctx context.Context, method, signed string, body io.Reader) (*http.Request, error) {
	address, fragment, _ := strings.Cut(signed, "#")
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	headers, err := url.ParseQuery(fragment)
	if err != nil {
		return nil, fmt.Errorf("headers of a signed URL: %w", err)
	}
	for name, values := range headers {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	return req, nil
}

// Stored says whether an HTTP status, in answer to the PUT of a signed URL, means
// that the object is stored (Azure answers 201, the others 200).
func Stored(status int) bool { return status == http.StatusOK || status == http.StatusCreated }

// PartETag is what a part is known by: the ETag in the answer to its PUT, or, from
// a store that answers none, the CRC-32C (Castagnoli) of what was sent.
func PartETag(answer http.Header, sum uint32) string {
	if etag := answer.Get("ETag"); etag != "" {
		return etag
	}
	return SumETag(sum)
}

// SumETag writes a CRC-32C as an ETag.
func SumETag(sum uint32) string { return fmt.Sprintf("crc32c-%08x", sum) }

// SumTable is the polynomial of [PartETag].
func SumTable() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }
