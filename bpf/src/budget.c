// SPDX-License-Identifier: Apache-2.0
/* The programs by which user space uses budgets. It runs them with
 * BPF_PROG_RUN: no operation under a kernel lock is left incomplete if a
 * process ends. */
#include "lease.h"
#include "refund.h"

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

/* shaper_refund gives back what a packet with color cb[4] took from the budget at the time. */
SEC("tc")
int shaper_refund(struct __sk_buff *skb)
{
	if (skb->cb[4] < RED)
		refund_budget(skb->cb[0], time_of(skb), skb->cb[3], skb->cb[4]);
	return 0;
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

/* index -> change of a customer's plan. Written by user space before a run. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_MOVES);
	__type(key, __u32);
	__type(value, struct move);
} moves SEC(".maps");

/* fill_words makes the words of a meter whose buckets are full, or whose window is
 * empty. */
static __always_inline void fill_words(struct words *w, const struct profile *m, __u64 now)
{
	w->c = m->window ? 0 : now * m->buckets[0].num - m->buckets[0].size;
	w->e = m->window ? 0 : now * m->buckets[1].num - m->buckets[1].size;
	w->stamp = m->window ? window_start(now, m->window) : now;
}

/* exchange_words converts words between a meter of buckets and one that counts in
 * windows: it keeps the whole bytes that C, or the current window, has left. */
static __always_inline void exchange_words(struct words *w, const struct profile *from, const struct profile *to, __u64 now)
{
	__u64 limit = to->window ? to->buckets[0].size : to->buckets[0].over - 1, left;
	__s64 units;

	if ((__s64)now < (__s64)w->stamp)
		now = w->stamp;
	if (from->window) {
		left = from->buckets[0].size - (now - w->stamp < from->window ? w->c : 0);
	} else {
		advance_words(w, from, now);
		units = now * from->buckets[0].num - w->c;
		left = units > 0 && from->buckets[0].den ? units / from->buckets[0].den : 0;
	}
	if (left > limit)
		left = limit;
	w->stamp = to->window ? window_start(now, to->window) : now;
	w->c = to->window ? limit - left : now * to->buckets[0].num - left * to->buckets[0].den;
	w->e = to->window ? 0 : now * to->buckets[1].num;
}

/* begin_codel forgets the state of CoDel. The caller holds the lock. */
static __always_inline void begin_codel(struct backlog *b)
{
	b->first_above = 0;
	b->drop_next = 0;
	b->count = 0;
	b->last_count = 0;
	b->above = 0;
	b->dropping = 0;
}

/* change_plan converts the state of a customer for another plan. Buckets keep their
 * tokens, capped at the new bursts, and a queue is free when it would have been; CoDel
 * begins anew unless only the rate differs. A
 * customer whose queue becomes a meter begins with full buckets, and so does one
 * without packets so far. The caller holds the lock. */
static __always_inline void change_plan(struct customer *c, const struct plan *from, const struct plan *to, __u64 now)
{
	struct words w = {.c = c->word[0], .e = c->word[1], .stamp = c->stamp};

	if (from->paced && to->paced) {
		c->word[0] += c->word[1] > 0; /* next and its fraction */
		c->word[1] = 0;
		if (from->queue.target != to->queue.target || from->queue.interval != to->queue.interval ||
		    from->queue.time != to->queue.time || from->queue.ecn != to->queue.ecn)
			begin_codel((struct backlog *)c);
		return;
	}
	if (to->paced)
		w = (struct words){};
	else if (from->paced || w.stamp == NOT_BEGUN)
		fill_words(&w, &to->profile, now);
	else if (!from->profile.window == !to->profile.window)
		convert_words(&w, &from->profile, &to->profile, now);
	else
		exchange_words(&w, &from->profile, &to->profile, now);
	c->word[0] = w.c;
	c->word[1] = w.e;
	c->stamp = w.stamp;
	c->queue[0] = c->queue[1] = c->queue[2] = 0;
}

static long move_customer(__u32 i, void *ctx __attribute__((unused)))
{
	struct move *move = bpf_map_lookup_elem(&moves, &i);
	const struct plan *from, *to;
	__u32 slot, plan;
	struct customer *c;
	__u64 now;

	if (!move)
		return 1;
	slot = move->customer - 1;
	c = bpf_map_lookup_elem(&customers, &slot);
	if (!c)
		return 1;
	plan = READ(c->plan);
	from = bpf_map_lookup_elem(&plans, &plan);
	plan = move->plan;
	to = bpf_map_lookup_elem(&plans, &plan);
	if (!from || !to)
		return 1;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&c->lock);
	change_plan(c, from, to, now);
	WRITE(c->plan, plan);
	WRITE(c->class_id, move->class_id);
	bpf_spin_unlock(&c->lock);
	return 0;
}

/* shaper_move makes the first cb[0] moves, and returns how many it made. Only one
 * process may run it at a time. */
SEC("tc")
int shaper_move(struct __sk_buff *skb)
{
	return bpf_loop(skb->cb[0], move_customer, NULL, 0);
}

/* index -> addition. Written by user space before a run. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ADDITIONS);
	__type(key, __u32);
	__type(value, struct addition);
} additions SEC(".maps");

static __always_inline void add_count(struct count *to, const struct count *more)
{
	__sync_fetch_and_add(&to->packets, more->packets);
	__sync_fetch_and_add(&to->bytes, more->bytes);
}

static long add_counts(__u32 i, void *ctx __attribute__((unused)))
{
	const struct addition *a = bpf_map_lookup_elem(&additions, &i);
	struct customer *c;
	__u32 slot;

	if (!a)
		return 1;
	slot = a->customer - 1;
	c = bpf_map_lookup_elem(&customers, &slot);
	if (!c)
		return 1;
	add_count(&c->green, &a->green);
	add_count(&c->yellow, &a->yellow);
	add_count(&c->red, &a->red);
	add_count(&c->dropped, &a->dropped);
	return 0;
}

/* shaper_add makes the first cb[0] additions, and returns how many it made. Only one
 * process may run it at a time. */
SEC("tc")
int shaper_add(struct __sk_buff *skb)
{
	return bpf_loop(skb->cb[0], add_counts, NULL, 0);
}

char _license[] SEC("license") = "Apache-2.0";
