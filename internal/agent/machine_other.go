//go:build !linux

package agent

func memoryBytes() int64    { return 0 }
func diskFree(string) int64 { return 0 }
func diskFull(string) bool  { return false }
func gpuNames() []string    { return nil }
