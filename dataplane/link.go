package dataplane

import (
	"fmt"
	"strconv"
)

// LinkType is the number of a link-layer header type in captures: a LINKTYPE_ or
// DLT_ value of the pcap registry.
type LinkType uint16

// Link types that Parse supports. A packet of any other link type is of Kind Other, and
// all of it counts as the network packet.
const (
	LinkNull       LinkType = 0 // BSD loopback; the address family may be in either byte order
	LinkEthernet   LinkType = 1
	LinkPPP        LinkType = 9  // with or without address and control bytes (RFC 1662 §3.1)
	LinkFDDI       LinkType = 10 // with LLC and SNAP, like all types marked so
	LinkRawBSD     LinkType = 12 // DLT_RAW
	LinkRawOBSD    LinkType = 14 // DLT_RAW on OpenBSD
	LinkPPPHDLC    LinkType = 50 // PPP, or Cisco HDLC by its first byte
	LinkPPPoE      LinkType = 51 // PPPoE session header and PPP
	LinkSymantec   LinkType = 99
	LinkATM        LinkType = 100 // with LLC and SNAP (RFC 2684)
	LinkRaw        LinkType = 101
	LinkCiscoHDLC  LinkType = 104
	LinkATMCLIP    LinkType = 106 // IP, or LLC and SNAP
	LinkFrameRelay LinkType = 107 // RFC 2427, or Cisco's encapsulation
	LinkLoop       LinkType = 108 // OpenBSD loopback; the address family is in network byte order
	LinkSLL        LinkType = 113 // Linux cooked v1
	LinkIPOverFC   LinkType = 122 // Fibre Channel with LLC and SNAP (RFC 2625)
	LinkSunATM     LinkType = 123 // with LLC and SNAP
	LinkIEEE1394   LinkType = 138
	LinkPPPD       LinkType = 166 // PPP with a direction instead of the address byte
	LinkIPv4       LinkType = 228
	LinkIPv6       LinkType = 229
	LinkIPoIB      LinkType = 242 // IP over InfiniBand
	LinkSLL2       LinkType = 276 // Linux cooked v2
	LinkDSABrcm    LinkType = 281 // Ethernet with a switch tag of 4 bytes after the addresses, as LinkDSA
	LinkDSA        LinkType = 284
	LinkDSAEther   LinkType = 285 // Ethernet with a switch tag of 8 bytes
)

// linkForm is the form of a link header: the way to its network header.
type linkForm uint8

const (
	formNone       linkForm = iota // Parse does not read it
	formCommon                     // parseLink reads it
	formEtherType                  // the EtherType is at an offset
	formSNAP                       // LLC and SNAP headers are at an offset
	formPPP                        // the PPP protocol, or the bytes before it
	formPPPoE                      // a PPPoE session header
	formFrameRelay                 // an address of 2 to 4 bytes
)

// link describes a link type of the pcap registry.
type link struct {
	name     string
	form     linkForm
	at, size int // offset of the EtherType or LLC header; length of the link header
}

// links are the link types read by Parse.
var links = [512]link{
	LinkNull:       {"NULL", formCommon, 0, 0},
	LinkEthernet:   {"ETHERNET", formCommon, 0, 0},
	LinkPPP:        {"PPP", formPPP, 0, 0},
	LinkFDDI:       {"FDDI", formSNAP, 13, 0},
	LinkRawBSD:     {"RAW", formCommon, 0, 0},
	LinkRawOBSD:    {"RAW", formCommon, 0, 0},
	LinkPPPHDLC:    {"PPP_HDLC", formPPP, 0, 0},
	LinkPPPoE:      {"PPP_ETHER", formPPPoE, 0, 0},
	LinkSymantec:   {"SYMANTEC_FIREWALL", formEtherType, 6, 44},
	LinkATM:        {"ATM_RFC1483", formSNAP, 0, 0},
	LinkRaw:        {"RAW", formCommon, 0, 0},
	LinkCiscoHDLC:  {"C_HDLC", formEtherType, 2, 4},
	LinkATMCLIP:    {"ATM_CLIP", formSNAP, 0, 0},
	LinkFrameRelay: {"FRELAY", formFrameRelay, 0, 0},
	LinkLoop:       {"LOOP", formCommon, 0, 0},
	LinkSLL:        {"LINUX_SLL", formCommon, 0, 0},
	LinkIPOverFC:   {"IP_OVER_FC", formSNAP, 16, 0},
	LinkSunATM:     {"SUNATM", formSNAP, 4, 0},
	LinkIEEE1394:   {"APPLE_IP_OVER_IEEE1394", formEtherType, 16, 18},
	LinkPPPD:       {"PPP_PPPD", formPPP, 0, 0},
	LinkIPv4:       {"IPV4", formCommon, 0, 0},
	LinkIPv6:       {"IPV6", formCommon, 0, 0},
	LinkIPoIB:      {"IPOIB", formEtherType, 40, 44},
	LinkSLL2:       {"LINUX_SLL2", formCommon, 0, 0},
	LinkDSABrcm:    {"DSA_TAG_BRCM", formEtherType, 16, 18},
	LinkDSA:        {"DSA_TAG_DSA", formEtherType, 16, 18},
	LinkDSAEther:   {"DSA_TAG_EDSA", formEtherType, 20, 22},
}

