// Package marker writes colors into packet headers and reads them back: the
// DSCP (RFC 2474) and ECN field (RFC 3168) of IPv4 and IPv6, the PCP and DEI
// of a VLAN tag (IEEE 802.1Q), and the traffic class of an MPLS label stack
// entry (RFC 5462).
//
// Functions take the header as a slice that begins with its first byte and is
// long enough for its fixed part; they write in place, allocate nothing and
// leave the length as it is. IPv4 header checksums are updated by RFC 1624, so
// a right checksum stays right and a wrong one stays wrong. A mark that changes
// nothing leaves every byte as it is.
package marker
