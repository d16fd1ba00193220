package dataplane

import (
	"encoding/binary"
	"path"
	"strings"
)

// SrcMAC returns the source address of the Ethernet header as a number, or false for a packet of another
// link type, or with a truncated header.
func (p *Packet) SrcMAC() (uint64, bool) { return p.macAt(6) }

// DstMAC is SrcMAC for the destination address.
func (p *Packet) DstMAC() (uint64, bool) { return p.macAt(0) }

// InsideMAC returns the address of the side that the interface faces: the source at ingress, the
// destination at egress.
func (p *Packet) InsideMAC() (uint64, bool) {
	if p.Direction == Ingress {
		return p.SrcMAC()
	}
	return p.DstMAC()
}

// VLANAndMAC returns the ID of the outer VLAN tag in the upper 16 bits and InsideMAC in the others, or false
// without one of them.
func (p *Packet) VLANAndMAC() (uint64, bool) {
	vlan, tagged := p.VLAN()
	mac, ok := p.InsideMAC()
	return uint64(vlan)<<48 | mac, tagged && ok
}

// insideAddr returns the address of the side that the interface faces, as InsideMAC.
func (p *Packet) insideAddr() Addr {
	if p.Direction == Ingress {
		return p.Src
	}
	return p.Dst
}

// macAt reads the address at an offset. A parsed packet of Ethernet with an EtherType has the whole header.
func (p *Packet) macAt(off int) (uint64, bool) {
	if p.Link != LinkEthernet || !p.HasEtherType {
		return 0, false
	}
	return uint64(be16(p.Data[off:]))<<32 | uint64(be32(p.Data[off+2:])), true
}

// AppendMAC appends a MAC address such as 02:00:5e:10:00:01.
func AppendMAC(b []byte, mac uint64) []byte {
	const digits = "0123456789abcdef"
	var bytes [8]byte
	binary.BigEndian.PutUint64(bytes[:], mac)
	for i, v := range bytes[2:] {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, digits[v>>4], digits[v&15])
	}
	return b
}

// upperBytes returns the captured bytes of the upper-layer packet, without padding; none if there is no such
// header.
func (p *Packet) upperBytes() []byte {
	end := min(len(p.Data), p.L3+p.L3Len)
	if p.L4 == 0 || p.L4 > end {
		return nil
	}
	return p.Data[p.L4:end]
}

// TCPFlags returns the flags of TCP, FIN in bit 0 and CWR in bit 7. It returns false for other packets, for
// fragments other than the first, and if the flags are not among the captured bytes of the packet.
func (p *Packet) TCPFlags() (uint8, bool) {
	const at = 13 // RFC 9293 §3.1
	b := p.upperBytes()
	if p.Proto != protoTCP || len(b) <= at {
		return 0, false
	}
	return b[at], true
}

// ICMPv6Type is added to the value of Packet.ICMPType for ICMPv6, whose types have other meanings.
const ICMPv6Type = 1 << 16

// ICMPType returns 256 times the type plus the code of a packet of ICMP (protocol 1), or of ICMPv6
// (protocol 58) plus ICMPv6Type. It returns false for other packets, for fragments other than the first,
// and if type and code are not among the captured bytes of the packet.
func (p *Packet) ICMPType() (uint32, bool) {
	b := p.upperBytes()
	if len(b) < 2 {
		return 0, false
	}
	switch v := uint32(be16(b)); p.Proto {
	case protoICMP:
		return v, true
	case protoICMPv6:
		return v | ICMPv6Type, true
	}
	return 0, false
}

// ContainsCgroup reports whether a cgroup is another one or below it. Both are clean paths.
func ContainsCgroup(outer, inner string) bool {
	rest, ok := strings.CutPrefix(inner, outer)
	return ok && (rest == "" || outer == "/" || rest[0] == '/')
}

// CgroupDepth returns the number of cgroups above one: 0 for the root.
func CgroupDepth(cgroup string) int {
	if cgroup == "/" {
		return 0
	}
	return strings.Count(cgroup, "/")
}

// MaxCgroupDepth is the largest depth of a cgroup in a policy.
const MaxCgroupDepth = 32

// InvalidCgroup returns the reason why a policy cannot name a cgroup, or "".
func InvalidCgroup(cgroup string) string {
	switch {
	case !strings.HasPrefix(cgroup, "/"):
		return "must begin with /: it is a path below the root of cgroup v2, such as /system.slice"
	case path.Clean(cgroup) != cgroup:
		return "is not a clean path: write " + path.Clean(cgroup)
	case strings.ContainsRune(cgroup, 0):
		return "contains a zero byte"
	case CgroupDepth(cgroup) > MaxCgroupDepth:
		return "is too deep: the limit is 32"
	}
	return ""
}
