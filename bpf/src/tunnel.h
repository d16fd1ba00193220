/* SPDX-License-Identifier: Apache-2.0 */
/* Tunnels over UDP: dataplane/tunnel.go in C. */
#pragma once

#include "headers.h"

enum {
	PORT_GTPU = 2152,
	PORT_VXLAN = 4789,
	PORT_GENEVE = 6081,
	PORT_VXLAN_OLD = 8472,

	TUNNEL_HEADERS = 16, /* of UDP and of the tunnel, without options */

	ETHER_BRIDGED = 0x6558,
	ANY_IP = 0x10000, /* in place of an EtherType: IPv4 or IPv6 */

	MAX_INNER_TAGS = 2,
	MAX_GTP_EXTENSIONS = 4,
};

/* tunnel is the header of VXLAN, GENEVE or GTP-U, without options, and the destination port of UDP. */
struct tunnel {
	__u32 port;
	union {
		struct {
			__u8 flags, message;
			__be16 type;
			__be32 id;
		};
		__u64 all;
	};
};

static __always_inline int is_vxlan(const struct tunnel *t)
{
	return (t->port == PORT_VXLAN || t->port == PORT_VXLAN_OLD) && t->flags & 0x08;
}

static __always_inline int is_geneve(const struct tunnel *t) { return t->port == PORT_GENEVE && !(t->flags >> 6); }
static __always_inline int is_gtpu(const struct tunnel *t)
{
	return t->port == PORT_GTPU && (t->flags & 0xf0) == 0x30;
}

/* read_tunnel reads the headers of UDP and of a tunnel at l4 in a packet that ends at end. It returns whether the
 * packet has them. */
static __always_inline int read_tunnel(struct packet *p, __u32 l4, __u32 end, struct tunnel *t)
{
	__be16 port;

	if (l4 + TUNNEL_HEADERS > end || !FETCH(p, l4 + 2, port) || !FETCH(p, l4 + 8, t->all))
		return 0;
	t->port = bpf_ntohs(port);
	return 1;
}

/* tunnel_of reads the tunnel of a parsed packet. */
static __always_inline int tunnel_of(struct packet *p, struct tunnel *t)
{
	return p->h->l4 && p->h->proto == PROTO_UDP && read_tunnel(p, p->h->l4, p->l3 + p->l3_len, t);
}

/* vni returns Packet.VNI, or NO_VALUE. */
static __always_inline __u64 vni(struct packet *p)
{
	struct tunnel t;

	if (!tunnel_of(p, &t) || !(is_vxlan(&t) || is_geneve(&t)))
		return NO_VALUE;
	return bpf_ntohl(t.id) >> 8;
}

/* teid returns Packet.TEID, or NO_VALUE. */
static __always_inline __u64 teid(struct packet *p)
{
	struct tunnel t;

	return tunnel_of(p, &t) && is_gtpu(&t) ? bpf_ntohl(t.id) : NO_VALUE;
}

/* after_gtp returns the end of the header of GTP-U and its extensions, whose optional part is at off, or 0. */
static __always_inline __u32 after_gtp(struct packet *p, __u32 off, __u32 end, __u8 flags)
{
	__u8 next, size;

	if (!(flags & 0x07))
		return off;
	if (off + 4 > end || !FETCH(p, off + 3, next))
		return 0;
	if (!(flags & 0x04))
		next = 0;
	off += 4;
	for (int i = 0; i < MAX_GTP_EXTENSIONS && next; i++) {
		FORGET(p, off);
		if (off >= end || !FETCH(p, off, size) || !size || off + 4 * size > end)
			return 0;
		off += 4 * size;
		if (!FETCH(p, off - 1, next))
			return 0;
	}
	return next ? 0 : off;
}

/* walk_tunnel returns the offset of the IP header in a tunnel whose UDP header is at l4, and its enum kind in
 * the upper half, or 0. */
static __always_inline __u64 walk_tunnel(struct packet *p, __u32 l4, __u32 end)
{
	struct tunnel t;
	__u32 off = l4 + TUNNEL_HEADERS, type;
	__u8 version;

	if (!read_tunnel(p, l4, end, &t))
		return 0;
	if (is_vxlan(&t)) {
		type = ETHER_BRIDGED;
	} else if (is_geneve(&t)) {
		type = bpf_ntohs(t.type);
		off += 4 * (t.flags & 0x3f);
	} else if (is_gtpu(&t) && t.message == 255) {
		type = ANY_IP;
		off = after_gtp(p, off, end, t.flags);
	} else {
		return 0;
	}
	FORGET(p, off);
	FORGET(p, type);
	if (type == ETHER_BRIDGED) {
		struct {
			__be16 tci, type;
		} tag;

		if (off + ETHER_HEADER > end || !FETCH(p, off + ETHER_HEADER - 2, tag.type))
			return 0;
		type = bpf_ntohs(tag.type);
		off += ETHER_HEADER;
		for (int i = 0; i < MAX_INNER_TAGS && (type == ETHER_VLAN || type == ETHER_QINQ); i++) {
			FORGET(p, off);
			if (off + 4 > end || !FETCH(p, off, tag))
				return 0;
			type = bpf_ntohs(tag.type);
			off += 4;
		}
		FORGET(p, off);
		FORGET(p, type);
	}
	if (!off || !FETCH(p, off, version))
		return 0;
	if (version >> 4 == 4 && off + sizeof(struct ipv4) <= end && (type == ETHER_IPV4 || type == ANY_IP))
		return (__u64)IPV4 << 32 | off;
	if (version >> 4 == 6 && off + sizeof(struct ipv6) <= end && (type == ETHER_IPV6 || type == ANY_IP))
		return (__u64)IPV6 << 32 | off;
	return 0;
}

/* The walk is a global function for each hook, like that of extension headers. */

__noinline __u64 skb_tunnel(struct __sk_buff *skb, __u32 l4, __u32 end)
{
	__u64 copy[MAX_READ / 8];
	struct packet p = packet_of_skb(skb, copy);

	return walk_tunnel(&p, l4, end);
}

__noinline __u64 xdp_tunnel(struct xdp_md *ctx, __u32 l4, __u32 end)
{
	__u64 copy[MAX_READ / 8];
	struct packet p = packet_of_xdp(ctx, copy);

	return walk_tunnel(&p, l4, end);
}

__u64 frames_tunnel(__u32 start, __u32 captured, __u32 l4, __u32 end); /* walk.c */

/* inner_header returns the result of walk_tunnel for a parsed packet. */
static __always_inline __u64 inner_header(struct packet *p)
{
	__u32 l4 = p->h->l4, end = p->l3 + p->l3_len;

	if (!l4 || p->h->proto != PROTO_UDP)
		return 0;
	if (p->source == FROM_SKB)
		return skb_tunnel(p->ctx, l4, end);
	if (p->source == FROM_XDP)
		return xdp_tunnel(p->ctx, l4, end);
	return frames_tunnel(p->start, p->captured, l4, end);
}
