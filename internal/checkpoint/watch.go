package checkpoint

import (
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/agentapi"
)

// calm is how long it must be quiet after a rename or a marker before the save is
// said to be complete, so that several renames that belong together are one save;
// calmMost is the longest that a busy folder can put it off.
const (
	calm     = 100 * time.Millisecond
	calmMost = time.Second
)

// Watcher says when a job has completed a save in its folder:
//
//   - with a marker, when a file of that name is written and closed, renamed in,
//     or linked (a pattern of [path.Match], on the path below the folder if it has a
//     slash, else on its last element);
//   - without either, when a file or folder is renamed to a place below the folder under
//     a name that is not [Temporary];
//   - with quiesce set, when files have changed and then been left alone for so
//     long, and not by renames; files that are only appended to may go on growing.
//
// A plain write alone completes nothing. A rename within a folder that was made
// in the same instant may go unseen: rename the folder, or use a marker.
type Watcher struct {
	// C receives after each completed save; several may be one.
	C <-chan struct{}

	c       chan struct{}
	dir     string
	marker  string
	quiesce time.Duration
	// appended are patterns of files whose growth is no change to quiesce.
	appended []string
	log      *slog.Logger
	stop     chan struct{}
	wg       sync.WaitGroup

	source *events

	mu      sync.Mutex
	pending bool // completed and not received
	first   time.Time
	timer   *time.Timer
	seen    *scanned
}

// Watch begins to watch a folder, which must be there. What it holds now is taken
// as known, not as a save.
func Watch(dir string, spec agentapi.CheckpointSpec, log *slog.Logger) (*Watcher, error) {
	if _, err := path.Match(spec.Marker, "x"); err != nil {
		return nil, fmt.Errorf("watch %s: marker %q: %w", dir, spec.Marker, err)
	}
	c := make(chan struct{}, 1)
	w := &Watcher{
		C: c, c: c, dir: dir, marker: spec.Marker, quiesce: spec.Quiesce.Std(), appended: spec.Append,
		log: log, stop: make(chan struct{}),
	}
	var err error
	if w.source, err = newEvents(dir); err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	if w.quiesce > 0 {
		if w.seen, err = scan(dir, w.appended); err != nil {
			return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), w.source.close())
		}
		w.wg.Go(w.poll)
	}
	w.wg.Go(func() {
		for {
			err := w.source.read(w.event)
			if errors.Is(err, errEventsClosed) {
				return
			}
			if err != nil {
				w.log.Error("the checkpoint folder is no longer watched", "dir", dir, "err", err)
				return
			}
		}
	})
	return w, nil
}

// Close stops watching and reports whether a completed save was not received from
// C. It takes in what happened up to now, so that the last save of a job that has
// just ended counts.
func (w *Watcher) Close() bool {
	close(w.stop)
	w.source.interrupt()
	w.wg.Wait()
	if err := w.source.drain(w.event); err != nil {
		w.log.Error("the last events of the checkpoint folder cannot be read", "dir", w.dir, "err", err)
	}
	if err := w.source.close(); err != nil {
		w.log.Error("cannot stop watching the checkpoint folder", "dir", w.dir, "err", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	select {
	case <-w.c:
		return true
	default:
		return w.pending
	}
}

// change is one thing that happened below the folder.
type change struct {
	path    string
	renamed bool // to this path
	closed  bool // after a write, or a link was made
	found   bool // in a folder that is new, so that how it came is not known
}

func (w *Watcher) event(c change) {
	complete := c.renamed && w.quiesce == 0 && !Temporary(path.Base(c.path))
	if w.marker != "" {
		complete = matches(w.marker, c.path) && (c.renamed || c.closed || c.found)
	}
	if !complete {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if !w.pending {
		w.pending, w.first = true, now
	}
	wait := min(calm, max(0, calmMost-now.Sub(w.first)))
	if w.timer == nil {
		w.timer = time.AfterFunc(wait, w.tell)
		return
	}
	w.timer.Reset(wait)
}

func (w *Watcher) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.pending {
		return
	}
	w.pending = false
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// matches reports whether a path below the folder fits a pattern of [path.Match]:
// in its last element if the pattern has no slash, else as a whole.
func matches(pattern, name string) bool {
	if !strings.Contains(pattern, "/") {
		name = path.Base(name)
	}
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// poll looks for sets that have come to rest.
func (w *Watcher) poll() {
	every := max(w.quiesce/8, 50*time.Millisecond)
	t := time.NewTicker(every)
	defer t.Stop()
	last, since := w.seen, time.Now()
	for {
		select {
		case <-w.stop:
			return
		case <-t.C:
		}
		now, err := scan(w.dir, w.appended)
		if err != nil {
			w.log.Warn("cannot look at the checkpoint folder", "dir", w.dir, "err", err)
			continue
		}
		if !last.equal(now) {
			last, since = now, time.Now()
			continue
		}
		if time.Since(since) < w.quiesce || w.seen.equal(now) || len(now.files) == 0 {
			continue
		}
		w.seen = now
		w.mu.Lock()
		w.pending = true
		w.mu.Unlock()
		w.tell()
	}
}
