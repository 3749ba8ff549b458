package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// Sizes of an attempt's log.
const (
	logLimit   = 256 << 20 // kept from the beginning
	logEnd     = 256 << 10 // kept of the end of a longer one
	logChunk   = 4 << 20   // largest object
	logSoon    = 1 << 20   // sent without waiting
	lineLimit  = 8 << 10   // of a line, as far as the progress pattern sees it
	tailLimit  = 64 << 10  // of live log in one call
	firstFlush = 5 * time.Second
	lastFlush  = time.Minute
)

// logSink takes a command's output: a bounded file on disk that is sent in
// chunks, whatever the length of its lines.
type logSink struct {
	mu      sync.Mutex
	file    *os.File
	size    int64 // of the file
	left    int64 // bytes that were not kept
	end     []byte
	pattern *regexp.Regexp
	line    []byte
	units   *float64  // what the pattern last read
	last    time.Time // of a line or of progress
	wake    chan struct{}
	closed  bool
}

func openLog(path, pattern string) (*logSink, error) {
	l := &logSink{last: time.Now(), wake: make(chan struct{}, 1)}
	if pattern != "" {
		re, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("agent: progress pattern: %w", err)
		}
		if re.NumSubexp() < 1 {
			return nil, fmt.Errorf("agent: progress pattern %q: it has no group that holds the number", pattern)
		}
		l.pattern = re
	}
	var err error
	if l.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("agent: open the log: %w", err)
	}
	info, err := l.file.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("agent: open the log: %w", err), l.file.Close())
	}
	l.size = info.Size()
	return l, nil
}

// Write keeps what fits. It never fails: a full disk must not end a command that
// may need none.
func (l *logSink) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scan(p)
	if l.closed {
		return len(p), nil
	}
	keep := p[:max(0, min(int64(len(p)), logLimit-l.size))]
	n, _ := l.file.WriteAt(keep, l.size) // what was not written is counted below
	l.size += int64(n)
	if rest := p[n:]; len(rest) > 0 {
		l.left += int64(len(rest))
		l.end = append(l.end, rest...)
		if over := len(l.end) - logEnd; over > 0 {
			l.end = append(l.end[:0], l.end[over:]...)
		}
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return len(p), nil
}

// Note adds a line of the agent's own.
func (l *logSink) Note(text string) {
	l.mu.Lock()
	fresh := l.size == 0
	l.mu.Unlock()
	line := "[gpubroker] " + text + "\n"
	if !fresh {
		line = "\n" + line
	}
	_, _ = l.Write([]byte(line)) // it never fails
}

// scan feeds the progress pattern line by line; programs that draw a bar end
// their lines with a carriage return.
func (l *logSink) scan(p []byte) {
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\r\n")
		part := p
		if i >= 0 {
			part = p[:i]
		}
		if l.pattern != nil {
			l.line = append(l.line, part[:min(len(part), lineLimit-len(l.line))]...)
		}
		if i < 0 {
			return
		}
		l.last = time.Now()
		l.match()
		l.line = l.line[:0]
		p = p[i+1:]
	}
}

func (l *logSink) match() {
	if l.pattern == nil || len(l.line) == 0 {
		return
	}
	found := l.pattern.FindAllSubmatch(l.line, -1)
	if len(found) == 0 {
		return
	}
	// "nan" and "inf" are numbers to ParseFloat, and none to JSON.
	if v, err := strconv.ParseFloat(string(found[len(found)-1][1]), 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
		l.units = &v
	}
}

// progress is what the pattern last read, and when the log last moved.
func (l *logSink) progress() (*float64, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.units, l.last
}

// bytes is the size of what is kept.
func (l *logSink) bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size
}

// tail is live log from off on.
func (l *logSink) tail(off int64) ([]byte, int64) {
	size := l.bytes()
	off = max(off, size-tailLimit, 0)
	if off >= size {
		return nil, size
	}
	buf := make([]byte, size-off)
	n, _ := l.file.ReadAt(buf, off) // a part of it is as good
	return buf[:n], off
}

// finish adds what a log over its limit ended with; nothing is written after it.
func (l *logSink) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	if l.left == 0 {
		return
	}
	gap := l.left - int64(len(l.end))
	text := append(fmt.Appendf(nil, "\n[gpubroker] %d bytes of log are left out here\n", gap), l.end...)
	n, _ := l.file.WriteAt(text, l.size) // the disk may still be full
	l.size += int64(n)
}

// logPosition is how far the log was sent.
type logPosition struct {
	Chunk int64 `json:"chunk"` // number of the last one
	Sent  int64 `json:"sent"`  // bytes
}

// send sends the log until it is finished and all is sent, or the context ends.
// store is told of each chunk that arrived; done is closed when the log is
// finished.
func (l *logSink) send(ctx context.Context, done <-chan struct{}, at logPosition, put func(ctx context.Context, name string, off, size int64) error, store func(logPosition)) error {
	every := firstFlush
	timer := time.NewTimer(every)
	defer timer.Stop()
	for due, over := false, false; ; {
		if pending := l.bytes() - at.Sent; pending > 0 && (due || over || pending >= logSoon) {
			size := min(pending, logChunk)
			if err := put(ctx, "log/"+strconv.FormatInt(at.Chunk+1, 10), at.Sent, size); err != nil {
				return err
			}
			at = logPosition{at.Chunk + 1, at.Sent + size}
			store(at)
			due = pending > size
			continue
		}
		if over {
			return nil
		}
		due = false
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-done:
			over, done = true, nil
		case <-timer.C:
			due = true
			every = min(every*3/2, lastFlush)
			timer.Reset(every)
		case <-l.wake:
		}
	}
}
