package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubroker/internal/agentapi"
	"gpubroker/internal/objects"
	"gpubroker/queue"
)

// Kind is what a name of [agentapi.Want] is about.
type Kind string

// The kinds, with the names they stand for.
const (
	SavePart     Kind = "save"         // "save/7/12", put
	SaveManifest Kind = "manifest"     // "save/7/manifest", put
	Log          Kind = "log"          // "log/3", put
	Output       Kind = "output"       // "out/NAME/2", put; "out//2" when the output is one file
	GetManifest  Kind = "get-manifest" // "get/manifest/6"
	GetPart      Kind = "get-part"     // "get/part/ATTEMPT/6/12", the part's key in a manifest
)

// Name is a parsed name.
type Name struct {
	Kind   Kind
	Number int64  // of the save, or of the piece of log
	Part   int64  // of a save or an output
	File   string // of an output; "" when it is one file
	key    partKey
}

// ParseName reads a name and refuses every spelling but one: numbers without
// leading zeros, paths without "..", at most 1 KiB.
func ParseName(s string) (Name, error) {
	n, err := parseName(s)
	if err != nil {
		return Name{}, fmt.Errorf("name %.200q: %w", s, err)
	}
	return n, nil
}

func parseName(s string) (n Name, err error) {
	if len(s) > 1024 {
		return n, errors.New("longer than 1024 bytes")
	}
	kind, rest, _ := strings.Cut(s, "/")
	switch kind {
	case "save":
		number, part, _ := strings.Cut(rest, "/")
		if n.Number, err = parseNumber(number); err != nil {
			return n, err
		}
		if part == "manifest" {
			n.Kind = SaveManifest
			return n, nil
		}
		n.Kind = SavePart
		n.Part, err = parseNumber(part)
		return n, err
	case "log":
		n.Kind = Log
		n.Number, err = parseNumber(rest)
		return n, err
	case "out":
		i := strings.LastIndexByte(rest, '/')
		if i < 0 {
			return n, errors.New("want out/NAME/PART")
		}
		n.Kind, n.File = Output, rest[:i]
		if n.Part, err = parseNumber(rest[i+1:]); err != nil {
			return n, err
		}
		if n.Part > objects.MaxParts {
			return n, fmt.Errorf("part %d, at most %d", n.Part, objects.MaxParts)
		}
		if n.File != "" {
			err = objects.CheckKey(n.File)
		}
		return n, err
	case "get":
		what, rest, _ := strings.Cut(rest, "/")
		switch what {
		case "manifest":
			n.Kind = GetManifest
			n.Number, err = parseNumber(rest)
			return n, err
		case "part":
			n.Kind = GetPart
			n.key, err = parsePartKey(rest)
			return n, err
		}
	}
	return n, errors.New("want save/N/PART, save/N/manifest, log/N, out/NAME/PART, get/manifest/N or get/part/ATTEMPT/N/PART")
}

// TaskPrefix is what all keys of a task begin with.
func TaskPrefix(task queue.TaskID) (string, error) {
	if err := checkID(task.Job); err != nil {
		return "", err
	}
	if task.Index < 0 {
		return "", fmt.Errorf("task index %d", task.Index)
	}
	return task.Job + "/" + strconv.Itoa(task.Index) + "/", nil
}

// AttemptPrefix is what all keys that an attempt writes begin with.
func AttemptPrefix(task queue.TaskID, attempt string) (string, error) {
	p, err := TaskPrefix(task)
	if err := cmp.Or(err, checkID(attempt)); err != nil {
		return "", err
	}
	return p + attempt + "/", nil
}

// ManifestKey is where the manifest of a save lies.
func ManifestKey(task queue.TaskID, attempt string, number int64) (string, error) {
	p, err := AttemptPrefix(task, attempt)
	if err != nil {
		return "", err
	}
	if number < 1 {
		return "", fmt.Errorf("save number %d", number)
	}
	return p + strconv.FormatInt(number, 10) + "/manifest", nil
}

// LogKey is where piece number (from 1) of an attempt's log lies.
func LogKey(task queue.TaskID, attempt string, number int64) (string, error) {
	p, err := AttemptPrefix(task, attempt)
	if err != nil {
		return "", err
	}
	return p + "log/" + strconv.FormatInt(number, 10), nil
}

// Outputs signs URLs for the parts of an output; see package publish.
type Outputs interface {
	SignPart(ctx context.Context, scope Scope, file string, part int, valid time.Duration) (string, error)
}

