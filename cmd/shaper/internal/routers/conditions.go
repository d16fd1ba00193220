package routers

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// matchOf makes a match from the values of a statement: those named like a list of a match.
func matchOf(v form.Values) (m dataplane.Match) {
	for _, x := range v {
		switch value := x.Value.(type) {
		case []dataplane.Range:
			i := slices.IndexFunc(dataplane.MatchFields,
				func(f dataplane.MatchField) bool { return f.Name == x.Name })
			list := dataplane.MatchFields[i].List(&m)
			*list = append(*list, value...)
		case netip.Prefix:
			if value.Bits() == 0 {
				continue // any
			}
			if x.Name == "src" {
				m.Src = append(m.Src, value)
			} else {
				m.Dst = append(m.Dst, value)
			}
		}
	}
	return m
}

// conditionKinds are the kinds of values in conditions.
var conditionKinds = form.Readers{
	"word":       func(words []string) (any, int, error) { return words[0], 1, nil },
	"number":     readNumber,
	"dscp":       readDSCPs,
	"precedence": one(readPrecedence),
	"proto":      one(readProtocol),
	"0-7":        numbersTo(7),
	"vlan":       numbersTo(4095),
	"length":     numbersTo(65535),
	"ports":      readPorts,
	"address":    addressReader(false, false),
	"standard":   addressReader(false, true),
}

// conditionKinds6 are those in lists for IPv6.
var conditionKinds6 = replaced(conditionKinds, form.Readers{
	"address": addressReader(true, false), "proto": one(readProtocol6),
})

// replaced returns readers with others in their places.
func replaced(kinds, others form.Readers) form.Readers {
	all := maps.Clone(kinds)
	maps.Copy(all, others)
	return all
}

// one returns a reader of ranges that are one word.
func one(read func(word string) (dataplane.Range, error)) form.Reader {
	return func(words []string) (any, int, error) {
		r, err := read(words[0])
		return []dataplane.Range{r}, 1, err
	}
}

// readDSCPs reads a codepoint by number or name, or some: 10,12-14.
func readDSCPs(words []string) (any, int, error) {
	var out []dataplane.Range
	for part := range strings.SplitSeq(words[0], ",") {
		first, last, ranged := strings.Cut(part, "-")
		a, err := ciscoDSCP(first)
		b := a
		if err == nil && ranged {
			b, err = ciscoDSCP(last)
		}
		if err == nil && b < a {
			err = fmt.Errorf("range %s ends before it begins", part)
		}
		if err != nil {
			return nil, 0, err
		}
		out = append(out, dataplane.Range{First: uint64(a), Last: uint64(b)})
	}
	return out, 1, nil
}

// precedences are the names of precedences (RFC 791 §3.1).
var precedences = []string{
	"routine", "priority", "immediate", "flash", "flash-override", "critical", "internet", "network",
}

func dscpMatch(v uint32) dataplane.Match { return dataplane.Match{DSCP: single(uint64(v))} }

// readPrecedence reads a precedence, which is eight codepoints.
func readPrecedence(word string) (dataplane.Range, error) {
	n := slices.Index(precedences, strings.ToLower(word))
	if n < 0 {
		v, err := strconv.ParseUint(word, 10, 8)
		if err != nil || v > 7 {
			return dataplane.Range{}, fmt.Errorf("%q is not a precedence", word)
		}
		n = int(v)
	}
	return dataplane.Range{First: uint64(8 * n), Last: uint64(8*n + 7)}, nil
}

// protocolNames are names of protocols in configurations that policies spell otherwise.
var protocolNames = map[string]string{
	"ospfigp": "ospf", "ahp": "ah", "ipinip": "ipip", "icmp6": "icmpv6", "ipv6-icmp": "icmpv6",
}

