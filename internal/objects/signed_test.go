package objects_test

import (
	"hash/crc32"
	"net/http"
	"net/url"
	"testing"

	"gpubroker/internal/objects"
)

// A signed URL names the headers that its request must bear, and they do not go
// over the wire as part of it.
func TestSignedURL(t *testing.T) {
	const plain = "https://h/c/k?sig=a%2Fb"
	for _, c := range []struct {
		signed string
		header string
	}{
		{plain, ""},
		{objects.SignedURL(plain, url.Values{"x-ms-blob-type": {"BlockBlob"}}), "BlockBlob"},
	} {
		req, err := objects.NewRequest(t.Context(), http.MethodPut, c.signed, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if req.URL.String() != plain || req.Header.Get("X-Ms-Blob-Type") != c.header || len(req.Header) > 1 {
			t.Errorf("%s: %s with %v", c.signed, req.URL, req.Header)
		}
	}
	if _, err := objects.NewRequest(t.Context(), http.MethodPut, plain+"#a=%zz", http.NoBody); err == nil {
		t.Error("took headers that cannot be read")
	}
}

func TestPartETag(t *testing.T) {
	sum := crc32.Checksum([]byte("123456789"), objects.SumTable())
	if got := objects.PartETag(http.Header{"Etag": {`"abc"`}}, sum); got != `"abc"` {
		t.Errorf("with an ETag: %s", got)
	}
	// The check value of CRC-32C (RFC 3720, B.4 has others).
	if got := objects.PartETag(http.Header{}, sum); got != "crc32c-e3069283" {
		t.Errorf("without: %s", got)
	}
}
