package demo

import (
	"os/exec"
	"syscall"
)

// quietChild ends with us, and gets no Ctrl-C of the terminal: we stop it.
func quietChild(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
