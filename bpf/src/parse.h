/* SPDX-License-Identifier: Apache-2.0 */
/* The headers of a packet: dataplane/parse.go in C. */
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

	PROTO_TCP = 6,
	PROTO_UDP = 17,
	PROTO_DCCP = 33,
	PROTO_SCTP = 132,
	PROTO_UDPLITE = 136,

	MAX_TAGS = 3,
	MAX_LABELS = 16,
	MAX_EXTENSIONS = 16,
};

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

/* version returns the kind by the IP version at l3, or otherwise if that is
 * neither 4 nor 6. */
static __always_inline __u8 version(struct packet *p, __u8 otherwise)
{
	__u8 *first = bytes(p, p->l3, 1);

	if (!first)
		return MALFORMED;
	switch (*first >> 4) {
	case 4:
		return IPV4;
	case 6:
		return IPV6;
	}
	return otherwise;
}

/* parse_mpls walks a label stack (RFC 3032 section 2.1). The first nibble after
 * it is the payload's IP version (RFC 4928 section 3). */
static __always_inline __u8 parse_mpls(struct packet *p)
{
	__u32 top = p->l3;

	for (int i = 0; i < MAX_LABELS; i++) {
		__u8 *entry = bytes(p, p->l3, 4);

		if (!entry)
			return MALFORMED;
		p->mpls = top;
		p->l3 += 4;
		FORGET(p, p->l3);
		if (entry[2] & 1)
			return version(p, OTHER);
	}
	return OTHER;
}

/* parse_pppoe reads a session header and the PPP protocol (RFC 2516 sections 4
 * and 7): two bytes, or one if it is odd (RFC 1661 section 6.5). */
static __always_inline __u8 parse_pppoe(struct packet *p)
{
	__u8 *header = bytes(p, p->l3, 7);
	__u32 proto, size = 7;

	if (!header)
		return MALFORMED;
	proto = header[6];
	if (!(proto & 1)) {
		header = bytes(p, p->l3 + 7, 1);
		if (!header)
			return MALFORMED;
		proto = proto << 8 | *header;
		size = 8;
	}
	p->l3 += size;
	switch (proto) {
	case PPP_IPV4:
		return IPV4;
	case PPP_IPV6:
		return IPV6;
	}
	return OTHER;
}

/* parse_network continues at l3 by the EtherType. */
static __always_inline __u8 parse_network(struct packet *p)
{
	p->has_ethertype = 1;
	for (int i = 0; i <= MAX_TAGS; i++) {
		__be16 *tag;

		switch (p->ethertype) {
		case ETHER_IPV4:
			return IPV4;
		case ETHER_IPV6:
			return IPV6;
		case ETHER_MPLS:
		case ETHER_MPLS_MC:
			return parse_mpls(p);
		case ETHER_PPPOE:
			return parse_pppoe(p);
		case ETHER_VLAN:
		case ETHER_QINQ:
		case ETHER_QINQ_OLD:
			break;
		default:
			return OTHER;
		}
		if (p->tags >= MAX_TAGS)
			return OTHER;
		tag = bytes(p, p->l3, 4);
		if (!tag)
			return MALFORMED;
		if (!p->tags) {
			p->tag = p->l3;
			p->tci = bpf_ntohs(tag[0]);
		}
		p->tags++;
		p->ethertype = bpf_ntohs(tag[1]);
		p->l3 += 4;
		FORGET(p, p->l3);
	}
	return OTHER;
}

/* parse_link finds the network header and its kind by the link header. */
static __always_inline void parse_link(struct packet *p)
{
	__be16 *ethertype;

	switch (p->link) {
	case LINK_ETHERNET:
		p->l3 = 14;
		ethertype = bytes(p, 12, 2);
		if (ethertype) {
			p->ethertype = bpf_ntohs(*ethertype);
			p->kind = parse_network(p);
		}
		return;
	case LINK_IPV4:
		p->kind = IPV4;
		break;
	case LINK_IPV6:
		p->kind = IPV6;
		break;
	default:
		p->kind = version(p, MALFORMED);
	}
	if (p->kind != MALFORMED) {
		p->ethertype = p->kind == IPV4 ? ETHER_IPV4 : ETHER_IPV6;
		p->has_ethertype = 1;
	}
}

