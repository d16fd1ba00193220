/* SPDX-License-Identifier: Apache-2.0 */
/* A packet through a chain of meters. The state of each is its own, that of the
 * packet's key, or a budget. */
#pragma once

#include "customer.h"
#include "lease.h"
#include "note.h"
#include "packet.h"

#define NO_ROOM 3 /* not a color */

/* color_of_budget is color_of for a budget. */
__noinline __u32 color_of_budget(__u32 slot, __u64 now, __u32 n, __u32 in)
{
	return in >= RED ? RED : budget_color(slot, now, n, in);
}

/* pass_lease starts the phases of a lease that have begun by now. It is a
 * separate function because the stack of color_of_lease is full. */
__noinline int pass_lease(__u32 slot, __u64 now)
{
	struct leased *l = bpf_map_lookup_elem(&leases, &slot);
	struct words w;

	if (!l || !phase_ended(l, now))
		return 0;
	bpf_spin_lock(&l->lock);
	w.c = l->word[0];
	w.e = l->word[1];
	w.stamp = l->stamp;
	start_due_phases(l, &w, now);
	l->word[0] = w.c;
	l->word[1] = w.e;
	l->stamp = w.stamp;
	bpf_spin_unlock(&l->lock);
	return 0;
}

/* color_of_lease is color_of for a meter with a lease, after pass_lease. */
__noinline __u32 color_of_lease(__u32 slot, __u64 now, __u32 n, __u32 in)
{
	struct leased *l = bpf_map_lookup_elem(&leases, &slot);
	const struct profile *m;
	__u32 phase, color = RED;
	struct words w;

	if (!l)
		return RED;
	bpf_spin_lock(&l->lock);
	phase = l->phase;
	if (phase < PHASES && !phase_ended(l, now)) { /* a new lease may have been set since pass_lease */
		m = &l->phases[phase];
		if (m->buckets[0].den) {
			w.c = l->word[0];
			w.e = l->word[1];
			w.stamp = l->stamp;
			color = bucket_color(NULL, NULL, NULL, &w, m, now, n, in);
			l->word[0] = w.c;
			l->word[1] = w.e;
			l->stamp = w.stamp;
		}
	}
	l->asked[color & 3] += n;
	bpf_spin_unlock(&l->lock);
	return color;
}

/* color_of is meter.Meter.Color.
 *
 * It is a global function, so the verifier verifies it once. */
__noinline __u32 color_of(__u32 stage, __u64 now, __u32 n, __u32 in)
{
	__u32 i = NUMBER(stage);
	const struct stage *m = bpf_map_lookup_elem(&stages, &i);
	struct state *s;

	/* Red takes nothing. With records, it starts a meter's clock. */
	if (!m || (in >= RED && !policy.handed))
		return RED;
	s = OWN(states, SHARER(stage), &m->slot);
	if (!s)
		return RED;
	if (policy.rules & BY_WINDOW && m->profile.window)
		return window_color_locked(s, &s->lock, &m->profile, now, n, in);
	if (policy.rules & BY_PEAK && m->profile.peak)
		return color_by(1, s, NULL, &s->lock, NULL, &m->profile, now, n, in);
	if (policy.rules & BY_BUCKET)
		return color_by(0, s, NULL, &s->lock, NULL, &m->profile, now, n, in);
	return RED; /* never */
}

#define SPINS 256
#define TAGGED 0x8000 /* a bit outside of VLAN IDs */

/* note_key stores the fields that keys consist of. It runs before the packet is
 * classified, because its addresses are not needed after that. */
static __always_inline void note_key(struct packet *p)
{
	__u32 first = 0;
	struct scratch *x = bpf_map_lookup_elem(&scratch, &first);

	if (!x)
		return;
	x->packet.src = p->h->src;
	x->packet.dst = p->h->dst;
	/* All fragments of a packet have the same key. */
	x->packet.sport = p->h->fragment ? 0 : p->h->sport;
	x->packet.dport = p->h->fragment ? 0 : p->h->dport;
	x->packet.vlan = (p->h->tci & 0x0fff) | (p->h->tags ? TAGGED : 0);
	x->packet.tag = (p->h->traffic_class & 0xfc) | p->h->kind;
	x->packet.proto = p->h->fragment ? p->h->fragment : p->h->proto;
}

