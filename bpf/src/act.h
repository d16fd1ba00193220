/* SPDX-License-Identifier: Apache-2.0 */
/* Actions: marks, as in marker/, and counts. */
#pragma once

#include "customer.h"
#include "parse.h"
#include "queue.h"
#include "refund_chain.h"

#define VLAN_DEI 0x1000
#define VLAN_PCP_SHIFT 13

/* set_tos writes the second byte of an IPv4 header and updates the checksum by
 * RFC 1624 section 3, equation 3: HC' = ~(~HC + ~m + m'). */
static __always_inline void set_tos(struct packet *p, __u8 tos)
{
	/* The bytes up to the checksum. Writing all of them keeps the sum over the
	 * packet, which CHECKSUM_COMPLETE relies on. */
	struct {
		__u8 version_size, tos;
		__be16 words[4];
		__be16 checksum;
	} head, *old = load_bytes(p, p->l3, sizeof(head));
	__u32 sum;

	if (!old)
		return;
	head = *old;
	head.tos = tos;
	sum = (__u16)~bpf_ntohs(old->checksum);
	sum += (__u16) ~(old->version_size << 8 | old->tos);
	sum += head.version_size << 8 | head.tos;
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	head.checksum = bpf_htons(~sum);
	store_bytes(p, p->l3, &head, sizeof(head));
}

/* set_traffic_class writes the field of an IPv6 header that spans its first two
 * bytes, between version and flow label. */
static __always_inline void set_traffic_class(struct packet *p, __u8 tc)
{
	__be32 *old = load_bytes(p, p->l3, 4), new;

	if (!old)
		return;
	new = bpf_htonl((bpf_ntohl(*old) & 0xf00fffff) | (__u32)tc << 20);
	store_bytes(p, p->l3, &new, sizeof(new));
}

/* set_tci writes the outer VLAN tag, which the kernel may store outside of the packet. */
static __always_inline void set_tci(struct packet *p, __u16 tci)
{
	__be16 new = bpf_htons(tci);

	if (p->source == FROM_SKB && p->outside) {
		struct __sk_buff *skb = p->ctx;
		__be16 proto = skb->vlan_proto;

		bpf_skb_vlan_pop(skb);
		bpf_skb_vlan_push(skb, proto, tci);
		reload_pointers(p);
		return;
	}
	store_bytes(p, ETHER_HEADER, &new, sizeof(new));
}

static __always_inline void set_tc(struct packet *p, __u8 tc)
{
	__u8 *entry = load_bytes(p, p->h->mpls, 4), new;

	if (!entry)
		return;
	new = (entry[2] & ~0x0e) | tc << 1;
	store_bytes(p, p->h->mpls + 2, &new, sizeof(new));
}

static __always_inline void add_count(struct count *c, __u32 packets, __u32 bytes)
{
	c->packets += packets;
	c->bytes += bytes;
}

/* write_marks writes the marks of an action to the fields that the packet has, and
 * returns MARKED if there was any. */
static __always_inline __u8 write_marks(struct packet *p, const struct action *a, __u8 tos)
{
	__u8 ip = p->h->kind >= IPV4, done = 0;
	__u16 tci = p->h->tci;

	if (policy.marks & (1 << MPLS_TC) && a->marks & (1 << MPLS_TC) && p->h->mpls) {
		done = MARKED;
		if (!policy.dry)
			set_tc(p, a->tc);
	}
	if (policy.marks & (1 << DSCP) && a->marks & (1 << DSCP) && ip) {
		done = MARKED;
		tos = a->dscp << 2 | (tos & 3);
	}
	if (tos != p->h->traffic_class && !policy.dry) {
		if (p->h->kind == IPV4)
			set_tos(p, tos);
		else
			set_traffic_class(p, tos);
	}
	p->h->traffic_class = tos;
	if (policy.marks & (1 << PCP | 1 << DEI) && a->marks & (1 << PCP | 1 << DEI) && p->h->tags) {
		done = MARKED;
		if (a->marks & (1 << PCP))
			tci = (tci & 0x1fff) | a->pcp << VLAN_PCP_SHIFT;
		if (a->marks & (1 << DEI))
			tci = (tci & ~VLAN_DEI) | (a->dei ? VLAN_DEI : 0);
		if (tci != p->h->tci && !policy.dry)
			set_tci(p, tci);
	}
	if (policy.marks & (1 << SKB_MARK) && a->marks & (1 << SKB_MARK)) {
		done = MARKED;
		p->h->mark = a->mark;
		if (p->source == FROM_SKB && !policy.dry) {
			struct __sk_buff *skb = p->ctx;

			skb->mark = a->mark;
		}
	}
	return done;
}

