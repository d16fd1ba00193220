// Package kernel is the eBPF plane: it compiles a dataplane.Policy into the
// maps of the programs in bpf, attaches these to an interface, reads what they
// count and what their meters hold, and replaces the policy while traffic
// flows.
package kernel
