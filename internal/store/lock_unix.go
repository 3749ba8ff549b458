//go:build unix

package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"gpubroker/queue"
)

// lockFile takes the lock that one broker holds while it uses a SQLite store.
// The kernel drops it when the process ends, however it ends. The file stays
// and names the last holder.
func lockFile(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: its lock: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		text, _ := os.ReadFile(path) // who holds it is a courtesy
		f.Close()
		return nil, fmt.Errorf("%w: process %s holds %s; stop it, or give this broker a store of its own",
			queue.ErrLocked, orUnknown(strings.TrimSpace(string(text))), path)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store: lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

func orUnknown(pid string) string {
	if pid == "" {
		return "(unknown)"
	}
	return pid
}

// inodeOf returns " inode N" for the file.
func inodeOf(path string) (string, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	return fmt.Sprintf(" (inode %d)", st.Ino), nil
}
