package layer

import "github.com/google/gopacket"

// readCiscoHDLC reads the address, the control byte and an EtherType.
func readCiscoHDLC(h *header) gopacket.Decoder {
	h.hex("Address", 1)
	h.hex("Control", 1)
	return h.protocol("Protocol", 16, etherTypes)
}

// readPPPHDLC reads PPP in HDLC-like framing, or Cisco HDLC by its address.
func readPPPHDLC(h *header) gopacket.Decoder {
	if len(h.data) > 0 && h.data[0]&0x7f == 0x0f {
		return readCiscoHDLC(h)
	}
	return readPPP(h)
}

// readPPPD reads PPP with a direction in the place of the address.
func readPPPD(h *header) gopacket.Decoder {
	h.enum("Direction", 8, map[int]string{0: "in", 1: "out"})
	h.hex("Control", 1)
	return readPPP(h)
}

// readFrameRelay reads an address, a control byte and a protocol (RFC 2427 §3), or an EtherType of
// Cisco's encapsulation.
func readFrameRelay(h *header) gopacket.Decoder {
	dlci := int(h.take(6))
	h.take(2)
	dlci = dlci<<4 | int(h.take(4))
	h.take(3)
	for n, last := 2, h.take(1) == 1; !last && n < 4; n++ {
		dlci = dlci<<7 | int(h.take(7))
		last = h.take(1) == 1
	}
	h.put("DLCI", dlci)
	if h.left() > 0 && h.data[h.bit/8] != 3 {
		return h.protocol("Protocol", 16, etherTypes)
	}
	h.hex("Control", 1)
	if h.left() > 1 && h.data[h.bit/8] == 0 {
		h.hex("Padding", 1)
	}
	return h.protocol("NLPID", 8, map[int]gopacket.LayerType{0x80: snap, 0x8e: ipv6, 0xcc: ipv4, 0xcf: ppp})
}

// readIPoIB reads a global routing header and the encapsulation header of RFC 4391 §6.
func readIPoIB(h *header) gopacket.Decoder {
	h.hex("GlobalRouting", 40)
	next := h.protocol("EthernetType", 16, etherTypes)
	h.take(16)
	return next
}

func readIEEE1394(h *header) gopacket.Decoder {
	h.hex("DstAddress", 8)
	h.hex("SrcAddress", 8)
	return h.protocol("EthernetType", 16, etherTypes)
}

func readSymantec(h *header) gopacket.Decoder {
	h.hex("Header", 6)
	next := h.protocol("EthernetType", 16, etherTypes)
	h.hex("Trailer", 36)
	return next
}

// switchTag returns the reader of an Ethernet header with a switch tag of n bytes after the addresses.
func switchTag(n int) func(*header) gopacket.Decoder {
	return func(h *header) gopacket.Decoder {
		h.mac("DstMAC")
		h.mac("SrcMAC")
		h.hex("SwitchTag", n)
		return h.etherType("EthernetType")
	}
}

// beforeLLC returns the reader of a header of n bytes before an LLC header.
func beforeLLC(n int) func(*header) gopacket.Decoder {
	return func(h *header) gopacket.Decoder {
		h.hex("Header", n)
		return llc
	}
}

// atmCLIP decodes IP by its version, and other data as LLC.
var atmCLIP = gopacket.DecodeFunc(func(data []byte, p gopacket.PacketBuilder) error {
	if len(data) > 0 && (data[0]>>4 == 4 || data[0]>>4 == 6) {
		return byVersion.Decode(data, p)
	}
	return llc.Decode(data, p)
})
