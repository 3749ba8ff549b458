package simcloud

import (
	"context"
	"errors"
	"net/http"
	"sync"
)

// Runner runs the insides of machines. Start is called with the world locked:
// it must neither call the world nor wait for long.
type Runner interface {
	Start(m Guest) (Process, error)
	// Close waits until nothing of any machine is left; all were killed before.
	Close()
}

// Guest is what a runner is given of a machine.
type Guest struct {
	ID          string
	Number      int
	UserData    string
	Metadata    http.Handler // what the machine's metadata address answers
	MetadataURL string       // where Client reaches it
	Client      *http.Client // as of InProcess
	PowerOff    func()       // to be called, unlocked, when the guest shuts down
	// Env are further variables of the machine's programs, given the URL under
	// which they reach Metadata.
	Env func(metadataURL string) []string
}

// Process is the inside of one machine.
type Process interface {
	// Kill ends everything on the machine without waiting. The channel is closed
	// once nothing is left.
	Kill() <-chan struct{}
	// Crash kills what runs on the machine; the machine itself stays up.
	Crash() error
	// Freeze stops what runs on the machine without ending it.
	Freeze() error
	// Console returns the last bytes that the machine wrote.
	Console() []byte
}

// ErrNoFreeze says that a runner cannot freeze machines.
var ErrNoFreeze = errors.New("simcloud: this runner cannot freeze a machine; use real processes")

// Null runs a machine as a call of Boot in this process: the place to attach an
// agent in a test. The context ends with the machine, at once and without
// waiting for Boot to return. A nil Boot is a machine that does nothing.
type Null struct {
	Boot func(ctx context.Context, m Guest)

	wg sync.WaitGroup
}

// Start calls Boot.
func (n *Null) Start(m Guest) (Process, error) {
	ctx, cancel := context.WithCancel(context.Background())
	if n.Boot != nil {
		n.wg.Go(func() { n.Boot(ctx, m) })
	}
	return nullProcess{cancel}, nil
}

// Close waits for every Boot to return.
func (n *Null) Close() { n.wg.Wait() }

type nullProcess struct{ cancel context.CancelFunc }

func (p nullProcess) Kill() <-chan struct{} {
	p.cancel()
	done := make(chan struct{})
	close(done)
	return done
}

func (p nullProcess) Crash() error    { p.cancel(); return nil }
func (p nullProcess) Freeze() error   { return ErrNoFreeze }
func (p nullProcess) Console() []byte { return nil }
