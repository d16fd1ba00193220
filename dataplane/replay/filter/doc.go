// Package filter implements the filter language of libpcap, which tcpdump and Wireshark use
// to capture, for packets of dataplane. It follows pcap-filter(7) and the code that libpcap
// compiles:
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
// As in libpcap, a test that reads beyond the captured bytes excludes the packet, even below
// not. The tests are those before libpcap's optimizer, which omits some that read: net ::/0
// reads an address. Links without an Ethernet header have no Ethernet addresses. A packet whose
// link type dataplane does not know is excluded. Unlike in libpcap, a comparison is false if any of its
// operands needs a header that the packet lacks; libpcap forgets it for the right side of an
// operator.
package filter