/* trim removes link-layer padding from the l3 length. It applies to short
 * frames only, or a forged total length would reduce the metered length. */
static __always_inline void trim(struct packet *p, __u32 header, __u32 total)
{
	if (p->link == LINK_ETHERNET && p->wire <= 60 + 4 * p->tags && header <= total && total <= p->l3_len)
		p->l3_len = total;
}

/* parse_ports reads the ports at off in the network packet, unless they are
 * padding or no class needs them. */
static __always_inline void parse_ports(struct packet *p, __u32 off)
{
	__be16 *ports;

	p->l4 = p->l3 + off;
	if (!(policy.reads & (1 << BY_SPORT | 1 << BY_DPORT)))
		return;
	switch (p->proto) {
	case PROTO_TCP:
	case PROTO_UDP:
	case PROTO_DCCP:
	case PROTO_SCTP:
	case PROTO_UDPLITE:
		break;
	default:
		return;
	}
	if (off + 4 > p->l3_len)
		return;
	ports = bytes(p, p->l4, 4);
	if (!ports)
		return;
	p->sport = bpf_ntohs(ports[0]);
	p->dport = bpf_ntohs(ports[1]);
	p->has_ports = 1;
}

static __always_inline __u8 parse_ipv4(struct packet *p)
{
	struct ipv4 *ip = bytes(p, p->l3, sizeof(*ip));
	__u32 size;

	if (!ip || ip->version_size >> 4 != 4)
		return MALFORMED;
	size = (ip->version_size & 0x0f) * 4;
	if (size < sizeof(*ip) || size > p->l3_len) /* it need not be captured whole */
		return MALFORMED;
	trim(p, size, bpf_ntohs(ip->total));
	p->traffic_class = ip->tos;
	if (policy.reads & (1 << BY_SRC | 1 << BY_DST)) {
		p->src.lo = bpf_ntohl(ip->src);
		p->dst.lo = bpf_ntohl(ip->dst);
	}
	p->proto = ip->proto;
	if (ip->fragment & bpf_htons(0x3fff)) /* including the more-fragments bit */
		p->fragment = FRAGMENT | ip->proto;
	if (!(ip->fragment & bpf_htons(0x1fff)))
		parse_ports(p, size);
	return IPV4;
}

/* chain is the end of a chain of extension headers. */
struct chain {
	__u32 off; /* offset in the network packet */
	__u8 proto;
	__u32 is; /* fragment, as in struct packet, with the flags below */
};

#define CUT 0x200     /* the chain ended before an upper-layer header */
#define REMOVED 0x400 /* segmentation removes its first header, 8 bytes */

#define JUMBO 0xc2 /* option of RFC 2675 */

/* extensions walks the IPv6 extension headers (RFC 8200 section 4). They start
 * after the fixed header and end before end. */
static __always_inline struct chain extensions(struct packet *p, __u32 l3, __u32 end, __u8 proto)
{
	struct chain c = {.off = sizeof(struct ipv6), .proto = proto, .is = CUT};

	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		__u32 unit = 8, extra = 1;
		__u8 *header;

		switch (c.proto) {
		case 0: /* hop-by-hop */
		case 43: /* routing */
		case 44: /* fragment */
		case 60: /* destination */
		case 135: /* mobility */
		case 139: /* HIP */
		case 140: /* shim6 */
			break;
		case 51: /* authentication: its unit is 4 bytes (RFC 4302 section 2.2) */
			unit = 4;
			extra = 2;
			break;
		default:
			c.is &= ~CUT;
			return c;
		}
		if (c.off + 8 > end)
			return c;
		header = bytes(p, l3 + c.off, 8);
		if (!header)
			return c;
		/* BIG TCP marks more than 64 KiB of payload by this header. The kernel
		 * removes it when it segments the packet (ipv6_has_hopopt_jumbo). */
		if (!i && !c.proto && header[0] == PROTO_TCP && !header[1] && header[2] == JUMBO && end > 1 << 16)
			c.is |= REMOVED;
		if (c.proto == 44) {
			__u32 place = header[2] << 8 | header[3];

			c.proto = header[0];
			if (!(c.is & FRAGMENT) && place & ~6) /* including the more-fragments bit */
				c.is |= FRAGMENT | c.proto;
			c.off += 8;
			if (place & ~7)
				return c; /* not the first fragment */
		} else {
			c.proto = header[0];
			c.off += unit * (header[1] + extra);
		}
		FORGET(p, c.off);
	}
	return c;
}

