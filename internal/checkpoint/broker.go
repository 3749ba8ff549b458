package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gpubroker/internal/objects"
	"gpubroker/queue"
)

// Flaw says why a save cannot be committed or kept: something of it is missing or
// is not what it should be. A store that is away is never a flaw.
type Flaw struct {
	Key  string // of the manifest
	What string
}

// Error says what is wrong with which save.
func (f *Flaw) Error() string { return fmt.Sprintf("save %s cannot be used: %s", f.Key, f.What) }

// place is what a manifest's key says.
type place struct {
	task    string // prefix, with its slash
	attempt string
	number  int64
}

func parseManifestKey(key string) (place, error) {
	f := strings.Split(key, "/")
	if len(f) != 5 || f[4] != "manifest" {
		return place{}, fmt.Errorf("key %q is not job/index/attempt/number/manifest", key)
	}
	n, err := parseNumber(f[3])
	if err := cmp.Or(err, checkID(f[0]), checkID(f[2])); err != nil {
		return place{}, fmt.Errorf("key %q: %w", key, err)
	}
	return place{f[0] + "/" + f[1] + "/", f[2], n}, nil
}

// Verify reads the manifest under key and makes sure, before a commit, that it is
// the one with this digest and that every part it lists is there with its size.
// The bytes of parts are checked by whoever resumes. What is wrong with the save
// is a [*Flaw]; any other error says that the store could not be asked.
func Verify(ctx context.Context, s objects.Store, key, digest string) (*Manifest, error) {
	m, _, err := verify(ctx, s, key, digest)
	return m, err
}

// verify is Verify, of any digest if it is empty, and returns the digest.
func verify(ctx context.Context, s objects.Store, key, digest string) (*Manifest, string, error) {
	m, sum, err := load(ctx, s, key, digest)
	if err != nil {
		return nil, "", err
	}
	at, err := parseManifestKey(key)
	if err != nil {
		return nil, "", err
	}
	want := map[string]int64{}
	for p := range m.parts() {
		if n, ok := want[p.Key]; ok && n != p.Bytes {
			return nil, "", &Flaw{key, fmt.Sprintf("part %s has two sizes", p.Key)}
		}
		want[p.Key] = p.Bytes
	}
	got, err := sizes(ctx, s, at.task, want)
	if err != nil {
		return nil, "", fmt.Errorf("look for the parts of save %s: %w", key, err)
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		switch n, ok := got[k]; {
		case !ok:
			return nil, "", &Flaw{key, fmt.Sprintf("part %s is not there", k)}
		case n != want[k]:
			return nil, "", &Flaw{key, fmt.Sprintf("part %s has %d bytes instead of %d", k, n, want[k])}
		}
	}
	return m, sum, nil
}

// load reads a manifest and returns its digest; an empty digest takes any.
func load(ctx context.Context, s objects.Store, key, digest string) (*Manifest, string, error) {
	at, err := parseManifestKey(key)
	if err != nil {
		return nil, "", err
	}
	data, err := objects.ReadAll(ctx, s, key, MaxManifest)
	switch {
	case objects.Is(err, objects.NotFound):
		return nil, "", &Flaw{key, "its manifest is not there"}
	case objects.Is(err, objects.Invalid):
		return nil, "", &Flaw{key, err.Error()}
	case err != nil:
		return nil, "", fmt.Errorf("read the manifest of a save: %w", err)
	}
	got := Digest(data)
	if digest != "" && got != digest {
		return nil, "", &Flaw{key, fmt.Sprintf("its manifest has digest %s instead of %s", got, digest)}
	}
	m, err := Parse(data)
	if err != nil {
		return nil, "", &Flaw{key, err.Error()}
	}
	if m.Number != at.number {
		return nil, "", &Flaw{key, fmt.Sprintf("its manifest is of save %d", m.Number)}
	}
	return m, got, nil
}

