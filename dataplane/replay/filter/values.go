package filter

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// value compiles a value with the keywords before it. The token was read.
func (p *parser) value(q qualifiers, t token) test {
	switch {
	case p.failure != nil:
		return nil
	case t.text == "":
		p.tok = t
		p.unexpected("want a value")
		return nil
	case !t.word:
		p.fail(t.at, "unexpected %q: want a value", t.text)
		return nil
	}
	switch q.kind {
	case "port":
		n := p.port(t, t.text)
		return p.portTest(q, t, n, n)
	case "portrange":
		from, to, ok := strings.Cut(t.text, "-")
		if !ok {
			p.fail(t.at, "%q: want a range such as 5000-5999", t.text)
			return nil
		}
		a, b := p.port(t, from), p.port(t, to)
		return p.portTest(q, t, min(a, b), max(a, b))
	case "proto":
		return p.protoTest(q, t)
	}
	return p.hostTest(q, t)
}

// port parses a part of a token as a port.
func (p *parser) port(t token, text string) uint32 {
	n, err := parseNumber(text)
	switch {
	case err == nil && n < 1<<16:
		return uint32(n)
	case err == nil:
		p.fail(t.at, "port %s is above 65535", text)
		return 0
	}
	for _, network := range []string{"tcp", "udp"} {
		if n, err := net.LookupPort(network, text); err == nil && text != "" {
			p.fail(t.at, "port %q: names are not supported: write %d", text, n)
			return 0
		}
	}
	p.fail(t.at, "port %q: want a number", text)
	return 0
}

func (p *parser) portTest(q qualifiers, t token, from, to uint32) test {
	number := uint32(0)
	switch q.proto {
	case "":
	case "tcp", "udp", "sctp":
		number = protocols[q.proto].number
	default:
		p.fail(t.at, "%s has no ports: want tcp, udp or sctp before %s", q.proto, q.kind)
	}
	return ports(from, to, number, q.direction, p.tags)
}

// protoNumbers are protocols over IP whose names can follow proto, besides those of protocols.
var protoNumbers = map[string]uint32{"ospf": 89, "gre": 47, "ipv6-icmp": protoICMPv6}

func (p *parser) protoTest(q qualifiers, t token) test {
	named, isNamed := protocols[t.text]
	number, err := parseNumber(t.text)
	switch {
	case q.proto == "ether":
		if isNamed && named.ether != 0 {
			number = uint64(named.ether)
		} else if err != nil || number < 0x600 || number > 0xffff {
			p.fail(t.at, "%q: want an EtherType from 0x600 to 0xffff, or ip, ip6, arp or rarp", t.text)
		}
		return hasType(uint32(number), p.tags)
	case q.proto != "" && q.proto != "ip" && q.proto != "ip6":
		p.fail(t.at, "proto needs ip, ip6, ether or nothing before it, not %s", q.proto)
	case isNamed && named.number != 0:
		number = uint64(named.number)
	case protoNumbers[t.text] != 0:
		number = uint64(protoNumbers[t.text])
	case err != nil || number > 255:
		p.fail(t.at, "%q: want the number of a protocol up to 255, or a name such as tcp", t.text)
	}
	return overIP(uint32(number), q.proto != "ip6", q.proto != "ip", p.tags)
}

func (p *parser) hostTest(q qualifiers, t token) test {
	if q.proto == "ether" {
		mac, err := net.ParseMAC(padded(t.text))
		if err != nil || len(mac) != 6 || q.kind == "net" {
			p.fail(t.at, "%q: want a hardware address such as 02:00:00:00:00:01", t.text)
			return nil
		}
		return stations([6]byte(mac), q.direction)
	}
	ether := uint32(0)
	if q.proto != "" {
		if ether = protocols[q.proto].ether; ether == 0 {
			p.fail(t.at, "%s has no addresses: want ip, ip6, arp or rarp before them", q.proto)
			return nil
		}
	}
	n, octets, ok := parseNetwork(t.text)
	if !ok || q.kind != "net" && octets != 4 && octets != 16 {
		want := "an IPv4 or IPv6 address; names are not resolved"
		if q.kind == "net" {
			want = "a network such as 10.0.0.0/8"
		}
		p.fail(t.at, "%q: want %s", t.text, want)
		return nil
	}
	if q.kind == "net" {
		p.mask(&n, t)
	} else if p.is("/", "mask") {
		p.fail(p.tok.at, "a host has no mask: write net before %q", t.text)
	}
	if ether != 0 && n.is6() != (ether == etherIPv6) {
		p.fail(t.at, "%q is no address of %s", t.text, q.proto)
	}
	return hosts(n, ether, q.direction, p.tags)
}

// padded writes a hardware address with two digits in each byte.
func padded(mac string) string {
	parts := strings.Split(strings.ReplaceAll(mac, "-", ":"), ":")
	for i, s := range parts {
		if len(s) == 1 {
			parts[i] = "0" + s
		}
	}
	return strings.Join(parts, ":")
}

// parseNetwork parses an address, or the first octets of an IPv4 address. It returns the number
// of octets.
func parseNetwork(text string) (n network, octets int, ok bool) {
	full := text
	octets = strings.Count(text, ".") + 1
	if !strings.Contains(text, ":") && octets < 4 {
		full += strings.Repeat(".0", 4-octets)
	}
	a, err := netip.ParseAddr(full)
	if err != nil || a.Zone() != "" {
		return network{}, 0, false
	}
	if a.Is6() {
		octets = 16
	}
	b := a.AsSlice()
	for i := 0; i < len(b); i += 4 {
		n.words = append(n.words, uint32(b[i])<<24|uint32(b[i+1])<<16|uint32(b[i+2])<<8|uint32(b[i+3]))
	}
	n.setBits(octets * 8)
	return n, octets, true
}

// setBits sets the mask for a length of the prefix.
func (n *network) setBits(bits int) {
	n.mask = nil
	for i := range n.words {
		n.mask = append(n.mask, ^uint32(uint64(1)<<32>>min(max(bits-i*32, 0), 32)-1))
	}
}

// mask parses the mask after a network, and checks that the network has no bits outside of the
// mask.
func (p *parser) mask(n *network, t token) {
	switch {
	case p.accept("/"):
		n.setBits(int(p.literal(uint64(len(n.words) * 32))))
	case p.accept("mask"):
		m, octets, ok := parseNetwork(p.tok.text)
		if !ok || n.is6() || octets != 4 {
			p.unexpected("want a mask such as 255.255.0.0")
			return
		}
		n.mask = m.words
		p.advance()
	}
	for i, word := range n.words {
		if word&^n.mask[i] != 0 {
			p.fail(t.at, "%q has bits beyond its mask", t.text)
		}
	}
}

// literal parses a number up to a maximum.
func (p *parser) literal(most uint64) uint32 {
	n, err := parseNumber(p.tok.text)
	if err != nil || !p.tok.word || n > most {
		p.unexpected("want a number up to " + strconv.FormatUint(most, 10))
		return 0
	}
	p.advance()
	return uint32(n)
}

// parseNumber parses a decimal, hexadecimal (0x) or octal (0) number.
func parseNumber(text string) (uint64, error) {
	digits, base := text, 10
	switch {
	case strings.HasPrefix(text, "0x") || strings.HasPrefix(text, "0X"):
		digits, base = text[2:], 16
	case strings.HasPrefix(text, "0") && len(text) > 1:
		digits, base = text[1:], 8
	}
	return strconv.ParseUint(digits, base, 64)
}
