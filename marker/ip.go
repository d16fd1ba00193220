package marker

import "encoding/binary"

// Sizes of the fixed headers that this package reads and writes, in bytes.
const (
	IPv4HeaderLen = 20
	IPv6HeaderLen = 40
)

// ECN codepoints, RFC 3168 §5.
const (
	NotECT = 0
	ECT1   = 1
	ECT0   = 2
	CE     = 3
)

// DSCPv4 returns the DSCP of an IPv4 header.
func DSCPv4(ip []byte) uint8 { return ip[1] >> 2 }

// DSCPv6 returns the DSCP of an IPv6 header.
func DSCPv6(ip []byte) uint8 { return trafficClass(ip) >> 2 }

// ECNv4 returns the ECN codepoint of an IPv4 header.
func ECNv4(ip []byte) uint8 { return ip[1] & 3 }

// ECNv6 returns the ECN codepoint of an IPv6 header.
func ECNv6(ip []byte) uint8 { return trafficClass(ip) & 3 }

// SetDSCPv4 writes the DSCP of an IPv4 header and keeps the ECN field.
func SetDSCPv4(ip []byte, dscp uint8) { setTOS(ip, dscp<<2|ip[1]&3) }

// SetDSCPv6 writes the DSCP of an IPv6 header and keeps the ECN field and the
// flow label.
func SetDSCPv6(ip []byte, dscp uint8) { setTrafficClass(ip, dscp<<2|trafficClass(ip)&3) }

// SetCEv4 sets Congestion Experienced if the IPv4 packet is ECN-capable, and
// reports whether it is.
func SetCEv4(ip []byte) bool {
	if ip[1]&3 == NotECT {
		return false
	}
	setTOS(ip, ip[1]|CE)
	return true
}

// SetCEv6 sets Congestion Experienced if the IPv6 packet is ECN-capable, and
// reports whether it is.
func SetCEv6(ip []byte) bool {
	tc := trafficClass(ip)
	if tc&3 == NotECT {
		return false
	}
	setTrafficClass(ip, tc|CE)
	return true
}

// setTOS writes the second byte of an IPv4 header and updates the checksum by
// RFC 1624 §3, equation 3: HC' = ~(~HC + ~m + m'). If the byte does not change,
// neither does the checksum. The equation would turn 0xffff, the other
// representation of 0, into 0.
func setTOS(ip []byte, tos uint8) {
	if ip[1] == tos {
		return
	}
	old := binary.BigEndian.Uint16(ip)
	ip[1] = tos
	sum := uint32(^binary.BigEndian.Uint16(ip[10:])) + uint32(^old) + uint32(binary.BigEndian.Uint16(ip))
	sum = sum&0xffff + sum>>16
	sum += sum >> 16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
}

// trafficClass extracts the field, which spans the first two bytes between
// version and flow label.
func trafficClass(ip []byte) uint8 { return ip[0]<<4 | ip[1]>>4 }

func setTrafficClass(ip []byte, tc uint8) {
	ip[0] = ip[0]&0xf0 | tc>>4
	ip[1] = tc<<4 | ip[1]&0x0f
}
