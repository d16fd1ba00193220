package layer

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/google/gopacket"
)

func readVXLAN(h *header) gopacket.Decoder {
	h.num("Flags", 16)
	h.num("GBPGroupPolicyID", 16)
	h.num("VNI", 24)
	h.take(8)
	return ethernet
}

func readGeneve(h *header) gopacket.Decoder {
	h.num("Version", 2)
	size := 4 * int(h.take(6))
	h.put("OptionsLength", size)
	h.flags("OAMPacket", "CriticalOption")
	h.take(6)
	next := h.protocol("Protocol", 16, etherTypes)
	h.num("VNI", 24)
	h.take(8)
	h.hex("Options", size)
	return next
}

func readGTPv1U(h *header) gopacket.Decoder {
	h.num("Version", 3)
	h.num("ProtocolType", 1)
	h.num("Reserved", 1)
	extension, sequence, npdu := h.flag("ExtensionHeaderFlag"), h.flag("SequenceNumberFlag"),
		h.flag("NPDUFlag")
	kind := h.num("MessageType", 8)
	h.num("MessageLength", 16)
	h.num("TEID", 32)
	if extension || sequence || npdu {
		h.num("SequenceNumber", 16)
		h.num("NPDU", 8)
		for more := h.take(8); extension && more != 0 && h.err == nil; more = h.take(8) {
			n := 4*int(h.take(8)) - 2
			h.hex(fmt.Sprintf("Extension%d", more), n)
		}
	}
	if kind == 255 { // G-PDU
		return byVersion
	}
	return gopacket.LayerTypePayload
}

var dnsTypes = map[int]string{
	1: "A", 2: "NS", 5: "CNAME", 6: "SOA", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA", 33: "SRV", 41: "OPT",
	64: "SVCB", 65: "HTTPS", 255: "ANY",
}

func readDNS(h *header) gopacket.Decoder {
	h.num("ID", 16)
	h.flag("QR")
	h.num("OpCode", 4)
	h.flags("AA", "TC", "RD", "RA")
	h.num("Z", 3)
	h.enum("ResponseCode", 4, map[int]string{
		0: "No Error", 1: "Format Error", 2: "Server Failure", 3: "Non-Existent Domain", 4: "Not Implemented",
		5: "Query Refused",
	})
	questions := h.num("QDCount", 16)
	h.num("ANCount", 16)
	h.num("NSCount", 16)
	h.num("ARCount", 16)
	for i := 0; i < questions && h.err == nil; i++ {
		h.put("Name", h.domain())
		h.enum("Type", 16, dnsTypes)
		h.num("Class", 16)
	}
	if n := h.left(); h.err == nil && n > 0 {
		h.put("Records", fmt.Sprintf("%d byte(s)", n))
		h.bytes(n)
	}
	return gopacket.LayerTypePayload
}

// domain reads a domain name.
func (h *header) domain() string {
	var labels []string
	for h.err == nil {
		n := int(h.take(8))
		switch {
		case n == 0:
			return strings.Join(labels, ".")
		case n >= 64:
			return strings.Join(append(labels, fmt.Sprintf("(at byte %d)", n&0x3f<<8|int(h.take(8)))), ".")
		}
		labels = append(labels, string(h.bytes(n)))
	}
	return ""
}

func readNTP(h *header) gopacket.Decoder {
	h.num("LeapIndicator", 2)
	h.num("Version", 3)
	h.num("Mode", 3)
	h.num("Stratum", 8)
	h.put("Poll", int8(h.take(8)))
	h.put("Precision", int8(h.take(8)))
	h.num("RootDelay", 32)
	h.num("RootDispersion", 32)
	h.num("ReferenceID", 32)
	for _, name := range []string{"Reference", "Origin", "Receive", "Transmit"} {
		h.put(name+"Timestamp", h.take(64))
	}
	h.hex("ExtensionBytes", h.left())
	return gopacket.LayerTypePayload
}

func readDHCPv4(h *header) gopacket.Decoder {
	h.enum("Operation", 8, map[int]string{1: "Request", 2: "Reply"})
	h.num("HardwareType", 8)
	size := h.num("HardwareLen", 8)
	h.num("HardwareOpts", 8)
	h.num("Xid", 32)
	h.num("Secs", 16)
	h.num("Flags", 16)
	for _, name := range []string{"ClientIP", "YourClientIP", "NextServerIP", "RelayAgentIP"} {
		h.ip(name, 4)
	}
	address := h.bytes(16)
	h.put("ClientHWAddr", fmt.Sprintf("%x", address[:min(size, len(address))]))
	h.put("ServerName", cString(h.bytes(64)))
	h.put("File", cString(h.bytes(128)))
	h.take(32) // the magic cookie
	for h.left() > 0 && h.err == nil {
		switch code := h.take(8); code {
		case 0: // padding
		case 255: // the end
			h.bytes(h.left())
		case 53:
			h.take(8)
			h.enum("MessageType", 8, map[int]string{
				1: "Discover", 2: "Offer", 3: "Request", 4: "Decline", 5: "Ack", 6: "Nak", 7: "Release",
				8: "Inform",
			})
		default:
			h.hex(fmt.Sprintf("Option%d", code), int(h.take(8)))
		}
	}
	return gopacket.LayerTypePayload
}

// cString returns the text before the first zero.
func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

func readDHCPv6(h *header) gopacket.Decoder {
	kind := h.num("MsgType", 8)
	if kind == 12 || kind == 13 { // of a relay agent
		h.num("HopCount", 8)
		h.ip("LinkAddr", 16)
		h.ip("PeerAddr", 16)
	} else {
		h.hex("TransactionID", 3)
	}
	for h.left() > 0 && h.err == nil {
		name := fmt.Sprintf("Option%d", h.take(16))
		h.hex(name, int(h.take(16)))
	}
	return gopacket.LayerTypePayload
}

// readSIP reads the lines of a SIP header.
func readSIP(h *header) gopacket.Decoder {
	head, _, _ := bytes.Cut(h.data, []byte("\r\n\r\n"))
	h.put("Header", strings.ReplaceAll(string(head), "\r\n", "; "))
	h.bytes(min(len(head)+4, len(h.data)))
	return gopacket.LayerTypePayload
}

func readBFD(h *header) gopacket.Decoder {
	h.num("Version", 3)
	h.num("Diagnostic", 5)
	h.enum("State", 2, map[int]string{0: "AdminDown", 1: "Down", 2: "Init", 3: "Up"})
	h.flags("Poll", "Final", "ControlPlaneIndependent", "AuthPresent", "Demand", "Multipoint")
	h.num("DetectMultiplier", 8)
	size := h.num("Length", 8)
	h.num("MyDiscriminator", 32)
	h.num("YourDiscriminator", 32)
	h.num("DesiredMinTxInterval", 32)
	h.num("RequiredMinRxInterval", 32)
	h.num("RequiredMinEchoRxInterval", 32)
	h.until("Authentication", size)
	return gopacket.LayerTypePayload
}

func readRADIUS(h *header) gopacket.Decoder {
	h.enum("Code", 8, map[int]string{
		1: "Access-Request", 2: "Access-Accept", 3: "Access-Reject", 4: "Accounting-Request",
		5: "Accounting-Response", 11: "Access-Challenge",
	})
	h.num("Identifier", 8)
	size := h.num("Length", 16)
	h.hex("Authenticator", 16)
	h.limit(max(size-20, 0))
	for h.left() > 0 && h.err == nil {
		name := fmt.Sprintf("Attribute%d", h.take(8))
		h.hex(name, int(h.take(8))-2)
	}
	return gopacket.LayerTypePayload
}
