package say

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Action writes an action as policies spell it.
func Action(a dataplane.Action) string {
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
		parts = append(parts, m.Field.String()+"="+Value(m.Field.String(), m.Value))
		parts = append(parts, restWords("=", m, "Field", "Value")...)
	}
	if a.Queue != nil {
		parts = append(parts, "queue="+a.Queue.Name)
	}
	parts = append(parts, restWords("=", &a, "Drop", "ECN", "Marks", "Queue")...)
	if parts == nil {
		return "pass"
	}
	return strings.Join(parts, " ")
}

// Match writes a match as policies spell it.
func Match(m *dataplane.Match) string {
	var parts []string
	add := func(key string, values []string, more int) {
		switch {
		case more > 0:
			parts = append(parts, fmt.Sprintf("%s %s and %d more", key, strings.Join(values, ","), more))
		case values != nil:
			parts = append(parts, key+" "+strings.Join(values, ","))
		}
	}
	if m.Customer {
		parts = append(parts, "packets of customers")
	}
	src, moreSrc := firstValues(m.Src)
	dst, moreDst := firstValues(m.Dst)
	add("src", prefixes(src), moreSrc)
	add("dst", prefixes(dst), moreDst)
	rest := *m
	for _, f := range dataplane.MatchFields {
		list, more := firstValues(Ranges(f.Name, *f.List(m)))
		add(f.Name, list, more)
		*f.List(&rest) = nil
	}
	cgroups, moreCgroups := firstValues(m.Cgroups)
	add("cgroup", cgroups, moreCgroups)
	parts = append(parts, restWords(" ", &rest, "Src", "Dst", "Cgroups", "Customer")...)
	if parts == nil {
		return "all remaining IP packets"
	}
	return strings.Join(parts, "; ")
}

// mostValues is the maximum number of written values of a list. With aliases a short policy can
// have a thousand classes with a thousand values each.
const mostValues = 16

// firstValues returns the beginning of a list, and the number of other values.
func firstValues[T any](list []T) (first []T, more int) {
	first = list[:min(len(list), mostValues)]
	return first, len(list) - len(first)
}

func prefixes(list []netip.Prefix) []string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return out
}

// Ranges writes the ranges of a field.
func Ranges(field string, list []dataplane.Range) []string {
	var out []string
	switch field {
	case "tcp-flags":
		return policyfile.TCPFlagsText(list)
	case "icmp-type":
		for _, r := range list {
			out = append(out, policyfile.ICMPTypeText(r)...)
		}
		return out
	}
	for _, r := range list {
		out = append(out, rangeText(field, r))
	}
	return out
}

// rangeText writes a range of values of a field. Names of protocols are no range: tcp-udp reads as both.
func rangeText(field string, r dataplane.Range) string {
	switch {
	case r.First == r.Last:
		return Value(field, r.First)
	case field == "dscp":
		return Value(field, r.First) + "-" + Value(field, r.Last)
	}
	return number(field, r.First) + "-" + number(field, r.Last)
}

// Value writes a value of a field of matches or marks, by its name if any.
func Value[T uint32 | uint64](field string, v T) string {
	return cmp.Or(policyfile.ValueName(field, uint64(v)), number(field, uint64(v)))
}

func number(field string, v uint64) string {
	switch field {
	case "ethertype":
		return fmt.Sprintf("0x%04x", v)
	case "mac", "src-mac", "dst-mac":
		return string(dataplane.AppendMAC(nil, v))
	case "tcp-flags":
		return flagNames(v)
	case "icmp-type":
		return policyfile.ICMPTypeText(dataplane.Range{First: v, Last: v})[0]
	}
	return fmt.Sprint(v)
}

// flagNames writes the set flags of TCP.
func flagNames(v uint64) string {
	var out []string
	for _, name := range policyfile.TCPFlags() {
		if v&1 != 0 {
			out = append(out, name)
		}
		v >>= 1
	}
	return cmp.Or(strings.Join(out, "+"), "none")
}

// Length writes the length rule.
func Length(r dataplane.LengthRule) string {
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
	for _, word := range restWords(" ", r, "Base", "Overhead", "MPU") {
		s += ", " + word
	}
	return s
}
