/* SPDX-License-Identifier: Apache-2.0 */
/* The headers between the link header and the network header: VLAN tags, MPLS labels,
 * PPPoE. */
#pragma once

#include "headers.h"

/* kind_by_version returns the kind by the IP version at l3, or otherwise if that is
 * neither 4 nor 6. */
static __always_inline __u8 kind_by_version(struct packet *p, __u8 otherwise)
{
	__u8 first;

	if (!FETCH(p, p->l3, first))
		return MALFORMED;
	switch (first >> 4) {
	case 4:
		return IPV4;
	case 6:
		return IPV6;
	}
	return otherwise;
}

/* parse_mpls walks a label stack (RFC 3032 section 2.1). The first nibble after
 * it is the payload's IP version (RFC 4928 section 3). */
static __always_inline __u8 parse_mpls(struct packet *p)
{
	__u32 top = p->l3;

	for (int i = 0; i < MAX_LABELS; i++) {
		__be32 entry;

		if (!FETCH(p, p->l3, entry))
			return MALFORMED;
		p->h->mpls = top;
		p->l3 += 4;
		FORGET(p, p->l3);
		if (entry & bpf_htonl(0x100))
			return kind_by_version(p, OTHER);
	}
	return OTHER;
}

/* parse_pppoe reads a session header and the PPP protocol (RFC 2516 sections 4
 * and 7): two bytes, or one if it is odd (RFC 1661 section 6.5). */
static __always_inline __u8 parse_pppoe(struct packet *p)
{
	__u32 proto, size = 7;
	__u8 *header = load_bytes(p, p->l3, 7), second;

	if (!header)
		return MALFORMED;
	proto = header[6];
	if (!(proto & 1)) {
		if (!FETCH(p, p->l3 + 7, second))
			return MALFORMED;
		proto = proto << 8 | second;
		size = 8;
	}
	p->l3 += size;
	switch (proto) {
	case PPP_IPV4:
		return IPV4;
	case PPP_IPV6:
		return IPV6;
	}
	return OTHER;
}

/* parse_tags walks the VLAN tags at l3, and sets the EtherType after them. It returns
 * whether the packet has all their bytes. */
static __always_inline int parse_tags(struct packet *p)
{
	for (int i = 0; i < MAX_TAGS && p->h->tags < MAX_TAGS; i++) {
		struct {
			__be16 tci, ethertype;
		} tag;

		switch (p->h->ethertype) {
		case ETHER_VLAN:
		case ETHER_QINQ:
		case ETHER_QINQ_OLD:
			break;
		default:
			return 1;
		}
		if (!FETCH(p, p->l3, tag))
			return 0;
		if (!p->h->tags)
			p->h->tci = bpf_ntohs(tag.tci);
		p->h->tags++;
		p->h->ethertype = bpf_ntohs(tag.ethertype);
		p->l3 += 4;
	}
	return 1;
}

/* parse_layers finds the network header at or after l3, and returns its kind. */
static __always_inline __u8 parse_layers(struct packet *p)
{
	if (!parse_tags(p))
		return MALFORMED;
	FORGET(p, p->l3);
	switch (p->h->ethertype) {
	case ETHER_IPV4:
		return IPV4;
	case ETHER_IPV6:
		return IPV6;
	case ETHER_MPLS:
	case ETHER_MPLS_MC:
		return parse_mpls(p);
	case ETHER_PPPOE:
		return parse_pppoe(p);
	}
	return OTHER;
}

/* layers are the results of parse_layers, and the fields that it starts from. They fit
 * in a register. */
union layers {
	struct {
		__u16 tci, ethertype;
		__u8 l3, mpls, tags, kind;
	};
	__u64 all;
};

/* walk_layers is parse_layers on packed fields. */
static __always_inline __u64 walk_layers(struct packet *p, __u64 packed)
{
	union layers at = {.all = packed};
	struct headers h = {};

	p->h = &h;
	p->h->tci = at.tci;
	p->h->ethertype = at.ethertype;
	p->l3 = at.l3;
	p->h->tags = at.tags;
	at.kind = parse_layers(p);
	at.tci = p->h->tci;
	at.ethertype = p->h->ethertype;
	at.l3 = p->l3;
	at.mpls = p->h->mpls;
	at.tags = p->h->tags;
	return at.all;
}

__noinline __u64 skb_layers(struct __sk_buff *skb, __u64 packed)
{
	__u64 copy[MAX_READ / 8];
	struct packet p = packet_of_skb(skb, copy);

	return walk_layers(&p, packed);
}

__noinline __u64 xdp_layers(struct xdp_md *ctx, __u64 packed)
{
	__u64 copy[MAX_READ / 8];
	struct packet p = packet_of_xdp(ctx, copy);

	return walk_layers(&p, packed);
}

__u64 frames_layers(__u32 start, __u32 captured, __u64 packed); /* walk.c */
