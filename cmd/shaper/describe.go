package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
)

// describeAction writes an action as policies spell it.
func describeAction(a dataplane.Action) string {
	if a.Drop {
		return "drop"
	}
	var parts []string
	if a.ECN != dataplane.NoECN {
		parts = append(parts, "ecn=ce")
	}
	if a.ECN == dataplane.CEOrDrop {
		parts = append(parts, "else=drop")
	}
	for _, m := range a.Marks {
		value := fmt.Sprint(m.Value)
		if m.Field == dataplane.DSCP {
			value = marker.DSCPName(uint8(m.Value))
		}
		parts = append(parts, m.Field.String()+"="+value)
	}
	if a.Queue != nil {
		parts = append(parts, "queue="+a.Queue.Name)
	}
	if parts == nil {
		return "pass"
	}
	return strings.Join(parts, " ")
}

// describeMatch writes a match as policies spell it.
func describeMatch(m *dataplane.Match) string {
	var parts []string
	add := func(key string, values []string) {
		if values != nil {
			parts = append(parts, key+" "+strings.Join(values, ","))
		}
	}
	add("src", prefixes(m.Src))
	add("dst", prefixes(m.Dst))
	for _, f := range []struct {
		key    string
		ranges []dataplane.Range
		name   func(uint32) string
	}{
		{"proto", m.Proto, nil},
		{"sport", m.SPort, nil},
		{"dport", m.DPort, nil},
		{"dscp", m.DSCP, func(v uint32) string { return marker.DSCPName(uint8(v)) }},
		{"vlan", m.VLAN, nil},
		{"pcp", m.PCP, nil},
		{"mark", m.Mark, nil},
		{"ethertype", m.EtherType, func(v uint32) string { return fmt.Sprintf("0x%04x", v) }},
		{"length", m.Length, nil},
	} {
		add(f.key, ranges(f.ranges, f.name))
	}
	if parts == nil {
		return "all that is left (IP)"
	}
	return strings.Join(parts, "; ")
}

func prefixes(list []netip.Prefix) []string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return out
}

func ranges(list []dataplane.Range, name func(uint32) string) []string {
	if name == nil {
		name = func(v uint32) string { return fmt.Sprint(v) }
	}
	var out []string
	for _, r := range list {
		if r.First == r.Last {
			out = append(out, name(r.First))
		} else {
			out = append(out, name(r.First)+"-"+name(r.Last))
		}
	}
	return out
}

// describeLength writes the length rule.
func describeLength(r dataplane.LengthRule) string {
	s := [...]string{
		dataplane.L3: "l3: the IP packet, header to end (RFC 2697 §1)",
		dataplane.L2: "l2: the Ethernet frame without FCS",
		dataplane.L1: "l1: max(60, frame) + 24 for FCS, preamble and gap",
	}[r.Base]
	if r.Overhead != 0 {
		s += fmt.Sprintf(", %+d bytes", r.Overhead)
	}
	if r.MPU != 0 {
		s += fmt.Sprintf(", at least %d bytes", r.MPU)
	}
	return s
}
