//go:build !linux

package agent

import (
	"context"
	"log/slog"
	"time"
)

type machineReader struct{}

func newMachineReader(string, string, string) *machineReader { return &machineReader{} }

func (*machineReader) read(time.Time) machineNow { return machineNow{} }

func openGPUs(context.Context, string, time.Duration, *slog.Logger) gpuReader { return nil }