// Scope is what one attempt may touch.
type Scope struct {
	Task    queue.TaskID
	Attempt string
	// Next is the lowest number that a save of it may bear: those below are
	// committed and must stay as they are.
	Next int64
	// Checkpoints says which attempt wrote each committed checkpoint of the task.
	Checkpoints map[int64]string
}

// Grants signs URLs for attempts.
type Grants struct {
	Store   objects.Store
	Outputs Outputs // nil when the task has no output
	Valid   time.Duration
}

// Refusal is a name that the attempt may not have.
type Refusal struct {
	Name string
	Err  error
}

// Sign returns URLs for the names that an attempt wants. A name outside its scope
// is refused and the others are signed; an error means that the store could not
// be asked.
func (g *Grants) Sign(ctx context.Context, scope Scope, want agentapi.Want) (put, get map[string]string, refused []Refusal, err error) {
	sign := func(names []string, method string) (map[string]string, error) {
		urls := map[string]string{}
		for _, s := range slices.Compact(slices.Sorted(slices.Values(names))) {
			n, err := ParseName(s)
			if err == nil && n.method() != method {
				err = fmt.Errorf("name %q is not for %s", s, method)
			}
			if err != nil {
				refused = append(refused, Refusal{s, err})
				continue
			}
			u, err := g.sign(ctx, scope, n)
			if r, ok := errors.AsType[*outside](err); ok {
				refused = append(refused, Refusal{s, r})
				continue
			}
			if objects.Is(err, objects.Invalid) {
				refused = append(refused, Refusal{s, err})
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("sign %s of attempt %s: %w", s, scope.Attempt, err)
			}
			urls[s] = u
		}
		return urls, nil
	}
	if put, err = sign(want.Put, "put"); err != nil {
		return nil, nil, nil, err
	}
	if get, err = sign(want.Get, "get"); err != nil {
		return nil, nil, nil, err
	}
	return put, get, refused, nil
}

// Resume returns what an attempt may resume from, newest first, with signed URLs.
func (g *Grants) Resume(ctx context.Context, scope Scope, digests map[int64]string) ([]agentapi.Resume, error) {
	var from []agentapi.Resume
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(digests))) {
		url, err := g.sign(ctx, scope, Name{Kind: GetManifest, Number: n})
		if err != nil {
			return nil, fmt.Errorf("sign checkpoint %d of task %s: %w", n, scope.Task, err)
		}
		from = append(from, agentapi.Resume{Number: n, Digest: digests[n], Manifest: url})
	}
	return from, nil
}

func (n Name) method() string {
	if n.Kind == GetManifest || n.Kind == GetPart {
		return "get"
	}
	return "put"
}

// outside is a wish that the scope does not cover.
type outside struct{ what string }

func (o *outside) Error() string { return o.what }

func (g *Grants) sign(ctx context.Context, scope Scope, n Name) (string, error) {
	own, err := AttemptPrefix(scope.Task, scope.Attempt)
	if err != nil {
		return "", &outside{err.Error()}
	}
	number := strconv.FormatInt(n.Number, 10)
	switch n.Kind {
	case SavePart, SaveManifest:
		if n.Number < scope.Next {
			return "", &outside{fmt.Sprintf("save %d is not written again, the next is %d", n.Number, scope.Next)}
		}
		last := "manifest"
		if n.Kind == SavePart {
			last = strconv.FormatInt(n.Part, 10)
		}
		return g.Store.SignPut(ctx, own+number+"/"+last, g.Valid)
	case Log:
		return g.Store.SignPut(ctx, own+"log/"+number, g.Valid)
	case Output:
		if g.Outputs == nil {
			return "", &outside{"the task has no output"}
		}
		return g.Outputs.SignPart(ctx, scope, n.File, int(n.Part), g.Valid)
	case GetManifest:
		attempt, ok := scope.Checkpoints[n.Number]
		if !ok {
			return "", &outside{fmt.Sprintf("checkpoint %d is not a committed one of this task", n.Number)}
		}
		key, err := ManifestKey(scope.Task, attempt, n.Number)
		if err != nil {
			return "", &outside{err.Error()}
		}
		return g.Store.SignGet(ctx, key, g.Valid)
	case GetPart:
		task, err := TaskPrefix(scope.Task)
		if err != nil {
			return "", &outside{err.Error()}
		}
		return g.Store.SignGet(ctx, task+n.key.String(), g.Valid)
	}
	return "", &outside{fmt.Sprintf("kind %q", n.Kind)}
}
