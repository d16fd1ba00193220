/* SPDX-License-Identifier: Apache-2.0 */
/* Leaky buckets as queues: queue/leaky.go and queue/early.go in C, for any number of
 * CPUs at once.
 *
 * The program decides the departure time of each packet, and which packets are dropped.
 * The kernel holds a packet until it departs. The backlog follows from departure times:
 * a packet has departed when its time has passed. A decision is made under the queue's
 * lock, except for counting the backlog, which accesses other maps. If several CPUs
 * enqueue at the same moment, the count may miss one packet of each of the others. It never
 * has too many. */
#pragma once

#include "packet.h"

#define LOG_CAPACITY 16 /* of the maximum number of packets counted in a queue */
#define GOLDEN 0x9e3779b97f4a7c15ULL

/* backlog_count is the backlog in front of a packet. */
struct backlog_count {
	__u64 packets;
	__u64 bytes;
	__u64 end; /* of the ring when it was counted */
};

/* count_backlog counts the backlog. It finds the first packet that has not
 * departed by binary search, because departures are in order.
 *
 * Other CPUs may enqueue meanwhile. An entry, and the counts with it, are complete before the ring ends behind it.
 * The ring has more entries than the queue holds packets, so a counted entry is overwritten only after the end has
 * moved by as many. Then none are counted: other packets were admitted just now. So are none if the entry is newer
 * than the counts, as one that user space copied later may be. */
static __always_inline struct backlog_count count_backlog(__u32 sharer, const struct queue *q, struct backlog *b, __u64 now)
{
	__u64 end = READ_FENCED(b->end), bytes = READ(b->bytes), packets = READ(b->packets), low, high = end;
	struct backlog_count out = {.end = end}, none = out;
	struct departure *w;
	__u32 i;

	low = end > q->capacity ? end - q->capacity : 0;
	for (int k = 0; k <= LOG_CAPACITY && low < high; k++) {
		__u64 middle = low + (high - low) / 2;

		i = q->ring + (middle & q->mask);
		w = OWN(waiting, sharer, &i);
		if (!w)
			return none;
		if ((__s64)(READ(w->at) - now) > 0)
			high = middle;
		else
			low = middle + 1;
	}
	if (low >= end)
		return none;
	i = q->ring + (low & q->mask);
	w = OWN(waiting, sharer, &i);
	if (!w)
		return none;
	out.packets = packets - READ(w->packets);
	out.bytes = bytes - READ(w->before);
	return (__s64)out.packets >= 0 && READ_FENCED(b->end) - end <= q->mask - q->capacity ? out : none;
}

/* random24 returns 24 random bits: SplitMix64. */
static __always_inline __u64 random24(const struct queue *q, struct backlog *b)
{
	__u64 z = q->seed + ++b->drawn * GOLDEN;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return (z ^ z >> 31) >> 40;
}

/* square_root returns the square root of n < 2^63, rounded down, computed bit by bit. */
static __always_inline __u64 square_root(__u64 n)
{
	__u64 root = 0;

	for (__u64 bit = 1ULL << 62; bit; bit >>= 2) {
		__u64 less = (__s64)(n - root - bit) >> 63; /* all ones if n < root + bit */

		n -= (root + bit) & ~less;
		root = (root >> 1) + (bit & ~less);
	}
	return root;
}

/* saturated returns count + packets, or the largest count. */
static __always_inline __u32 saturated(__u64 count, __u32 packets)
{
	count += packets;
	return count >> 32 ? ~0U : count;
}

/* codel_drops returns whether a packet that departs at now after a delay is to be
 * dropped or marked. packets is the number of packets as which it leaves. */
static __always_inline __u32 codel_drops(const struct queue *q, struct backlog *b, __u64 now, __u64 delay, __u32 packets)
{
	__u32 again;

	if (!q->target)
		return 0;
	if (delay < q->target || !b->above) {
		b->above = delay >= q->target;
		b->first_above = now + q->interval;
		b->dropping = 0;
		return 0;
	}
	if ((__s64)(now - b->first_above) < 0) {
		b->dropping = 0;
		return 0;
	}
	if (b->dropping) {
		if ((__s64)(now - b->drop_next) < 0)
			return 0;
		b->count = saturated(b->count, packets);
		now = b->drop_next;
	} else {
		again = b->count - b->last_count;
		if (again <= 1 || (__s64)(now - b->drop_next) >= (__s64)(16 * q->interval))
			again = 1;
		b->count = saturated(again, packets - 1);
		b->last_count = again;
		b->dropping = 1;
	}
	b->drop_next = now + packets * square_root(q->interval * q->interval / b->count);
	return 1;
}

