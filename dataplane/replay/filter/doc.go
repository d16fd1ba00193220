// Package filter implements the filter language of libpcap, as used by tcpdump and Wireshark for
// captures, for packets of dataplane. It follows pcap-filter(7) and the code compiled by libpcap:
//
//   - host, net (also with mask), port, portrange and proto, with src, dst, src or dst, and
//     src and dst, and with ether, ip, ip6, arp, rarp, tcp, udp or sctp before them
//   - ip, ip6, arp, rarp, tcp, udp, sctp, icmp, icmp6, igmp, igrp, pim, vrrp, carp, ah and esp
//   - vlan and vlan ID. Each shifts the headers of all tests after it by one tag
//   - less, greater, and comparisons such as len > 100 or tcp[tcpflags] & tcp-syn != 0
//   - and, or, not and parentheses. and and or have the same precedence, and a value without a
//     keyword has that of the value before it: port 80 or 443
//
// Names of hosts, networks and ports are rejected, as are all other words.
//
// As in libpcap, reading beyond the captured bytes excludes the packet, even below not. The tests
// are those before libpcap's optimizer, which omits some reads: net ::/0 reads an address. Without
// an Ethernet header there are no Ethernet addresses. A packet of a link type unknown to dataplane
// is excluded. Unlike in libpcap, a comparison is false if any of its operands needs a header
// missing in the packet; libpcap forgets it for the right side of an operator.
package filter
