/* SPDX-License-Identifier: Apache-2.0 */
/* The meters of RFC 2697, RFC 2698 and RFC 4115; meter/meter.go in C, for any
 * number of CPUs at once.
 *
 * A bucket is one word: the time, in its own units, at which it would have
 * been empty. At now it holds v - word of v = now * num, but no more than its
 * size. Refilling therefore changes nothing, and a packet takes its cost by
 * one compare-and-swap:
 *
 *	word = v - min(v - word, size) + cost
 *
 * What this grants is bounded whatever the order in which CPUs come: a swap
 * starts from a word of at least v - size and ends at one of at most v, so the
 * costs of all swaps between two times add up to no more than size + num * dt.
 * A CPU whose now is late sees less in the bucket. A packet that finds too
 * little writes nothing.
 *
 * v and word are known modulo 2^64, which is enough while word was written
 * less than horizon ns ago. The state's stamp is a time since which both words
 * were written. When that is too long ago, the first to notice takes the lock,
 * closes both words by their lowest bit (units are halved for it), so that
 * swaps that are under way fail, brings them up to date and opens them. A CPU
 * that finds a word closed, or loses too many swaps, waits for the lock too.
 *
 * A word is read before the stamp and the stamp is written before the words:
 * a word that was opened late is never taken for one of the time before. */
#pragma once

#include "packet.h"

#define CLOSED 1ULL
#define NEVER (1LL << 62)	 /* more than any bucket holds, units */
#define NOT_BEGUN (1ULL << 63)	 /* stamp of a meter that waits for its first packet */
#define TRIES 4

#define READ(x) (*(volatile typeof(x) *)&(x))
#define WRITE(x, v) (*(volatile typeof(x) *)&(x) = (v))

/* refill is what a bucket that held units at a stamp dt ago holds now, unless
 * it overflowed. */
static __always_inline __s64 refill(const struct bucket *b, __s64 units, __u64 dt)
{
	return dt >= b->full ? NEVER : units + (__s64)(dt * b->num);
}

/* take is what happens to a word: it gets credit, and then gives cost where it
 * holds that much. Otherwise it gives nothing, and stays as it is unless units
 * move. What C overflows by is its spill. */
struct take {
	__u64 word;   /* in, and out */
	__s64 cost;   /* units */
	__s64 credit; /* units */
	__s64 spill;  /* out: units */
	__u32 fits;   /* out */
	__u32 writes; /* out: the word is to be written */
};

static __always_inline void apply(struct take *t, const struct bucket *b, __u64 v, __u32 spills)
{
	__s64 holds = v - t->word;

	t->spill = 0;
	if (holds > b->size) {
		if (spills)
			t->spill = holds - b->size;
		holds = b->size;
	}
	holds += t->credit;
	if (holds > b->size)
		holds = b->size;
	t->fits = holds >= t->cost;
	t->writes = t->fits || t->credit || t->spill;
	t->word = v - holds + (t->fits ? t->cost : 0);
}

/* exclusive is draw under the lock. */
static __always_inline void exclusive(struct state *s, const struct stage *m, __u32 i, __u64 now, struct take *t)
{
	__u64 c, e, stamp;

	bpf_spin_lock(&s->lock);
	c = __sync_fetch_and_or(&s->word[0], CLOSED) & ~CLOSED;
	e = __sync_fetch_and_or(&s->word[1], CLOSED) & ~CLOSED;
	stamp = s->stamp;
	if (stamp == NOT_BEGUN) {
		stamp = now;
		c += now * m->buckets[0].num;
		e += now * m->buckets[1].num;
	} else if ((__s64)now < (__s64)stamp) {
		now = stamp;
	} else if (now - stamp >= m->horizon) {
		__u64 dt = now - stamp;
		__s64 in_c = refill(&m->buckets[0], stamp * m->buckets[0].num - c, dt);
		__s64 in_e = refill(&m->buckets[1], stamp * m->buckets[1].num - e, dt);

		if (in_e > m->buckets[1].size)
			in_e = m->buckets[1].size;
		if (in_c > m->buckets[0].size) {
			if (m->coupled)
				in_e += in_c - m->buckets[0].size;
			in_c = m->buckets[0].size;
		}
		if (in_e > m->buckets[1].size)
			in_e = m->buckets[1].size;
		stamp = now;
		c = now * m->buckets[0].num - in_c;
		e = now * m->buckets[1].num - in_e;
	}
	t->word = i ? e : c;
	apply(t, &m->buckets[i], now * m->buckets[i].num, i == 0 && m->coupled);
	if (t->writes) {
		if (i)
			e = t->word;
		else
			c = t->word;
	}
	WRITE(s->stamp, stamp);
	WRITE(s->word[0], c);
	WRITE(s->word[1], e);
	bpf_spin_unlock(&s->lock);
}

