/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a lease: parts of its time, each with a profile of its own. */
#pragma once

#include "bucket.h"

/* start_phase starts the next phase at a time. */
static __always_inline void start_phase(struct leased *l, struct words *w, __u64 at)
{
	__u32 phase = l->phase;

	if (phase >= PHASES - 1)
		return;
	convert_words(w, &l->phases[phase], &l->phases[phase + 1], at);
	l->phase = phase + 1;
}

/* phase_ended reports whether a phase ends by now. */
static __always_inline int phase_ended(struct leased *l, __u64 now)
{
	__u32 phase = READ(l->phase);

	return phase < PHASES - 1 && (__s64)(now - READ(l->until[phase])) >= 0;
}

/* start_due_phases starts the phases that have begun by now. Each begins at the end of the
 * previous one, but not before the words' stamp: a lease grants nothing for the
 * time before it. */
static __always_inline void start_due_phases(struct leased *l, struct words *w, __u64 now)
{
	for (int i = 0; i < PHASES - 1; i++) {
		__u32 phase = l->phase;

		if (phase >= PHASES - 1 || !phase_ended(l, now))
			return;
		start_phase(l, w, l->until[phase]);
	}
}
