//go:build !linux

package simcloud

import (
	"errors"
	"os"
)

// errLinux says that machines that are real processes need Linux.
var errLinux = errors.New("simcloud: real machines need Linux; here a world runs in process only")

type isolation int

func (isolation) String() string { return "none" }

func (*Processes) chooseIsolation(string) (isolation, error) { return 0, errLinux }

type forker struct{}

func newForker() *forker { return nil }
func (*forker) close()   {}

type osProcess struct{}

func (*Processes) spawn(string, string, []string, *os.File) (*osProcess, error) { return nil, errLinux }

func (*osProcess) kill()                {}
func (*osProcess) wait()                {}
func (*osProcess) signalAll(bool) error { return errLinux }

func makeFIFO(string) (*os.File, error) { return nil, errLinux }
