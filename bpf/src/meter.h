/* SPDX-License-Identifier: Apache-2.0 */
/* The meters of RFC 2697, RFC 2698 and RFC 4115, and those that count in windows;
 * meter/meter.go and meter/window.go in C, for any number of CPUs at once.
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

/* words are those of a state, and its stamp, while a CPU has them. */
struct words {
	__u64 c, e;
	__u64 stamp;
};

/* settle is draw on words that no other CPU has. */
static __always_inline void settle(struct words *w, const struct stage *m, __u32 i, __u64 now, struct take *t)
{
	if (w->stamp == NOT_BEGUN) {
		w->stamp = now;
		w->c += now * m->buckets[0].num;
		w->e += now * m->buckets[1].num;
	} else if ((__s64)now < (__s64)w->stamp) {
		now = w->stamp;
	} else if (now - w->stamp >= m->horizon) {
		__u64 dt = now - w->stamp;
		__s64 in_c = refill(&m->buckets[0], w->stamp * m->buckets[0].num - w->c, dt);
		__s64 in_e = refill(&m->buckets[1], w->stamp * m->buckets[1].num - w->e, dt);

		if (in_e > m->buckets[1].size)
			in_e = m->buckets[1].size;
		if (in_c > m->buckets[0].size) {
			if (m->coupled)
				in_e += in_c - m->buckets[0].size;
			in_c = m->buckets[0].size;
		}
		if (in_e > m->buckets[1].size)
			in_e = m->buckets[1].size;
		w->stamp = now;
		w->c = now * m->buckets[0].num - in_c;
		w->e = now * m->buckets[1].num - in_e;
	}
	t->word = i ? w->e : w->c;
	apply(t, &m->buckets[i], now * m->buckets[i].num, i == 0 && m->coupled);
	if (t->writes) {
		if (i)
			w->e = t->word;
		else
			w->c = t->word;
	}
}

/* exclusive is draw under the lock. */
static __always_inline void exclusive(struct state *s, const struct stage *m, __u32 i, __u64 now, struct take *t)
{
	struct words w;

	bpf_spin_lock(&s->lock);
	w.c = __sync_fetch_and_or(&s->word[0], CLOSED) & ~CLOSED;
	w.e = __sync_fetch_and_or(&s->word[1], CLOSED) & ~CLOSED;
	w.stamp = s->stamp;
	settle(&w, m, i, now, t);
	WRITE(s->stamp, w.stamp);
	WRITE(s->word[0], w.c);
	WRITE(s->word[1], w.e);
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

/* product is a * b in 128 bits. */
struct product {
	__u64 hi, lo;
};

static __always_inline struct product multiply(__u64 a, __u64 b)
{
	__u64 a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
	__u64 low = a0 * b0, one = a1 * b0 + (low >> 32), two = a0 * b1 + (one & 0xffffffff);
	struct product p = {
		.hi = a1 * b1 + (one >> 32) + (two >> 32),
		.lo = two << 32 | (low & 0xffffffff),
	};

	return p;
}

/* begins is where the window of a time starts, which may be before 0. */
static __always_inline __u64 begins(__u64 now, __u64 length)
{
	__u64 into;

	if ((__s64)now >= 0)
		return now - now % length;
	into = -now % length;
	return into ? now - (length - into) : now;
}

/* counted is the verdict of meter.FixedWindow and meter.SlidingCounter on words
 * that no other CPU has: c is what was taken in this window, e in the one before. */
static __always_inline __u32 counted(struct words *w, const struct stage *m, __u64 now, __u64 n, __u32 in)
{
	__u64 limit = m->buckets[0].size, length = m->window, since = now - w->stamp, view, left;
	struct product before, room;

	if (!length)
		return RED;
	if (w->stamp == NOT_BEGUN) {
		w->stamp = begins(now, length);
	} else if ((__s64)now >= (__s64)w->stamp && since >= length) {
		w->e = m->sliding && since < 2 * length ? w->c : 0;
		w->c = 0;
		w->stamp = begins(now, length);
	}
	if (in >= RED || n > limit - w->c)
		return RED;
	if (w->e) {
		view = (__s64)(now - w->stamp) > 0 ? length - (now - w->stamp) : length;
		left = limit - w->c - n;
		before = multiply(w->e, view);
		room = multiply(left, length);
		if (before.hi > room.hi || (before.hi == room.hi && before.lo > room.lo))
			return RED;
	}
	w->c += n;
	return in;
}

/* windowed is counted under the lock. */
static __always_inline __u32 windowed(struct state *s, const struct stage *m, __u64 now, __u64 n, __u32 in)
{
	struct words w;
	__u32 color;

	bpf_spin_lock(&s->lock);
	w.c = s->word[0];
	w.e = s->word[1];
	w.stamp = s->stamp;
	color = counted(&w, m, now, n, in);
	s->word[0] = w.c;
	s->word[1] = w.e;
	s->stamp = w.stamp;
	bpf_spin_unlock(&s->lock);
	return color;
}

/* cost_of is that of n bytes, in units of a bucket. */
static __always_inline __s64 cost_of(const struct bucket *b, __u64 n)
{
	return (n < b->over ? n : b->over) * b->den;
}

/* buckets is the verdict of a meter of buckets: on a state that CPUs share, or on
 * words that this one has. RFC 2698 section 3 asks P first, and what takes from C
 * took from P. RFC 2697 and RFC 4115 section 3 ask C, and what does not fit there
 * may take from E. */
static __always_inline __u32 buckets(struct state *s, struct words *w, const struct stage *m, __u64 now, __u64 n, __u32 in)
{
	struct take t = {};
	__u32 first = m->peak & 1, fits;

	t.cost = in < RED && (m->peak || in <= m->limit) ? cost_of(&m->buckets[first], n) : NEVER;
	if (w)
		settle(w, m, first, now, &t);
	else
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
	}
	t.cost = in < RED ? cost_of(&m->buckets[!first], n) : NEVER;
	if (!m->peak && fits)
		t.cost = 0;
	if (w)
		settle(w, m, !first, now, &t);
	else
		draw(s, m, !first, now, &t);
	if (m->peak)
		return t.fits ? GREEN : YELLOW;
	return fits ? in : t.fits ? YELLOW : RED;
}

