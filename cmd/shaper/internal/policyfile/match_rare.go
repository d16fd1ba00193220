package policyfile

import (
	"encoding/binary"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// parseMAC reads a MAC address such as 02:00:5e:10:00:01.
func parseMAC(s string) (uint64, error) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 || len(s) != len("02:00:5e:10:00:01") || s[2] != ':' {
		return 0, fmt.Errorf("%q is not a MAC address such as 02:00:5e:10:00:01", s)
	}
	return binary.BigEndian.Uint64(append([]byte{0, 0}, mac...)), nil
}

// parseCgroup reads the path of a cgroup, such as /system.slice.
func parseCgroup(s string) (string, error) {
	if len(s) > 1 && strings.HasPrefix(s, "/") {
		s = strings.TrimSuffix(s, "/")
	}
	if strings.HasPrefix(s, "/sys/fs/cgroup/") {
		return s, fmt.Errorf("%q: leave out the mount point: write %s", s,
			path.Clean(strings.TrimPrefix(s, "/sys/fs/cgroup")))
	}
	if reason := dataplane.InvalidCgroup(s); reason != "" {
		return s, fmt.Errorf("%q %s", s, reason)
	}
	return s, nil
}

// tcpFlags are the names of the flags of TCP (RFC 9293 §3.1), from bit 0 on.
var tcpFlags = []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"}

// TCPFlags returns the names of the flags, from bit 0 on.
func TCPFlags() []string { return tcpFlags }

// parseTCPFlags reads flags that must be set, such as syn or syn+ack; flags with those that are compared,
// such as syn/syn+ack; or a number or range of the byte of flags, such as 0x02.
func parseTCPFlags(s string) ([]dataplane.Range, error) {
	if s != "" && '0' <= s[0] && s[0] <= '9' && !strings.Contains(s, "/") {
		r, err := rangeParser(numberOrName(nil))(s)
		return []dataplane.Range{r}, err
	}
	first, second, compared := strings.Cut(s, "/")
	want, err := flagSet(s, first, compared)
	mask := want
	if compared && err == nil {
		mask, err = flagSet(s, second, false)
	}
	switch {
	case err != nil:
		return nil, err
	case want&^mask != 0:
		return nil, fmt.Errorf("%q: a flag before the slash is missing behind it, where the compared flags are", s)
	}
	return cube(mask, want), nil
}

// flagSet reads names of flags joined by +. 0 means none, if that is allowed.
func flagSet(whole, s string, none bool) (set uint8, err error) {
	if none && s == "0" {
		return 0, nil
	}
	for name := range strings.SplitSeq(s, "+") {
		i := slices.Index(tcpFlags, name)
		if i < 0 {
			return 0, fmt.Errorf(
				"%q: %q is not a flag: want names of %s, joined by + if all must be set, such as syn+ack or, to compare syn and ack, syn/syn+ack",
				whole, name, strings.Join(tcpFlags, " "))
		}
		set |= 1 << i
	}
	return set, nil
}

// cube returns the bytes whose bits in a mask have a value.
func cube(mask, value uint8) (out []dataplane.Range) {
	for v := range uint64(256) {
		if uint8(v)&mask != value {
			continue
		}
		if last := len(out) - 1; last >= 0 && out[last].Last+1 == v {
			out[last].Last = v
		} else {
			out = append(out, dataplane.Range{First: v, Last: v})
		}
	}
	return out
}

// TCPFlagsText writes a list of values of the byte of flags as policies spell it: by flags where possible.
func TCPFlagsText(list []dataplane.Range) (out []string) {
	var left [256]bool
	count := 0
	for _, r := range list {
		for v := r.First; v <= min(r.Last, 255); v++ {
			if !left[v] {
				left[v], count = true, count+1
			}
		}
	}
	for count > 0 {
		mask, value := largestCube(&left)
		for v := range left {
			if uint8(v)&mask == value {
				left[v] = false
				count--
			}
		}
		out = append(out, cubeText(mask, value))
	}
	return out
}

// largestCube returns the cube with the fewest compared flags whose values are all in a set, and contain the
// lowest of the set.
func largestCube(set *[256]bool) (mask, value uint8) {
	lowest := uint8(slices.Index(set[:], true))
	best := 9
	for m := range 256 {
		bits := strings.Count(strconv.FormatInt(int64(m), 2), "1")
		inside := func(v int) bool { return uint8(v)&uint8(m) != lowest&uint8(m) || set[v] }
		all := bits < best
		for v := 0; v < 256 && all; v++ {
			all = inside(v)
		}
		if all {
			best, mask, value = bits, uint8(m), lowest&uint8(m)
		}
	}
	return mask, value
}

