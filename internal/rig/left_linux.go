package rig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Left returns the processes that bear a folder in their command line, their
// environment or as their working directory, one line each; not this one, and
// none that has ended and waits to be reaped.
func Left(dir string) []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []string{err.Error()}
	}
	var left []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		read := func(name string) []byte {
			text, err := os.ReadFile(filepath.Join("/proc", e.Name(), name))
			if err != nil {
				return nil // it has ended
			}
			return text
		}
		line := read("cmdline")
		cwd, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		if err != nil || len(line) == 0 {
			continue
		}
		if cwd == dir || strings.HasPrefix(cwd, dir+"/") || bytes.Contains(line, []byte(dir)) || bytes.Contains(read("environ"), []byte(dir)) {
			left = append(left, fmt.Sprintf("%d %s", pid, bytes.TrimRight(bytes.ReplaceAll(line, []byte{0}, []byte{' '}), " ")))
		}
	}
	return left
}
