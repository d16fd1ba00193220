/* SPDX-License-Identifier: Apache-2.0 */
/* The meters of RFC 2697, RFC 2698 and RFC 4115, and the meters that count in windows:
 * meter/meter.go and meter/window.go in C, for any number of CPUs at once.
 *
 * A bucket is one word: the time, in its own units, at which it was last empty. At
 * time v = now * num it holds v - word, at most its size. So refilling changes
 * nothing, and a packet takes its cost by one compare-and-swap:
 *
 *	word = v - min(v - word, size) + cost
 *
 * The sum of these costs is bounded in any order of CPUs: a swap starts from a word of
 * at least v - size and ends at a word of at most v, so the costs of all swaps between
 * two times add up to at most size + num * dt. A CPU with an old now sees a lower
 * level. A packet that does not fit writes nothing.
 *
 * v and word are known modulo 2^64. That suffices while word was written less than
 * horizon ns ago. The state's stamp is a time since which both words were written. If
 * it is too old, the first CPU to notice takes the lock. It closes both words by their
 * lowest bit (units are halved for it), so that swaps in progress fail, brings them up
 * to date and opens them. A CPU that finds a word closed, or loses too many swaps,
 * also waits for the lock.
 *
 * A word is read before the stamp, and the stamp is written before the words. So a
 * word opened later is never combined with an old stamp.
 *
 * The parameters of a budget can change while packets are metered. The writer first
 * closes the words, then writes the parameters and increments their version, and opens
 * the words, in the new units, last. A packet reads the version before the parameters,
 * and again after a word. A word in other units than its own is then closed, or has
 * another version, or is closed before its swap, which fails. */
#pragma once

#include "maps.h"

#define CLOSED 1ULL
#define NEVER (1LL << 62)	 /* more than any bucket holds, units */
#define NOT_BEGUN (1ULL << 63)	 /* stamp of a meter before its first packet */
#define TRIES 4

/* level_after returns the level of a bucket that held units at a stamp dt ago, not
 * limited to its size. */
static __always_inline __s64 level_after(const struct bucket *b, __s64 units, __u64 dt)
{
	return dt >= b->full ? NEVER : units + (__s64)(dt * b->num);
}

/* withdrawal is an operation on a word: it adds credit, and then takes cost if the
 * bucket holds that much. A word that would mean the same level is not written, so
 * CPUs whose packets take nothing do not contend for it. spill is the overflow of
 * C. */
struct withdrawal {
	__u64 word;    /* in and out */
	__s64 cost;    /* units */
	__s64 credit;  /* units */
	__s64 spill;   /* out: units */
	__u32 fits;    /* out */
	__u32 writes;  /* out: the word has changed */
	__u32 version; /* of the profile with these units */
	__u32 n;       /* bytes with this cost, in a budget */
};

/* cost_of is the cost of n bytes, in units of a bucket. */
static __always_inline __s64 cost_of(const struct bucket *b, __u64 n)
{
	return (n < b->over ? n : b->over) * b->den;
}

static __always_inline void withdraw(struct withdrawal *t, const struct bucket *b, __u64 v, __u32 spills)
{
	__s64 holds = v - t->word, before;

	t->spill = 0;
	if (holds > b->size) {
		if (spills)
			t->spill = holds - b->size;
		holds = b->size;
	}
	before = holds;
	holds += t->credit;
	if (holds > b->size)
		holds = b->size;
	t->fits = holds >= t->cost;
	if (t->fits)
		holds -= t->cost;
	t->writes = holds != before || t->spill;
	t->word = v - holds;
}

/* words are the words and the stamp of a state while only one CPU accesses it. */
struct words {
	__u64 c, e;
	__u64 stamp;
};

/* advance_words sets the stamp of words to now, any time after the present stamp. The
 * stamp must not be NOT_BEGUN. */
