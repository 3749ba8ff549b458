package control

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gpubroker/internal/egress"
	"gpubroker/internal/objects"
	"gpubroker/queue"
)

// Location is a place that jobs may read inputs from and write outputs to: a
// folder of the broker's machine, or s3://bucket/prefix. The broker goes there
// with its own rights, so that a place which is not listed is closed to everybody
// who could not have opened it: all but admins.
type Location struct {
	Prefix   string
	Projects []string // that may use it; empty means all
	// At is where it lies; zero is as the kind of its store says.
	At egress.Place
}

// who is on whose behalf a place is opened.
type who struct {
	project  string
	anywhere bool
}

func behalf(j *queue.Job) who { return who{j.Project, j.Anywhere} }

// open opens what a job names, if it may.
func (b *Broker) open(ctx context.Context, j *queue.Job, address string) (objects.Store, string, error) {
	if err := b.mayTouch(behalf(j), address); err != nil {
		return nil, "", err
	}
	return b.targets.Open(ctx, address)
}

// mayTouch refuses a place that is not open to whoever asks. The broker's own
// data is open to nobody.
func (b *Broker) mayTouch(w who, address string) error {
	at := place(address)
	for _, closed := range b.set.Closed {
		if within(at, place(closed)) {
			return fmt.Errorf("%s belongs to the broker itself; take another place", address)
		}
	}
	if w.anywhere {
		return nil
	}
	if strings.Contains(address, "://") && strings.Contains(address, "?") {
		return fmt.Errorf("%s: where a bucket is stands in the configuration; leave out what follows the ?", address)
	}
	for _, l := range b.set.Locations {
		if within(at, place(l.Prefix)) && (len(l.Projects) == 0 || slices.Contains(l.Projects, w.project)) {
			return nil
		}
	}
	return fmt.Errorf("%s is not open to project %s; an admin lists its folder or bucket under locations in the configuration", address, w.project)
}

// place is an address in the one form that can be compared: without its query,
// and with every step back taken.
func place(address string) string {
	if scheme, _, remote := strings.Cut(address, "://"); remote && scheme != "file" {
		bucket, key, err := objects.Split(address)
		if err != nil {
			return "unreadable:" + address
		}
		bucket, _, _ = strings.Cut(bucket, "?")
		return bucket + path.Clean("/"+key)
	}
	local, err := filepath.Abs(strings.TrimPrefix(address, "file://"))
	if err != nil {
		return "unreadable:" + address
	}
	return local
}

func within(at, prefix string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	return at == prefix || strings.HasPrefix(at, prefix+"/")
}

// checkPlaces refuses a spec that names a place which is not open to its project.
func (b *Broker) checkPlaces(s *Submission) error {
	j, w := s.Spec, who{s.Spec.Project, s.Anywhere}
	for n, in := range j.Inputs {
		if err := b.mayTouch(w, in.From); err != nil {
			return fmt.Errorf("inputs[%d].from: %w", n, err)
		}
	}
	if j.Outputs != nil {
		if err := b.mayTouch(w, literal(j.Outputs.To)); err != nil {
			return fmt.Errorf("outputs.to: %w", err)
		}
	}
	if t := j.Tasks; t != nil && t.Glob != "" {
		if err := b.mayTouch(w, literal(t.Glob)); err != nil {
			return fmt.Errorf("tasks.glob: %w", err)
		}
	}
	if t := j.Tasks; t != nil && t.File != "" && len(s.Inputs) == 0 {
		if err := b.mayTouch(w, t.File); err != nil {
			return fmt.Errorf("tasks.file: %w", err)
		}
	}
	return nil
}

// literal is a template up to its first placeholder or wildcard: what is known of
// the place before a task is.
func literal(address string) string {
	if i := strings.IndexAny(address, "{*?["); i >= 0 {
		return address[:i]
	}
	return address
}
