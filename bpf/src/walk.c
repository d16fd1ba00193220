// SPDX-License-Identifier: Apache-2.0
/* The program that meters packets of a capture, many per run. */
#include "shape.h"

/* 0 -> the bytes of the packets. Written by user space, and by the program for marks. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frames);
} frames SEC(".maps");

static __always_inline struct packet packet_of_frames(__u32 start, __u32 captured)
{
	__u32 first = 0;

	return (struct packet){
		.source = FROM_FRAMES,
		.nothing = nothing,
		.data = bpf_map_lookup_elem(&frames, &first),
		.start = start,
		.captured = captured,
	};
}

__noinline __u64 frames_layers(__u32 start, __u32 captured, __u64 packed)
{
	struct packet p = packet_of_frames(start, captured);

	return p.data ? walk_layers(&p, packed) : 0;
}

__noinline __u64 frames_extensions(__u32 start, __u32 captured, __u32 l3, __u32 end, __u32 proto)
{
	struct packet p = packet_of_frames(start, captured);

	return p.data ? pack_chain(walk_extensions(&p, l3, end, proto)) : 0;
}

__noinline __u64 frames_tunnel(__u32 start, __u32 captured, __u32 l4, __u32 end)
{
	struct packet p = packet_of_frames(start, captured);

	return p.data ? walk_tunnel(&p, l4, end) : 0;
}

/* copy_state copies the state of the meter that decided, so that user space can compute the
 * tokens that the packet lacked. The packet took none from the bucket that lacked them. */
static __always_inline void copy_state(struct record *r)
{
	__u32 stage = r->stage;
	const struct stage *m = bpf_map_lookup_elem(&stages, &stage);
	const struct state *s = m && m->table == PRIVATE ? bpf_map_lookup_elem(&states, &m->slot) : NULL;

	if (!s)
		return;
	r->word[0] = s->word[0];
	r->word[1] = s->word[1];
	r->stamp = s->stamp;
}

static long step(__u32 i, void *ctx __attribute__((unused)))
{
	__u32 first = 0;
	struct record *r = bpf_map_lookup_elem(&records, &i);
	struct headers h = {};
	struct packet p = {.source = FROM_FRAMES, .h = &h};

	p.data = bpf_map_lookup_elem(&frames, &first);
	if (!r || !p.data)
		return 1;
	p.start = r->start;
	p.captured = r->captured;
	p.wire = r->wire;
	p.segment = r->segment;
	p.segments = r->segments;
	p.now = r->time;
	p.link = r->link;
	h.mark = r->mark;
	shape(&p, r);
	if (r->color != GREEN)
		copy_state(r);
	return 0;
}

/* shaper_walk meters the first skb->mark records. User space passes the number
 * as the test packet's mark. */
SEC("tc")
int shaper_walk(struct __sk_buff *skb)
{
	return bpf_loop(skb->mark, step, NULL, 0);
}

char _license[] SEC("license") = "Apache-2.0";
