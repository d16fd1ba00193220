/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a packet that its queue drops go back to its chain of meters:
 * dataplane/pipeline/refund.go in C. */
#pragma once

#include "meter.h"
#include "refund.h"

#define REFUND_SPINS 32 /* each is verified */

/* refund_key gives tokens back to the packet's key. Nothing goes back if the key was evicted,
 * or another CPU does not release it. */
__noinline int refund_key(__u32 stage, __u64 now, __u32 n, __u32 color)
{
	const struct stage *m = bpf_map_lookup_elem(&stages, &stage);
	struct key_state *s = NULL;
	struct scratch *x;
	__u32 at = 0;
	void *table;
	int spin;

	if (!policy.keyed || !m)
		return 0;
	x = bpf_map_lookup_elem(&scratch, &at);
	if (!x || !key_of(x, m))
		return 0;
	at = m->table;
	table = bpf_map_lookup_elem(&known_keys, &at);
	if (table)
		s = bpf_map_lookup_elem(table, &x->key);
	if (!s)
		return 0;
	for (spin = 0; spin < REFUND_SPINS; spin++)
		if (!__sync_val_compare_and_swap(&s->lock, 0, 1))
			break;
	if (spin == REFUND_SPINS)
		return 0;
	refund_words(s->word, s->stamp, &m->profile, now, n, color);
	__sync_lock_test_and_set(&s->lock, 0);
	return 0;
}

/* refund_lease gives tokens back in the current phase. */
__noinline int refund_lease(__u32 slot, __u64 now, __u32 n, __u32 color)
{
	struct leased *l = bpf_map_lookup_elem(&leases, &slot);
	__u32 phase;

	if (!policy.elsewhere || !l)
		return 0;
	bpf_spin_lock(&l->lock);
	phase = l->phase;
	if (phase < PHASES && l->phases[phase].buckets[0].den)
		refund_words(l->word, l->stamp, &l->phases[phase], now, n, color);
	bpf_spin_unlock(&l->lock);
	return 0;
}

/* refund_customer gives tokens back to a customer, unless it has another plan by now. */
__noinline int refund_customer(__u32 number, __u64 now, __u32 n, __u32 color)
{
	__u32 slot = number - 1, plan;
	struct customer *c = bpf_map_lookup_elem(&customers, &slot);
	const struct plan *m;

	if (!policy.customers || !c)
		return 0;
	plan = READ(c->plan);
	m = bpf_map_lookup_elem(&plans, &plan);
	if (!m || m->paced)
		return 0;
	bpf_spin_lock(&c->lock);
	if (c->plan == plan)
		refund_words(c->word, c->stamp, &m->profile, now, n, color);
	bpf_spin_unlock(&c->lock);
	return 0;
}

/* refund_state gives tokens back to the meter of a stage, or to that of its packets without
 * a key. */
__noinline int refund_state(__u32 stage, __u64 now, __u32 n, __u32 color)
{
	__u32 i = NUMBER(stage);
	const struct stage *m = bpf_map_lookup_elem(&stages, &i);
	struct state *s;

	if (!m)
		return 0;
	if (policy.elsewhere && m->table == SHARED) {
		refund_budget(m->slot, now, n, color);
		return 0;
	}
	s = OWN(states, SHARER(stage), &m->slot);
	if (!s)
		return 0;
	bpf_spin_lock(&s->lock);
	refund_words(s->word, s->stamp, &m->profile, now, n, color);
	bpf_spin_unlock(&s->lock);
	return 0;
}

/* refund_stage gives tokens back to the meter of a stage, and returns the next stage of the
 * chain, negative for none. It is a separate function, so the verifier verifies it once. */
__noinline int refund_stage(__u32 stage, __u64 now, __u64 size, __u32 taken, __u32 customer)
{
	__u32 i = NUMBER(stage);
	const struct stage *m = bpf_map_lookup_elem(&stages, &i);
	__u32 color = (taken & TAKEN_COLOR) - 1, n;

	if (!m)
		return -1;
	n = m->packets ? size >> 32 : size;
	if (color >= RED)
		return m->then;
	if (m->table == CUSTOMER)
		refund_customer(customer, now, n, color);
	else if (m->table == LEASED)
		refund_lease(m->slot, now, n, color);
	else if (m->table >= 0 && !(taken & TAKEN_SHARED))
		refund_key(i, now, n, color);
	else
		refund_state(stage, now, n, color);
	return m->then;
}

/* give_back gives the tokens of a packet that its queue drops back to the chain of meters, as
 * meter took them. Until then CPUs see fewer tokens, by at most this packet. segments are in the
 * upper half of size, bytes in the lower one. */
__noinline int give_back(__u32 first, __u64 now, __u64 size, __u32 taken, __u32 customer)
{
	int i = NUMBER(first);

	if (!policy.queues && !policy.paced)
		return 0;
	for (int k = 0; k < MAX_CHAIN && i >= 0 && taken; k++) {
		i = refund_stage(FOR(SHARER(first), i), now, size, taken, customer);
		taken >>= TAKEN;
	}
	return 0;
}