/* The walk is a global function for each hook, so the verifier verifies it
 * once. Its result fits in a register. */

static __always_inline __u64 packed(struct chain c)
{
	return (__u64)c.off << 32 | c.is << 8 | c.proto;
}

__noinline __u64 skb_extensions(struct __sk_buff *skb, __u32 l3, __u32 end, __u32 proto)
{
	__u64 copy[MAX_READ / 8];
	struct packet p = {
		.source = FROM_SKB,
		.nothing = nothing,
		.ctx = skb,
		.data = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.copy = copy,
	};

	return packed(extensions(&p, l3, end, proto));
}

__noinline __u64 xdp_extensions(struct xdp_md *ctx, __u32 l3, __u32 end, __u32 proto)
{
	__u64 copy[MAX_READ / 8];
	struct packet p = {
		.source = FROM_XDP,
		.nothing = nothing,
		.ctx = ctx,
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
		.copy = copy,
	};

	return packed(extensions(&p, l3, end, proto));
}

__u64 frames_extensions(__u32 start, __u32 captured, __u32 l3, __u32 end, __u32 proto); /* walk.c */

/* parse_ipv6 reads the fixed header and the header after the extension headers.
 * If the chain is truncated, the packet has no ports. */
static __always_inline __u8 parse_ipv6(struct packet *p)
{
	struct ipv6 *ip = bytes(p, p->l3, sizeof(*ip));
	__u64 chain;

	if (!ip || bpf_ntohl(ip->flow) >> 28 != 6)
		return MALFORMED;
	trim(p, sizeof(*ip), sizeof(*ip) + bpf_ntohs(ip->payload));
	p->traffic_class = bpf_ntohl(ip->flow) >> 20;
	if (policy.reads & (1 << BY_SRC | 1 << BY_DST)) {
		p->src = addr128(ip->src);
		p->dst = addr128(ip->dst);
	}
	p->proto = ip->next;
	if (p->source == FROM_SKB)
		chain = skb_extensions(p->ctx, p->l3, p->l3_len, ip->next);
	else if (p->source == FROM_XDP)
		chain = xdp_extensions(p->ctx, p->l3, p->l3_len, ip->next);
	else
		chain = frames_extensions(p->start, p->captured, p->l3, p->l3_len, ip->next);
	p->proto = chain;
	p->fragment = chain >> 8 & 0x1ff;
	p->removed = chain & REMOVED << 8 ? 8 : 0;
	if (!(chain & CUT << 8))
		parse_ports(p, chain >> 32);
	return IPV6;
}

static __always_inline void parse(struct packet *p)
{
	__u32 link;

	p->kind = MALFORMED;
	parse_link(p);
	FORGET(p, p->l3);
	FORGET(p, p->kind);
	FORGET(p, p->tags);
	FORGET(p, p->mpls);
	FORGET(p, p->has_ethertype);
	FORGET(p, p->tag);
	FORGET(p, p->outside);
	link = p->l3 + 4 * p->outside;
	p->l3_len = p->wire > link ? p->wire - link : 0;
	if (p->kind == IPV4)
		p->kind = parse_ipv4(p);
	else if (p->kind == IPV6)
		p->kind = parse_ipv6(p);
	FORGET(p, p->kind);
	FORGET(p, p->proto);
	FORGET(p, p->has_ports);
	FORGET(p, p->removed);
}
