package lint

import (
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// control lists the traffic a network needs to stay up. Each entry is a real frame, so the parser
// and the classifier treat it like any other.
var control = []probe{
	{"ARP", frame(0x0806, make([]byte, 28))},
	{"IPv6 neighbor discovery", frame(0x86dd, ipv6(58, []byte{135, 0, 0, 0}))},
	{"OSPF", frame(0x0800, ipv4(89, nil))},
	{"BGP", frame(0x0800, ipv4(6, []byte{0, 179, 0, 179}))},
	{"EIGRP", frame(0x0800, ipv4(88, nil))},
	{"PIM", frame(0x0800, ipv4(103, nil))},
	{"VRRP", frame(0x0800, ipv4(112, nil))},
	{"BFD", frame(0x0800, ipv4(17, []byte{0xc0, 0, 0x0e, 0xc8}))},
	{"LDP", frame(0x0800, ipv4(17, []byte{0x02, 0x86, 0x02, 0x86}))},
	{"IS-IS", frame(0x0026, []byte{0xfe, 0xfe, 0x03, 0x83})},
}

// ordinary lists traffic that no network needs to stay up. A class matching none of it is for
// control traffic alone.
var ordinary = [][]byte{
	frame(0x0800, ipv4(6, []byte{0x13, 0x88, 0x13, 0x88})),
	frame(0x0800, ipv4(17, []byte{0x13, 0x88, 0x13, 0x88})),
}

func init() {
	for _, f := range ordinary {
		f[15] = 0 // TOS byte, with the DSCP
	}
}

const cs6 = 48 << 2 // DSCP of routing protocols (RFC 4594 §3.1), in a TOS byte

func frame(etherType uint16, payload []byte) []byte {
	b := append(make([]byte, 12), byte(etherType>>8), byte(etherType))
	return append(b, payload...)
}

func ipv4(proto byte, payload []byte) []byte {
	h := make([]byte, 20)
	h[0], h[1], h[3], h[8], h[9] = 0x45, cs6, byte(20+len(payload)), 1, proto
	return append(h, payload...)
}

func ipv6(proto byte, payload []byte) []byte {
	h := make([]byte, 40)
	h[0], h[1], h[5], h[6], h[7] = 0x60|cs6>>4, cs6<<4&0xff, byte(len(payload)), proto, 255
	return append(h, payload...)
}

// controlTraffic finds classes that can drop control traffic.
func (l *linter) controlTraffic() {
	classes := l.File.Policy.Classes
	c := l.plan.Classifier
	victims := make([][]string, len(classes))
	for _, p := range control {
		if i := classOf(c, p.frame); i >= 0 {
			victims[i] = append(victims[i], p.name)
		}
	}
	mixed := make([]bool, len(classes))
	for _, frame := range ordinary {
		if i := classOf(c, frame); i >= 0 {
			mixed[i] = true
		}
	}
	for i := range classes {
		if victims[i] != nil && canDrop(&classes[i]) && (mixed[i] || !passesGreen(&classes[i])) {
			l.add(Warning, &classes[i], "name",
				"class %s can drop %s: put an unmetered class for control traffic before it",
				classes[i].Name, strings.Join(victims[i], ", "))
		}
	}
}

// passesGreen reports whether a class passes green packets at once and drops others only in a
// queue. Such a class bounds the control traffic sent first.
func passesGreen(c *dataplane.Class) bool {
	return !slices.ContainsFunc(policyfile.Colors(c), func(color meter.Color) bool {
		a := c.Action(color)
		return a.Drop || a.ECN == dataplane.CEOrDrop || color == meter.Green && a.Queue != nil
	})
}

// canDrop reports whether a class can drop a packet.
func canDrop(c *dataplane.Class) bool {
	return slices.ContainsFunc(policyfile.Colors(c), func(color meter.Color) bool {
		a := c.Action(color)
		return a.Drop || a.Queue != nil || a.ECN == dataplane.CEOrDrop
	})
}
