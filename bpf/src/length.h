/* SPDX-License-Identifier: Apache-2.0 */
/* The metered length of a packet. */
#pragma once

#include "parse.h"

/* compute_segments computes the segments into which the device or the stack will split
 * a packet: n packets, each with its own headers. */
static __always_inline void compute_segments(struct packet *p)
{
	struct __sk_buff *skb = p->ctx;
	__u32 size, n, len, headers, segment, wire;

	p->segments = 1;
	if (p->source != FROM_SKB || !skb->gso_size)
		return;
	size = skb->gso_size;
	n = skb->gso_segs;
	len = skb->len;
	headers = p->l4 + 8;
	if (p->proto == PROTO_TCP) {
		__u8 *offset = load_bytes(p, p->l4 + 12, 1);

		headers = p->l4 + (offset ? *offset >> 4 << 2 : 20);
	}
	if (headers >= len)
		return;
	if (!n) /* the sender did not set it */
		n = (len - headers + size - 1) / size;
	if (n < 2)
		return;
	/* At egress, the kernel has included the headers of all segments, also
	 * those inside a tunnel. */
	if (p->egress && skb->wire_len > len)
		headers = (skb->wire_len - len) / (n - 1);
	headers -= p->removed;
	segment = headers + size + 4 * p->outside;
	wire = len - p->removed + (n - 1) * headers + 4 * n * p->outside;
	if ((__u64)(n - 1) * segment >= wire)
		return; /* inconsistent */
	p->segments = n;
	p->segment = segment;
	p->wire = wire;
}

/* count_segments is compute_segments; the verifier merges all its paths. */
static __always_inline void count_segments(struct packet *p)
{
	compute_segments(p);
	if (p->source == FROM_SKB) {
		FORGET(p, p->segments);
		FORGET(p, p->segment);
		FORGET(p, p->wire);
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
