/* SPDX-License-Identifier: Apache-2.0 */
/* The maps that user space and the programs share. */
#pragma once

#include "policy.h"
#include "prefix.h"

/* A program compiled with SHARERS serves several interfaces, each with maps of its own: OWN_MAP declares
 * an array of them, by the interface's index modulo SHARERS. OWN looks up a key in the interface's map.
 * A global function has at most five arguments, so FOR adds the interface to a number below 2^16. */
#ifdef SHARERS
#define OWN_MAP(name, type_of_value, fields...)           \
	type_of_value (*example_of_##name)[1]; /* for BTF */ \
	struct own_##name {                               \
		fields                                    \
		__type(value, type_of_value);             \
	};                                                \
	struct {                                          \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); \
		__uint(max_entries, SHARERS);             \
		__type(key, __u32);                       \
		__array(values, struct own_##name);       \
	} name SEC(".maps")
#define OWN(map, sharer, key)                                     \
	({                                                        \
		__u32 _at = (sharer);                             \
		void *_own = bpf_map_lookup_elem(&(map), &_at);   \
		_own ? bpf_map_lookup_elem(_own, (key)) : NULL;   \
	})
#define SHARER_OF(index) ((index) & (SHARERS - 1))
#define FOR(sharer, number) ((sharer) << 16 | (number))
#define SHARER(packed) ((packed) >> 16)
#define NUMBER(packed) ((packed) & 0xffff)
#else
#define OWN_MAP(name, type_of_value, fields...) \
	struct {                                \
		fields                          \
		__type(value, type_of_value);   \
	} name SEC(".maps")
#define OWN(map, sharer, key) ({ (void)(sharer); bpf_map_lookup_elem(&(map), (key)); })
#define SHARER_OF(index) 0
#define FOR(sharer, number) (number)
#define SHARER(packed) 0
#define NUMBER(packed) (packed)
#endif

/* Maps of a policy: written before the program runs, then only read by it. */

/* index -> word of a vector. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} vectors SEC(".maps");

/* index -> entry of a table, bound, or index of a vector. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tables SEC(".maps");

/* index -> bound of an IPv6 search. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bound);
} bounds6 SEC(".maps");

/* index of a class -> class. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct class);
} classes SEC(".maps");

/* index of a stage -> stage. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stage);
} stages SEC(".maps");

/* stage and skb mark of 64 and more -> input color. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, struct high);
	__type(value, __u32);
} highs SEC(".maps");

/* index -> queue. */
OWN_MAP(queues, struct queue,
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
);

/* index -> departure of a queued packet: a ring for each queue with a limit in packets or bytes.
 * Written by the programs under the queue's lock, and read without it. */
OWN_MAP(waiting, struct departure,
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
);

/* flows_slot * flows + flow number -> flow. Written by the programs without
 * synchronisation: a lost update only sends a packet first, or not. */
OWN_MAP(flows, struct flow,
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
);

/* Maps that outlive a policy. User space sizes the maps indexed by slot for a
 * policy and the previous one. */

/* slot -> backlog. Written by the programs under its lock, and by user space
 * before a slot is in use. */
OWN_MAP(backlogs, struct backlog,
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
);

/* slot -> state. Written by the programs by compare-and-swap or under its lock,
 * and by user space before a slot is in use. */
OWN_MAP(states, struct state,
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
);

/* slot -> budget. All shapers of the host with shared meters have the same map;
 * the others have an unused one. Words are written by the programs and by user
 * space by compare-and-swap. All other fields are written by the programs under
 * the lock of the same slot, and by user space before a slot is in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct budget);
} budgets SEC(".maps");

/* slot -> lock of the budget. Written by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard);
} locks SEC(".maps");

/* slot -> leased. Written by the programs under its lock, and by user space
 * before a slot is in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct leased);
} leases SEC(".maps");

/* slot -> table of keys, of which the least recently used is evicted. Values
 * are written by the programs under their lock, slots by user space before they
 * are in use. */
struct keys {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct key));
	__uint(value_size, sizeof(struct key_state));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_TABLES);
	__type(key, __u32);
	__array(values, struct keys);
} known_keys SEC(".maps");

/* 0 -> data too large for the stack: the packet fields that keys consist of,
 * the packet's key, and the initial state of a key. Each CPU writes its own,
 * between note_key and color_of_key. */
struct scratch {
	struct key packet;
	struct key key;
	struct key_state fresh;
	__u64 rare[RARE];  /* values of the rare fields that classes match, except CGROUP */
	__u32 rare_by[RARE]; /* their vectors */
	__u64 key_by[KEYS_BY]; /* by enum key_by: the packet's key, or NO_VALUE */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

/* index -> bucket of the hash table of the customers' prefixes. Written by user space,
 * read by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct prefix_bucket);
} prefixes SEC(".maps");

/* 0 -> how prefixes are searched. Written by user space, read by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct prefix_search);
} searches SEC(".maps");

/* number of a customer - 1 -> customer. Written by the programs, and by user space
 * before a customer has prefixes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct customer);
} customers SEC(".maps");

/* index -> plan of customers. Written by user space while no customer has it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plan);
} plans SEC(".maps");

/* slot -> counts; slot 0 counts unclassified packets. Each CPU writes its own. */
OWN_MAP(counters, struct counts,
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
);

/* 0 -> time of bpf_ktime_get_ns in ns from which all packets pass as if there
 * were no program; 0: never. Written by user space, read by the programs. */
OWN_MAP(expiry, __u64,
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
);

/* index -> record, if time and length are passed in. One program at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} records SEC(".maps");
