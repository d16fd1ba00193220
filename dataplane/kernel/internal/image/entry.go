package image

import (
	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// EntryOf returns the program for a hook and direction. Ingress packets are queued in an ifb
// device, so this program runs at the egress of the ifb.
func EntryOf(direction dataplane.Direction, at string, pacer record.Pacer) Entry {
	switch {
	case at == hook.XDP:
		return XdpEntry
	case pacer != "":
		return EgressEntry
	}
	return Entry(direction)
}

// Entry selects one of the programs: tc egress, tc ingress or XDP.
type Entry uint8

const (
	EgressEntry  = Entry(dataplane.Egress)
	IngressEntry = Entry(dataplane.Ingress)
	XdpEntry     = IngressEntry + 1 // ingress packets before the kernel allocates an skb
)

// Programs are the names of the programs, by entry.
var Programs = [...]string{bpf.ShaperProgShaperEgress, bpf.ShaperProgShaperIngress, bpf.ShaperProgShaperXdp}
