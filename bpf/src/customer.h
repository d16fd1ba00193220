/* SPDX-License-Identifier: Apache-2.0 */
/* Customers: dataplane/compiled/customers_table.go and dataplane/pipeline/customers_state.go in C. */
#pragma once

#include "bucket.h"
#include "rare.h"

/* probe is the search of a prefix in the hash table. */
struct probe {
	__u64 hi, lo;
	__u32 kind;
	__u32 buckets;
	__u32 at; /* bucket */
	__u32 number; /* of the customer, if found */
};

/* start_probe goes to the bucket at which the search starts: prefixTable.Home in
 * dataplane/kernel/internal/image/prefix_table.go. */
static __always_inline void start_probe(struct probe *p, __u64 seed)
{
	__u64 h = (p->hi ^ seed) * 0xff51afd7ed558ccdULL;

	h = (h ^ h >> 32 ^ p->lo ^ (__u64)p->kind << 56) * 0xff51afd7ed558ccdULL;
	h = (h ^ h >> 32) * 0xc4ceb9fe1a85ec53ULL;
	p->at = (h >> 32) * p->buckets >> 32;
}

/* probe_bucket searches one bucket, and returns 1 if the search ends there. It compares
 * without branches, because the CPU cannot predict the slot of a key. */
static long probe_bucket(__u32 i __attribute__((unused)), struct probe *p)
{
	const struct prefix_bucket *b = bpf_map_lookup_elem(&prefixes, &p->at);
	__u64 number, differs, found = 0, unused = 0;

	if (!b)
		return 1;
#pragma unroll
	for (int j = 0; j < BUCKET_PREFIXES; j++) {
		number = READ(b->number[j]);
		differs = (b->addr[j].hi ^ p->hi) | (b->addr[j].lo ^ p->lo) | (b->kind[j] ^ p->kind);
		differs |= -differs | number << 32; /* negative: another prefix, TAKEN or REMOVED */
		found |= number & ((differs >> 63) - 1);
		unused |= number - 1; /* negative: NEVER_USED */
	}
	p->number = found;
	if (found | unused >> 63)
		return 1;
	p->at = p->at + 1 < p->buckets ? p->at + 1 : 0;
	return 0;
}

/* find_prefix returns the number of the customer of a prefix, or 0. */
__noinline __u32 find_prefix(__u32 kind, __u64 hi, __u64 lo)
{
	struct probe p = {.hi = hi, .lo = lo, .kind = kind};
	/* p.at is 0, the key: a variable of its own would exceed 32 bytes of stack, and with the callers' the 512
	 * that the kernel allows */
	const struct prefix_search *s = bpf_map_lookup_elem(&searches, &p.at);

	if (!s)
		return 0;
	p.buckets = s->buckets;
	start_probe(&p, s->seed);
	if (!probe_bucket(0, &p)) /* one look-up in ten */
		bpf_loop(MAX_PROBES - 1, probe_bucket, &p, 0);
	return p.number;
}

/* customer_of_prefix returns the number of the customer of the prefix of an address with a
 * length, or 0. Like find_prefix it is a global function, so the verifier verifies it once, and
 * not in each turn of the loop that calls it. */
__noinline __u32 customer_of_prefix(__u32 kind, __u32 bits, __u64 hi, __u64 lo)
{
	if (kind != IPV6)
		return find_prefix(IPV4_PREFIX + bits, 0, lo & ~(0xffffffffULL >> (bits & 63)));
	if (bits < 128)
		lo = bits > 64 ? lo & ~(~0ULL >> (bits & 63)) : 0;
	if (bits < 64)
		hi &= ~(~0ULL >> bits);
	return find_prefix(bits, hi, lo);
}

/* longest_prefix returns the number of the customer with the longest prefix that contains
 * an address, or 0. */
