//go:build !linux

package rig

// Left finds nothing here.
func Left(string) []string { return nil }
