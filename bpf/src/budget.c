// SPDX-License-Identifier: Apache-2.0
/* The programs by which user space uses budgets. It runs them with
 * BPF_PROG_RUN: no operation under a kernel lock is left incomplete if a
 * process ends. */
#include "lease.h"

/* 0 -> the new parameters of a budget. Written by user space before a run. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct profile);
} incoming SEC(".maps");

/* The packet is in the context of a run: slot in cb[0], time in cb[1] and
 * (upper half) cb[2], bytes in cb[3]. */
static __always_inline __u64 time_of(struct __sk_buff *skb)
{
	return (__u64)skb->cb[2] << 32 | skb->cb[1];
}

/* shaper_color meters a packet with input color cb[4], and returns its color. */
SEC("tc")
int shaper_color(struct __sk_buff *skb)
{
	if (skb->cb[4] >= RED)
		return RED;
	return budget_color(skb->cb[0], time_of(skb), skb->cb[3], skb->cb[4]);
}

/* shaper_draw takes bytes from a bucket, and returns whether they fit. cb[0] is
 * the slot and, in the lowest bit, the bucket. Before that, the bucket gets a
 * credit of mark and (upper half) priority, in units of the profile with
 * version cb[4]. */
SEC("tc")
int shaper_draw(struct __sk_buff *skb)
{
	__u32 slot = skb->cb[0] >> 1, i = skb->cb[0] & 1;
	struct budget *b = bpf_map_lookup_elem(&budgets, &slot);
	struct guard *g = bpf_map_lookup_elem(&locks, &slot);
	struct withdrawal t = {
		.credit = (__u64)skb->priority << 32 | skb->mark,
		.version = skb->cb[4],
		.n = skb->cb[3],
	};

	if (!b || !g || b->profile.window)
		return 0;
	t.cost = t.n ? cost_of(&b->profile.buckets[i], t.n) : 0;
	draw_locked((struct state *)b, b, &g->lock, &b->profile, i, time_of(skb), &t);
	return t.fits;
}

/* shaper_change changes the parameters of the budget in slot cb[0], now or at
 * the time in the context, if there is one. Buckets keep their whole tokens,
 * capped at the new bursts. A window keeps the amount taken in it, unless its
 * length changes: then it is used up. */
SEC("tc")
int shaper_change(struct __sk_buff *skb)
{
	__u32 slot = skb->cb[0], first = 0;
	struct budget *b = bpf_map_lookup_elem(&budgets, &slot);
	struct guard *g = bpf_map_lookup_elem(&locks, &slot);
	struct profile *to = bpf_map_lookup_elem(&incoming, &first);
	__u64 now = time_of(skb);
	struct words w;

	if (!b || !g || !to)
		return 1;
	if (!now)
		now = bpf_ktime_get_ns();
	bpf_spin_lock(&g->lock);
	if (b->profile.window) {
		w.c = b->word[0];
		w.e = b->word[1];
	} else {
		w.c = __sync_fetch_and_or(&b->word[0], CLOSED) & ~CLOSED;
		w.e = __sync_fetch_and_or(&b->word[1], CLOSED) & ~CLOSED;
	}
	w.stamp = b->stamp;
	convert_words(&w, &b->profile, to, now);
	b->profile = *to;
	BARRIER();
	WRITE(b->version, b->version + 1);
	WRITE(b->stamp, w.stamp);
	WRITE(b->word[0], w.c);
	WRITE(b->word[1], w.e);
	bpf_spin_unlock(&g->lock);
	return 0;
}

/* 0 -> the new lease of a meter: phases and their times. Written by user space
 * before a run. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct leased);
} granted SEC(".maps");

/* shaper_lease replaces the lease of the meter in slot cb[0] of leases, now or
 * at the time in the context, if there is one. Until then the previous limits
 * apply. Buckets keep their tokens, capped at the new bursts. */
SEC("tc")
int shaper_lease(struct __sk_buff *skb)
{
	__u32 slot = skb->cb[0], first = 0;
	struct leased *l = bpf_map_lookup_elem(&leases, &slot);
	struct leased *to = bpf_map_lookup_elem(&granted, &first);
	__u64 now = time_of(skb);
	struct words w;
	__u32 phase;

	if (!l || !to)
		return 1;
	if (!now)
		now = bpf_ktime_get_ns();
	bpf_spin_lock(&l->lock);
	w.c = l->word[0];
	w.e = l->word[1];
	w.stamp = l->stamp;
	start_due_phases(l, &w, now);
	phase = l->phase;
	if (phase < PHASES)
		convert_words(&w, &l->phases[phase], &to->phases[0], now);
	l->phases[0] = to->phases[0];
	l->phases[1] = to->phases[1];
	l->phases[2] = to->phases[2];
	WRITE(l->until[0], to->until[0]);
	WRITE(l->until[1], to->until[1]);
	WRITE(l->phase, 0);
	start_due_phases(l, &w, now);
	l->word[0] = w.c;
	l->word[1] = w.e;
	l->stamp = w.stamp;
	bpf_spin_unlock(&l->lock);
	return 0;
}

char _license[] SEC("license") = "Apache-2.0";
