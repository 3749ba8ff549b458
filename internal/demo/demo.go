package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gpubroker/internal/money"
)

// Options say how the demo runs.
type Options struct {
	Dir    string // where everything is made; "" means a temporary folder
	Keep   bool   // leave everything running and tell how to look at it
	Stdout io.Writer
	Stderr io.Writer
	JSON   bool   // print the summary as one JSON object, and progress to Stderr
	Live   bool   // Stdout is a terminal: the status line is rewritten in place
	Self   string // the gpubroker program; gpubroker-agent and tiles lie beside it
	Limit  time.Duration
	Short  bool // a third of the work
}

// Summary is what the night came to.
type Summary struct {
	Tasks           int          `json:"tasks"`
	Succeeded       int          `json:"succeeded"`
	Failed          int          `json:"failed"`
	Attempts        int          `json:"attempts"`
	Preemptions     Preemptions  `json:"preemptions"`
	BrokerKills     int          `json:"broker_kills"`
	WorkLostSeconds float64      `json:"work_lost_seconds"`
	SpotSeconds     float64      `json:"spot_seconds"`      // paid machine time
	OnDemandSeconds float64      `json:"on_demand_seconds"` // likewise
	Ledger          money.Amount `json:"ledger"`
	Invoice         money.Amount `json:"invoice"`
	OnDemand        money.Amount `json:"on_demand"` // the same machine time at on-demand prices
	SavedPercent    float64      `json:"saved_percent"`
	MachinesLeft    int          `json:"machines_left"`
	Seconds         float64      `json:"seconds"`
	Checks          []Check      `json:"checks"`
}

// Preemptions are machines that were taken away.
type Preemptions struct {
	Noticed int `json:"noticed"`
	Silent  int `json:"silent"`
}

// Check is one promise, and whether it held.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// ErrBroken says that a check failed.
var ErrBroken = errors.New("a promise was broken")

// Run plays the night. It returns [ErrBroken] when a check failed, and the
// context's error when that ended it. Files are left when something went wrong
// or Keep is set, processes never.
func Run(ctx context.Context, o Options) error {
	n, err := newNight(o)
	if err != nil {
		return err
	}
	defer n.end()
	limited := ctx
	if o.Limit > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeoutCause(ctx, o.Limit, fmt.Errorf("it took longer than %s", o.Limit))
		defer cancel()
	}
	s, err := n.play(limited)
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // whoever ended it does not look for what went wrong
	case err != nil:
		n.tellLogs()
		return fmt.Errorf("demo: %w", err)
	}
	if o.JSON {
		enc := json.NewEncoder(o.Stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(s); err != nil {
			return err
		}
	} else {
		n.show.summary(s)
	}
	if slices.ContainsFunc(s.Checks, func(c Check) bool { return !c.OK }) {
		n.tellLogs()
		return ErrBroken
	}
	if o.Keep {
		n.keep(ctx)
	}
	return nil
}

// play is the whole night.
func (n *night) play(ctx context.Context) (*Summary, error) {
	if err := n.prepare(ctx); err != nil {
		return nil, err
	}
	if err := n.run(ctx); err != nil {
		return nil, err
	}
	return n.summary(ctx)
}

// keep leaves broker and cloud running until the context ends.
func (n *night) keep(ctx context.Context) {
	n.keepDir = true
	self := relative(n.o.Self)
	fmt.Fprintf(n.show.out, `
The broker and the cloud go on running; end them with Ctrl-C. In another terminal:

  export GPUBROKER_DATA=%s
  %s jobs
  %s jobs %s
  %s instances
  %s costs
  ls %s

`, n.Broker.Data, self, self, n.jobs[0].id, self, self, n.Path("done"))
	select {
	case <-ctx.Done():
	case <-n.Broker.Process.Ended():
	case <-n.Cloud.Process.Ended():
	}
	fmt.Fprintf(n.show.out, "\nended; the files stay in %s\n", n.Dir)
}

// relative is the program as a person would type it here.
func relative(self string) string {
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, self); err == nil && len(rel) < len(self) {
			return rel
		}
	}
	return self
}

func (n *night) tellLogs() {
	n.keepDir = true
	fmt.Fprintf(n.show.out, "\nThe logs of broker and cloud, and all files, are in %s\n", n.Dir)
}
