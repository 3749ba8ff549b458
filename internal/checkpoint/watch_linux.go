package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var errEventsClosed = errors.New("closed")

// events reads inotify for a folder and all below it.
type events struct {
	dir   string
	fd    int
	file  *os.File // of fd, so that reads wait without a thread and can be ended
	paths map[int32]string
	ended chan struct{} // closed when reads are
	buf   [64 << 10]byte
}

const eventMask = unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE | unix.IN_CREATE | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW |
	unix.IN_EXCL_UNLINK | unix.IN_DELETE_SELF

func newEvents(dir string) (*events, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	e := &events{dir: dir, fd: fd, file: os.NewFile(uintptr(fd), "inotify"), paths: map[int32]string{}, ended: make(chan struct{})}
	if err := e.add(".", nil); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// add watches rel and the folders below it, and tells of the files found there.
func (e *events) add(rel string, found func(change)) error {
	return filepath.WalkDir(filepath.Join(e.dir, rel), func(name string, d fs.DirEntry, err error) error {
		r, relErr := filepath.Rel(e.dir, name)
		switch {
		case relErr != nil:
			return relErr
		case errors.Is(err, fs.ErrNotExist) && r != ".":
			return nil // gone again
		case err != nil:
			return err
		case !d.IsDir():
			if found != nil {
				found(change{path: r, found: true})
			}
			return nil
		}
		// Watched before its entries are read: what comes later is an event.
		wd, err := unix.InotifyAddWatch(e.fd, name, eventMask)
		switch {
		case errors.Is(err, unix.ENOENT) && r != ".", errors.Is(err, unix.ENOTDIR) && r != ".":
			return fs.SkipDir
		case errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("watch %s: the system permits no more (raise fs.inotify.max_user_watches): %w", name, err)
		case err != nil:
			return fmt.Errorf("watch %s: %w", name, err)
		}
		e.paths[int32(wd)] = r
		return nil
	})
}

// read waits for events and passes them on.
func (e *events) read(to func(change)) error {
	n, err := e.file.Read(e.buf[:])
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
		return errEventsClosed
	}
	if err != nil {
		return err
	}
	return e.parse(e.buf[:n], to)
}

// interrupt ends reads.
func (e *events) interrupt() {
	close(e.ended)
	// It cannot fail on a file that the runtime polls; the reader would otherwise be
	// left waiting, so that close is the fallback.
	if err := e.file.SetReadDeadline(time.Unix(1, 0)); err != nil {
		_ = e.file.Close()
	}
}

// drain passes on what has happened and was not read.
func (e *events) drain(to func(change)) error {
	for {
		n, err := unix.Read(e.fd, e.buf[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("read", err)
		case n == 0:
			return nil
		}
		if err := e.parse(e.buf[:n], to); err != nil {
			return err
		}
	}
}

func (e *events) parse(b []byte, to func(change)) error {
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		b = b[unix.SizeofInotifyEvent+size:]
		dir, known := e.paths[wd]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			// Events were lost. Folders made meanwhile are watched from here on; a save
			// completed meanwhile is seen with the next one.
			if err := e.add(".", nil); err != nil {
				return err
			}
			continue
		case mask&unix.IN_IGNORED != 0:
			delete(e.paths, wd)
			if known && dir == "." {
				if err := e.again(); err != nil {
					return err
				}
			}
			continue
		case !known || mask&unix.IN_DELETE_SELF != 0:
			continue
		}
		rel := path.Join(dir, name)
		if mask&unix.IN_ISDIR != 0 && mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
			if err := e.add(rel, to); err != nil {
				return err
			}
		}
		c := change{path: rel, renamed: mask&unix.IN_MOVED_TO != 0, closed: mask&unix.IN_CLOSE_WRITE != 0}
		if mask&(unix.IN_CREATE|unix.IN_ISDIR) == unix.IN_CREATE {
			// Links, hard and symbolic, are whole when they appear.
			if st, err := os.Lstat(filepath.Join(e.dir, rel)); err == nil {
				c.closed = st.Mode()&fs.ModeSymlink != 0 || links(st) > 1
			}
		}
		to(c)
	}
	return nil
}

func links(st fs.FileInfo) uint64 {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return uint64(sys.Nlink) //nolint:unconvert // 32 bits on arm64
	}
	return 1
}

// again waits until a folder that the job removed is there again.
func (e *events) again() error {
	for {
		err := e.add(".", nil)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOENT) {
			return err
		}
		select {
		case <-e.ended:
			return errEventsClosed
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (e *events) close() error {
	err := e.file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
