// Gpubroker is the broker and its command line.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"gpubroker/internal/cli"
	"gpubroker/providers/all"
)

var version = "unknown" // set by the linker

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Run(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, wiring())
	stop()
	os.Exit(code)
}

func wiring() cli.Wiring {
	w := cli.Wiring{Version: version, Serve: serve, Check: checkConfig, Demo: playDemo, Sweep: sweep, Public: publicPrices}
	for _, d := range all.Descriptors() {
		w.ProviderTypes = append(w.ProviderTypes, d.Type)
	}
	return w
}
