//go:build !linux

package nettest

// Isolate does nothing on other systems than Linux.
func Isolate() {}
