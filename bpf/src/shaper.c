// SPDX-License-Identifier: Apache-2.0
/* The programs that meter live packets. A packet arrives at a known time, is
 * classified once, colored once, acted on once. */
#include "shape.h"

enum {
	TC_NEXT = -1, /* continue with the next program */
	TC_DROP = 2,
};

/* init_packet sets the fields that are not in the context. If records are used, the
 * record has the time and the length; the link type is still the interface's. */
static __always_inline struct record *init_packet(struct packet *p)
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
		p->h->mark = r->mark;
	}
	return r;
}

/* policy_expired reports whether the policy has expired. The program checks it, so
 * that a policy ends even if no user-space process is left to remove it. */
static __always_inline int policy_expired(const struct packet *p)
{
	__u32 first = 0;
	const __u64 *at = OWN(expiry, p->sharer, &first);

	return at && p->now > READ(*at) - 1; /* 0, never, becomes the largest number */
}

static __always_inline int shape_skb(struct __sk_buff *skb, const int egress)
{
	__u64 copy[MAX_READ / 8];
	struct headers h = {.mark = skb->mark};
	struct packet p = {
		.h = &h,
		.copy = copy,
		.source = FROM_SKB,
		.egress = egress,
		.ctx = skb,
		.data = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.captured = skb->len,
		.wire = skb->len,
		.sharer = SHARER_OF(skb->ifindex),
	};
	struct record *r;

	if (skb->vlan_present) {
		p.outside = 1;
		h.tags = 1;
		h.tci = skb->vlan_tci;
		p.wire += 4;
	}
	r = init_packet(&p);
	if (policy_expired(&p))
		return TC_NEXT;
	/* A sender's priority must not select one of our leaves. */
	if (policy.pacer == HTB && skb->priority >> 16 == policy.major)
		skb->priority = 0;
	if (shape(&p, r))
		return TC_NEXT;
	/* TCP on this host notices a drop at this point at once, does not count it
	 * as a loss, and retransmits; with CoDel it would then stay below the rate.
	 * So packets dropped by CoDel are redirected to no device, which TCP sees
	 * as a loss. */
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
	struct headers h = {};
	struct packet p = {
		.h = &h,
		.copy = copy,
		.source = FROM_XDP,
		.ctx = ctx,
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
		.captured = bpf_xdp_get_buff_len(ctx),
		.sharer = SHARER_OF(ctx->ingress_ifindex),
	};
	struct record *r;

	p.wire = p.captured;
	r = init_packet(&p);
	if (policy_expired(&p))
		return XDP_PASS;
	return shape(&p, r) ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Apache-2.0";
