package oracle

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// key returns the last field of a row: the customer, or the packet's key of the first per-key
// meter in words; otherwise "".
func (c *class) key(f frame, who *customer) string {
	if c.perCustomer {
		return who.name
	}
	for _, m := range c.chain {
		if m.keys != nil {
			if _, ok := m.keys.key(f); ok {
				return keyWords(m.keys.per, f)
			}
			return ""
		}
	}
	return ""
}

// keyWords returns the key of a packet, for a value of `per`. A prefix is shortened only if `per`
// gives a length for its family.
func keyWords(per string, f frame) string {
	what, sizes, isPrefix := strings.Cut(per, "/")
	addr := func(a netip.Addr) string {
		v4, v6, hasV6 := strings.Cut(sizes, ",")
		size := v4
		if a.Is6() {
			size = v6
		}
		if !isPrefix || a.Is6() && !hasV6 {
			return a.String()
		}
		return netip.MustParsePrefix(a.String() + "/" + size).Masked().String()
	}
	switch what {
	case "src":
		return "src " + addr(f.src)
	case "dst":
		return "dst " + addr(f.dst)
	case "flow":
		proto, sport, dport := f.proto, f.sport, f.dport
		if f.fragmented {
			proto, sport, dport = f.fragmentProto, 0, 0
		}
		end := func(a netip.Addr, port int) string { return net.JoinHostPort(a.String(), strconv.Itoa(port)) }
		name := fmt.Sprintf("proto %d", proto)
		for known, number := range protocols {
			if number == proto {
				name = known
			}
		}
		return fmt.Sprintf("flow %s > %s %s", end(f.src, sport), end(f.dst, dport), name)
	case "vlan":
		return fmt.Sprint("vlan ", f.vlan)
	case "address":
		if f.fromCustomers {
			return "address " + addr(f.src)
		}
		return "address " + addr(f.dst)
	case "vni":
		return fmt.Sprint("vni ", f.vni)
	case "teid":
		return fmt.Sprint("teid ", f.teid)
	case "mac":
		return "mac " + f.insideText()
	case "vlan mac":
		return fmt.Sprintf("vlan %d mac %s", f.vlan, f.insideText())
	}
	return fmt.Sprint("dscp ", f.dscp())
}
