package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/charmbracelet/x/term"

	"gpubroker/internal/cli"
	"gpubroker/internal/demo"
)

// demoLimit is the longest that a demo may take before it counts as failed.
const demoLimit = 5 * time.Minute

func playDemo(ctx context.Context, o cli.DemoOptions) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	f, isFile := o.Out.(*os.File)
	limit := demoLimit
	if o.Keep {
		limit = 0
	}
	return demo.Run(ctx, demo.Options{
		Keep: o.Keep, Short: o.Short, JSON: o.JSON, Stdout: o.Out, Stderr: o.Err, Self: self, Limit: limit,
		Live: isFile && term.IsTerminal(f.Fd()),
	})
}