/* count_drop counts a dropped packet. */
static __always_inline __u8 count_drop(struct packet *p, struct counts *counts, __u64 color, __u8 cause, __u32 n)
{
	p->cause = cause;
	if (policy.customers && p->customer)
		count_customer_drop(p->customer, p->segments, n);
	add_count(&counts->drops[color][cause], p->segments, n);
	return 0;
}

/* enqueue adds the packet to a queue, and returns its fate. */
static __always_inline __u32 enqueue(struct packet *p, __u32 i, __u64 color, __u8 tos, __u32 n)
{
	const struct queue *q = OWN(queues, p->sharer, &i);
	__u64 out;

	if (!q)
		return FULL;
	out = ADMIT;
	if (!q->linked)
		out = admit(FOR(p->sharer, i), p->now, size_of(p, n), color, p->h->kind >= IPV4 && tos & 3);
	FORGET(p, out);
	if ((out & 7) < ADMIT)
		return out & 7;
	p->delay = out >> 3;
	if (!policy.dry)
		set_departure(p, leaf_of_queue(p, q, n), p->now + p->delay);
	return out & 7;
}

/* enqueue_customer is enqueue for the queue of the packet's customer. */
static __always_inline __u32 enqueue_customer(struct packet *p, __u8 tos, __u32 n)
{
	__u64 out = admit_customer(p->customer, p->now, n, p->segments, p->h->kind >= IPV4 && tos & 3 ? CAPABLE : 0);

	FORGET(p, out);
	if ((out & 7) < ADMIT)
		return out & 7;
	p->delay = out >> 3;
	if (!policy.dry)
		set_departure(p, policy.pacer == HTB ? leaf_of_customer(p->customer) : 0, p->now + p->delay);
	return out & 7;
}

/* try_customer is enqueue_customer before the meters: the packet's fate, which is final if it
 * is a drop. */
static __always_inline __u32 try_customer(struct packet *p, __u32 n)
{
	__u8 capable = p->h->kind >= IPV4 && p->h->traffic_class & 3 ? CAPABLE : 0;

	return admit_customer(p->customer, p->now, n, p->segments, capable | TRY) & 7;
}

/* act applies the class's action for the packet's color, and counts it. fate is that of
 * try_customer. */
static __always_inline __u8 act(struct packet *p, const struct class *class, const struct metered *m, __u32 fate, __u32 n)
{
	__u64 color = m->color;
	__u32 slot = class->slot;
	struct counts *counts = OWN(counters, p->sharer, &slot);
	const struct action *a;
	struct action own;
	__u8 tos = p->h->traffic_class, done = PASS;
	__u32 segments = p->segments, paced = 0;

	HERE(color);
	if (!counts || color > RED)
		return PASS;
	a = &class->actions[color];
	if (policy.customers && p->customer) {
		own = *a;
		paced = act_of_customer(p->customer, color, segments, n, &own);
		a = &own;
	}
	add_count(&counts->colors[color], segments, n);
	if (policy.paced && fate < ADMIT)
		return count_drop(p, counts, color, CAUSE_QUEUE + fate, n);
	if (a->drop)
		return count_drop(p, counts, color, CAUSE_COLOR, n);
	if (policy.ecn && a->ecn) {
		if (p->h->kind >= IPV4 && tos & 3) {
			tos |= 3;
			done |= ECN_SET;
		} else if (a->ecn == CE_OR_DROP) {
			return count_drop(p, counts, color, CAUSE_ECN, n);
		}
	}
	if ((policy.paced && paced) || (policy.queues && a->queue >= 0)) {
		fate = policy.paced && paced ? enqueue_customer(p, tos, n) : enqueue(p, a->queue, color, tos, n);
		if (fate < ADMIT) {
			if (class->stage >= 0)
				give_back(FOR(p->sharer, class->stage), p->now, (__u64)segments << 32 | n, m->taken, p->customer);
			return count_drop(p, counts, color, CAUSE_QUEUE + fate, n);
		}
		if (fate == ADMIT_CE) {
			tos |= 3;
			done |= ECN_SET;
		}
		done |= QUEUED;
		FORGET(p, tos);
		FORGET(p, done);
		add_count(&counts->queued[color], segments, n);
	}
	if (a->marks || done & ECN_SET)
		done |= write_marks(p, a, tos);
	FORGET(p, done);
	if (done & MARKED)
		add_count(&counts->marked[color], segments, n);
	if (done & ECN_SET)
		add_count(&counts->ce[color], segments, n);
	return done;
}
