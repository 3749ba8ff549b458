//go:build !linux

package rig

import "os/exec"

func bind(*exec.Cmd) {}

// Humble does nothing here.
func (p *Process) Humble() {}
