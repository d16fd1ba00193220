/* SPDX-License-Identifier: Apache-2.0 */
/* The note of a budget that charges a packet once on its way through the host.
 *
 * The note is in tc_index of the skb, the field for the result of an ingress policer. The kernel
 * keeps it from one hook to the next: in routing, NAT and bridges, in VLAN devices and tunnels, and
 * in each piece of a packet that is cut. A program that has not judged the packet finds no note of
 * its budget, and charges: a new packet has 0, and a tc filter that ends the chain writes its class. */
#pragma once

#include "packet.h"

#define NOTE_COLOR 3	   /* 1 + color; 0: no note */
#define NOTE_LABEL_SHIFT 2 /* the label of the budget */

#define NOT_JUDGED 3 /* not a color */

/* noted_color returns the color that the budget with the label gave the packet before, or NOT_JUDGED. */
static __always_inline __u32 noted_color(struct packet *p, __u32 label)
{
	struct __sk_buff *skb = p->ctx;
	__u32 note;

	if (p->source != FROM_SKB)
		return NOT_JUDGED;
	note = skb->tc_index;
	if (note >> NOTE_LABEL_SHIFT != label || !(note & NOTE_COLOR))
		return NOT_JUDGED;
	return (note & NOTE_COLOR) - 1;
}

/* write_note notes the color of the budget with the label. */
static __always_inline void write_note(struct packet *p, __u32 label, __u32 color)
{
	struct __sk_buff *skb = p->ctx;

	if (p->source == FROM_SKB)
		skb->tc_index = label << NOTE_LABEL_SHIFT | (color + 1);
}
