package dataplane

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// KeyField is what of a packet has a meter of its own.
type KeyField uint8

const (
	NoKey  KeyField = iota // one meter for all
	BySrc                  // source address
	ByDst                  // destination address
	ByFlow                 // addresses, protocol and ports, 0 where there are none and in fragments
	ByVLAN                 // id of the outer tag
	ByDSCP
	ByHosts // both addresses; in fair queues only
)

var keyNames = [...]string{"", "src", "dst", "flow", "vlan", "dscp", "hosts"}

// Key is a field of packets, and how much of an address counts: the leading V4
// or V6 bits; 0 is all of it.
type Key struct {
	By     KeyField
	V4, V6 uint8
}

// DefaultKeys is how many keys a meter knows that says nothing else.
const DefaultKeys = 65536

// String returns the key as policies spell it, such as src/24,64.
func (k Key) String() string {
	if int(k.By) >= len(keyNames) {
		return fmt.Sprintf("KeyField(%d)", uint8(k.By))
	}
	switch name := keyNames[k.By]; {
	case k.V4 == 0 && k.V6 == 0:
		return name
	case k.V6 == 0:
		return fmt.Sprintf("%s/%d", name, k.V4)
	default:
		return fmt.Sprintf("%s/%d,%d", name, cmp.Or(k.V4, 32), k.V6)
	}
}

// fault says what makes the key unusable, or nothing.
func (k Key) fault() string {
	switch {
	case k.By > ByHosts:
		return "is not known"
	case (k.V4 > 0 || k.V6 > 0) && k.By != BySrc && k.By != ByDst:
		return "has a prefix, and is no address"
	case k.V4 > 32 || k.V6 > 128:
		return "has a prefix longer than its address"
	}
	return ""
}

// Mask4 and Mask6 are the bits of an address that count.
func (k Key) Mask4() uint32 { return ^uint32(0) << (32 - cmp.Or(k.V4, 32)) }

// Mask6 is Mask4 for IPv6.
func (k Key) Mask6() Addr {
	bits := cmp.Or(k.V6, 128)
	if bits <= 64 {
		return Addr{Hi: ^uint64(0) << (64 - bits)}
	}
	return Addr{Hi: ^uint64(0), Lo: ^uint64(0) << (128 - bits)}
}

// packetKey is the value of a Key. Fields that it does not name are zero.
type packetKey struct {
	src, dst     Addr // a VLAN id or DSCP is in src
	sport, dport uint16
	kind         Kind
	proto        uint8
}

// keyReader reads the key of a packet.
type keyReader struct {
	key   Key
	mask4 uint64
	mask6 Addr
}

func newKeyReader(k Key) keyReader {
	return keyReader{key: k, mask4: uint64(k.Mask4()), mask6: k.Mask6()}
}

// keyTable is a meter for each key.
type keyTable struct {
	keyReader
	table *meter.Table[packetKey]
	moved bool // another pipeline has inherited the table
}

// flow is the flow of a packet in a fair queue.
func (k *keyReader) flow(p *Packet, seed uint64) uint16 {
	key, ok := k.packetKey(p)
	if !ok {
		key = packetKey{}
	}
	version := uint64(0)
	switch key.kind {
	case IPv4:
		version = 4
	case IPv6:
		version = 6
	}
	return queue.Flow(seed, key.src.Hi, key.src.Lo, key.dst.Hi, key.dst.Lo,
		uint64(key.sport)<<32|uint64(key.dport)<<16|uint64(key.proto)<<8|version)
}

// packetKey returns the key of a packet, or false where it has none.
func (k *keyReader) packetKey(p *Packet) (out packetKey, ok bool) {
	switch k.key.By {
	case BySrc:
		out.src, out.kind = k.prefix(p.Kind, p.Src), p.Kind
	case ByDst:
		out.dst, out.kind = k.prefix(p.Kind, p.Dst), p.Kind
	case ByHosts:
		out.src, out.dst, out.kind = p.Src, p.Dst, p.Kind
	case ByFlow:
		out = packetKey{p.Src, p.Dst, 0, 0, p.Kind, p.Proto}
		switch { // all fragments of a packet have one key
		case p.Fragmented:
			out.proto = p.FragmentProto
		case p.HasPorts:
			out.sport, out.dport = p.SrcPort, p.DstPort
		}
	case ByVLAN:
		id, ok := p.VLAN()
		out.src.Lo = uint64(id)
		return out, ok
	case ByDSCP:
		dscp, ok := p.DSCP()
		out.src.Lo = uint64(dscp)
		return out, ok
	}
	return out, p.IsIP()
}

func (k *keyReader) prefix(kind Kind, a Addr) Addr {
	if kind == IPv4 {
		return Addr{Lo: a.Lo & k.mask4}
	}
	return Addr{a.Hi & k.mask6.Hi, a.Lo & k.mask6.Lo}
}

func (k *keyTable) color(p *Packet, now int64, n int, in meter.Color) meter.Color {
	key, ok := k.packetKey(p)
	if !ok && in != meter.Red {
		return k.table.Rest().Color(now, n, in)
	}
	return k.table.Color(key, now, n, in)
}

func (k *keyTable) explain(p *Packet, now int64, n int, in meter.Color) (string, meter.Explanation) {
	key, ok := k.packetKey(p)
	if !ok && in != meter.Red {
		return "", k.table.Rest().Explain(now, n, in)
	}
	return k.text(key), k.table.Explain(key, now, n, in)
}

// text is a key for people.
func (k *keyReader) text(key packetKey) string {
	switch k.key.By {
	case BySrc:
		return "src " + k.address(key.kind, key.src)
	case ByDst:
		return "dst " + k.address(key.kind, key.dst)
	case ByFlow:
		return fmt.Sprintf("flow %s:%d > %s:%d proto %d", k.address(key.kind, key.src), key.sport, k.address(key.kind, key.dst), key.dport, key.proto)
	case ByVLAN:
		return fmt.Sprintf("vlan %d", key.src.Lo)
	}
	return fmt.Sprintf("dscp %d", key.src.Lo)
}

func (k *keyReader) address(kind Kind, a Addr) string {
	addr, bits := a.netip(kind), k.key.V6
	if kind == IPv4 {
		bits = k.key.V4
	}
	if bits == 0 {
		return addr.String()
	}
	return netip.PrefixFrom(addr, int(bits)).String()
}
