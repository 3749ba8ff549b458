package market

import (
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gpubroker/internal/durable"
	"gpubroker/internal/money"
	"gpubroker/providers"
)

// How much history is kept: whole days, the oldest go first.
const (
	historyDays  = 90
	historyBytes = 2_000_000_000
	// silent is for how long after a look at a provider a price is taken to hold
	// where no other look follows.
	silent = time.Hour
	// quiet is how often a look that brings nothing new is recorded.
	quiet = 10 * time.Minute
)

// History is the record of list prices over time, in a folder of its own: one file
// for each day (UTC), which begins with every price and then holds changes only.
// The day that runs is a log that is appended to; a day that is over is packed.
//
// A crash loses at most what the system had not written yet: a torn end of the log
// is cut off at the next start. One process at a time uses a folder. It is safe
// for concurrent use.
type History struct {
	dir string

	mu     sync.Mutex
	day    string // of the log that is open
	log    *os.File
	size   int64
	state  state
	broken bool  // a write failed: the rest of the day's log cannot be trusted
	closed bool  // nothing is recorded any more
	untidy error // of the newest tidying, until it was told
}

// Series is one thing whose price is recorded.
type Series struct {
	providers.Market
	GPU      string         `json:"gpu,omitzero"`
	GPUs     float64        `json:"gpus"`
	Currency money.Currency `json:"currency"`
}

// OpenHistory opens the record in a folder, which is made when it is not there.
// That old days could not be packed or removed is told by the next [History.Record].
func OpenHistory(dir string, now time.Time) (*History, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("price history: %w", err)
	}
	h := &History{dir: dir}
	if err := h.open(dayOf(now)); err != nil {
		return nil, fmt.Errorf("price history: %w", err)
	}
	h.untidy = h.tidy(now)
	return h, nil
}

// Close closes the log.
func (h *History) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.log == nil {
		return nil
	}
	err := h.log.Close()
	h.log = nil
	return err
}

func dayOf(t time.Time) string { return t.UTC().Format(time.DateOnly) }

func (h *History) file(day, ending string) string { return filepath.Join(h.dir, day+ending) }

// The endings of the files of a day.
const (
	openDay   = ".log"
	packedDay = ".log.gz"
)

// open continues the log of a day, or begins it.
func (h *History) open(day string) error {
	h.state = newState()
	f, err := os.OpenFile(h.file(day, openDay), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	whole, err := readLog(f, func(r *record) error { return h.state.apply(r) })
	if err == nil {
		err = f.Truncate(whole)
	}
	if err == nil {
		_, err = f.Seek(whole, io.SeekStart)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	h.day, h.log, h.size, h.broken = day, f, whole, false
	return nil
}

// Record takes down a provider's whole list as it was read at a moment.
func (h *History) Record(provider string, offers []providers.Offer, at time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch day := dayOf(at); {
	case h.closed:
		return nil
	case day < h.day:
		return nil // the clock went back: that day is over
	case day > h.day || h.log == nil: // or its log could not be opened before
		if err := h.turn(day, at); err != nil {
			return fmt.Errorf("price history: %w", err)
		}
	case h.broken:
		return nil // told once; the next day begins anew
	}
	if r := h.state.diff(provider, offers, at); r != nil {
		if err := h.write(r); err != nil {
			return fmt.Errorf("price history: %w", err)
		}
	}
	if err := h.untidy; err != nil {
		h.untidy = nil
		return fmt.Errorf("price history: old days are kept as they are: %w", err)
	}
	return nil
}

func (h *History) write(r *record) error {
	b := r.encode()
	if _, err := h.log.Write(b); err != nil {
		// Whatever was written of it is cut off, so that the next one is readable.
		if cut := errors.Join(h.log.Truncate(h.size), seek(h.log, h.size)); cut != nil {
			h.broken = true
			err = errors.Join(err, cut)
		}
		return err
	}
	h.size += int64(len(b))
	return h.state.apply(r)
}

func seek(f *os.File, to int64) error {
	_, err := f.Seek(to, io.SeekStart)
	return err
}

// turn begins a new day. When that fails the next record tries again.
func (h *History) turn(day string, now time.Time) error {
	var closing error
	if h.log != nil {
		closing, h.log = h.log.Close(), nil
	}
	if err := h.open(day); err != nil {
		return errors.Join(closing, err)
	}
	h.untidy = errors.Join(closing, h.tidy(now))
	return nil
}

// tidy packs the days that are over and removes those that are too old or too much.
func (h *History) tidy(now time.Time) error {
	days, err := h.days()
	if err != nil {
		return err
	}
	oldest := dayOf(now.AddDate(0, 0, -historyDays+1))
	var total int64
	for _, d := range slices.Backward(days) { // the newest first
		if d.day == h.day {
			total += d.size
			continue
		}
		if d.left {
			if err := os.Remove(h.file(d.day, openDay)); err != nil {
				return err
			}
		}
		if d.day < oldest || total > historyBytes {
			if err := os.Remove(h.file(d.day, d.ending)); err != nil {
				return err
			}
			continue
		}
		if d.ending == openDay {
			if d.size, err = h.pack(d.day); err != nil {
				return err
			}
		}
		total += d.size
	}
	return nil
}

// pack compresses a day's log; the log goes once the packed one is safe.
func (h *History) pack(day string) (size int64, err error) {
	from := h.file(day, openDay)
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	tmp, err := os.CreateTemp(h.dir, ".pack-*")
	if err != nil {
		return 0, err
	}
	z, err := gzip.NewWriterLevel(tmp, gzip.BestCompression)
	if err == nil {
		_, err = io.Copy(z, in)
		err = errors.Join(err, z.Close(), tmp.Sync())
	}
	if info, statErr := tmp.Stat(); statErr == nil {
		size = info.Size()
	}
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), h.file(day, packedDay))
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(tmp.Name()))
	}
	return size, errors.Join(durable.SyncDir(h.dir), os.Remove(from))
}

type dayFile struct {
	day, ending string
	size        int64
	left        bool // its packing left the log behind
}

// days lists the files, the oldest first. Where a day has both, the packed one is
// whole and the log is what its packing left behind.
func (h *History) days() ([]dayFile, error) {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return nil, err
	}
	var out []dayFile
	for _, e := range entries {
		day, ending := e.Name(), ""
		for _, end := range [...]string{packedDay, openDay} {
			if d, ok := strings.CutSuffix(e.Name(), end); ok {
				day, ending = d, end
				break
			}
		}
		if _, err := time.Parse(time.DateOnly, day); err != nil || ending == "" {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n := len(out); n > 0 && out[n-1].day == day {
			out[n-1] = dayFile{day, ending, info.Size(), true} // the log comes first by name
			continue
		}
		out = append(out, dayFile{day: day, ending: ending, size: info.Size()})
	}
	slices.SortFunc(out, func(a, b dayFile) int { return cmp.Compare(a.day, b.day) })
	return out, nil
}