/* color_of is meter.Meter.Color.
 *
 * It is a function of its own so that the verifier looks at it once. */
__noinline __u32 color_of(__u32 stage, __u64 now, __u32 n, __u32 in)
{
	const struct stage *m = bpf_map_lookup_elem(&stages, &stage);
	struct state *s;

	/* Red takes nothing. Where packets are handed in it begins a meter's clock. */
	if (!m || (in >= RED && !policy.handed))
		return RED;
	s = bpf_map_lookup_elem(&states, &m->slot);
	if (!s)
		return RED;
	return m->window ? windowed(s, m, now, n, in) : buckets(s, NULL, m, now, n, in);
}

#define SPINS 256
#define TAGGED 0x8000 /* beside a VLAN id */

/* note_key keeps what keys are made of. It is done before the packet is classified:
 * nobody needs its addresses after that. */
static __always_inline void note_key(struct packet *p)
{
	__u32 first = 0;
	struct scratch *x = bpf_map_lookup_elem(&scratch, &first);

	if (!x)
		return;
	x->packet.src = p->src;
	x->packet.dst = p->dst;
	/* All fragments of a packet have one key. */
	x->packet.sport = p->fragment ? 0 : p->sport;
	x->packet.dport = p->fragment ? 0 : p->dport;
	x->packet.vlan = (p->tci & 0x0fff) | (p->tags ? TAGGED : 0);
	x->packet.tag = (p->traffic_class & 0xfc) | p->kind;
	x->packet.proto = p->fragment ? p->fragment : p->proto;
}

/* key_of makes the packet's key, or says that it has none. */
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
	return m->tagged ? x->packet.vlan & TAGGED : kind >= IPV4;
}

/* known_of returns the state of a key, which it may make. */
static __always_inline struct known *known_of(void *table, struct scratch *x, const struct stage *m, __u64 now)
{
	struct known *s = bpf_map_lookup_elem(table, &x->key);

	if (s)
		return s;
	if (m->window) {
		x->fresh.stamp = begins(now, m->window);
		x->fresh.word[0] = m->empty ? m->buckets[0].size : 0;
		x->fresh.word[1] = 0;
	} else {
		x->fresh.stamp = now;
		x->fresh.word[0] = now * m->buckets[0].num - (m->empty ? 0 : m->buckets[0].size);
		x->fresh.word[1] = now * m->buckets[1].num - (m->empty ? 0 : m->buckets[1].size);
	}
	bpf_map_update_elem(table, &x->key, &x->fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(table, &x->key);
}

#define NO_ROOM 3 /* beside the colors */

/* color_of_key is meter.Table.Color for the packet in scratch. It says where it has
 * no key, the table no room at all, or another CPU does not let go of its state: a
 * virtual CPU may be stopped while it has it, and to drop what conforms would be
 * worse than to meter it with the packets that have no key. The kernel may give a
 * state to another key while it is held: then that one pays. */
__noinline __u32 color_of_key(__u32 stage, __u64 now, __u32 n, __u32 in)
{
	const struct stage *m = bpf_map_lookup_elem(&stages, &stage);
	struct known *s = NULL;
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
		s = known_of(table, x, m, now);
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
	in = m->window ? counted(&w, m, now, n, in) : buckets(NULL, &w, m, now, n, in);
	s->word[0] = w.c;
	s->word[1] = w.e;
	s->stamp = w.stamp;
	__sync_lock_test_and_set(&s->lock, 0);
	return in;
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
	__u32 i = first, cost;

	for (int k = 0; k < MAX_CHAIN; k++) {
		struct stage *m = bpf_map_lookup_elem(&stages, &i);

		if (!m)
			break;
		if (k == 0 && m->aware)
			out.color = out.pre = precolor(p, m, i);
		out.stage = i;
		out.in = out.color;
		cost = m->packets ? p->segments : n;
		out.color = NO_ROOM;
		if (policy.keyed && m->table >= 0)
			out.color = color_of_key(i, p->now, cost, out.in);
		if (out.color > RED)
			out.color = color_of(i, p->now, cost, out.in);
		if (m->then < 0 || out.color == RED)
			break;
		i = m->then;
	}
	return out;
}
