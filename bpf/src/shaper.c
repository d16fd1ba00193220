// SPDX-License-Identifier: Apache-2.0
/* The programs that meter live packets. A packet arrives at a known time, is
 * classified once, colored once, acted on once. */
#include "shape.h"

enum {
	TC_NEXT = -1, /* those behind us see it, too */
	TC_DROP = 2,
};

/* arrive fills in what does not come with the packet. Where packets are handed
 * in, a record stands for the clock and the wire; the link type stays the
 * interface's. */
static __always_inline struct record *arrive(struct packet *p)
{
	__u32 first = 0;
	struct record *r;

	p->link = policy.link;
	if (!policy.handed) {
		p->now = bpf_ktime_get_ns();
		return NULL;
	}
	r = bpf_map_lookup_elem(&records, &first);
	if (r) {
		p->now = r->time;
		p->wire = r->wire;
		p->mark = r->mark;
	}
	return r;
}

/* expired reports whether the policy has ended. It ends here, too, so that it
 * does even if no process of user space lives to remove it. */
static __always_inline int expired(__u64 now)
{
	__u32 first = 0;
	const __u64 *at = bpf_map_lookup_elem(&expiry, &first);

	return at && now > READ(*at) - 1; /* 0, never, becomes the largest number */
}

static __always_inline int shape_skb(struct __sk_buff *skb, const int egress)
{
	__u64 copy[MAX_READ / 8];
	struct packet p = {
		.copy = copy,
		.source = FROM_SKB,
		.egress = egress,
		.ctx = skb,
		.data = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.captured = skb->len,
		.wire = skb->len,
		.mark = skb->mark,
	};
	struct record *r;

	if (skb->vlan_present) {
		p.outside = 1;
		p.tags = 1;
		p.tci = skb->vlan_tci;
		p.wire += 4;
	}
	r = arrive(&p);
	if (expired(p.now))
		return TC_NEXT;
	/* A sender's priority selects no leaf of ours. */
	if (policy.pacer == HTB && skb->priority >> 16 == policy.major)
		skb->priority = 0;
	if (shape(&p, r))
		return TC_NEXT;
	/* TCP on this host hears at once of what is dropped here, has not lost it, and
	 * sends it again: with CoDel it then stays below the rate. What CoDel drops
	 * goes to no device instead, a loss as where a queue is served. */
	if (egress && p.cause == CAUSE_CODEL)
		return bpf_redirect(0, 0);
	return TC_DROP;
}

SEC("tc")
int shaper_egress(struct __sk_buff *skb)
{
	return shape_skb(skb, 1);
}

SEC("tc")
int shaper_ingress(struct __sk_buff *skb)
{
	return shape_skb(skb, 0);
}

SEC("xdp.frags")
int shaper_xdp(struct xdp_md *ctx)
{
	__u64 copy[MAX_READ / 8];
	struct packet p = {
		.copy = copy,
		.source = FROM_XDP,
		.ctx = ctx,
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
		.captured = bpf_xdp_get_buff_len(ctx),
	};
	struct record *r;

	p.wire = p.captured;
	r = arrive(&p);
	if (expired(p.now))
		return XDP_PASS;
	return shape(&p, r) ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Apache-2.0";