__noinline __u32 longest_prefix(__u32 kind, __u64 hi, __u64 lo)
{
	__u32 first = 0, number, bits = ANY_LENGTH;
	struct prefix_search *s = bpf_map_lookup_elem(&searches, &first);

	if (!s)
		return 0;
	for (int i = 0; i < ANY_LENGTH; i++) {
		bits = READ(s->below[kind == IPV6][bits]);
		if (bits > 128)
			break;
		number = customer_of_prefix(kind, bits, hi, lo);
		if (number)
			return number;
	}
	return 0;
}

/* customer_of_number returns the number of the customer of a number such as a VLAN ID, or 0. */
static __always_inline __u32 customer_of_number(__u64 id)
{
	return id == NO_VALUE ? 0 : find_prefix(NUMBER, 0, id);
}

/* customer_of_cgroup returns the number of the customer of the innermost cgroup that contains the socket of a
 * packet, or 0. */
__noinline __u32 customer_of_cgroup(struct __sk_buff *skb)
{
	__u32 first = 0, number, level = ANY_LENGTH;
	struct prefix_search *s = bpf_map_lookup_elem(&searches, &first);

	if (policy.customers != BY_CGROUP || !s)
		return 0;
	for (int i = 0; i <= MAX_CGROUP_DEPTH; i++) {
		__u64 id;

		level = READ(s->below[0][level]);
		if (level > MAX_CGROUP_DEPTH)
			break;
		id = bpf_skb_ancestor_cgroup_id(skb, level);
		if (!id)
			continue;
		number = find_prefix(NUMBER, 0, id);
		if (number)
			return number;
	}
	return 0;
}

/* customer_of_inner returns the number of the customer of the source or destination in a tunnel, or 0. */
static __always_inline __u32 customer_of_inner(struct packet *p, int source)
{
	__u64 found = inner_header(p);
	__u32 off = found;

	if (found >> 32 == IPV4) {
		struct ipv4 *ip = load_bytes(p, off, sizeof(*ip));

		return ip ? longest_prefix(IPV4, 0, bpf_ntohl(source ? ip->src : ip->dst)) : 0;
	}
	if (found >> 32 == IPV6) {
		struct ipv6 *ip = load_bytes(p, off, sizeof(*ip));
		struct addr a;

		if (!ip)
			return 0;
		a = addr128(source ? ip->src : ip->dst);
		return longest_prefix(IPV6, a.hi, a.lo);
	}
	return 0;
}

/* find_customer returns the number of the packet's customer, from 1, or 0. */
static __always_inline __u32 find_customer(struct packet *p)
{
	__u32 kind = p->h->kind;
	const struct addr *a = policy.customers == BY_SOURCE ? &p->h->src : &p->h->dst;
	__u64 inner;

	switch (policy.customers) {
	case BY_OUTER_VLAN:
		return p->h->tags ? customer_of_number(p->h->tci & 0x0fff) : 0;
	case BY_TWO_VLANS:
		inner = inner_vlan(p);
		if (inner == NO_VALUE)
			return 0;
		return customer_of_number((p->h->tci & 0x0fff) << 12 | inner);
	case BY_SOURCE_MAC:
		return customer_of_number(source_mac(p));
	case BY_DESTINATION_MAC:
		return customer_of_number(destination_mac(p));
	case BY_VLAN_SOURCE_MAC:
		return customer_of_number(with_vlan(p, source_mac(p)));
	case BY_VLAN_DESTINATION_MAC:
		return customer_of_number(with_vlan(p, destination_mac(p)));
	case BY_SKB_MARK:
		return customer_of_number(p->h->mark);
	case BY_VNI:
		return customer_of_number(vni(p));
	case BY_TEID:
		return customer_of_number(teid(p));
	case BY_INNER_SOURCE:
		return customer_of_inner(p, 1);
	case BY_INNER_DESTINATION:
		return customer_of_inner(p, 0);
	case BY_CGROUP:
		return p->source == FROM_SKB ? customer_of_cgroup(p->ctx) : 0;
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
