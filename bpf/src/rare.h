/* SPDX-License-Identifier: Apache-2.0 */
/* Rare fields and keys: dataplane/identity.go in C. The verifier removes the code of those that a policy
 * does not use. */
#pragma once

#include "tunnel.h"

#define USES_RARE(field) (policy.rare & (1 << (field)))
#define USES_KEY(key) (policy.key_by & (1 << (key)))

/* mac_at returns the MAC address at an offset of the packet, or NO_VALUE if it is no Ethernet frame. */
static __always_inline __u64 mac_at(struct packet *p, __u32 off)
{
	struct {
		__be16 high, low[2];
	} mac;

	if (p->link != LINK_ETHERNET || !p->h->has_ethertype || !FETCH(p, off, mac))
		return NO_VALUE;
	return (__u64)bpf_ntohs(mac.high) << 32 | (__u32)bpf_ntohs(mac.low[0]) << 16 | bpf_ntohs(mac.low[1]);
}

static __always_inline __u64 source_mac(struct packet *p) { return mac_at(p, 6); }
static __always_inline __u64 destination_mac(struct packet *p) { return mac_at(p, 0); }

/* inside_mac is that of the side that the interface faces. */
static __always_inline __u64 inside_mac(struct packet *p)
{
	return mac_at(p, policy.ingress ? 6 : 0);
}

/* with_vlan adds the ID of the outer VLAN tag to a MAC address. */
static __always_inline __u64 with_vlan(const struct packet *p, __u64 mac)
{
	if (!p->h->tags || mac == NO_VALUE)
		return NO_VALUE;
	return (__u64)(p->h->tci & 0x0fff) << 48 | mac;
}

/* inner_vlan returns the ID of the second VLAN tag, or NO_VALUE. */
static __always_inline __u64 inner_vlan(struct packet *p)
{
	__be16 tci;

	if (p->h->tags < 2 || !FETCH(p, ETHER_HEADER + (p->outside ? 0 : 4), tci))
		return NO_VALUE;
	return bpf_ntohs(tci) & 0x0fff;
}

/* in_header reports whether the upper-layer header has n bytes on the wire. parse_ports has found the header,
 * unless the packet is a fragment other than the first, or a header before it is truncated. */
static __always_inline int in_header(const struct packet *p, __u32 n)
{
	return p->h->l4 && p->h->l4 + n <= p->l3 + p->l3_len;
}

/* tcp_flags returns the flags of TCP, or NO_VALUE. */
static __always_inline __u64 tcp_flags(struct packet *p)
{
	__u8 flags;

	if (p->h->proto != PROTO_TCP || !in_header(p, 14) || !FETCH(p, p->h->l4 + 13, flags))
		return NO_VALUE;
	return flags;
}

/* icmp_type returns Packet.ICMPType, or NO_VALUE. */
static __always_inline __u64 icmp_type(struct packet *p)
{
	__be16 type;

	if (!in_header(p, 2) || (p->h->proto != PROTO_ICMP && p->h->proto != PROTO_ICMPV6))
		return NO_VALUE;
	if (!FETCH(p, p->h->l4, type))
		return NO_VALUE;
	return (p->h->proto == PROTO_ICMPV6 ? ICMPV6_TYPE : 0) | bpf_ntohs(type);
}

/* rare_vector returns the vector of the value of a rare field. The first bound is 0. */
__noinline __u32 rare_vector(__u32 field, __u64 v)
{
	const volatile struct rare_search *s;
	__u32 base, first, n;

	if (!policy.rare || field >= RARE)
		return 0;
	s = &policy.rare_search[field];
	first = base = s->first;
	n = s->count;
	for (int i = 0; i < 17 && n > 1; i++) {
		__u32 half = n / 2;

		if (vector_word(base + half) <= v)
			base += half;
		n -= half;
	}
	return table_entry(s->offsets + base - first);
}

/* cgroup_vector returns the vector of the innermost cgroup that classes name and that contains the socket of
 * a packet. */
__noinline __u32 cgroup_vector(struct __sk_buff *skb)
{
	__u32 vector, none = policy.rare_search[CGROUP].none;

	if (!USES_RARE(CGROUP))
		return 0;
	for (int i = 0; i < MAX_LEVELS && i < policy.levels; i++) {
		__u64 id = bpf_skb_ancestor_cgroup_id(skb, policy.level[i]);

		if (!id)
			continue;
		vector = rare_vector(CGROUP, id);
		if (vector != none)
			return vector;
	}
	return none;
}

/* note_rare stores the values of rare fields, and the packet's keys. */
static __always_inline void note_rare(struct packet *p)
{
	__u32 first = 0;
	struct scratch *x = bpf_map_lookup_elem(&scratch, &first);

	if (!x)
		return;
	if (USES_RARE(INNER_VLAN))
		x->rare[INNER_VLAN] = inner_vlan(p);
	if (USES_RARE(TCP_FLAGS))
		x->rare[TCP_FLAGS] = tcp_flags(p);
	if (USES_RARE(ICMP_TYPE))
		x->rare[ICMP_TYPE] = icmp_type(p);
	if (USES_RARE(INSIDE_MAC))
		x->rare[INSIDE_MAC] = inside_mac(p);
	if (USES_RARE(SRC_MAC))
		x->rare[SRC_MAC] = source_mac(p);
	if (USES_RARE(DST_MAC))
		x->rare[DST_MAC] = destination_mac(p);
	if (USES_RARE(VNI))
		x->rare[VNI] = vni(p);
	if (USES_RARE(TEID))
		x->rare[TEID] = teid(p);
	if (USES_RARE(CGROUP))
		x->rare_by[CGROUP] = p->source == FROM_SKB ? cgroup_vector(p->ctx) : policy.rare_search[CGROUP].none;
	if (USES_KEY(KEY_MAC))
		x->key_by[KEY_MAC] = inside_mac(p);
	if (USES_KEY(KEY_VLAN_MAC))
		x->key_by[KEY_VLAN_MAC] = with_vlan(p, inside_mac(p));
	if (USES_KEY(KEY_VNI))
		x->key_by[KEY_VNI] = vni(p);
	if (USES_KEY(KEY_TEID))
		x->key_by[KEY_TEID] = teid(p);
	if (USES_KEY(KEY_MARK))
		x->key_by[KEY_MARK] = p->h->mark;
	if (USES_KEY(KEY_CGROUP)) {
		x->key_by[KEY_CGROUP] = p->source == FROM_SKB ? bpf_skb_cgroup_id(p->ctx) : 0;
		if (!x->key_by[KEY_CGROUP]) /* no full socket */
			x->key_by[KEY_CGROUP] = NO_VALUE;
	}
}
