package dataplane

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/a-seed-32e5a53f/shaper/queue"
)

// KeyField is the part of a packet that is its key: packets with different keys have different
// meters, or are different flows of a fair queue.
type KeyField uint8

const (
	NoKey KeyField = iota // one meter for all packets
	BySrc                 // source address
	ByDst                 // destination address
	// addresses, protocol and ports; the ports are 0 if there are none, and in fragments
	ByFlow
	ByVLAN  // ID of the outer VLAN tag
	ByDSCP  // DSCP of the outer IP header
	ByHosts // both addresses; for fair queues only

	// For meters only.
	ByAddress // address of the inner side: see Packet.Direction
	ByMAC     // MAC address of the inner side
	ByVLANMAC // ID of the outer VLAN tag, and MAC address of the inner side
	ByVNI     // network of VXLAN or GENEVE
	ByTEID    // tunnel of GTP-U
	ByMark    // skb mark
	ByCgroup  // cgroup v2 of the packet's socket, in the kernel plane only
)

var keyNames = [...]string{
	"", "src", "dst", "flow", "vlan", "dscp", "hosts", "address", "mac", "[vlan, mac]", "vni", "teid", "mark",
	"cgroup",
}

// NeedsMAC reports whether only packets of Ethernet have the key.
func (f KeyField) NeedsMAC() bool { return f == ByMAC || f == ByVLANMAC }

// Directed reports whether the key is of the inner side, which differs by direction.
func (f KeyField) Directed() bool { return f.NeedsMAC() || f == ByAddress }

// HasPrefix reports whether the key can have a prefix length.
func (f KeyField) HasPrefix() bool { return f == BySrc || f == ByDst || f == ByAddress }

// String returns the name as spelled in policy files, "" for NoKey.
func (f KeyField) String() string { return enumName(f, "KeyField", keyNames[:]) }

// Key defines the keys of a meter or a fair queue.
type Key struct {
	By     KeyField
	V4, V6 uint8 // prefix lengths of addresses, bits; 0 means the whole address
}

// DefaultKeys is the default for the maximum number of keys of a meter.
const DefaultKeys = 65536

// String returns the key as spelled in policy files, such as src/24,64.
func (k Key) String() string {
	switch name := k.By.String(); {
	case k.V4 == 0 && k.V6 == 0:
		return name
	case k.V6 == 0:
		return fmt.Sprintf("%s/%d", name, k.V4)
	default:
		return fmt.Sprintf("%s/%d,%d", name, cmp.Or(k.V4, 32), k.V6)
	}
}

// Mask4 returns the mask of an IPv4 address: ones for the prefix, zeros for the rest.
func (k Key) Mask4() uint32 { return ^uint32(0) << (32 - cmp.Or(k.V4, 32)) }

// Mask6 returns the mask of an IPv6 address.
func (k Key) Mask6() Addr {
	bits := cmp.Or(k.V6, 128)
	if bits <= 64 {
		return Addr{Hi: ^uint64(0) << (64 - bits)}
	}
	return Addr{Hi: ^uint64(0), Lo: ^uint64(0) << (128 - bits)}
}

// PacketKey is the key of one packet, as a Key defines it. It is comparable.
type PacketKey struct {
	// Fields outside the key are zero.
	src, dst     Addr // src contains a VLAN ID, DSCP, MAC address, VNI, TEID or mark
	sport, dport uint16
	kind         PacketKind
	proto        uint8
}

// KeyReader reads the keys of parsed packets.
type KeyReader struct {
	key   Key
	mask4 uint64
	mask6 Addr
}

// NewKeyReader returns a reader of the keys defined by k.
func NewKeyReader(k Key) KeyReader {
	return KeyReader{key: k, mask4: uint64(k.Mask4()), mask6: k.Mask6()}
}

