// Package live finds running shapers in the kernel and in shaper tap processes, and
// communicates with their processes. It also has the guard process, which cleans up after a
// process that is killed.
package live
