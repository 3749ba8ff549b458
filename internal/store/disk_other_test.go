//go:build !linux

package store_test

import "testing"

func smallDisk(t *testing.T, _ int) string {
	t.Skip("mounting a small disk needs Linux")
	return ""
}

func resizeDisk(*testing.T, string, int) {}