// parts yields every part of every file.
func (m *Manifest) parts() func(yield func(Part) bool) {
	return func(yield func(Part) bool) {
		for _, f := range m.Files {
			for _, p := range f.Parts {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// fewParts is up to how many parts are asked for one by one.
const fewParts = 16

// sizes returns the sizes of those of the wanted parts that are there.
func sizes(ctx context.Context, s objects.Store, task string, want map[string]int64) (map[string]int64, error) {
	got := make(map[string]int64, len(want))
	if len(want) > fewParts {
		for i, err := range s.List(ctx, task) {
			if err != nil {
				return nil, err
			}
			got[strings.TrimPrefix(i.Key, task)] = i.Bytes
		}
		return got, nil
	}
	for k := range want {
		i, err := s.Stat(ctx, task+k)
		if objects.Is(err, objects.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		got[k] = i.Bytes
	}
	return got, nil
}

// Found is a complete save that nobody has committed.
type Found struct {
	Number   int64
	Digest   string
	Manifest *Manifest
}

// Adopt finds the complete saves of an attempt above number after, oldest first.
// It is for attempts that were current when the broker started: they may have
// uploaded a save whose commit was lost. Saves that are not complete are left out
// and returned as flaws.
func Adopt(ctx context.Context, s objects.Store, task queue.TaskID, attempt string, after int64) ([]Found, []*Flaw, error) {
	prefix, err := AttemptPrefix(task, attempt)
	if err != nil {
		return nil, nil, err
	}
	var numbers []int64
	for i, err := range s.List(ctx, prefix) {
		if err != nil {
			return nil, nil, fmt.Errorf("look for saves of attempt %s: %w", attempt, err)
		}
		at, err := parseManifestKey(i.Key)
		if err == nil && at.number > after {
			numbers = append(numbers, at.number)
		}
	}
	slices.Sort(numbers)
	var (
		found []Found
		flaws []*Flaw
	)
	for _, n := range numbers {
		key, err := ManifestKey(task, attempt, n)
		if err != nil {
			return nil, nil, err
		}
		m, sum, err := verify(ctx, s, key, "")
		if f, ok := errors.AsType[*Flaw](err); ok {
			flaws = append(flaws, f)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		found = append(found, Found{n, sum, m})
	}
	return found, flaws, nil
}

// Grace is how old what nothing refers to must be before it is swept.
const Grace = 24 * time.Hour

// Kept is a committed checkpoint that must stay usable.
type Kept struct {
	Attempt string
	Number  int64
	Digest  string
}

// Sweeping says what a sweep of one task must spare.
type Sweeping struct {
	Task queue.TaskID
	// Keep are the checkpoints that stay, by default the last 3 that are not known
	// to be broken, and whatever a running attempt resumes from.
	Keep []Kept
	// Live are the attempts that may still upload, with the highest number of
	// theirs that is committed (0 for none): what lies above is an open save.
	Live map[string]int64
	Now  time.Time
}

// Swept is what a sweep did.
type Swept struct {
	Objects int
	Bytes   int64
}

// Sweep removes parts and manifests of a task that no kept checkpoint refers to,
// that belong to no open save, and that are older than [Grace]. Logs and outputs
// are not touched. If a kept manifest cannot be read nothing is removed: a
// [*Flaw] then says which one is broken. Run it once Adopt has had its turn.
func Sweep(ctx context.Context, s objects.Store, sw Sweeping) (Swept, error) {
	prefix, err := TaskPrefix(sw.Task)
	if err != nil {
		return Swept{}, err
	}
	// The listing comes first: what is written after it is not in it.
	var old []objects.Info
	for i, err := range s.List(ctx, prefix) {
		if err != nil {
			return Swept{}, fmt.Errorf("sweep task %s: %w", sw.Task, err)
		}
		attempt, number, ok := savePath(strings.TrimPrefix(i.Key, prefix))
		if !ok || sw.Now.Sub(i.Modified) < Grace {
			continue
		}
		if committed, live := sw.Live[attempt]; live && number > committed {
			continue
		}
		old = append(old, i)
	}
	if len(old) == 0 {
		return Swept{}, nil
	}
	used := map[string]bool{}
	for _, k := range sw.Keep {
		key, err := ManifestKey(sw.Task, k.Attempt, k.Number)
		if err != nil {
			return Swept{}, err
		}
		m, _, err := load(ctx, s, key, k.Digest)
		if err != nil {
			return Swept{}, fmt.Errorf("sweep task %s: %w", sw.Task, err)
		}
		used[key] = true
		for p := range m.parts() {
			used[prefix+p.Key] = true
		}
	}
	var (
		done Swept
		errs []error
	)
	// Manifests go first, so that a sweep cut short leaves parts without a manifest
	// and not a manifest without its parts.
	for _, manifests := range []bool{true, false} {
		for _, i := range old {
			if used[i.Key] || strings.HasSuffix(i.Key, "/manifest") != manifests {
				continue
			}
			if err := s.Delete(ctx, i.Key); err != nil {
				errs = append(errs, err)
				continue
			}
			done.Objects++
			done.Bytes += i.Bytes
		}
	}
	return done, errors.Join(errs...)
}

// savePath reads "attempt/number/part" or "attempt/number/manifest".
func savePath(s string) (attempt string, number int64, ok bool) {
	if dir, is := strings.CutSuffix(s, "/manifest"); is {
		s = dir + "/1"
	}
	k, err := parsePartKey(s)
	return k.attempt, k.number, err == nil
}
