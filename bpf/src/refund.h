/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of a packet that its queue drops go back: meter/refund.go in C.
 *
 * A bucket is a time at which it was empty, so a refund subtracts the cost from that time,
 * whatever other CPUs have taken meanwhile. It is made under the lock, so no word is closed or
 * in other units, and as an atomic operation, so that it does not undo a swap. */
#pragma once

#include "bucket.h"

/* refund_words gives back what a packet of n bytes took at now from words under a lock. color
 * is its result. It has few branches, because the verifier follows each of them. */
static __always_inline void refund_words(__u64 word[2], __u64 stamp, const struct profile *m, __u64 now, __u64 n, __u32 color)
{
	__u64 since = now - stamp;

	if (!m->window) {
		__u64 c = cost_of(&m->buckets[0], n), e = cost_of(&m->buckets[1], n);
		__u64 from_c = !m->excess | !color, from_e = m->excess & (m->peak | !!color); /* GREEN is 0 */

		__sync_fetch_and_add(&word[0], -(c * from_c));
		__sync_fetch_and_add(&word[1], -(e * from_e));
	} else if (since < m->window) {
		word[0] -= n < word[0] ? n : word[0];
	} else if (m->sliding && -since <= m->window) { /* another CPU has begun the next window */
		word[1] -= n < word[1] ? n : word[1];
	}
}

/* refund_budget is refund_words for a budget, with its current parameters. */
static __always_inline void refund_budget(__u32 slot, __u64 now, __u32 n, __u32 color)
{
	struct budget *b = bpf_map_lookup_elem(&budgets, &slot);
	struct guard *g = bpf_map_lookup_elem(&locks, &slot);

	if (!b || !g)
		return;
	bpf_spin_lock(&g->lock);
	refund_words(b->word, b->stamp, &b->profile, now, n, color);
	bpf_spin_unlock(&g->lock);
}
