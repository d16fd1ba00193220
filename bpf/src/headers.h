/* SPDX-License-Identifier: Apache-2.0 */
/* Protocol numbers and header layouts. */
#pragma once

#include "packet.h"

enum {
	ETHER_IPV4 = 0x0800,
	ETHER_VLAN = 0x8100,
	ETHER_IPV6 = 0x86dd,
	ETHER_MPLS = 0x8847,
	ETHER_MPLS_MC = 0x8848,
	ETHER_PPPOE = 0x8864,
	ETHER_QINQ = 0x88a8,
	ETHER_QINQ_OLD = 0x9100,

	PPP_IPV4 = 0x0021,
	PPP_IPV6 = 0x0057,

	PROTO_ICMP = 1,
	PROTO_TCP = 6,
	PROTO_UDP = 17,
	PROTO_DCCP = 33,
	PROTO_ICMPV6 = 58,
	PROTO_SCTP = 132,
	PROTO_UDPLITE = 136,

	ETHER_HEADER = 14, /* its length; the outer VLAN tag's TCI is there */

	MAX_TAGS = 3,
	MAX_LABELS = 16,
	MAX_EXTENSIONS = 16,
};

static __always_inline __u32 table_entry(__u32 i)
{
	__u32 *entry = bpf_map_lookup_elem(&tables, &i);

	return entry ? *entry : 0;
}

static __always_inline __u64 vector_word(__u32 i)
{
	__u64 *w = bpf_map_lookup_elem(&vectors, &i);

	return w ? *w : 0;
}

struct ipv4 {
	__u8 version_size;
	__u8 tos;
	__be16 total;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 proto;
	__be16 checksum;
	__be32 src, dst;
};

struct ipv6 {
	__be32 flow; /* version, traffic class, flow label */
	__be16 payload;
	__u8 next;
	__u8 hops;
	__be32 src[4], dst[4];
};

static __always_inline struct addr addr128(const __be32 *a)
{
	return (struct addr){
		(__u64)bpf_ntohl(a[0]) << 32 | bpf_ntohl(a[1]),
		(__u64)bpf_ntohl(a[2]) << 32 | bpf_ntohl(a[3]),
	};
}
