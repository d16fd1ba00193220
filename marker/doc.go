// Package marker writes colors into packet headers and reads them back: the
// DSCP (RFC 2474) and ECN field (RFC 3168) of IPv4 and IPv6, the PCP and DEI
// of a VLAN tag (IEEE 802.1Q), and the traffic class of an MPLS label stack
// entry (RFC 5462).
//
// Functions take the header as a slice that starts at its first byte and is at
// least as long as its fixed part. They write in place, do not allocate, and never
// change the length. IPv4 header checksums are updated incrementally (RFC 1624): a
// correct checksum stays correct, and a wrong one stays wrong. A mark that changes
// nothing leaves every byte as it is.
package marker
