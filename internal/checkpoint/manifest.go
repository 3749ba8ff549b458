package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"gpubroker/internal/agentapi"
)

// MaxManifest is the largest manifest, in bytes: some 400,000 parts (25 TB).
const MaxManifest = 64 << 20

// format is what this program writes and reads.
const format = 1

// Manifest lists everything of one save.
type Manifest struct {
	Format int   `json:"format"`
	Number int64 `json:"number"` // of the checkpoint, from 1
	// Busy and Progress are those of the attempt when the save was taken, so that
	// a broker that finds the manifest without the agent can commit it.
	Busy     agentapi.Duration `json:"busy"`
	Progress *float64          `json:"progress,omitzero"`
	Sent     int64             `json:"sent"`           // bytes uploaded for it
	Files    []File            `json:"files"`          // by path
	Empty    []string          `json:"empty,omitzero"` // folders that hold nothing, by path
}

// File is one file or symbolic link of a save.
type File struct {
	Path  string `json:"path"`
	Mode  uint32 `json:"mode"` // permission bits
	Bytes int64  `json:"bytes"`
	Link  string `json:"link,omitzero"` // where a symbolic link points; stays inside the folder
	Parts []Part `json:"parts,omitzero"`
}

// Part is a piece of a file. The digests of all parts and their sizes fix the
// content of the file, so that a digest of the whole is not needed.
type Part struct {
	Key    string `json:"key"`    // "attempt/number/part", relative to the task
	Digest string `json:"digest"` // "sha256:…"
	Bytes  int64  `json:"bytes"`
}

// Bytes is the size of all files.
func (m *Manifest) Bytes() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}

// Digest returns the digest of data in the form used everywhere.
func Digest(data []byte) string {
	h := sha256.Sum256(data)
	return digest(h[:])
}

func digest(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

func checkDigest(d string) error {
	h, ok := strings.CutPrefix(d, "sha256:")
	if raw, err := hex.DecodeString(h); !ok || err != nil || len(raw) != sha256.Size || h != strings.ToLower(h) {
		return fmt.Errorf("digest %q is not sha256 and 64 hex digits", d)
	}
	return nil
}

// Encode returns the manifest's bytes.
func (m *Manifest) Encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("manifest of save %d: %w", m.Number, err)
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("manifest of save %d: %w", m.Number, err)
	}
	if len(data) > MaxManifest {
		return nil, fmt.Errorf("manifest of save %d has %d bytes, at most %d: save fewer files", m.Number, len(data), MaxManifest)
	}
	return data, nil
}

// Parse reads a manifest and refuses one that does not make sense, or that would
// reach outside the folder it is restored to.
func Parse(data []byte) (*Manifest, error) {
	if len(data) > MaxManifest {
		return nil, fmt.Errorf("manifest has %d bytes, at most %d", len(data), MaxManifest)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var m Manifest
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("manifest: something follows its end")
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return &m, nil
}

func (m *Manifest) check() error {
	if m.Format != format {
		return fmt.Errorf("format %d, this program knows %d", m.Format, format)
	}
	if m.Number < 1 || m.Sent < 0 || m.Busy < 0 {
		return fmt.Errorf("number %d, sent %d, busy %d", m.Number, m.Sent, m.Busy)
	}
	if p := m.Progress; p != nil && !(*p >= 0 && *p <= 1) {
		return fmt.Errorf("progress %v is not between 0 and 1", *p)
	}
	names := make(map[string]bool, len(m.Files)+len(m.Empty))
	for _, name := range m.Empty {
		names[name] = true
	}
	var total int64
	for i, f := range m.Files {
		if i > 0 && m.Files[i-1].Path >= f.Path {
			return fmt.Errorf("files %q and %q are not in order", m.Files[i-1].Path, f.Path)
		}
		if err := f.check(); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
		if f.Bytes > math.MaxInt64-total {
			return errors.New("the sizes overflow")
		}
		total += f.Bytes
		names[f.Path] = true
	}
	if !slices.IsSorted(m.Empty) || len(names) != len(m.Files)+len(m.Empty) {
		return errors.New("folders out of order, or a path twice")
	}
	// Nothing lies below a file or a link.
	for name := range names {
		if err := checkPath(name); err != nil {
			return err
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if names[dir] {
				return fmt.Errorf("%q lies under %q, which is no folder", name, dir)
			}
		}
	}
	return nil
}

func checkPath(name string) error {
	if !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, 0) {
		return fmt.Errorf("path %q is not a clean relative path in UTF-8", name)
	}
	return nil
}

func (f *File) check() error {
	if f.Mode&^0o777 != 0 {
		return fmt.Errorf("mode %o has more than permissions", f.Mode)
	}
	if f.Link != "" {
		if f.Bytes != 0 || len(f.Parts) > 0 {
			return errors.New("a link with content")
		}
		return checkLink(f.Path, f.Link)
	}
	var n int64
	for _, p := range f.Parts {
		if err := checkDigest(p.Digest); err != nil {
			return err
		}
		if _, err := parsePartKey(p.Key); err != nil {
			return err
		}
		if p.Bytes < 1 || p.Bytes > f.Bytes-n {
			return fmt.Errorf("part %s of %d bytes in a file of %d", p.Key, p.Bytes, f.Bytes)
		}
		n += p.Bytes
	}
	if n != f.Bytes {
		return fmt.Errorf("parts of %d bytes in a file of %d", n, f.Bytes)
	}
	return nil
}

// checkLink says whether a link at name may point to target: relative, with ".."
// only in front and no more of them than there are folders above. Since nothing
// lies below a link, the folders above are real, and no chain of links can climb
// out.
func checkLink(name, target string) error {
	up := 0
	rest := target
	for rest == ".." || strings.HasPrefix(rest, "../") {
		rest = strings.TrimPrefix(strings.TrimPrefix(rest, ".."), "/")
		up++
	}
	switch {
	case rest != "" && !fs.ValidPath(rest) || strings.ContainsRune(target, 0):
		return fmt.Errorf("link to %q: want a relative path with .. only in front", target)
	case up > strings.Count(name, "/"):
		return fmt.Errorf("link to %q leads out of the folder", target)
	}
	return nil
}

// partKey is a part's place below its task.
type partKey struct {
	attempt string
	number  int64
	part    int64
}

func (k partKey) String() string {
	return k.attempt + "/" + strconv.FormatInt(k.number, 10) + "/" + strconv.FormatInt(k.part, 10)
}

func parsePartKey(s string) (partKey, error) {
	f := strings.Split(s, "/")
	if len(f) != 3 {
		return partKey{}, fmt.Errorf("part key %q is not attempt/number/part", s)
	}
	n, err1 := parseNumber(f[1])
	p, err2 := parseNumber(f[2])
	if err := cmp.Or(checkID(f[0]), err1, err2); err != nil {
		return partKey{}, fmt.Errorf("part key %q: %w", s, err)
	}
	return partKey{f[0], n, p}, nil
}

// parseNumber reads a number from 1 on in its only spelling.
func parseNumber(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%q is not a number from 1 on", s)
	}
	return n, nil
}

// checkID says whether s may be a job's or an attempt's part of a key.
func checkID(s string) error {
	if s == "" || len(s) > 128 || s[0] == '.' {
		return fmt.Errorf("id %q: 1 to 128 letters, digits and -_., not beginning with a dot", s)
	}
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return fmt.Errorf("id %q: 1 to 128 letters, digits and -_., not beginning with a dot", s)
		}
	}
	return nil
}
