/* SPDX-License-Identifier: Apache-2.0 */
/* The maps that user space and the programs share. */
#pragma once

#include "policy.h"
#include "prefix.h"

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
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

/* index -> departure of a queued packet: a ring for each queue with a limit in packets or bytes.
 * Written by the programs under the queue's lock, and read without it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct departure);
} waiting SEC(".maps");

/* flows_slot * flows + flow number -> flow. Written by the programs without
 * synchronisation: a lost update only sends a packet first, or not. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow);
} flows SEC(".maps");

/* Maps that outlive a policy. User space sizes the maps indexed by slot for a
 * policy and the previous one. */

/* slot -> backlog. Written by the programs under its lock, and by user space
 * before a slot is in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct backlog);
} backlogs SEC(".maps");

/* slot -> state. Written by the programs by compare-and-swap or under its lock,
 * and by user space before a slot is in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} states SEC(".maps");

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
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counters SEC(".maps");

/* 0 -> time of bpf_ktime_get_ns in ns from which all packets pass as if there
 * were no program; 0: never. Written by user space, read by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} expiry SEC(".maps");

/* index -> record, if time and length are passed in. One program at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} records SEC(".maps");