func readProtocol(word string) (dataplane.Range, error) {
	word = strings.ToLower(word)
	if name, ok := protocolNames[word]; ok {
		word = name
	}
	if r, _, err := numbersTo(255)([]string{word}); err == nil && len(r.([]dataplane.Range)) == 1 {
		return r.([]dataplane.Range)[0], nil
	}
	n, err := strconv.ParseUint(word, 10, 8)
	if err != nil {
		i := slices.Index(dataplane.ProtoNames[:], word)
		if i < 0 || word == "" {
			return dataplane.Range{}, fmt.Errorf("%q is not a protocol that is supported", word)
		}
		n = uint64(i)
	}
	return dataplane.Range{First: n, Last: n}, nil
}

// extensions are the protocols of IPv6 extension headers (IANA), which a policy skips.
var extensions = []uint64{0, 43, 44, 51, 60, 135, 139, 140}

// readProtocol6 reads a protocol in a list for IPv6, where icmp is that of IPv6.
func readProtocol6(word string) (dataplane.Range, error) {
	if strings.EqualFold(word, "icmp") {
		word = "icmpv6"
	}
	return readBehind(word)
}

// readBehind reads the protocol behind the extension headers of IPv6.
func readBehind(word string) (dataplane.Range, error) {
	r, err := readProtocol(word)
	if err == nil && slices.Contains(extensions, r.First) {
		err = fmt.Errorf("%s is an extension header: the protocol of a policy is the one behind them", word)
	}
	return r, err
}

// numbersTo returns a reader of numbers and ranges with dashes, joined by commas, up to a maximum.
func numbersTo(most uint64) form.Reader {
	return func(words []string) (any, int, error) {
		var out []dataplane.Range
		for part := range strings.SplitSeq(strings.Trim(words[0], ","), ",") {
			first, last, dash := strings.Cut(part, "-")
			if !dash {
				last = first
			}
			x, err := strconv.ParseUint(first, 10, 32)
			y, err2 := strconv.ParseUint(last, 10, 32)
			if err != nil || err2 != nil || x > y || y > most {
				return nil, 0, fmt.Errorf("%q is not a number or a range up to %d", words[0], most)
			}
			out = append(out, dataplane.Range{First: x, Last: y})
		}
		return out, 1, nil
	}
}

// portNames are ports by their names in configurations (IANA).
var portNames = map[string]uint64{
	"ftp-data": 20, "ftp": 21, "ssh": 22, "telnet": 23, "smtp": 25, "tacacs": 49, "domain": 53, "dns": 53,
	"bootps": 67, "dhcp": 67, "bootpc": 68, "tftp": 69, "www": 80, "http": 80, "pop3": 110, "sunrpc": 111,
	"ntp": 123, "netbios-ns": 137, "netbios-dgm": 138, "netbios-ssn": 139, "imap": 143, "snmp": 161,
	"snmptrap": 162, "bgp": 179, "ldap": 389, "https": 443, "isakmp": 500, "syslog": 514, "rip": 520,
	"radius": 1812, "radacct": 1813, "ldp": 646, "snmp-trap": 162,
	"snmp-agent": 161, "echo": 7, "discard": 9, "daytime": 13, "chargen": 19, "time": 37, "nameserver": 42, "whois": 43,
	"gopher": 70, "finger": 79, "hostname": 101, "pop2": 109, "ident": 113, "nntp": 119, "xdmcp": 177, "irc": 194,
	"mobile-ip": 434, "pim-auto-rp": 496, "cmd": 514, "lpd": 515, "uucp": 540, "klogin": 543, "kshell": 544,
	"non500-isakmp": 4500,
}

func readPort(word string) (uint64, error) {
	if n, ok := portNames[strings.ToLower(word)]; ok {
		return n, nil
	}
	n, err := strconv.ParseUint(word, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a port", word)
	}
	return n, nil
}

