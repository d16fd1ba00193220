// Package walk runs packets from memory through the eBPF programs of the kernel plane, in virtual
// time.
package walk
