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

/* is_extension reports whether a protocol is an extension header: hop-by-hop, routing,
 * fragment, authentication, destination, mobility, HIP or shim6. */
static __always_inline int is_extension(__u8 proto)
{
	const __u64 low = 1ULL << 0 | 1ULL << 43 | 1ULL << 44 | 1ULL << 51 | 1ULL << 60;
	const __u64 high = 1ULL << (135 - 128) | 1ULL << (139 - 128) | 1ULL << (140 - 128);
	__u64 set = proto & 0x80 ? high : low;

	return !(proto & 0x40) && set >> (proto & 0x3f) & 1;
}

/* extension is the start of an extension header. */
union extension {
	struct {
		__u8 next, size;
		__be16 place; /* of a fragment: offset and flags */
	};
	__u8 bytes[8];
	__u64 all;
};

/* walk_extensions walks the IPv6 extension headers (RFC 8200 section 4). They start
 * after the fixed header and end before end. */
static __always_inline struct chain walk_extensions(struct packet *p, __u32 l3, __u32 end, __u8 proto)
{
	struct chain c = {.off = sizeof(struct ipv6), .proto = proto, .is = CUT};

	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		union extension header;

		if (!is_extension(c.proto)) {
			c.is &= ~CUT;
			return c;
		}
		if (c.off + 8 > end || !FETCH(p, l3 + c.off, header.all))
			return c;
		/* BIG TCP marks more than 64 KiB of payload by this header. The kernel
		 * removes it when it segments the packet (ipv6_has_hopopt_jumbo). */
		if (!i && !c.proto && header.next == PROTO_TCP && !header.size && header.bytes[2] == JUMBO && end > 1 << 16)
			c.is |= REMOVED;
		if (c.proto == 44) {
			__u32 place = bpf_ntohs(header.place);

			c.proto = header.next;
			if (!(c.is & FRAGMENT) && place & ~6) /* including the more-fragments bit */
				c.is |= FRAGMENT | c.proto;
			c.off += 8;
			if (place & ~7)
				return c; /* not the first fragment */
		} else {
			/* The unit of authentication is 4 bytes (RFC 4302 section 2.2). */
			c.off += c.proto == 51 ? 4 * (header.size + 2) : 8 * (header.size + 1);
			c.proto = header.next;
		}
		FORGET(p, c.off);
		FORGET(p, c.is);
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
	struct packet p = packet_of_skb(skb, copy);

	return pack_chain(walk_extensions(&p, l3, end, proto));
}

__noinline __u64 xdp_extensions(struct xdp_md *ctx, __u32 l3, __u32 end, __u32 proto)
{
	__u64 copy[MAX_READ / 8];
	struct packet p = packet_of_xdp(ctx, copy);

	return pack_chain(walk_extensions(&p, l3, end, proto));
}

__u64 frames_extensions(__u32 start, __u32 captured, __u32 l3, __u32 end, __u32 proto); /* walk.c */
