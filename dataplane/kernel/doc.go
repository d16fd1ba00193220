// Package kernel is the eBPF plane. It encodes a compiled.Plan into the maps of
// the programs in package bpf, attaches the programs to a network interface, and
// replaces the policy while traffic flows. It also finds the shapers of other
// processes, reads counters and meter levels, and removes leftovers of killed
// processes.
//
// Attach attaches a policy; Shaper.Reload replaces it and Shaper.Detach removes it.
// Look and List return the shapers of the network namespace. Clear removes
// everything of shaper from an interface. Package walk runs the same programs over
// packets from memory.
//
// Most functions need root, or CAP_BPF and CAP_NET_ADMIN. They act on the network
// namespace of the calling thread. A change to an interface is made under a file lock,
// so several processes can work on the same interface.
package kernel