// FlowNumber returns the flow of a packet in a fair queue. All packets without a key are
// one flow.
func (k *KeyReader) FlowNumber(p *Packet, seed uint64) uint16 {
	key, ok := k.Key(p)
	if !ok {
		key = PacketKey{}
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

// Key returns the key of a packet, or false without one.
func (k *KeyReader) Key(p *Packet) (out PacketKey, ok bool) {
	switch k.key.By {
	case BySrc:
		out.src, out.kind = k.maskAddr(p.Kind, p.Src), p.Kind
	case ByAddress:
		out.src, out.kind = k.maskAddr(p.Kind, p.insideAddr()), p.Kind
	case ByDst:
		out.dst, out.kind = k.maskAddr(p.Kind, p.Dst), p.Kind
	case ByHosts:
		out.src, out.dst, out.kind = p.Src, p.Dst, p.Kind
	case ByFlow:
		out = PacketKey{p.Src, p.Dst, 0, 0, p.Kind, p.Proto}
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
	case ByMAC, ByVLANMAC, ByVNI, ByTEID, ByMark:
		out.src.Lo, ok = k.SmallKey(p)
		return out, ok
	case ByCgroup:
		return out, false // known in the kernel only
	}
	return out, p.IsIP()
}

// SmallKey returns the key of a packet as a number. It returns false if the key does not fit into a
// number, or if the packet lacks a key.
func (k *KeyReader) SmallKey(p *Packet) (key uint64, ok bool) {
	switch k.key.By {
	case BySrc:
		return p.Src.Lo & k.mask4, p.Kind == IPv4
	case ByDst:
		return p.Dst.Lo & k.mask4, p.Kind == IPv4
	case ByAddress:
		return p.insideAddr().Lo & k.mask4, p.Kind == IPv4
	case ByMAC:
		return p.InsideMAC()
	case ByVLANMAC:
		return p.VLANAndMAC()
	case ByVNI:
		return p.VNI()
	case ByTEID:
		return p.TEID()
	case ByMark:
		return uint64(p.Mark), true
	case ByVLAN:
		id, ok := p.VLAN()
		return uint64(id), ok
	case ByDSCP:
		dscp, ok := p.DSCP()
		return uint64(dscp), ok
	}
	return 0, false
}

// FromSmall returns the key of a packet whose SmallKey is n. An address in such a key is one of
// IPv4.
func (k *KeyReader) FromSmall(n uint64) PacketKey {
	if k.key.By == ByDst {
		return PacketKey{dst: Addr{Lo: n}, kind: IPv4}
	}
	return PacketKey{src: Addr{Lo: n}, kind: IPv4}
}

// Small returns the n from which FromSmall made the key.
func (k *PacketKey) Small() uint64 { return k.src.Lo | k.dst.Lo }

// maskAddr clears the bits of an address outside the key.
func (k *KeyReader) maskAddr(kind PacketKind, a Addr) Addr {
	if kind == IPv4 {
		return Addr{Lo: a.Lo & k.mask4}
	}
	return Addr{a.Hi & k.mask6.Hi, a.Lo & k.mask6.Lo}
}

// AppendText appends a key in words, such as "src 10.0.0.0/8".
func (k *KeyReader) AppendText(b []byte, key PacketKey) []byte {
	if k.key.By == ByVLANMAC {
		b = strconv.AppendUint(append(b, "vlan "...), key.src.Lo>>48, 10)
		return AppendMAC(append(b, " mac "...), key.src.Lo&MaxMAC)
	}
	b = append(append(b, keyNames[k.key.By]...), ' ')
	switch k.key.By {
	case ByMAC:
		return AppendMAC(b, key.src.Lo)
	case BySrc, ByAddress:
		return k.appendAddr(b, key.kind, key.src)
	case ByDst:
		return k.appendAddr(b, key.kind, key.dst)
	case ByFlow:
		b = netip.AddrPortFrom(key.src.netip(key.kind), key.sport).AppendTo(b)
		b = netip.AddrPortFrom(key.dst.netip(key.kind), key.dport).AppendTo(append(b, " > "...))
		return AppendProto(append(b, ' '), key.proto)
	}
	return strconv.AppendUint(b, key.src.Lo, 10)
}

func (k *KeyReader) appendAddr(b []byte, kind PacketKind, a Addr) []byte {
	addr, bits := a.netip(kind), k.key.V6
	if kind == IPv4 {
		bits = k.key.V4
	}
	if bits == 0 {
		return addr.AppendTo(b)
	}
	return netip.PrefixFrom(addr, int(bits)).AppendTo(b)
}
