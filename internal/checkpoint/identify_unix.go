//go:build unix

package checkpoint

import (
	"io/fs"
	"syscall"
)

func identify(st fs.FileInfo) fileID {
	id := fileID{bytes: st.Size(), modified: st.ModTime().UnixNano()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		id.inode = sys.Ino
	}
	return id
}
