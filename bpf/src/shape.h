/* SPDX-License-Identifier: Apache-2.0 */
/* One packet through the policy: dataplane/pipeline/pipeline.go in C. */
#pragma once

#include "act.h"
#include "classify.h"
#include "customer.h"
#include "length.h"
#include "meter.h"
#include "parse.h"

/* shape is parse, classify, meter, act. It returns the set of enum done; 0 is a
 * drop. r is NULL unless records are used. */
static __always_inline __u8 shape(struct packet *p, struct record *r)
{
	struct metered m = {.stage = -1};
	struct class *class;
	__u8 done = PASS;
	__u32 n, fate = ADMIT;
	__s32 i;

	p->nothing = nothing;
	parse(p);
	count_segments(p);
	FORGET(p, p->segments);
	FORGET(p, p->segment);
	FORGET(p, p->wire);
	n = metered_length(p);
	FORGET(p, n);
	if (r) {
		r->dscp_in = p->h->traffic_class >> 2;
		r->kind = p->h->kind;
	}
	if (policy.keyed)
		note_key(p);
	if (policy.rare || policy.key_by)
		note_rare(p);
	p->h->length = n;
	if (policy.customers)
		p->h->customer = find_customer(p);
	i = classify(p);
	class = i < 0 ? NULL : bpf_map_lookup_elem(&classes, &i);
	if (class) {
		if (policy.customers && class->customers)
			p->customer = p->h->customer;
		if (policy.paced && p->customer) {
			if (policy.inputs)
				m.color = m.pre = input_color(p, class->stage);
			fate = try_customer(p, n);
			FORGET(p, fate);
			fate &= 7; /* a bound that older verifiers keep */
		}
		if (class->stage >= 0 && fate >= ADMIT)
			m = meter(p, class->stage, n);
		FORGET(p, m.color);
		FORGET(p, m.taken);
		FORGET(p, m.stage);
		done = act(p, class, &m, fate, n);
	} else {
		__u32 untaken = 0;
		struct counts *counts = OWN(counters, p->sharer, &untaken);

		if (counts)
			add_count(&counts->colors[GREEN], p->segments, n);
		if (policy.drop_untaken) {
			done = 0;
			if (counts)
				add_count(&counts->drops[GREEN][CAUSE_COLOR], p->segments, n);
		}
	}
	if (r) {
		r->class = i;
		r->stage = m.stage;
		r->length = n;
		r->done = done;
		r->pre = m.pre;
		r->color = m.color;
		r->in = m.in;
		r->dscp_out = p->h->traffic_class >> 2;
		r->mark = p->h->mark;
		r->cause = p->cause;
		r->delay = p->delay;
		r->customer = p->customer;
	}
	return policy.dry ? PASS : done;
}
