package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"

	"gpubroker/internal/agentapi"
)

// Saver uploads the saves of one attempt. It remembers which blocks the store
// already has, so that only new ones go up: of the latest committed save, of saves
// that were cut short, and of the one resumed from.
//
// Plan and Send are called by one goroutine at a time; the rest at any moment.
type Saver struct {
	attempt  string
	t        *Transfer
	partSize int64

	mu sync.Mutex
	// base are the parts of the latest committed save, by digest; fresh those
	// uploaded since for saves that are not committed, with their number.
	base  map[string]Part
	fresh map[string]freshPart
	// sent are complete saves that wait for their commit, by number.
	sent map[int64]*Manifest
	// hashed remembers unchanged files, so that they are not read again.
	hashed map[fileID][]Part
}

type freshPart struct {
	Part
	number int64
}

// uploads is how many parts go up at once.
const uploads = 4

// NewSaver returns the saver of an attempt. partSize 0 means
// [agentapi.PartSize].
func NewSaver(attempt string, t *Transfer, partSize int64) (*Saver, error) {
	if err := checkID(attempt); err != nil {
		return nil, err
	}
	if partSize == 0 {
		partSize = agentapi.PartSize
	}
	return &Saver{
		attempt: attempt, t: t, partSize: partSize,
		base: map[string]Part{}, fresh: map[string]freshPart{},
		sent: map[int64]*Manifest{}, hashed: map[fileID][]Part{},
	}, nil
}

// Resumed tells the saver which save the attempt began from, as [Restore]
// returned it.
func (s *Saver) Resumed(m *Manifest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rebase(m)
}

// Committed tells the saver that the broker has committed save number and all
// before it.
func (s *Saver) Committed(number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.sent[number]; m != nil {
		s.rebase(m)
	}
	for n := range s.sent {
		if n <= number {
			delete(s.sent, n)
		}
	}
	// What lies under these numbers and is in no committed save may be swept.
	for d, p := range s.fresh {
		if p.number <= number {
			delete(s.fresh, d)
		}
	}
}

func (s *Saver) rebase(m *Manifest) {
	s.base = map[string]Part{}
	for _, f := range m.Files {
		for _, p := range f.Parts {
			s.base[p.Digest] = p
		}
	}
}

// Refused tells the saver that the broker could not use save number, perhaps
// because parts of it are gone: nothing but the base is used again.
func (s *Saver) Refused(number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sent, number)
	s.fresh = map[string]freshPart{}
}

// Plan is a set whose blocks are known.
type Plan struct {
	// Bytes is the size of the save, New how much of it the store does not have.
	Bytes, New int64

	set   *Set
	files []File // Parts without keys
}

// Plan reads the set and finds out what must be sent. It returns [ErrChanged] if
// the set was written to meanwhile. The set must stay open until Send returns.
func (s *Saver) Plan(ctx context.Context, set *Set) (*Plan, error) {
	p := &Plan{set: set, Bytes: set.bytes, files: make([]File, len(set.files))}
	s.mu.Lock()
	known := s.hashed
	s.mu.Unlock()
	hashed := make(map[fileID][]Part, len(set.files))
	for i, f := range set.files {
		p.files[i] = f.File
		if f.Link != "" {
			continue
		}
		parts, ok := known[f.id]
		if !ok {
			var err error
			if parts, err = s.hash(ctx, f); err != nil {
				return nil, fmt.Errorf("hash %s: %w", f.Path, err)
			}
		}
		hashed[f.id] = parts
		p.files[i].Parts = parts
	}
	if err := set.Changed(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hashed = hashed
	seen := map[string]bool{}
	for _, f := range p.files {
		for _, part := range f.Parts {
			if _, ok := s.have(part.Digest); !ok && !seen[part.Digest] {
				seen[part.Digest] = true
				p.New += part.Bytes
			}
		}
	}
	return p, nil
}

// have returns the part that the store has of a digest. The caller holds mu.
func (s *Saver) have(d string) (Part, bool) {
	if p, ok := s.base[d]; ok {
		return p, true
	}
	p, ok := s.fresh[d]
	return p.Part, ok
}

// hash returns the digests of a file's blocks. Blocks begin at multiples of the
// part size, so that what is appended leaves those before it as they were.
func (s *Saver) hash(ctx context.Context, f setFile) ([]Part, error) {
	file, err := os.Open(f.aside)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	parts := make([]Part, (f.Bytes+s.partSize-1)/s.partSize)
	err = each(ctx, min(2, runtime.NumCPU()), len(parts), func(ctx context.Context, i int) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		offset := int64(i) * s.partSize
		n := min(s.partSize, f.Bytes-offset)
		h := sha256.New()
		if got, err := io.Copy(h, io.NewSectionReader(file, offset, n)); err != nil {
			return err
		} else if got != n {
			return ErrChanged
		}
		parts[i] = Part{Digest: digest(h.Sum(nil)), Bytes: n}
		return nil
	})
	return parts, err
}

