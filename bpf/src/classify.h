/* SPDX-License-Identifier: Apache-2.0 */
/* The first class that matches a packet: dataplane/compiled/classify.go in C. */
#pragma once

#include "rare.h"

/* vector_of returns the vector of a field's value, or of packets without the field. */
static __always_inline __u32 vector_of(const enum match field, __u32 v, __u32 ok)
{
	return table_entry(policy.table[field] + (ok ? v : policy.last[field]));
}

/* The following are global functions, so the verifier verifies each once. */

/* search32 finds the last bound that is not above v. The first bound is 0. */
__noinline __u32 search32(__u32 which, __u32 v)
{
	const volatile struct search *s = &policy.search[which & (SEARCHES - 1)];
	__u32 low = s->low, bounds = s->bounds;
	__u32 top = v < low ? 0 : (v - low) >> (s->shift & 31);
	__u32 base, n;

	if (top > s->last)
		top = s->last;
	top += s->jump;
	base = table_entry(top);
	n = table_entry(top + 1) - base + 1;
	for (int i = 0; i < 16 && n > 1; i++) {
		__u32 half = n / 2;

		if (table_entry(bounds + base + half) <= v)
			base += half;
		n -= half;
	}
	return table_entry(s->vectors + base);
}

/* search128 is search32 for IPv6 addresses. */
__noinline __u32 search128(__u32 base, __u32 n, __u64 hi, __u64 lo)
{
	struct bound *b;

	for (int i = 0; i < 16 && n > 1; i++) {
		__u32 half = n / 2, middle = base + half;

		b = bpf_map_lookup_elem(&bounds6, &middle);
		if (b && (b->hi < hi || (b->hi == hi && b->lo <= lo)))
			base = middle;
		n -= half;
	}
	b = bpf_map_lookup_elem(&bounds6, &base);
	return b ? b->vector : 0;
}

static __always_inline __u32 address_vector(enum search_of v4, const volatile struct search6 *v6, const struct headers *p,
				     const struct addr *a)
{
	if (p->kind == IPV4)
		return search32(v4, a->lo);
	if (p->kind == IPV6)
		return search128(v6->first, v6->count, a->hi, a->lo);
	return v6->none;
}

/* lowest_bit returns the index of the lowest set bit. */
static __always_inline __u32 lowest_bit(__u64 w)
{
	__u32 n = 0;

	w &= -w;
	n |= !!(w & 0xffffffff00000000) << 5;
	n |= !!(w & 0xffff0000ffff0000) << 4;
	n |= !!(w & 0xff00ff00ff00ff00) << 3;
	n |= !!(w & 0xf0f0f0f0f0f0f0f0) << 2;
	n |= !!(w & 0xcccccccccccccccc) << 1;
	n |= !!(w & 0xaaaaaaaaaaaaaaaa);
	return n;
}

/* sets are the vectors selected by a packet's values: one at the start, and one for
 * each field in use. Vectors of one word are intersected at once. */
struct sets {
	__u32 all; /* all classes match at the start */
	__u32 start;
	__u32 by[MATCHES];
};

/* intersect_rare returns the intersection of the sets of rare fields at word w. */
static __always_inline __u64 intersect_rare(__u32 w)
{
	__u32 at = 0;
	const struct scratch *x = bpf_map_lookup_elem(&scratch, &at);
	__u64 all = ~0ULL;

	if (!x)
		return 0;
#pragma unroll
	for (int i = 0; i < RARE; i++)
		if (USES_RARE(i))
			all &= vector_word(x->rare_by[i] + w);
	return all;
}

/* find_rare finds the vectors of the rare fields. */
static __always_inline void find_rare(void)
{
	__u32 at = 0;
	struct scratch *x = bpf_map_lookup_elem(&scratch, &at);

	if (!x)
		return;
#pragma unroll
	for (int i = 0; i < CGROUP; i++)
		if (USES_RARE(i))
			x->rare_by[i] = rare_vector(i, x->rare[i]);
}

/* intersect returns the intersection of all sets at word w. */
static __always_inline __u64 intersect(const struct sets *s, __u32 w)
{
	__u64 all = s->all ? ~0ULL : vector_word(s->start + w);

#pragma unroll
	for (int i = 0; i < MATCHES; i++)
		if (policy.fields & (1 << i))
			all &= vector_word(s->by[i] + w);
	return policy.rare ? all & intersect_rare(w) : all;
}

/* first returns the lowest bit set in all vectors, or -1. The first word of a
 * vector is a summary of the others. */
__noinline int first(const struct sets *s)
{
	__u64 summary;

	if (!s)
		return -1;
	summary = intersect(s, 0);
	for (int k = 0; k < MAX_CLASSES / 64 && summary; k++) {
		__u32 w = lowest_bit(summary);
		__u64 all = intersect(s, 1 + w);

		if (all)
			return 64 * w + lowest_bit(all);
		summary &= summary - 1;
	}
	return -1;
}

/* lookup returns the index of the first class that matches the packet, or -1. */
__noinline int lookup(const struct headers *p)
{
	struct sets s = {};
	__u32 ip;
	__u64 all;

	if (!p)
		return -1;
	ip = p->kind >= IPV4;
#define FIELD(field, vector)                               \
	do {                                               \
		if (!(policy.fields & (1 << (field))))     \
			break;                             \
		s.by[field] = (vector);                    \
		if (policy.stride == 2)                    \
			all &= vector_word(s.by[field] + 1);      \
	} while (0)

	s.all = ip && !policy.customers;
	s.start = policy.start[(p->customer ? 2 : 0) + (ip ? 1 : 0)];
	all = s.all ? ~0ULL : vector_word(s.start + 1);
	FIELD(BY_PROTO, vector_of(BY_PROTO, p->proto, ip));
	FIELD(BY_SPORT, vector_of(BY_SPORT, p->sport, p->has_ports));
	FIELD(BY_DPORT, vector_of(BY_DPORT, p->dport, p->has_ports));
	FIELD(BY_DSCP, vector_of(BY_DSCP, p->traffic_class >> 2, ip));
	FIELD(BY_VLAN, vector_of(BY_VLAN, p->tci & 0x0fff, p->tags));
	FIELD(BY_PCP, vector_of(BY_PCP, p->tci >> 13, p->tags));
	FIELD(BY_ETHERTYPE, vector_of(BY_ETHERTYPE, p->ethertype, p->has_ethertype));
	FIELD(BY_MARK, search32(MARK, p->mark));
	FIELD(BY_LENGTH, search32(LENGTH, p->length));
	FIELD(BY_SRC, address_vector(SRC4, &policy.src6, p, &p->src));
	FIELD(BY_DST, address_vector(DST4, &policy.dst6, p, &p->dst));
#undef FIELD
	if (policy.rare) {
		find_rare();
		if (policy.stride == 2)
			all &= intersect_rare(1);
	}
	if (policy.stride > 2)
		return first(&s);
	return all ? (int)lowest_bit(all) : -1;
}

/* classify returns the index of the first class that matches the packet, or -1.
 * If no class has a match field, the first class matches all IP packets. */
static __always_inline __s32 classify(const struct packet *p)
{
	if (!policy.fields && !policy.rare && !policy.customers)
		return p->h->kind >= IPV4 ? 0 : -1;
	return lookup(p->h);
}
