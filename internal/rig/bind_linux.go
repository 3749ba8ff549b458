package rig

import (
	"os/exec"
	"syscall"
)

// bind makes a child end with us, in a process group of its own.
func bind(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
}

// Humble lets a process have only what nobody else wants: a courtesy.
func (p *Process) Humble() { _ = syscall.Setpriority(syscall.PRIO_PROCESS, p.Pid(), 19) }