/* wred_fate returns the fate that WRED decides for a packet that arrives at a backlog. */
static __always_inline __u32 wred_fate(const struct queue *q, struct backlog *b, __u64 color, __u64 behind)
{
	const struct early *e;

	HERE(color); /* before Linux 6.8 the verifier forgets the bound of a copy */
	if (color > RED)
		return FULL;
	e = &q->wred[color];
	if (!e->max || behind < e->min)
		return ADMIT;
	if (behind >= e->max)
		return THIN;
	if (random24(q, b) * (e->max - e->min) >= e->probability * (behind - e->min))
		return ADMIT;
	return q->ecn ? ADMIT_CE : THIN;
}

/* pace_packet is queue.Leaky.Admit for a queue with a backlog; without commit, an admitted
 * packet takes no time. It returns the fate in the low 3 bits, and the packet's queueing delay
 * in ns above them. entry is the packet's place in the ring if the queue counts its packets. If
 * another CPU has taken it since the backlog was counted, the packet has no entry: it counts as
 * departing with the packet before it. The caller holds the lock. */
static __always_inline __u64 pace_packet(const struct queue *q, struct backlog *b, const struct backlog_count *before, struct departure *entry,
				  __u64 now, __u32 n, __u32 packets, __u32 color, __u32 capable, __u32 commit)
{
	__u64 next, frac, delay, at;
	__u32 fate, version = READ(q->version);
	const struct pace *pace = &q->paces[version & 1];

	next = b->next;
	frac = b->frac;
	if (b->version != version) { /* free when it would have been free at the previous rate */
		next += frac > 0;
		frac = 0;
	}
	if (!b->begun || (__s64)(next - now) < 0) {
		next = now;
		frac = 0;
	}
	at = next + (frac > 0);
	delay = at - now;
	fate = FULL;
	if (q->time && delay > q->time)
		goto out;
	fate = wred_fate(q, b, color, q->axis == BY_TIME ? delay : q->axis == BY_BYTES ? before->bytes : before->packets);
	if (fate == ADMIT_CE && !capable)
		fate = THIN;
	if (fate >= ADMIT && codel_drops(q, b, at, delay, packets))
		fate = q->ecn && capable ? ADMIT_CE : STALE;
	if (fate < ADMIT || !commit)
		goto out;
	frac += n * pace->rest;
	b->next = next + n * pace->ns + frac / pace->den;
	b->frac = frac % pace->den;
	b->version = version;
	b->begun = 1;
	if (entry && q->capacity && delay) {
		int own = b->end == before->end;

		if (own) {
			WRITE(entry->at, at);
			WRITE(entry->before, b->bytes);
			WRITE(entry->packets, b->packets);
		}
		WRITE(b->bytes, b->bytes + n);
		WRITE(b->packets, b->packets + packets);
		WRITE_FENCED(b->end, b->end + own);
	}
out:
	return delay << 3 | fate;
}

/* size_of returns the length of a packet, and the number of packets as which it leaves, as
 * one argument for admit: a global function has at most five. */
static __always_inline __u64 size_of(const struct packet *p, __u32 n)
{
	return (__u64)p->segments << 32 | n;
}

/* admit decides about a packet of a size for a queue of the policy, as pace_packet.
 *
 * It is a global function, so the verifier verifies it once. */
__noinline __u64 admit(__u32 index, __u64 now, __u64 size, __u32 color, __u32 capable)
{
	__u32 n = size, packets = size >> 32, at = NUMBER(index), sharer = SHARER(index);
	const struct queue *q = OWN(queues, sharer, &at);
	struct backlog_count before = {};
	struct departure *entry;
	struct backlog *b;
	__u64 out;
	__u32 i;

	if (!q || color > RED)
		return FULL;
	b = OWN(backlogs, sharer, &q->slot);
	if (!b)
		return FULL;
	if (n > MAX_LENGTH)
		n = MAX_LENGTH;
	if (q->capacity) {
		before = count_backlog(sharer, q, b, now);
		if (before.packets + packets > q->capacity || (q->bytes && before.bytes + n > q->bytes))
			return FULL;
	}
	i = q->ring + (before.end & q->mask);
	entry = OWN(waiting, sharer, &i);
	if (!entry)
		return FULL;
	bpf_spin_lock(&b->lock);
	out = pace_packet(q, b, &before, entry, now, n, packets, color, capable, 1);
	bpf_spin_unlock(&b->lock);
	return out;
}

