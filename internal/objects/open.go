package objects

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

// Opener opens a store of one scheme; u has no user information. What follows the
// bucket in the path is not its concern.
type Opener func(ctx context.Context, u *url.URL) (Store, error)

// Stores opens stores by address.
type Stores struct {
	// Folders opens folders; nil refuses them.
	Folders *Folders
	// Schemes opens others: {"s3": s3.Open}.
	Schemes map[string]Opener
}

// Open returns the store that an address names:
//
//	/var/lib/gpubroker/objects, ./objects     a folder
//	file:///var/lib/gpubroker/objects         the same
//	s3://bucket/prefix?endpoint=…&region=…    see package objects/s3
//	gs://bucket/prefix                        see package objects/gcs
//	azblob://container/prefix?account=…       see package objects/azblob
//
// Credentials never stand in an address.
func (s *Stores) Open(ctx context.Context, address string) (Store, error) {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		return s.folder(address)
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("open the store %s://…: not a URL", scheme)
	}
	if u.User != nil {
		return nil, fmt.Errorf("open the store %s://…: credentials do not belong in the address; use the provider's own credential chain", scheme)
	}
	if scheme == "file" {
		if u.Host != "" || u.RawQuery != "" {
			return nil, fmt.Errorf("open the store %s: want file:///path, got host or query in %s", address, rest)
		}
		return s.folder(filepath.FromSlash(u.Path))
	}
	open, ok := s.Schemes[scheme]
	if !ok {
		return nil, fmt.Errorf("open the store %s: no store knows %s:// (a folder, file://, s3://, gs:// or azblob://)", address, scheme)
	}
	st, err := open(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("open the store %s: %w", address, err)
	}
	return Under(st, strings.Trim(u.Path, "/"))
}

// settingsForm is what may follow a store's address.
var settingsForm = regexp.MustCompile(`^[a-z_]+=[^&]*(&[a-z_]+=[^&]*)*$`)

// Split parts the address of one object, or of a prefix that ends with a slash,
// into the address of a store and the key in it: "s3://b/done/x.mp4?region=r"
// gives "s3://b?region=r" and "done/x.mp4", "/out/x.mp4" gives "/out" and "x.mp4".
// A key is taken letter by letter: what a URL would escape means itself, and a
// question mark begins settings only where NAME=VALUE follows.
func Split(address string) (store, key string, err error) {
	if scheme, rest, ok := strings.Cut(address, "://"); ok && scheme != "file" {
		settings := ""
		if i := strings.LastIndexByte(rest, '?'); i >= 0 && settingsForm.MatchString(rest[i+1:]) {
			rest, settings = rest[:i], rest[i:]
		}
		bucket, key, _ := strings.Cut(rest, "/")
		if bucket == "" {
			return "", "", fmt.Errorf("address %q is not %s://bucket/key", address, scheme)
		}
		return scheme + "://" + bucket + settings, key, nil
	}
	p := strings.TrimPrefix(address, "file://")
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return ".", p, nil
	}
	if i == 0 {
		return "/", p[1:], nil
	}
	return p[:i], p[i+1:], nil
}

func (s *Stores) folder(path string) (Store, error) {
	if s.Folders == nil {
		return nil, fmt.Errorf("open the folder %s: folders cannot be used here", path)
	}
	if path == "" {
		return nil, fmt.Errorf("open a folder: the path is empty")
	}
	return s.Folders.Open(path)
}
