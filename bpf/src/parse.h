/* SPDX-License-Identifier: Apache-2.0 */
/* The headers of a packet: dataplane/parse.go in C. */
#pragma once

#include "extensions.h"
#include "layers.h"

/* parse_ethernet finds the network header and its kind by the EtherType. */
static __always_inline void parse_ethernet(struct packet *p)
{
	union layers at;
	__be16 type;

	p->l3 = ETHER_HEADER;
	if (!FETCH(p, ETHER_HEADER - 2, type))
		return;
	p->h->has_ethertype = 1;
	p->h->ethertype = bpf_ntohs(type);
	if (p->h->ethertype == ETHER_IPV4) {
		p->h->kind = IPV4;
		return;
	}
	if (p->h->ethertype == ETHER_IPV6) {
		p->h->kind = IPV6;
		return;
	}
	at.tci = p->h->tci;
	at.ethertype = p->h->ethertype;
	at.l3 = p->l3;
	at.mpls = 0;
	at.tags = p->h->tags;
	at.kind = MALFORMED;
	if (p->source == FROM_SKB)
		at.all = skb_layers(p->ctx, at.all);
	else if (p->source == FROM_XDP)
		at.all = xdp_layers(p->ctx, at.all);
	else
		at.all = frames_layers(p->start, p->captured, at.all);
	p->h->tci = at.tci;
	p->h->ethertype = at.ethertype;
	p->l3 = at.l3;
	p->h->mpls = at.mpls;
	p->h->tags = at.tags;
	p->h->kind = at.kind;
}

/* parse_link finds the network header and its kind by the link header. */
static __always_inline void parse_link(struct packet *p)
{
	switch (p->link) {
	case LINK_ETHERNET:
		parse_ethernet(p);
		return;
	case LINK_IPV4:
		p->h->kind = IPV4;
		break;
	case LINK_IPV6:
		p->h->kind = IPV6;
		break;
	default:
		p->h->kind = kind_by_version(p, MALFORMED);
	}
	if (p->h->kind != MALFORMED) {
		p->h->ethertype = p->h->kind == IPV4 ? ETHER_IPV4 : ETHER_IPV6;
		p->h->has_ethertype = 1;
	}
}

/* trim_padding removes link-layer padding from the l3 length. It applies to short
 * frames only, or a forged total length would reduce the metered length. */
static __always_inline void trim_padding(struct packet *p, __u32 header, __u32 total)
{
	if (p->link == LINK_ETHERNET && p->wire <= 60 + 4 * p->h->tags && header <= total && total <= p->l3_len)
		p->l3_len = total;
}

/* parse_ports reads the ports at off in the network packet, unless they are
 * padding or no class needs them. */
static __always_inline void parse_ports(struct packet *p, __u32 off)
{
	struct {
		__be16 from, to;
	} ports;

	p->h->l4 = p->l3 + off;
	if (!(policy.reads & (1 << BY_SPORT | 1 << BY_DPORT)))
		return;
	switch (p->h->proto) {
	case PROTO_TCP:
	case PROTO_UDP:
	case PROTO_DCCP:
	case PROTO_SCTP:
	case PROTO_UDPLITE:
		break;
	default:
		return;
	}
	if (off + 4 > p->l3_len)
		return;
	if (!FETCH(p, p->h->l4, ports))
		return;
	p->h->sport = bpf_ntohs(ports.from);
	p->h->dport = bpf_ntohs(ports.to);
	p->h->has_ports = 1;
}

static __always_inline __u8 parse_ipv4(struct packet *p)
{
	struct ipv4 *ip = load_bytes(p, p->l3, sizeof(*ip));
	__u32 size, total;

	if (!ip || ip->version_size >> 4 != 4)
		return MALFORMED;
	size = (ip->version_size & 0x0f) * 4;
	total = bpf_ntohs(ip->total);
	if (size < sizeof(*ip) || size > p->l3_len) /* the capture may be shorter */
		return MALFORMED;
	if (total < size && total) /* 0: segmentation offload of more than 64 KiB */
		return MALFORMED;
	trim_padding(p, size, total);
	p->h->traffic_class = ip->tos;
	if (policy.reads & (1 << BY_SRC | 1 << BY_DST)) {
		p->h->src.lo = bpf_ntohl(ip->src);
		p->h->dst.lo = bpf_ntohl(ip->dst);
	}
	p->h->proto = ip->proto;
	if (ip->fragment & bpf_htons(0x3fff)) /* including the more-fragments bit */
		p->h->fragment = FRAGMENT | ip->proto;
	if (!(ip->fragment & bpf_htons(0x1fff)))
		parse_ports(p, size);
	return IPV4;
}

/* parse_ipv6 reads the fixed header and the header after the extension headers.
 * If the chain is truncated, the packet has no ports. */
static __always_inline __u8 parse_ipv6(struct packet *p)
{
	struct ipv6 *ip = load_bytes(p, p->l3, sizeof(*ip));
	__u64 chain;

	if (!ip || bpf_ntohl(ip->flow) >> 28 != 6)
		return MALFORMED;
	trim_padding(p, sizeof(*ip), sizeof(*ip) + bpf_ntohs(ip->payload));
	p->h->traffic_class = bpf_ntohl(ip->flow) >> 20;
	if (policy.reads & (1 << BY_SRC | 1 << BY_DST)) {
		p->h->src = addr128(ip->src);
		p->h->dst = addr128(ip->dst);
	}
	p->h->proto = ip->next;
	if (p->source == FROM_SKB)
		chain = skb_extensions(p->ctx, p->l3, p->l3_len, ip->next);
	else if (p->source == FROM_XDP)
		chain = xdp_extensions(p->ctx, p->l3, p->l3_len, ip->next);
	else
		chain = frames_extensions(p->start, p->captured, p->l3, p->l3_len, ip->next);
	p->h->proto = chain;
	p->h->fragment = chain >> 8 & 0x1ff;
	p->h->removed = chain & REMOVED << 8 ? 8 : 0;
	if (!(chain & CUT << 8))
		parse_ports(p, chain >> 32);
	return IPV6;
}

static __always_inline void parse(struct packet *p)
{
	__u32 link;

	p->h->kind = MALFORMED;
	parse_link(p);
	FORGET(p, p->l3);
	FORGET(p, p->outside);
	link = p->l3 + 4 * p->outside;
	p->l3_len = p->wire > link ? p->wire - link : 0;
	if (p->h->kind == IPV4)
		p->h->kind = parse_ipv4(p);
	else if (p->h->kind == IPV6)
		p->h->kind = parse_ipv6(p);
}
