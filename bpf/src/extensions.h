/* SPDX-License-Identifier: Apache-2.0 */
/* IPv6 extension headers. */
#pragma once

#include "headers.h"

/* chain is the end of a chain of extension headers. */
struct chain {
	__u32 off; /* offset in the network packet */
	__u8 proto;
	__u32 is; /* fragment, as in struct packet, with the flags below */
};

#define CUT 0x200     /* the chain ended before an upper-layer header */
#define REMOVED 0x400 /* segmentation removes its first header, 8 bytes */

#define JUMBO 0xc2 /* option of RFC 2675 */

/* walk_extensions walks the IPv6 extension headers (RFC 8200 section 4). They start
 * after the fixed header and end before end. */
static __always_inline struct chain walk_extensions(struct packet *p, __u32 l3, __u32 end, __u8 proto)
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
		header = load_bytes(p, l3 + c.off, 8);
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

static __always_inline __u64 pack_chain(struct chain c)
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

	return pack_chain(walk_extensions(&p, l3, end, proto));
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

	return pack_chain(walk_extensions(&p, l3, end, proto));
}

__u64 frames_extensions(__u32 start, __u32 captured, __u32 l3, __u32 end, __u32 proto); /* walk.c */