// readPorts reads the condition of a port: eq, with several ports, range, gt or lt.
func readPorts(words []string) (any, int, error) {
	op := strings.ToLower(words[0])
	if !slices.Contains([]string{"eq", "range", "gt", "lt", "neq"}, op) {
		return nil, 0, fmt.Errorf("%q is not understood", words[0])
	}
	var ports []uint64
	for _, w := range words[1:] {
		n, err := readPort(w)
		if err != nil && ports == nil {
			return nil, 0, err
		}
		if err != nil || len(ports) == 1 && op != "eq" && op != "range" || len(ports) == 2 && op == "range" {
			break
		}
		ports = append(ports, n)
	}
	if ports == nil {
		return nil, 0, errors.New("a port is missing")
	}
	n, first := 1+len(ports), ports[0]
	switch {
	case op == "eq":
		var out []dataplane.Range
		for _, p := range ports {
			out = append(out, dataplane.Range{First: p, Last: p})
		}
		return out, n, nil
	case op == "range" && len(ports) == 2 && first <= ports[1]:
		return []dataplane.Range{{First: first, Last: ports[1]}}, n, nil
	case op == "gt" && first < 65535:
		return []dataplane.Range{{First: first + 1, Last: 65535}}, n, nil
	case op == "lt" && first > 0:
		return []dataplane.Range{{First: 0, Last: first - 1}}, n, nil
	case op == "range":
		return nil, 0, errors.New("its range of ports is not understood")
	}
	return nil, 0, fmt.Errorf("a policy has no condition %s %d", op, first)
}

// addressReader returns a reader of any, host A, A/n, A with a wildcard mask, or with bare A.
func addressReader(v6, bare bool) form.Reader {
	return func(words []string) (any, int, error) {
		word, second := strings.ToLower(words[0]), ""
		if len(words) > 1 {
			second = words[1]
		}
		switch {
		case slices.Contains([]string{"any", "any4", "any6", "ipv4-any", "ipv6-any"}, word):
			return netip.PrefixFrom(netip.IPv4Unspecified(), 0), 1, nil
		case word == "host":
			p, err := readPrefix(second, v6)
			return p, 2, err
		case strings.Contains(word, "/"):
			p, err := readPrefix(word, v6)
			return p, 1, err
		}
		if wildcard, err := netip.ParseAddr(second); err == nil && wildcard.Is4() && !v6 {
			p, err := withWildcard(word, wildcard)
			return p, 2, err
		}
		p, err := readPrefix(word, v6)
		if err == nil && !bare {
			err = fmt.Errorf("%q needs host before it, or a mask behind it", word)
		}
		return p, 1, err
	}
}

// withWildcard returns the prefix of an address and a wildcard mask.
func withWildcard(word string, wildcard netip.Addr) (netip.Prefix, error) {
	ip, err := netip.ParseAddr(word)
	if err != nil || !ip.Is4() {
		return netip.Prefix{}, fmt.Errorf("%q is not an address", word)
	}
	b := wildcard.As4()
	mask := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	if mask&(mask+1) != 0 {
		return netip.Prefix{}, fmt.Errorf("wildcard %v is not that of a prefix", wildcard)
	}
	return netip.PrefixFrom(ip, 32-bits.OnesCount32(mask)).Masked(), nil
}

// readPrefix reads an address or a prefix, and clears the bits beyond its length.
func readPrefix(s string, v6 bool) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		ip, err := netip.ParseAddr(s)
		if err != nil || ip.Zone() != "" {
			return p, fmt.Errorf("%q is not an address or a prefix", s)
		}
		p = netip.PrefixFrom(ip, ip.BitLen())
	}
	if p.Addr().Is6() != v6 {
		return p, fmt.Errorf("%s is not an address of this list's family", s)
	}
	return p.Masked(), nil
}

// familyOf returns the condition for packets of an IP version.
func familyOf(v6 bool) dataplane.Match {
	if v6 {
		return dataplane.Match{EtherType: single(etherIPv6)}
	}
	return dataplane.Match{EtherType: single(etherIPv4)}
}

// errPorts is the error of ports without a protocol that has them.
var errPorts = errors.New("only tcp, udp and sctp have ports")

// hasPorts reports whether the protocols of a match have ports.
func hasPorts(m *dataplane.Match) bool {
	for _, r := range m.Proto {
		if r.First != r.Last || r.First != 6 && r.First != 17 && r.First != 132 {
			return false
		}
	}
	return len(m.Proto) > 0
}
