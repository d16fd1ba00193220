/* SPDX-License-Identifier: Apache-2.0 */
/* The metered length of a packet. */
#pragma once

#include "parse.h"

/* segments_of computes the segments into which the device or the stack will split a
 * packet, each with its own headers. It returns their number in the upper half and the
 * length of each except the last in the lower half, or 0 for none. flags are the
 * packet's fields egress, in bit 0, and outside. */
__noinline __u64 segments_of(struct __sk_buff *skb, __u32 l4, __u32 proto, __u32 removed, __u32 flags)
{
	__u64 copy[MAX_READ / 8];
	struct packet p = packet_of_skb(skb, copy);
	__u32 size = skb->gso_size, n = skb->gso_segs, len = skb->len, headers = l4 + 8, tag = flags & 2 ? 4 : 0, segment, wire;
	__u8 offset;

	if (proto == PROTO_TCP)
		headers = l4 + (FETCH(&p, l4 + 12, offset) ? offset >> 4 << 2 : 20);
	if (headers >= len)
		return 0;
	if (!n && size) /* the sender did not set it */
		n = (len - headers + size - 1) / size;
	if (n < 2)
		return 0;
	/* At egress, the kernel has included the headers of all segments, also
	 * those inside a tunnel. */
	if (flags & 1 && skb->wire_len > len)
		headers = (skb->wire_len - len) / (n - 1);
	headers -= removed;
	segment = headers + size + tag;
	wire = len - removed + (n - 1) * headers + n * tag;
	if ((__u64)(n - 1) * segment >= wire)
		return 0; /* inconsistent */
	return (__u64)n << 32 | segment;
}

/* count_segments finds the segments of a packet and their total length. */
static __always_inline void count_segments(struct packet *p)
{
	struct __sk_buff *skb = p->ctx;
	__u64 split;

	if (p->source == FROM_FRAMES)
		return; /* step has set them */
	p->segments = 1;
	if (p->source != FROM_SKB || !skb->gso_size)
		return;
	split = segments_of(skb, p->h->l4, p->h->proto, p->h->removed, p->egress | p->outside << 1);
	if (split) {
		p->segments = split >> 32;
		p->segment = split;
		p->wire = skb->len - p->h->removed + (p->segments - 1) * (p->segment - skb->gso_size) + 4 * p->outside;
	}
}

/* frame_length is LengthRule.frameLength. */
static __always_inline __u64 frame_length(__u32 frame, __u32 l3_len)
{
	__s64 n = l3_len;

	if (policy.base == L2)
		n = frame;
	else if (policy.base == L1)
		n = (__s64)(frame > 60 ? frame : 60) + 24; /* FCS 4, preamble and start delimiter
							    * 8, gap 12 */
	n += policy.overhead;
	if (n < policy.mpu)
		n = policy.mpu;
	return n < 0 ? 0 : n;
}

/* metered_length returns the metered length of a packet, the sum over its segments,
 * limited to 32 bits. */
static __always_inline __u32 metered_length(const struct packet *p)
{
	__u32 link = p->l3 + 4 * p->outside, last;
	__u64 n;

	if (p->segments == 1) {
		n = frame_length(p->wire, p->l3_len);
	} else {
		last = p->wire - (p->segments - 1) * p->segment;
		n = (p->segments - 1) * frame_length(p->segment, p->segment - link) + frame_length(last, last - link);
	}
	return n >> 32 ? ~0U : n;
}