// unreadLinks are the names of the link types that Parse does not read.
var unreadLinks = map[LinkType]string{
	2: "EXP_ETHERNET", 3: "AX25", 4: "PRONET", 5: "CHAOS", 6: "IEEE802_5", 7: "ARCNET_BSD", 8: "SLIP",
	102: "SLIP_BSDOS", 103: "PPP_BSDOS", 105: "IEEE802_11", 109: "ENC", 110: "LANE8023", 111: "HIPPI",
	112: "NETBSD_HDLC", 114: "LTALK", 115: "ECONET", 116: "IPFILTER", 117: "PFLOG", 118: "CISCO_IOS",
	119: "IEEE802_11_PRISM", 120: "IEEE802_11_AIRONET", 121: "HHDLC", 124: "RIO", 125: "PCI_EXP",
	126: "AURORA", 127: "IEEE802_11_RADIOTAP", 128: "TZSP", 129: "ARCNET_LINUX", 130: "JUNIPER_MLPPP",
	131: "JUNIPER_MLFR", 132: "JUNIPER_ES", 133: "JUNIPER_GGSN", 134: "JUNIPER_MFR", 135: "JUNIPER_ATM2",
	136: "JUNIPER_SERVICES", 137: "JUNIPER_ATM1", 139: "MTP2_WITH_PHDR", 140: "MTP2", 141: "MTP3",
	142: "SCCP", 143: "DOCSIS", 144: "LINUX_IRDA", 145: "IBM_SP", 146: "IBM_SN", 147: "USER0",
	148: "USER1", 149: "USER2", 150: "USER3", 151: "USER4", 152: "USER5", 153: "USER6", 154: "USER7",
	155: "USER8", 156: "USER9", 157: "USER10", 158: "USER11", 159: "USER12", 160: "USER13", 161: "USER14",
	162: "USER15", 163: "IEEE802_11_AVS", 164: "JUNIPER_MONITOR", 165: "BACNET_MS_TP",
	167: "JUNIPER_PPPOE", 168: "JUNIPER_PPPOE_ATM", 169: "GPRS_LLC", 170: "GPF_T", 171: "GPF_F",
	172: "GCOM_T1E1", 173: "GCOM_SERIAL", 174: "JUNIPER_PIC_PEER", 175: "ERF_ETH", 176: "ERF_POS",
	177: "LINUX_LAPD", 178: "JUNIPER_ETHER", 179: "JUNIPER_PPP", 180: "JUNIPER_FRELAY",
	181: "JUNIPER_CHDLC", 182: "MFR", 183: "JUNIPER_VP", 184: "A429", 185: "A653_ICM", 186: "USB_FREEBSD",
	187: "BLUETOOTH_HCI_H4", 188: "IEEE802_16_MAC_CPS", 189: "USB_LINUX", 190: "CAN20B",
	191: "IEEE802_15_4_LINUX", 192: "PPI", 193: "IEEE802_16_MAC_CPS_RADIO", 194: "JUNIPER_ISM",
	195: "IEEE802_15_4_WITHFCS", 196: "SITA", 197: "ERF", 198: "RAIF1", 199: "IPMB_KONTRON",
	200: "JUNIPER_ST", 201: "BLUETOOTH_HCI_H4_WITH_PHDR", 202: "AX25_KISS", 203: "LAPD",
	204: "PPP_WITH_DIR", 205: "C_HDLC_WITH_DIR", 206: "FRELAY_WITH_DIR", 207: "LAPB_WITH_DIR",
	209: "I2C_LINUX", 210: "FLEXRAY", 211: "MOST", 212: "LIN", 213: "X2E_SERIAL", 214: "X2E_XORAYA",
	215: "IEEE802_15_4_NONASK_PHY", 216: "LINUX_EVDEV", 217: "GSMTAP_UM", 218: "GSMTAP_ABIS",
	219: "MPLS", 220: "USB_LINUX_MMAPPED", 221: "DECT", 222: "AOS", 223: "WIHART", 224: "FC_2",
	225: "FC_2_WITH_FRAME_DELIMS", 226: "IPNET", 227: "CAN_SOCKETCAN", 230: "IEEE802_15_4_NOFCS",
	231: "DBUS", 232: "JUNIPER_VS", 233: "JUNIPER_SRX_E2E", 234: "JUNIPER_FIBRECHANNEL", 235: "DVB_CI",
	236: "MUX27010", 237: "STANAG_5066_D_PDU", 238: "JUNIPER_ATM_CEMIC", 239: "NFLOG", 240: "NETANALYZER",
	241: "NETANALYZER_TRANSPARENT", 243: "MPEG_2_TS", 244: "NG40", 245: "NFC_LLCP", 246: "PFSYNC",
	247: "INFINIBAND", 248: "SCTP", 249: "USBPCAP", 250: "RTAC_SERIAL", 251: "BLUETOOTH_LE_LL",
	252: "WIRESHARK_UPPER_PDU", 253: "NETLINK", 254: "BLUETOOTH_LINUX_MONITOR", 255: "BLUETOOTH_BREDR_BB",
	256: "BLUETOOTH_LE_LL_WITH_PHDR", 257: "PROFIBUS_DL", 258: "PKTAP", 259: "EPON", 260: "IPMI_HPM_2",
	261: "ZWAVE_R1_R2", 262: "ZWAVE_R3", 263: "WATTSTOPPER_DLM", 264: "ISO_14443", 265: "RDS",
	266: "USB_DARWIN", 267: "OPENFLOW", 268: "SDLC", 269: "TI_LLN_SNIFFER", 270: "LORATAP", 271: "VSOCK",
	272: "NORDIC_BLE", 273: "DOCSIS31_XRA31", 274: "ETHERNET_MPACKET", 275: "DISPLAYPORT_AUX",
	277: "SERCOS_MONITOR", 278: "OPENVIZSLA", 279: "EBHSCR", 280: "VPP_DISPATCH",
	282: "DSA_TAG_BRCM_PREPEND", 283: "IEEE802_15_4_TAP", 286: "ELEE", 287: "Z_WAVE_SERIAL",
	288: "USB_2_0", 289: "ATSC_ALP", 290: "ETW", 291: "NETANALYZER_NG", 292: "ZBOSS_NCP",
	293: "USB_2_0_LOW_SPEED", 294: "USB_2_0_FULL_SPEED", 295: "USB_2_0_HIGH_SPEED", 296: "AUERSWALD_LOG",
	297: "ZWAVE_TAP", 298: "SILABS_DEBUG_CHANNEL", 299: "FIRA_UCI", 300: "MDB", 301: "DECT_NR",
	302: "EDK2_MM", 303: "DEBUG_ONLY", 304: "DECT_NR_TAP",
}

// Known reports whether Parse supports the link type.
func (l LinkType) Known() bool { return int(l) < len(links) && links[l].form != formNone }

// String returns the number, and the name in the pcap registry if it has one.
func (l LinkType) String() string {
	name := unreadLinks[l]
	if l.Known() {
		name = links[l].name
	}
	if name == "" {
		return strconv.Itoa(int(l))
	}
	return fmt.Sprintf("%d (%s)", uint16(l), name)
}