// each calls f for 0 to n-1, so many at once, until one fails.
func each(ctx context.Context, workers, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		next  int
		first error
	)
	for range min(workers, n) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := first != nil
				mu.Unlock()
				if i >= n || stop {
					return
				}
				if err := f(ctx, i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
						cancel(err)
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return first
}

// Taken is the moment of a save.
type Taken struct {
	Number   int64
	Busy     agentapi.Duration
	Progress *float64
}

// Send uploads what is new of a plan, then its manifest, and returns what the
// broker is asked to commit. A number is used for one plan only. Canceling ctx
// gives the save up: what went up is used by the next one. [ErrChanged] says that
// the set was written to.
func (s *Saver) Send(ctx context.Context, p *Plan, at Taken) (agentapi.Save, error) {
	save, err := s.send(ctx, p, at)
	if err != nil {
		return agentapi.Save{}, fmt.Errorf("save %d: %w", at.Number, err)
	}
	return save, nil
}

// block is where a new part can be read.
type block struct {
	file   *setFile
	offset int64
	part   Part
}

func (s *Saver) send(ctx context.Context, p *Plan, at Taken) (agentapi.Save, error) {
	m := &Manifest{
		Format: format, Number: at.Number, Busy: at.Busy, Progress: at.Progress,
		Files: make([]File, len(p.files)), Empty: p.set.empty,
	}
	// Which parts the save will consist of.
	chosen := map[string]Part{}
	var fresh []block
	s.mu.Lock()
	for i, f := range p.files {
		offset := int64(0)
		for _, part := range f.Parts {
			if _, ok := chosen[part.Digest]; !ok {
				have, ok := s.have(part.Digest)
				if !ok {
					have = Part{
						Key:    partKey{s.attempt, at.Number, int64(len(fresh) + 1)}.String(),
						Digest: part.Digest, Bytes: part.Bytes,
					}
					fresh = append(fresh, block{&p.set.files[i], offset, have})
				}
				chosen[part.Digest] = have
			}
			offset += part.Bytes
		}
	}
	s.mu.Unlock()
	for i, f := range p.files {
		m.Files[i] = f
		m.Files[i].Parts = nil
		for _, part := range f.Parts {
			m.Files[i].Parts = append(m.Files[i].Parts, chosen[part.Digest])
		}
	}
	for _, b := range fresh {
		m.Sent += b.part.Bytes
	}
	data, err := m.Encode()
	if err != nil {
		return agentapi.Save{}, err
	}
	name := "save/" + strconv.FormatInt(at.Number, 10) + "/"
	err = each(ctx, uploads, len(fresh), func(ctx context.Context, i int) error {
		return s.sendPart(ctx, name+strconv.Itoa(i+1), at.Number, fresh[i])
	})
	if err != nil {
		return agentapi.Save{}, err
	}
	if err := p.set.Changed(); err != nil {
		return agentapi.Save{}, err
	}
	if _, _, err := s.t.Put(ctx, name+"manifest", bytes.NewReader(data), 0, int64(len(data))); err != nil {
		return agentapi.Save{}, err
	}
	s.mu.Lock()
	s.sent[at.Number] = m
	s.mu.Unlock()
	return agentapi.Save{
		Number: at.Number, Digest: Digest(data), Bytes: p.Bytes, Sent: m.Sent,
		Busy: at.Busy, Progress: at.Progress,
	}, nil
}

func (s *Saver) sendPart(ctx context.Context, name string, number int64, b block) error {
	file, err := os.Open(b.file.aside)
	if err != nil {
		return err
	}
	defer file.Close()
	_, sum, err := s.t.Put(ctx, name, file, b.offset, b.part.Bytes)
	if err != nil {
		return err
	}
	if sum != b.part.Digest {
		return fmt.Errorf("%s: %w", b.file.Path, ErrChanged)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh[sum] = freshPart{b.part, number}
	return nil
}

// Save is Plan and Send in one.
func (s *Saver) Save(ctx context.Context, set *Set, at Taken) (agentapi.Save, error) {
	p, err := s.Plan(ctx, set)
	if err != nil {
		return agentapi.Save{}, fmt.Errorf("save %d: %w", at.Number, err)
	}
	return s.Send(ctx, p, at)
}