// cubeText writes the flags of a cube.
func cubeText(mask, value uint8) string {
	names := func(set uint8) string {
		var out []string
		for i, name := range tcpFlags {
			if set>>i&1 != 0 {
				out = append(out, name)
			}
		}
		return strings.Join(out, "+")
	}
	switch {
	case mask == 0:
		return "0-255"
	case mask == 255:
		return fmt.Sprintf("0x%02x", value)
	case value == mask:
		return names(mask)
	case value == 0:
		return "0/" + names(mask)
	}
	return names(value) + "/" + names(mask)
}

// icmpNames are the names of types of ICMP (RFC 792) and ICMPv6 (RFC 4443, RFC 4861): values of
// dataplane.Packet.ICMPType.
var icmpNames = map[string][]dataplane.Range{
	"echo-reply":             {icmp(0), icmpv6(129)},
	"echo-request":           {icmp(8), icmpv6(128)},
	"unreachable":            {icmp(3), icmpv6(1)},
	"packet-too-big":         {{First: 3<<8 | 4, Last: 3<<8 | 4}, icmpv6(2)},
	"time-exceeded":          {icmp(11), icmpv6(3)},
	"parameter-problem":      {icmp(12), icmpv6(4)},
	"router-solicitation":    {icmpv6(133)},
	"router-advertisement":   {icmpv6(134)},
	"neighbor-solicitation":  {icmpv6(135)},
	"neighbor-advertisement": {icmpv6(136)},
	"redirect":               {icmp(5), icmpv6(137)},
}

func icmp(kind uint64) dataplane.Range {
	return dataplane.Range{First: kind << 8, Last: kind<<8 | 0xff}
}

func icmpv6(kind uint64) dataplane.Range {
	r := icmp(kind)
	return dataplane.Range{First: r.First + dataplane.ICMPv6Type, Last: r.Last + dataplane.ICMPv6Type}
}

// parseICMPType reads a name of a type; or a type, a type and a code, or a range of types or of both, such as
// icmp:8, icmpv6:1/4 or icmpv6:133-137.
func parseICMPType(s string) ([]dataplane.Range, error) {
	if list, known := icmpNames[s]; known {
		return list, nil
	}
	protocol, types, prefixed := strings.Cut(s, ":")
	base := uint64(0)
	switch {
	case prefixed && protocol == "icmp":
	case prefixed && protocol == "icmpv6":
		base = dataplane.ICMPv6Type
	case s != "" && '0' <= s[0] && s[0] <= '9':
		return nil, fmt.Errorf("%q is a type of ICMP or of ICMPv6, which differ: write icmp:%s or icmpv6:%s", s, s, s)
	default:
		return nil, fmt.Errorf("%q is not a type such as icmp:8, icmp:3/4 for type and code, or icmpv6:128, or one of %s",
			s, strings.Join(sorted(icmpNames), " "))
	}
	first, last, _ := strings.Cut(types, "-")
	if last == "" {
		last = first
	}
	var r dataplane.Range
	var err error
	if r.First, err = typeAndCode(s, first, 0); err == nil {
		r.Last, err = typeAndCode(s, last, 0xff)
	}
	if err == nil && r.First > r.Last {
		err = fmt.Errorf("%q is empty: put the smaller type first", s)
	}
	r.First, r.Last = r.First+base, r.Last+base
	return []dataplane.Range{r}, err
}

// typeAndCode reads a type with a code, or with a default one.
func typeAndCode(whole, s string, code uint64) (uint64, error) {
	kind, number, coded := strings.Cut(s, "/")
	k, err := strconv.ParseUint(kind, 10, 8)
	if err == nil && coded {
		code, err = strconv.ParseUint(number, 10, 8)
	}
	if err != nil {
		return 0, fmt.Errorf("%q: %q is not a type, or a type and a code such as 3/4, from 0 to 255", whole, s)
	}
	return k<<8 | code, nil
}

// ICMPTypeText writes a range of values of dataplane.Packet.ICMPType as policies spell it.
func ICMPTypeText(r dataplane.Range) []string {
	if r.First < dataplane.ICMPv6Type && r.Last >= dataplane.ICMPv6Type {
		return append(ICMPTypeText(dataplane.Range{First: r.First, Last: dataplane.ICMPv6Type - 1}),
			ICMPTypeText(dataplane.Range{First: dataplane.ICMPv6Type, Last: r.Last})...)
	}
	text := "icmp:"
	if r.First >= dataplane.ICMPv6Type {
		text = "icmpv6:"
	}
	first, last := r.First&0xffff, r.Last&0xffff
	text += strconv.FormatUint(first>>8, 10)
	if first&0xff != 0 || last&0xff != 0xff {
		text += "/" + strconv.FormatUint(first&0xff, 10)
		if first != last {
			text += fmt.Sprintf("-%d/%d", last>>8, last&0xff)
		}
	} else if first>>8 != last>>8 {
		text += fmt.Sprintf("-%d", last>>8)
	}
	return []string{text}
}