/* key_of makes the packet's key, or returns 0 if it has none. */
static __always_inline __u32 key_of(struct scratch *x, const struct stage *m)
{
	__u32 kind = x->packet.tag & 3;
	const struct key *mask = &m->mask[kind == IPV6];

	x->key.src.hi = x->packet.src.hi & mask->src.hi;
	x->key.src.lo = x->packet.src.lo & mask->src.lo;
	x->key.dst.hi = x->packet.dst.hi & mask->dst.hi;
	x->key.dst.lo = x->packet.dst.lo & mask->dst.lo;
	x->key.sport = x->packet.sport & mask->sport;
	x->key.dport = x->packet.dport & mask->dport;
	x->key.vlan = x->packet.vlan & mask->vlan;
	x->key.tag = x->packet.tag & mask->tag;
	x->key.proto = x->packet.proto & mask->proto;
	if (policy.key_by) {
		__u32 by = m->by & (KEYS_BY - 1);

		HERE(by);
		if (by != BY_FIELDS) {
			x->key.src.lo = x->key_by[by];
			return x->key.src.lo != NO_VALUE;
		}
	}
	return m->tagged ? x->packet.vlan & TAGGED : kind >= IPV4;
}

/* key_state_of returns the state of a key. It creates the state if the key is new. */
static __always_inline struct key_state *key_state_of(void *table, struct scratch *x, const struct stage *m, __u64 now)
{
	struct key_state *s = bpf_map_lookup_elem(table, &x->key);

	if (s)
		return s;
	if (m->profile.window) {
		x->fresh.stamp = window_start(now, m->profile.window);
		x->fresh.word[0] = m->empty ? m->profile.buckets[0].size : 0;
		x->fresh.word[1] = 0;
	} else {
		x->fresh.stamp = now;
		x->fresh.word[0] = now * m->profile.buckets[0].num - (m->empty ? 0 : m->profile.buckets[0].size);
		x->fresh.word[1] = now * m->profile.buckets[1].num - (m->empty ? 0 : m->profile.buckets[1].size);
	}
	bpf_map_update_elem(table, &x->key, &x->fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(table, &x->key);
}

/* color_of_key is meter.Table.Color for the packet in scratch. It returns
 * NO_ROOM if the packet has no key, the table has no room, or another CPU does
 * not release the key's state: a virtual CPU may be stopped while it holds it.
 * Dropping conforming packets would be worse than metering them with the
 * packets that have no key. The kernel may reassign a state to another key
 * while it is held; then that key is charged. */
__noinline __u32 color_of_key(__u32 stage, __u64 now, __u32 n, __u32 in)
{
	const struct stage *m = bpf_map_lookup_elem(&stages, &stage);
	struct key_state *s = NULL;
	struct scratch *x;
	struct words w;
	__u32 at = 0;
	void *table;
	int spin;

	if (!m || in >= RED)
		return RED;
	x = bpf_map_lookup_elem(&scratch, &at);
	if (!x || !key_of(x, m))
		return NO_ROOM;
	at = m->table;
	table = bpf_map_lookup_elem(&known_keys, &at);
	if (table)
		s = key_state_of(table, x, m, now);
	if (!s)
		return NO_ROOM;
	for (spin = 0; spin < SPINS; spin++)
		if (!__sync_val_compare_and_swap(&s->lock, 0, 1))
			break;
	if (spin == SPINS)
		return NO_ROOM;
	w.c = s->word[0];
	w.e = s->word[1];
	w.stamp = s->stamp;
	in = m->profile.window ? window_color(&w, &m->profile, now, n, in) : bucket_color(NULL, NULL, NULL, &w, &m->profile, now, n, in);
	s->word[0] = w.c;
	s->word[1] = w.e;
	s->stamp = w.stamp;
	__sync_lock_test_and_set(&s->lock, 0);
	return in;
}

/* read_field reads a field, or returns 0 if the packet does not have it. */
static __always_inline __u32 read_field(struct packet *p, __u8 field, __u32 *v)
{
	__be32 entry;

/* READS reports whether the field is this one. The verifier removes the code of fields
 * that no meter reads. */
#define READS(one) (policy.inputs & 1 << (one) && field == (one))
	if (READS(SKB_MARK)) {
		*v = p->h->mark;
		return 1;
	}
	if (READS(DSCP)) {
		*v = p->h->traffic_class >> 2;
		return p->h->kind >= IPV4;
	}
	if (READS(PCP)) {
		*v = p->h->tci >> 13;
		return p->h->tags;
	}
	if (READS(DEI)) {
		*v = p->h->tci >> 12 & 1;
		return p->h->tags;
	}
	if (READS(MPLS_TC) && p->h->mpls && FETCH(p, p->h->mpls, entry)) {
		*v = bpf_ntohl(entry) >> 9 & 7;
		return 1;
	}
#undef READS
	return 0;
}

/* input_color reads the packet's input color for its first meter. */
static __always_inline __u8 input_color(struct packet *p, __u32 stage)
{
	const struct stage *m = bpf_map_lookup_elem(&stages, &stage);
	struct high key = {.stage = stage};
	__u32 *color;

	if (!m || !m->aware)
		return GREEN;
	if (!read_field(p, m->from, &key.value))
		return GREEN;
	if (key.value < 64)
		return (m->red >> key.value & 1) << 1 | (m->yellow >> key.value & 1);
	if (!m->high)
		return GREEN;
	color = bpf_map_lookup_elem(&highs, &key);
	return color ? *color : GREEN;
}

#define TAKEN 3		/* bits for each stage of a chain */
#define TAKEN_COLOR 3	/* 1 + color of the packet; 0 after the last stage */
#define TAKEN_SHARED 4	/* the packet had no key or no room in the table */

struct metered {
	__s32 stage; /* stage that decided */
	__u8 pre, in, color;
	__u32 taken; /* for give_back */
};

/* color_once is color_of_budget for a budget that charges a packet once on its way through the host.
 * A packet that the budget has judged before keeps that color, unless its color is worse by now. It
 * sets judged for such a packet. */
static __always_inline __u32 color_once(struct packet *p, const struct stage *m, __u32 n, __u32 in, __u32 *judged)
{
	__u32 color = noted_color(p, m->label);

	*judged = color != NOT_JUDGED;
	if (!*judged)
		color = color_of_budget(m->slot, p->now, n, in);
	else if (color < in)
		color = in;
	write_note(p, m->label, color);
	return color;
}

/* meter passes the packet through a chain. A red packet skips the rest. */
static __always_inline struct metered meter(struct packet *p, __s32 first, __u32 n)
{
	struct metered out = {.stage = first};
	__u32 i = first, cost, judged = 0;

	if (policy.inputs)
		out.color = out.pre = input_color(p, first);
	for (int k = 0; k < MAX_CHAIN; k++) {
		const struct stage *m = NULL;

		cost = n;
		if (policy.chained || policy.elsewhere || policy.packets) {
			m = bpf_map_lookup_elem(&stages, &i);
			if (!m)
				break;
			if (m->packets)
				cost = p->segments;
		}
		out.stage = i;
		out.in = out.color;
		out.color = NO_ROOM;
		if (policy.once)
			judged = 0;
		if (policy.elsewhere) {
			if (m->table >= 0)
				out.color = color_of_key(i, p->now, cost, out.in);
			else if (policy.once && m->table == SHARED && m->label)
				out.color = color_once(p, m, cost, out.in, &judged);
			else if (m->table == SHARED)
				out.color = color_of_budget(m->slot, p->now, cost, out.in);
			else if (policy.customers && m->table == CUSTOMER)
				out.color = color_of_customer(p->customer, p->now, cost, out.in);
			else if (m->table == LEASED) {
				pass_lease(m->slot, p->now);
				out.color = color_of_lease(m->slot, p->now, cost, out.in);
			}
		}
		if (out.color > RED) {
			out.color = color_of(FOR(p->sharer, i), p->now, cost, out.in);
			if ((policy.queues || policy.paced) && m && m->table >= 0)
				out.taken |= TAKEN_SHARED << TAKEN * k;
		}
		if (policy.queues || policy.paced) {
			if (!policy.once || !judged) /* the tokens of an earlier charge are not this program's */
				out.taken |= (out.color + 1) << TAKEN * k;
			FORGET(p, out.taken);
		}
		if (!policy.chained || m->then < 0 || out.color == RED)
			break;
		i = m->then;
	}
	return out;
}
