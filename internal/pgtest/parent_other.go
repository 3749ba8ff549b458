//go:build unix && !linux

package pgtest

import "syscall"

// dieWithParent does nothing here: a killed test binary leaves the server.
func dieWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }
