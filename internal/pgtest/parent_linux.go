package pgtest

import "syscall"

// dieWithParent makes the kernel end the server when this process ends, however
// it does.
func dieWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	a := syscall.SysProcAttr{}
	if attr != nil {
		a = *attr
	}
	a.Pdeathsig = syscall.SIGINT
	return &a
}
