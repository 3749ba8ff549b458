package store_test

import (
	"fmt"
	"syscall"
	"testing"
)

// smallDisk mounts a disk of that many bytes, where we may.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprint("size=", size)); err != nil {
		t.Skip("mounting a small disk: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return folder
}

func resizeDisk(t *testing.T, folder string, size int) {
	t.Helper()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", syscall.MS_REMOUNT, fmt.Sprint("size=", size)); err != nil {
		t.Fatal(err)
	}
}