static __always_inline void advance_words(struct words *w, const struct profile *m, __u64 now)
{
	__u64 dt = now - w->stamp;
	__s64 in_c = level_after(&m->buckets[0], w->stamp * m->buckets[0].num - w->c, dt);
	__s64 in_e = level_after(&m->buckets[1], w->stamp * m->buckets[1].num - w->e, dt);

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

/* draw_private is draw for words that no other CPU accesses. */
static __always_inline void draw_private(struct words *w, const struct profile *m, __u32 i, __u64 now, struct withdrawal *t)
{
	if (w->stamp == NOT_BEGUN) {
		w->stamp = now;
		w->c += now * m->buckets[0].num;
		w->e += now * m->buckets[1].num;
	} else if ((__s64)now < (__s64)w->stamp) {
		now = w->stamp;
	} else if (now - w->stamp >= m->horizon) {
		advance_words(w, m, now);
	}
	t->word = i ? w->e : w->c;
	withdraw(t, &m->buckets[i], now * m->buckets[i].num, i == 0 && m->coupled);
	if (t->writes) {
		if (i)
			w->e = t->word;
		else
			w->c = t->word;
	}
}

/* draw_locked is draw under the lock. The parameters of a budget may have changed
 * since the packet read them; the current ones apply. A credit, the overflow of
 * the other bucket in units of the old ones, is lost. */
static __always_inline void draw_locked(struct state *s, struct budget *b, struct bpf_spin_lock *lock, const struct profile *m, __u32 i, __u64 now, struct withdrawal *t)
{
	struct words w;

	bpf_spin_lock(lock);
	if (b && b->version != t->version) {
		t->version = b->version;
		t->credit = 0;
		if (t->cost && t->cost != NEVER)
			t->cost = cost_of(&m->buckets[i], t->n);
	}
	w.c = __sync_fetch_and_or(&s->word[0], CLOSED) & ~CLOSED;
	w.e = __sync_fetch_and_or(&s->word[1], CLOSED) & ~CLOSED;
	w.stamp = s->stamp;
	draw_private(&w, m, i, now, t);
	WRITE(s->stamp, w.stamp);
	WRITE(s->word[0], w.c);
	WRITE(s->word[1], w.e);
	bpf_spin_unlock(lock);
}

/* draw takes bytes from bucket i of a meter if it holds that much after credit
 * was added. */
static __always_inline void draw(struct state *s, struct budget *budget, struct bpf_spin_lock *lock, const struct profile *m, __u32 i, __u64 now, struct withdrawal *t)
{
	const struct bucket *b = &m->buckets[i];
	__u64 v = now * b->num;

	for (int try = 0; try < TRIES; try++) {
		__u64 word = READ(s->word[i]);

		if (word & CLOSED || now - READ(s->stamp) >= m->horizon || (budget && READ(budget->version) != t->version))
			break;
		t->word = word;
		withdraw(t, b, v, i == 0 && m->coupled);
		if (!t->writes || __sync_val_compare_and_swap(&s->word[i], word, t->word) == word)
			return;
	}
	draw_locked(s, budget, lock, m, i, now, t);
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

/* window_start returns the start of the window that contains a time. It may be before 0. */
static __always_inline __u64 window_start(__u64 now, __u64 length)
{
	__u64 into;

	if ((__s64)now >= 0)
		return now - now % length;
	into = -now % length;
	return into ? now - (length - into) : now;
}

/* window_color is the verdict of meter.FixedWindow and meter.SlidingCounter on words
 * that no other CPU accesses: c is the amount taken in this window, e in the
 * previous one. */
static __always_inline __u32 window_color(struct words *w, const struct profile *m, __u64 now, __u64 n, __u32 in)
{
	__u64 limit = m->buckets[0].size, length = m->window, since = now - w->stamp, view, left;
	struct product before, room;

	if (!length)
		return RED;
	if (w->stamp == NOT_BEGUN) {
		w->stamp = window_start(now, length);
	} else if ((__s64)now >= (__s64)w->stamp && since >= length) {
		w->e = m->sliding && since < 2 * length ? w->c : 0;
		w->c = 0;
		w->stamp = window_start(now, length);
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

/* window_color_locked is window_color under the lock. */
static __always_inline __u32 window_color_locked(struct state *s, struct bpf_spin_lock *lock, const struct profile *m, __u64 now, __u64 n, __u32 in)
{
	struct words w;
	__u32 color;

	bpf_spin_lock(lock);
	w.c = s->word[0];
	w.e = s->word[1];
	w.stamp = s->stamp;
	color = window_color(&w, m, now, n, in);
	s->word[0] = w.c;
	s->word[1] = w.e;
	s->stamp = w.stamp;
	bpf_spin_unlock(lock);
	return color;
}

#define WHOLE 16000000000ULL /* units per byte; a multiple of the den of every rate in whole bit/s */

/* convert_level converts units of one profile's bucket to units of another's, rounded
 * down and capped at the new burst. A fraction of a byte is kept if both rates
 * are whole bit/s. The level is negative if another CPU has taken tokens from
 * after this CPU's now. */
static __always_inline __s64 convert_level(const struct bucket *from, const struct bucket *to, __s64 units)
{
	__u64 den = from->den, next = to->den, bytes, rest;

	if (!den || !next)
		return 0;
	if (units < 0)
		return -(__s64)((-units + den - 1) / den * next);
	bytes = units / den;
	rest = units % den;
	if (bytes + 1 >= to->over)
		return (to->over - 1) * next;
	rest = WHOLE % den || WHOLE % next ? 0 : rest * (WHOLE / den) / (WHOLE / next) & ~CLOSED;
	return bytes * next + rest;
}

/* convert_words converts words of one profile to another of the same kind. A window
 * whose length changes is used up. */
static __always_inline void convert_words(struct words *w, const struct profile *from, const struct profile *to, __u64 now)
{
	__u64 limit = to->buckets[0].size;
	__s64 c, e;

	if (to->window) {
		if (from->window != to->window) {
			w->c = limit;
			w->e = 0;
			if (w->stamp != NOT_BEGUN)
				w->stamp = window_start(now, to->window);
		}
		if (w->c > limit)
			w->c = limit;
		return;
	}
	if (w->stamp == NOT_BEGUN) { /* its words stay closed */
		w->c = -convert_level(&from->buckets[0], &to->buckets[0], -w->c) | CLOSED;
		w->e = -convert_level(&from->buckets[1], &to->buckets[1], -w->e) | CLOSED;
		return;
	}
	if ((__s64)now < (__s64)w->stamp)
		now = w->stamp;
	advance_words(w, from, now);
	c = convert_level(&from->buckets[0], &to->buckets[0], now * from->buckets[0].num - w->c);
	e = convert_level(&from->buckets[1], &to->buckets[1], now * from->buckets[1].num - w->e);
	w->c = now * to->buckets[0].num - c;
	w->e = now * to->buckets[1].num - e;
}

/* color_by is bucket_color for meters whose peak is this constant. RFC 2698 section 3 checks P first, and
 * C only if P fits. RFC 2697 and RFC 4115 section 3 check C, and then E if C
 * does not fit. */
static __always_inline __u32 color_by(const __u32 peak, struct state *s, struct budget *b, struct bpf_spin_lock *lock, struct words *w, const struct profile *m, __u64 now, __u64 n, __u32 in)
{
	struct withdrawal t = {};
	const __u32 first = peak;
	__u32 fits;

	if (b) {
		t.version = READ(b->version);
		BARRIER();
		t.n = n;
	}
	t.cost = in < RED && (peak || in <= m->limit) ? cost_of(&m->buckets[first], n) : NEVER;
	if (w)
		draw_private(w, m, first, now, &t);
	else
		draw(s, b, lock, m, first, now, &t);
	fits = t.fits;
	if (peak) {
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
	if (!peak && fits)
		t.cost = 0;
	if (w)
		draw_private(w, m, !first, now, &t);
	else
		draw(s, b, lock, m, !first, now, &t);
	if (peak)
		return t.fits ? GREEN : YELLOW;
	return fits ? in : t.fits ? YELLOW : RED;
}

/* bucket_color is the verdict of a meter of buckets: on a state shared by CPUs, or
 * on words that only this CPU accesses. */
static __always_inline __u32 bucket_color(struct state *s, struct budget *b, struct bpf_spin_lock *lock, struct words *w, const struct profile *m, __u64 now, __u64 n, __u32 in)
{
	if (m->peak)
		return color_by(1, s, b, lock, w, m, now, n, in);
	return color_by(0, s, b, lock, w, m, now, n, in);
}

/* budget_color is the verdict of a budget. */
static __always_inline __u32 budget_color(__u32 slot, __u64 now, __u32 n, __u32 in)
{
	struct budget *b = bpf_map_lookup_elem(&budgets, &slot);
	struct guard *g = bpf_map_lookup_elem(&locks, &slot);

	if (!b || !g)
		return RED;
	if (b->profile.window)
		return window_color_locked((struct state *)b, &g->lock, &b->profile, now, n, in);
	return bucket_color((struct state *)b, b, &g->lock, NULL, &b->profile, now, n, in);
}