#define CAPABLE 1 /* the packet is ECN-capable */
#define TRY 2	  /* something else may still drop the packet */

/* admit_customer is admit for the queue of a customer, by its number; with TRY it is
 * queue.Leaky.Try. A customer with a meter admits everything, as one that gets another plan at
 * this moment does, and one with a leaf of HTB, which decides later. The queue has no WRED, so
 * the color does not matter. */
__noinline __u64 admit_customer(__u32 number, __u64 now, __u32 n, __u32 packets, __u32 flags)
{
	struct backlog_count before = {};
	__u32 slot = number - 1, plan, count, last_count;
	struct customer *c = bpf_map_lookup_elem(&customers, &slot);
	struct backlog *b = (struct backlog *)c;
	__u64 out = ADMIT, first_above, drop_next;
	__u8 above, dropping;
	const struct plan *m;

	if (!c)
		return FULL;
	plan = READ(c->plan);
	m = bpf_map_lookup_elem(&plans, &plan);
	if (!m)
		return FULL;
	if (!m->paced || m->queue.linked)
		return ADMIT;
	if (n > MAX_LENGTH)
		n = MAX_LENGTH;
	bpf_spin_lock(&c->lock);
	if (c->plan == plan) {
		first_above = b->first_above;
		drop_next = b->drop_next;
		count = b->count;
		last_count = b->last_count;
		above = b->above;
		dropping = b->dropping;
		out = pace_packet(&m->queue, b, &before, NULL, now, n, packets, GREEN, flags & CAPABLE, !(flags & TRY));
		if (flags & TRY && (out & 7) >= ADMIT) {
			b->first_above = first_above;
			b->drop_next = drop_next;
			b->count = count;
			b->last_count = last_count;
			b->above = above;
			b->dropping = dropping;
		}
	}
	bpf_spin_unlock(&c->lock);
	return out;
}

#define FLOW_HOLD 1000000000 /* ns for which a flow stays in its own leaf */
#define FLOW_QUANTUM 1514    /* bytes that a flow may send at once beyond its part of the rate */

/* flow_leaf returns the ID of the HTB leaf for a packet of a queue with leaves for flows. A
 * flow that sends less than its part of the rate, and had no packet in its own leaf for so
 * long that they have left it, uses the queue's leaf, which is sent first. */
static __always_inline __u32 flow_leaf(struct packet *p, const struct queue *q, __u32 n)
{
	__u32 number = bpf_get_hash_recalc(p->ctx) & (q->flows - 1);
	__u32 i = q->flows_slot * q->flows + number;
	struct flow *f = OWN(flows, p->sharer, &i);
	__u64 pace = q->paces[READ(q->version) & 1].ns, used, now = p->now;

	if (!f)
		return q->class_id;
	used = READ(f->used);
	if ((__s64)(used - now) < 0)
		used = now;
	if ((__s64)(now - READ(f->held)) > FLOW_HOLD && used - now <= pace * FLOW_QUANTUM) {
		f->used = used + pace * n;
		return q->class_id;
	}
	f->held = now;
	return q->flows_id + number;
}

/* leaf_of_queue returns the ID of the HTB leaf for a packet of a queue. */
static __always_inline __u32 leaf_of_queue(struct packet *p, const struct queue *q, __u32 n)
{
	if (policy.spread && p->source == FROM_SKB && q->flows)
		return flow_leaf(p, q, n);
	return q->class_id;
}

/* leaf_of_customer returns the ID of the HTB leaf of a customer, by its number. */
__noinline __u32 leaf_of_customer(__u32 number)
{
	__u32 slot = number - 1;
	struct customer *c = bpf_map_lookup_elem(&customers, &slot);

	return c ? READ(c->class_id) : 0;
}

/* set_departure makes the kernel hold a packet until it departs: by its time, for fq, or
 * in an HTB leaf with the rate. */
static __always_inline void set_departure(struct packet *p, __u32 leaf, __u64 at)
{
	struct __sk_buff *skb = p->ctx;

	if (p->source != FROM_SKB)
		return;
	if (policy.pacer == HTB)
		skb->priority = leaf;
	/* A later time set by the sender is kept, but a distant one is on another clock. */
	else if (policy.pacer == FQ && skb->tstamp - at > MAX_AHEAD &&
		 bpf_skb_set_tstamp(skb, at, BPF_SKB_TSTAMP_DELIVERY_MONO))
		skb->tstamp = at; /* for non-IP packets; for others the kernel must know that it is
				   * a delivery time */
}
