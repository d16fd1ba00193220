package lint

import (
	"bytes"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// probe is a frame of a kind of traffic easily forgotten in a policy.
type probe struct {
	name  string
	frame []byte
}

const nonIP = "non-IP packets"

var (
	arp = control[0]
	nd  = control[1]

	fourTags  = append(bytes.Repeat([]byte{0x81, 0, 0, 1}, 4), 8, 0)
	forgotten = []probe{
		{nonIP, frame(0x88b5, make([]byte, 46))}, // an EtherType for experiments (IEEE 802)
		{arp.name, arp.frame},
		{"malformed packets", frame(0x0800, ipv4(17, nil)[:12])},
		{
			"packets with more than 3 VLAN tags",
			append(append(make([]byte, 12), fourTags...), ipv4(17, nil)...),
		},
	}

	// Frames whose IP packet is not read.
	hidden = []probe{
		{
			"IP behind more than 16 MPLS labels",
			frame(etherMPLS, append(bytes.Repeat([]byte{0, 1, 0, 64}, 17), ipv4(17, nil)...)),
		},
		// RFC 4448
		{
			"IP in MPLS pseudowires",
			frame(etherMPLS, append([]byte{0, 1, 1, 64, 0, 0, 0, 0}, frame(etherIPv4, ipv4(17, nil))...)),
		},
		// IEEE 802.2
		{"IP in SNAP frames", frame(28, append([]byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, ipv4(17, nil)...))},
		// IEEE 802.1ah
		{
			"IP in MAC-in-MAC frames",
			frame(0x88e7, append(make([]byte, 4), frame(etherIPv4, ipv4(17, nil))...)),
		},
		// IEEE 802.1AE
		{"MACsec frames", frame(0x88e5, make([]byte, 46))},
	}
)

// NotSpared returns the names of packets which keep a link alive but would be dropped by otherwise:
// drop, and the classes to spare them.
func NotSpared(plan *compiled.Plan) (names, classes []string) {
	for _, need := range []struct {
		probe
		class string
	}{{arp, arpClass}, {nd, ndClass}} {
		if classOf(plan.Classifier, need.frame) < 0 {
			names, classes = append(names, need.name), append(classes, need.class)
		}
	}
	return names, classes
}

const (
	arpClass = "{name: arp, match: {ethertype: arp}}"
	ndClass  = "{name: nd, match: {proto: icmpv6}}"
)

// classOf returns the index of the first class to match a frame, or -1.
func classOf(c *compiled.Classifier, frame []byte) int {
	p := dataplane.Packet{
		Data: slices.Clone(frame), WireLen: max(len(frame), 60), Link: dataplane.LinkEthernet,
	}
	dataplane.Parse(&p)
	return c.Classify(&p, p.L3Len)
}

// Unclassified describes the packets that no class of a plan matches.
func Unclassified(plan *compiled.Plan) []string {
	var out []string
	all := func(c compiled.Class) bool { return c.Source.Match.Covers(&dataplane.Match{}) }
	if !slices.ContainsFunc(plan.Classes, all) {
		out = append(out, "IP packets that no class matches")
	}
	c := plan.Classifier
	for _, p := range forgotten {
		if classOf(c, p.frame) >= 0 {
			continue
		}
		if last := len(out) - 1; p.name == arp.name && last >= 0 && out[last] == nonIP {
			out[last] = nonIP + " such as " + arp.name
			continue
		}
		out = append(out, p.name)
	}
	for _, p := range hidden {
		if classOf(c, p.frame) < 0 {
			out = append(out, p.name)
		}
	}
	return out
}

// dropUnclassified warns about otherwise: drop if the link would lose its neighbors, and
// notes other unclassified control traffic.
func (l *linter) dropUnclassified() {
	p := l.File.Policy
	if !p.DropUnclassified {
		return
	}
	c := l.plan.Classifier
	if classOf(c, arp.frame) < 0 {
		l.add(Warning, p, "otherwise",
			"otherwise: drop drops ARP: IPv4 neighbors are lost within minutes and the link is dead; add the class "+
				arpClass)
	}
	if classOf(c, nd.frame) < 0 {
		l.add(Warning, p, "otherwise",
			"otherwise: drop drops IPv6 neighbor discovery: IPv6 neighbors are lost within minutes and the link is dead for IPv6; add the class "+
				ndClass)
	}
	var others []string
	for _, other := range control[2:] {
		if classOf(c, other.frame) < 0 {
			others = append(others, other.name)
		}
	}
	if others != nil {
		l.add(Note, p, "otherwise", "otherwise: drop drops %s: add an unmetered class for those that you use",
			strings.Join(others, ", "))
	}
}
