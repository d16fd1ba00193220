package kernel

import (
	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
)

// entryOf returns the program for a hook and direction. Ingress packets are queued in an
// ifb device, so that program runs at the egress of the ifb.
func entryOf(direction Direction, at string, pacer Pacer) entry {
	switch {
	case at == hook.XDP:
		return xdpEntry
	case pacer != "":
		return egressEntry
	}
	return entry(direction)
}

// entry selects one of the programs: tc egress, tc ingress or XDP.
type entry uint8

const (
	egressEntry  = entry(Egress)
	ingressEntry = entry(Ingress)
	xdpEntry     = ingressEntry + 1 // ingress packets before the kernel allocates an skb
)

// programs are the names of the programs, by entry.
var programs = [...]string{bpf.ShaperProgShaperEgress, bpf.ShaperProgShaperIngress, bpf.ShaperProgShaperXdp}
