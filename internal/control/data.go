package control

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"gpubroker/internal/egress"
	"gpubroker/internal/spec"
	"gpubroker/internal/workdir"
	"gpubroker/queue"
	"gpubroker/scheduler"
)

const (
	// sampled is how many of a job's inputs are weighed; their mean stands for all.
	sampled = 256
	// weighing is how many of them are asked for at once.
	weighing = 16
	// patience is how long a job's acceptance waits for sizes.
	patience = 10 * time.Second
)

// sample keeps some of a sequence, evenly spread, whatever its length.
type sample struct {
	kept   []string
	every  int
	passed int
}

func (s *sample) add(location string) {
	s.every = max(1, s.every)
	if s.passed%s.every == 0 {
		if len(s.kept) == sampled {
			half := s.kept[:0]
			for i := 0; i < sampled; i += 2 {
				half = append(half, s.kept[i])
			}
			s.kept, s.every = half, 2*s.every
		}
		if s.passed%s.every == 0 {
			s.kept = append(s.kept, location)
		}
	}
	s.passed++
}

// weigh finds out how much each task fetches: its own input, of which locations
// has a sample, and what all tasks need. What no store says is unknown.
func (b *Broker) weigh(ctx context.Context, j *spec.Job, locations *sample, source spec.Source) []queue.Data {
	if len(locations.kept)+len(j.Inputs) == 0 && j.Workdir == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	scale, _ := source.(spec.Scale)
	var out []queue.Data
	if n := len(locations.kept); n > 0 {
		d := queue.Data{What: "inputs", From: folder(locations.kept[0]), Unknown: true}
		if mean, ok := meanOf(ctx, scale, locations.kept); ok {
			d.Bytes, d.Unknown = mean, false
		}
		out = append(out, d)
	}
	for _, in := range j.Inputs {
		d := queue.Data{What: "inputs", From: literal(in.From), Unknown: true}
		if scale != nil && d.From == in.From {
			if n, err := scale.Weigh(ctx, in.From); err == nil {
				d.Bytes, d.Unknown = n, false
			}
		}
		out = append(out, d)
	}
	if sum, ok := strings.CutPrefix(j.Workdir, workdirScheme); ok && b.objects != nil {
		d := queue.Data{What: "workdir", Unknown: true}
		if info, err := b.objects.Stat(ctx, workdir.Key(sum)); err == nil {
			d.Bytes, d.Unknown = info.Bytes, false
		}
		out = append(out, d)
	}
	return out
}

// meanOf is the mean size of files; ok is false unless all of them are known.
func meanOf(ctx context.Context, scale spec.Scale, locations []string) (mean int64, ok bool) {
	if scale == nil {
		return 0, false
	}
	var mu sync.Mutex
	sum := 0.0
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(weighing)
	for _, at := range locations {
		g.Go(func() error {
			n, err := scale.Weigh(ctx, at)
			if err == nil && n < 0 {
				err = errors.New("no size")
			}
			mu.Lock()
			sum += float64(max(0, n))
			mu.Unlock()
			return err
		})
	}
	if g.Wait() != nil {
		return 0, false
	}
	return int64(sum / float64(len(locations))), true
}

// folder is where a file lies.
func folder(location string) string {
	if i := strings.LastIndexByte(location, '/'); i >= 0 {
		return location[:i+1]
	}
	return location
}

// placeOf is where a store lies that an address names: as its entry under
// locations says, else as the configuration says of its kind of store. A folder
// lies on the broker's own machine.
func (b *Broker) placeOf(address string) egress.Place {
	scheme, _, remote := strings.Cut(address, "://")
	if !remote || scheme == "file" {
		return egress.Place{Cloud: egress.OnPremises}
	}
	at, best := b.set.Buckets[scheme], ""
	for _, l := range b.set.Locations {
		if l.At != (egress.Place{}) && len(l.Prefix) > len(best) && within(place(literal(address)), place(l.Prefix)) {
			at, best = l.At, l.Prefix
		}
	}
	return at
}

// flows are what each task of a job moves, and between which places. resumed is
// the size of the checkpoint that a task fetches; 0 for fresh ones.
func (b *Broker) flows(s *parsed, j *queue.Job, resumed int64) []scheduler.Flow {
	var out []scheduler.Flow
	for _, d := range j.Data {
		f := scheduler.Flow{What: d.What, Way: scheduler.Fetch, Bytes: d.Bytes, Unknown: d.Unknown, At: b.set.ObjectsAt}
		if d.From != "" {
			f.At = b.placeOf(d.From)
		}
		out = append(out, f)
	}
	if o := s.Outputs; o != nil {
		out = append(out, scheduler.Flow{What: "outputs", Way: scheduler.Send, Bytes: o.Size.Bytes(), Unknown: o.Size == 0, At: b.placeOf(o.To)})
	}
	if s.work.Saves.On {
		size := max(resumed, s.Checkpoint.Size.Bytes())
		out = append(out, scheduler.Flow{What: "checkpoint", Way: scheduler.Keep, Bytes: size, Unknown: size == 0, At: b.set.ObjectsAt})
		if resumed > 0 {
			out = append(out, scheduler.Flow{What: "checkpoint", Way: scheduler.Fetch, Bytes: resumed, At: b.set.ObjectsAt})
		}
	}
	return out
}

// BucketsAt are where the buckets of each scheme lie that nothing more is said of:
// those of Amazon's store in a region, the others in a region that is not known.
// A store at an address of its own is none of the cloud's.
func BucketsAt(scheme, endpoint, region string) map[string]egress.Place {
	out := map[string]egress.Place{"s3": {Cloud: "aws"}, "gs": {Cloud: "gcp"}, "azblob": {Cloud: "azure"}}
	if _, known := out[scheme]; known {
		at := out[scheme]
		at.Region = region
		if endpoint != "" && !strings.Contains(endpoint, "amazonaws.com") && !strings.Contains(endpoint, "googleapis.com") && !strings.Contains(endpoint, "core.windows.net") {
			at = egress.Place{}
		}
		out[scheme] = at
	}
	return out
}

// ObjectsAt is where the broker's own objects lie.
func ObjectsAt(url string, buckets map[string]egress.Place) egress.Place {
	scheme, _, remote := strings.Cut(filepath.ToSlash(url), "://")
	if !remote || scheme == "file" {
		return egress.Place{Cloud: egress.OnPremises}
	}
	return buckets[scheme]
}
