//go:build !linux

package nettest

// Isolate has an effect on Linux only.
func Isolate() {}
