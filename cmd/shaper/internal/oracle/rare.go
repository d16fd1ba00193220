package oracle

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// rare holds the fields of a frame that few policies read. A field without its flag is missing.
type rare struct {
	fromCustomers  bool // the direction is ingress
	hasMACs        bool
	source, target int // MAC addresses
	hasFlags       bool
	flags          int // of TCP
	hasICMP        bool
	icmp           int // 256 * type + code, and 65536 more for ICMPv6
	tunnel
}

// macs reads the addresses of a frame, if its whole Ethernet header was captured.
func (p *parser) macs() {
	if p.hasMACs = p.ethernet && len(p.data) >= 14; p.hasMACs {
		p.target = be16(p.data)<<32 | be16(p.data[2:])<<16 | be16(p.data[4:])
		p.source = be16(p.data[6:])<<32 | be16(p.data[8:])<<16 | be16(p.data[10:])
	}
}

// upper reads the fields of the header behind those of IP.
func (p *parser) upper(header []byte) {
	switch p.proto {
	case protocols["udp"]:
		p.enter(header)
	case protocols["tcp"]:
		if p.hasFlags = len(header) > 13; p.hasFlags {
			p.flags = int(header[13])
		}
	case protocols["icmp"], protocols["icmpv6"]:
		if p.hasICMP = len(header) > 1; p.hasICMP {
			p.icmp = be16(header)
			if p.proto == protocols["icmpv6"] {
				p.icmp += 65536
			}
		}
	}
}

// insideMAC is the MAC address of the side that the interface faces.
func (f frame) insideMAC() int {
	if f.fromCustomers {
		return f.source
	}
	return f.target
}

// insideText is insideMAC as people write it.
func (f frame) insideText() string {
	var parts []string
	for shift := 40; shift >= 0; shift -= 8 {
		parts = append(parts, fmt.Sprintf("%02x", f.insideMAC()>>shift&255))
	}
	return strings.Join(parts, ":")
}

// byMAC reports whether a part of the policy reads MAC addresses.
func (p *policy) byMAC() bool {
	key := func(s string) bool { return s == "mac" || s == "vlan mac" }
	if p.customers != nil && key(p.customers.key) {
		return true
	}
	for _, c := range p.classes {
		for name := range c.match.numbers {
			if strings.HasSuffix(name, "mac") {
				return true
			}
		}
		for _, m := range c.chain {
			if m.keys != nil && key(m.keys.per) {
				return true
			}
		}
	}
	return false
}

// rareField is field for the rare ones.
func (f frame) rareField(key string) (int, bool) {
	switch key {
	case "mac":
		return f.insideMAC(), f.hasMACs
	case "src-mac":
		return f.source, f.hasMACs
	case "dst-mac":
		return f.target, f.hasMACs
	case "vni":
		return f.vni, f.hasVNI
	case "teid":
		return f.teid, f.hasTEID
	case "inner-vlan":
		return f.inner, f.tags > 1
	case "tcp-flags":
		return f.flags, f.hasFlags
	case "icmp-type":
		return f.icmp, f.hasICMP
	}
	return 0, false
}

// parseMAC reads six bytes with colons between.
func parseMAC(s string) (int, error) {
	parts := strings.Split(s, ":")
	n := 0
	for _, part := range parts {
		b, err := hex.DecodeString(part)
		if err != nil || len(b) != 1 {
			return 0, fmt.Errorf("MAC address %q", s)
		}
		n = n<<8 | int(b[0])
	}
	if len(parts) != 6 {
		return 0, fmt.Errorf("MAC address %q", s)
	}
	return n, nil
}

// parseRare reads an entry of a rare field's list.
func parseRare(key, s string) ([]span, error) {
	switch key {
	case "tcp-flags":
		return flagSpans(s)
	case "icmp-type":
		return icmpSpans(s)
	case "inner-vlan":
		r, err := parseSpan("vlan", s)
		return []span{r}, err
	}
	low, high, isRange := strings.Cut(s, "-")
	if !isRange {
		high = low
	}
	a, err := parseMAC(strings.TrimSpace(low))
	if err != nil {
		return nil, err
	}
	b, err := parseMAC(strings.TrimSpace(high))
	if err == nil && a > b {
		err = fmt.Errorf("%q runs backwards", s)
	}
	return []span{{uint64(a), uint64(b)}}, err
}

// flagSpans lists each byte whose flags are as written.
func flagSpans(s string) (out []span, err error) {
	if s[0] >= '0' && s[0] <= '9' && !strings.Contains(s, "/") {
		low, high, isRange := strings.Cut(s, "-")
		if !isRange {
			high = low
		}
		a, err := strconv.ParseUint(low, 0, 8)
		if err != nil {
			return nil, err
		}
		b, err := strconv.ParseUint(high, 0, 8)
		return []span{{a, b}}, err
	}
	bits := map[string]int{"fin": 1, "syn": 2, "rst": 4, "psh": 8, "ack": 16, "urg": 32, "ece": 64, "cwr": 128}
	sum := func(names string) (n int) {
		for _, name := range strings.Split(names, "+") {
			if bits[name] == 0 && names != "0" {
				err = fmt.Errorf("flag %q is unknown", name)
			}
			n |= bits[name]
		}
		return n
	}
	before, behind, compares := strings.Cut(s, "/")
	set := sum(before)
	compared := set
	if compares {
		compared = sum(behind)
	}
	for n := range 256 {
		if n&compared == set {
			out = append(out, span{uint64(n), uint64(n)})
		}
	}
	return out, err
}

// icmpSpans reads icmp:TYPE, icmp:TYPE/CODE, a range of them, or a name of both protocols.
func icmpSpans(s string) ([]span, error) {
	if s == "echo-request" {
		return []span{{8 * 256, 8*256 + 255}, {65536 + 128*256, 65536 + 128*256 + 255}}, nil
	}
	if s == "unreachable" {
		return []span{{3 * 256, 3*256 + 255}, {65536 + 256, 65536 + 256 + 255}}, nil
	}
	protocol, types, _ := strings.Cut(s, ":")
	begin := map[string]uint64{"icmp": 0, "icmpv6": 65536}
	base, known := begin[protocol]
	if !known {
		return nil, fmt.Errorf("icmp-type: %q is none", s)
	}
	low, high, isRange := strings.Cut(types, "-")
	if !isRange {
		high = low
	}
	var numbers [2]uint64
	for i, text := range []string{low, high} {
		kind, code, coded := strings.Cut(text, "/")
		n, err := strconv.ParseUint(kind, 10, 8)
		if err != nil {
			return nil, err
		}
		c := uint64(i * 255) // the first or the last code
		if coded {
			if c, err = strconv.ParseUint(code, 10, 8); err != nil {
				return nil, err
			}
		}
		numbers[i] = base + n*256 + c
	}
	return []span{{numbers[0], numbers[1]}}, nil
}