/* draw takes cost from bucket i of a meter, if it holds that much after credit
 * was added. */
static __always_inline void draw(struct state *s, const struct stage *m, __u32 i, __u64 now, struct take *t)
{
	const struct bucket *b = &m->buckets[i];
	__u64 v = now * b->num;

	for (int try = 0; try < TRIES; try++) {
		__u64 word = READ(s->word[i]);

		if (word & CLOSED || now - READ(s->stamp) >= m->horizon)
			break;
		t->word = word;
		apply(t, b, v, i == 0 && m->coupled);
		if (!t->writes || __sync_val_compare_and_swap(&s->word[i], word, t->word) == word)
			return;
	}
	exclusive(s, m, i, now, t);
}

/* color_of is meter.Meter.Color. RFC 2698 section 3 asks P first, and what
 * takes from C took from P. RFC 2697 and RFC 4115 section 3 ask C, and what
 * does not fit there may take from E.
 *
 * It is a function of its own so that the verifier looks at it once. */
__noinline __u32 color_of(__u32 stage, __u64 now, __u32 n, __u32 in)
{
	const struct stage *m = bpf_map_lookup_elem(&stages, &stage);
	struct take t = {};
	struct state *s;
	__u32 first, fits;
	__s64 cost;

	/* Red takes nothing. Where packets are handed in it begins a meter's clock. */
	if (!m || (in >= RED && !policy.handed))
		return RED;
	s = bpf_map_lookup_elem(&states, &m->slot);
	if (!s)
		return RED;
	cost = in >= RED ? NEVER : (__s64)((n < m->over ? n : m->over) * m->den);
	t.cost = m->peak || in <= m->limit ? cost : NEVER;
	first = m->peak & 1;
	draw(s, m, first, now, &t);
	fits = t.fits;
	if (m->peak) {
		if (!fits)
			return RED;
		if (in != GREEN)
			return YELLOW;
	} else {
		if (!m->excess)
			return fits ? in : RED;
		if (fits && !t.spill)
			return in;
		t.credit = t.spill;
		if (fits)
			cost = 0;
	}
	t.cost = cost;
	draw(s, m, !first, now, &t);
	if (m->peak)
		return t.fits ? GREEN : YELLOW;
	return fits ? in : t.fits ? YELLOW : RED;
}

/* value reads a field, or says that the packet does not have it. */
static __always_inline __u32 value(struct packet *p, __u8 field, __u32 *v)
{
	__u8 *entry;

	switch (field) {
	case SKB_MARK:
		*v = p->mark;
		return 1;
	case DSCP:
		*v = p->traffic_class >> 2;
		return p->kind >= IPV4;
	case PCP:
		*v = p->tci >> 13;
		return p->tags;
	case DEI:
		*v = p->tci >> 12 & 1;
		return p->tags;
	case MPLS_TC:
		if (!p->mpls)
			return 0;
		entry = bytes(p, p->mpls, 4);
		if (!entry)
			return 0;
		*v = entry[2] >> 1 & 7;
		return 1;
	}
	return 0;
}

/* precolor reads the color that the packet came with. */
static __always_inline __u8 precolor(struct packet *p, const struct stage *m, __u32 stage)
{
	struct high key = {.stage = stage};
	__u32 *color;

	if (!value(p, m->from, &key.value))
		return GREEN;
	if (key.value < 64)
		return (m->red >> key.value & 1) << 1 | (m->yellow >> key.value & 1);
	if (!m->high)
		return GREEN;
	color = bpf_map_lookup_elem(&highs, &key);
	return color ? *color : GREEN;
}

struct metered {
	__s32 stage; /* that decided */
	__u8 pre, in, color;
};

/* meter takes the packet through a chain. A red packet skips what follows. */
static __always_inline struct metered meter(struct packet *p, __s32 first, __u32 n)
{
	struct metered out = {.stage = first};
	__u32 i = first;

	for (int k = 0; k < MAX_CHAIN; k++) {
		struct stage *m = bpf_map_lookup_elem(&stages, &i);

		if (!m)
			break;
		if (k == 0 && m->aware)
			out.color = out.pre = precolor(p, m, i);
		out.stage = i;
		out.in = out.color;
		out.color = color_of(i, p->now, m->packets ? p->segments : n, out.in);
		if (m->then < 0 || out.color == RED)
			break;
		i = m->then;
	}
	return out;
}
