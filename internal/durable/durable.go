// Package durable replaces small files so that a crash at any moment leaves the
// old content or the new.
package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// WriteFile replaces a file, in a folder that is there. Only its owner may read
// it. placed says that the new content is in place, also where err says that it
// may not survive a loss of power.
func WriteFile(path string, data []byte) (placed bool, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(tmp.Name()))
	}
	return true, SyncDir(filepath.Dir(path))
}

// SyncDir makes the names in a folder survive a loss of power. Windows has no such
// call.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync the folder %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync the folder %s: %w", dir, err)
	}
	return nil
}
