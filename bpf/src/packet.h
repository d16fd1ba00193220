/* SPDX-License-Identifier: Apache-2.0 */
/* A packet on its way through the program, and how its bytes are read and
 * written at each hook. */
#pragma once

#include "maps.h"

/* The source of a packet, a constant in each program. */
enum source { FROM_SKB, FROM_XDP, FROM_FRAMES };

enum link { LINK_ETHERNET = 1, LINK_RAW = 101, LINK_IPV4 = 228, LINK_IPV6 = 229 };

enum kind { MALFORMED, OTHER, IPV4, IPV6 };

#define FRAGMENT 0x100

/* headers are the fields of a packet by which it is classified, and where its headers
 * are. They are in memory, so the verifier does not follow the values of those that are
 * smaller than 8 bytes. */
struct headers {
	struct addr src, dst;
	__u32 mark, length; /* length: metered */
	__u32 l4;   /* offset of the transport header, 0: none found */
	__u32 mpls; /* offset of the top label stack entry, 0: none */
	__u32 customer; /* number of the packet's customer, from 1, 0: none */
	__u16 tci;  /* of the outer VLAN tag */
	__u16 ethertype, sport, dport;
	__u16 fragment; /* FRAGMENT | the protocol in all fragments of the packet, or 0 */
	__u8 kind;
	__u8 proto;
	__u8 tags;
	__u8 traffic_class; /* DSCP and ECN */
	__u8 has_ethertype;
	__u8 has_ports;
	__u8 removed; /* bytes of headers that its segments lack */
};

/* packet has the fields of dataplane.Packet, and those that only live packets have. */
struct packet {
	void *ctx;
	void *data, *end; /* linear bytes; FROM_FRAMES: of all frames */
	__u64 now;
	enum source source;
	__u32 egress;
	__u32 start;	/* FROM_FRAMES: offset of this packet */
	__u32 captured; /* number of readable bytes */
	__u32 wire;	/* bytes on the wire, of all segments */
	__u32 segments; /* number of segments */
	__u32 segment;	/* wire bytes of each segment except the last, if there are several */

	__u32 l3;     /* offset of the network header */
	__u32 l3_len; /* length of the network packet on the wire */
	__u16 link;
	__u8 outside; /* the outer VLAN tag is not among the bytes */
	__u32 sharer; /* interface whose maps are used */
	struct headers *h;

	__u32 customer; /* number of the customer that meters the packet, 0: none */
	__u8 cause;    /* reason of a drop */
	__u64 delay;    /* queueing delay, ns */
	__u64 nothing; /* 0, for FORGET */
	void *copy;    /* buffer of MAX_READ bytes for nonlinear data */
};

/* Limit of direct access, because the verifier has one. */
#define LINEAR 0xf000

/* The largest n for load_bytes: an IPv6 header. */
#define MAX_READ 40

#define FRAMES (1 << 20)

/* The bytes of the packets passed in, one after the other. */
struct frames {
	__u8 bytes[FRAMES];
};

/* load_bytes returns n bytes of the packet at off, or NULL if it ends before. */
static __always_inline void *load_bytes(struct packet *p, __u64 off, const __u32 n)
{
	void *at;

	if (p->source == FROM_FRAMES) {
		if (off > p->captured || n > p->captured - off)
			return NULL;
		off += p->start;
		HERE(off);
		if (off > FRAMES - MAX_READ)
			return NULL;
		return p->data + off;
	}
	HERE(off);
	if (off < LINEAR) {
		at = p->data + off;
		HERE(at);
		if (at + n <= p->end)
			return at;
	}
	if (p->source == FROM_SKB)
		return bpf_skb_load_bytes(p->ctx, off, p->copy, n) ? NULL : p->copy;
	return bpf_xdp_load_bytes(p->ctx, off, p->copy, n) ? NULL : p->copy;
}

/* FETCH copies a variable from the packet at off, and returns whether the packet has
 * all its bytes. Unlike the pointer of load_bytes, its value does not tell the
 * verifier the path by which it was read. */
#define FETCH(p, off, v)                                             \
	({                                                           \
		typeof(v) *_at = load_bytes((p), (off), sizeof(v));  \
		if (_at)                                             \
			(v) = *_at;                                  \
		_at != NULL;                                         \
	})

/* Always 0. The verifier does not know its value. */
static volatile __u64 nothing;

/* The packets of global functions, which the verifier verifies once. They only read
 * bytes of a packet. copy is their buffer. */

static __always_inline struct packet packet_of_skb(struct __sk_buff *skb, void *copy)
{
	return (struct packet){
		.source = FROM_SKB,
		.nothing = nothing,
		.ctx = skb,
		.data = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.copy = copy,
	};
}

static __always_inline struct packet packet_of_xdp(struct xdp_md *ctx, void *copy)
{
	return (struct packet){
		.source = FROM_XDP,
		.nothing = nothing,
		.ctx = ctx,
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
		.copy = copy,
	};
}

/* FORGET makes the verifier forget the value of a number, so that it merges the
 * states of all paths to this point. Otherwise it would follow each path to the
 * end. */
#define FORGET(p, x) ((x) += (p)->nothing)

/* reload_pointers finds the bytes of a packet again after the kernel may have moved them. */
static __always_inline void reload_pointers(struct packet *p)
{
	if (p->source == FROM_SKB) {
		struct __sk_buff *skb = p->ctx;

		p->data = (void *)(long)skb->data;
		p->end = (void *)(long)skb->data_end;
	}
}

/* store_bytes writes n bytes at off, after load_bytes has read them. Pointers that
 * load_bytes returned before are invalid afterwards. */
static __always_inline void store_bytes(struct packet *p, __u32 off, void *from, const __u32 n)
{
	void *at;

	if (p->source == FROM_SKB) {
		/* Keeps a CHECKSUM_COMPLETE checksum correct. */
		bpf_skb_store_bytes(p->ctx, off, from, n, BPF_F_RECOMPUTE_CSUM);
		reload_pointers(p);
		return;
	}
	at = load_bytes(p, off, n);
	if (!at)
		return;
	if (p->source == FROM_XDP && at == p->copy)
		bpf_xdp_store_bytes(p->ctx, off, from, n);
	else
		__builtin_memcpy(at, from, n);
}
