/* SPDX-License-Identifier: Apache-2.0 */
/* The customers of a policy: dataplane/customers.go and customers_state.go in C. */
#pragma once

#include "bucket.h"
#include "headers.h"

/* customer_of_prefix returns the number of the customer of the prefix of an address with a
 * number of bits, or 0.
 *
 * It is a global function, so the verifier verifies it once, and not in each turn of the
 * loop that calls it. */
__noinline __u32 customer_of_prefix(__u32 kind, __u32 bits, __u64 hi, __u64 lo)
{
	struct prefix key = {.kind = kind, .bits = bits};
	__u32 *number;

	if (kind == IPV6) {
		key.addr.hi = bits >= 64 ? hi : hi & ~(~0ULL >> (bits & 63));
		key.addr.lo = bits >= 128 ? lo : bits <= 64 ? 0 : lo & ~(~0ULL >> (bits & 63));
	} else {
		key.addr.lo = lo & ~(0xffffffffULL >> (bits & 63));
	}
	number = bpf_map_lookup_elem(&prefixes, &key);
	return number ? *number : 0;
}

/* longest_prefix returns the number of the customer with the longest prefix that contains
 * an address, or 0. */
static __always_inline __u32 longest_prefix(__u32 kind, __u64 hi, __u64 lo)
{
	__u32 first = 0, number = 0, bits;
	struct prefix_lengths *l = bpf_map_lookup_elem(&lengths, &first);

	if (!l)
		return 0;
	for (int i = 0; i < MAX_LENGTHS && !number; i++) {
		bits = READ(l->bits[kind == IPV6][i]);
		if (bits == NO_LENGTH)
			break;
		number = customer_of_prefix(kind, bits, hi, lo);
	}
	return number;
}

/* customer_of_vlan returns the number of the customer of VLAN IDs, or 0. */
static __always_inline __u32 customer_of_vlan(__u32 id)
{
	struct prefix key = {.kind = OTHER, .addr.lo = id};
	__u32 *number = bpf_map_lookup_elem(&prefixes, &key);

	return number ? *number : 0;
}

/* find_customer returns the number of the packet's customer, from 1, or 0. */
static __always_inline __u32 find_customer(struct packet *p)
{
	__u32 kind = p->h->kind, inside = p->outside ? 0 : 4;
	const struct addr *a = policy.customers == BY_SOURCE ? &p->h->src : &p->h->dst;
	__be16 inner;

	switch (policy.customers) {
	case BY_OUTER_VLAN:
		return p->h->tags ? customer_of_vlan(p->h->tci & 0x0fff) : 0;
	case BY_TWO_VLANS:
		if (p->h->tags < 2 || !FETCH(p, ETHER_HEADER + inside, inner))
			return 0;
		return customer_of_vlan((p->h->tci & 0x0fff) << 12 | (bpf_ntohs(inner) & 0x0fff));
	}
	return kind >= IPV4 ? longest_prefix(kind, a->hi, a->lo) : 0;
}

/* color_of_customer is color_of for the meter of a customer, by its number. Packets of a
 * customer with a queue keep their color. The plan is read again if it changes at this
 * moment. */
__noinline __u32 color_of_customer(__u32 number, __u64 now, __u32 n, __u32 in)
{
	__u32 slot = number - 1, plan, color = RED;
	struct customer *c = bpf_map_lookup_elem(&customers, &slot);
	const struct plan *m;
	struct words w;

	if (!c || in >= RED)
		return RED;
	for (int try = 0; try < TRIES; try++) {
		plan = READ(c->plan);
		m = bpf_map_lookup_elem(&plans, &plan);
		if (!m)
			return RED;
		if (m->paced)
			return in;
		bpf_spin_lock(&c->lock);
		if (c->plan != plan) {
			bpf_spin_unlock(&c->lock);
			continue;
		}
		w.c = c->word[0];
		w.e = c->word[1];
		w.stamp = c->stamp;
		color = m->profile.window ? window_color(&w, &m->profile, now, n, in) :
					    bucket_color(NULL, NULL, NULL, &w, &m->profile, now, n, in);
		c->word[0] = w.c;
		c->word[1] = w.e;
		c->stamp = w.stamp;
		bpf_spin_unlock(&c->lock);
		break;
	}
	return color;
}

/* act_of_customer counts a packet of a customer and replaces the action of its class by
 * that of its plan, if the plan has one for the color. It returns whether the customer
 * has a queue. */
__noinline __u32 act_of_customer(__u32 number, __u32 color, __u32 segments, __u32 n, struct action *a)
{
	__u32 slot = number - 1, plan;
	struct customer *c = bpf_map_lookup_elem(&customers, &slot);
	const struct plan *m;
	struct count *count;

	if (!c || !a || color > RED)
		return 0;
	count = color == GREEN ? &c->green : color == YELLOW ? &c->yellow : &c->red;
	__sync_fetch_and_add(&count->packets, segments);
	__sync_fetch_and_add(&count->bytes, n);
	plan = READ(c->plan);
	m = bpf_map_lookup_elem(&plans, &plan);
	if (!m)
		return 0;
	if (m->own[color])
		*a = m->actions[color];
	return m->paced;
}

/* count_customer_drop counts a dropped packet of a customer. */
__noinline int count_customer_drop(__u32 number, __u32 segments, __u32 n)
{
	__u32 slot = number - 1;
	struct customer *c = bpf_map_lookup_elem(&customers, &slot);

	if (!c)
		return 0;
	__sync_fetch_and_add(&c->dropped.packets, segments);
	__sync_fetch_and_add(&c->dropped.bytes, n);
	return 0;
}
