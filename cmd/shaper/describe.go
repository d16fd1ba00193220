package main

import (
	"fmt"
	"math/big"
	"net/netip"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// kindOf names the algorithm of a meter that compiled.
func kindOf(p dataplane.Params) string {
	profile, err := p.Profile()
	if err != nil {
		return "?"
	}
	return profile.Kind().String()
}

// describeMeter writes a meter's parameters in exact units.
func describeMeter(m *dataplane.Meter) string {
	var parts []string
	last := ""
	for _, b := range policyfile.Buckets(m.Params) {
		if b.RateName != last {
			parts = append(parts, b.RateName+" "+describeRate(b.Rate, m.Packets))
			last = b.RateName
		}
		parts = append(parts, b.BurstName+" "+describeBurst(b, m.Packets))
	}
	if t, ok := m.Params.(meter.TRTCM4115); ok && t.Coupling {
		parts = append(parts, "coupling")
	}
	if m.Initial.Den != 0 {
		parts = append(parts, fmt.Sprintf("initial %d/%d", m.Initial.Num, m.Initial.Den))
	}
	return strings.Join(parts, ", ")
}

func describeRate(r meter.Rate, packets bool) string {
	if packets {
		return fmt.Sprintf("%dp/%v", r.Bytes, r.Period)
	}
	return r.String()
}

// describeBurst adds how long the bucket takes to fill.
func describeBurst(b policyfile.Bucket, packets bool) string {
	unit := "B"
	if packets {
		unit = "p"
	}
	if b.Rate.Bytes == 0 {
		return fmt.Sprintf("%d %s (never refills)", b.Burst, unit)
	}
	return fmt.Sprintf("%d %s (%s)", b.Burst, unit, fillTime(b.Burst, b.Rate))
}

// fillTime is how long a rate takes to bring n bytes, with three digits.
func fillTime(n int64, r meter.Rate) string {
	ns := new(big.Rat).SetFrac64(int64(r.Period), r.Bytes)
	ns.Mul(ns, new(big.Rat).SetInt64(n))
	s, _ := ns.Float64()
	for _, u := range []struct {
		ns   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}} {
		if s >= u.ns {
			return fmt.Sprintf("%.3g %s", s/u.ns, u.name)
		}
	}
	return fmt.Sprintf("%.3g ns", s)
}

// describeMode says where a meter gets the color before.
func describeMode(m *dataplane.Meter) string {
	switch {
	case !m.Aware:
		return "color-blind"
	case m.PreColor.Map != nil:
		return fmt.Sprintf("color-aware by %v, own map", m.PreColor.From)
	}
	return fmt.Sprintf("color-aware by %v", m.PreColor.From)
}

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

// describeQueue writes a queue's rate and limit.
func describeQueue(q *dataplane.Queue) string {
	limits := []string{"rate " + q.Rate.String()}
	if q.Time > 0 {
		limits = append(limits, fmt.Sprintf("limit %v", q.Time))
	}
	if q.Bytes > 0 {
		limits = append(limits, fmt.Sprintf("limit %d B", q.Bytes))
	}
	if q.Packets > 0 {
		limits = append(limits, fmt.Sprintf("limit %d packets", q.Packets))
	}
	return strings.Join(limits, ", ")
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
