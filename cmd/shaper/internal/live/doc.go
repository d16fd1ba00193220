// Package live finds running shapers in the kernel and in shaper tap processes, and communicates
// with their processes. It also contains the guard process, which cleans up after a killed process.
package live
