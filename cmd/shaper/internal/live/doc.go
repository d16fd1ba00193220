// Package live finds running shapers, those in the kernel and those of a shaper tap, and
// talks to the processes that run them. It has the guard, which cleans up after a process
// that is killed.
package live
