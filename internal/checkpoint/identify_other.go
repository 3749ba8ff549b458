//go:build !unix

package checkpoint

import "io/fs"

// identify does without the inode: machines that run tasks are Unix machines.
func identify(st fs.FileInfo) fileID {
	return fileID{bytes: st.Size(), modified: st.ModTime().UnixNano()}
}
