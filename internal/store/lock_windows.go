package store

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/windows"

	"gpubroker/queue"
)

// lockFile takes the lock that one broker holds while it uses a SQLite store.
// Windows drops it when the process ends, however it ends.
func lockFile(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: its lock: %w", err)
	}
	err = windows.LockFileEx(windows.Handle(f.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, new(windows.Overlapped))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		f.Close()
		return nil, fmt.Errorf("%w: another process holds %s; stop it, or give this broker a store of its own",
			queue.ErrLocked, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store: lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// inodeOf is empty: on Windows the path and the mark tell a copy.
func inodeOf(string) (string, error) { return "", nil }
