/* SPDX-License-Identifier: Apache-2.0 */
/* What user space and the programs share: constants, maps and their layout.
 * The Go side is generated from here. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MAX_CLASSES 1024 /* of a policy */
#define MAX_CHAIN 8	 /* meters that one packet goes through */
#define MAX_TABLES 128	 /* of keys: those of a policy and of the one before */
#define MAX_LENGTH 0xfffff /* bytes that a packet takes of a queue, at most */
#define MAX_AHEAD 2000000000ULL /* ns that a sender asks a packet to be held, at most */

#define READ(x) (*(volatile typeof(x) *)&(x))
#define WRITE(x, v) (*(volatile typeof(x) *)&(x) = (v))
#define BARRIER() asm volatile("" ::: "memory")

/* HERE makes the compiler compute x once and keep what is checked of it, as the
 * verifier wants to see it. */
#define HERE(x) asm volatile("" : "+r"(x))

enum color { GREEN, YELLOW, RED };
enum cause { CAUSE_COLOR, CAUSE_ECN, CAUSE_QUEUE, CAUSE_WRED, CAUSE_CODEL, CAUSES };
enum ecn { NO_ECN, CE, CE_OR_DROP };
enum base { L3, L2, L1 };

/* Fields of dataplane.Field; a set of them has bit 1 << FIELD. */
enum field { DSCP, PCP, DEI, MPLS_TC, SKB_MARK };

/* Where the state of a meter is: for each key in a table, in leases, in budgets, or in
 * states. */
enum store { LEASED = -3, SHARED = -2, PRIVATE = -1 };

/* Done of dataplane.Verdict. */
enum done { PASS = 1, ECN_SET = 2, MARKED = 4, QUEUED = 8 };

/* What holds packets in queues. */
enum pacer { NO_PACER, FQ, HTB };

/* What the backlog of a queue is measured by, queue.Axis. */
enum axis { BY_TIME, BY_BYTES, BY_PACKETS };

/* queue.Fate. */
enum fate { FULL, THIN, STALE, ADMIT, ADMIT_CE };

/* Fields that a class may match; a set of them has bit 1 << MATCH. */
enum match {
	BY_PROTO, BY_SPORT, BY_DPORT, BY_DSCP, BY_VLAN, BY_PCP, BY_ETHERTYPE, /* by table */
	TABLES,
	BY_MARK = TABLES, BY_LENGTH, BY_SRC, BY_DST,
	MATCHES,
};

/* search is a field whose vector is found by binary search. bounds, vectors
 * and jump are indexes into tables: of the bounds, of the vectors that belong to
 * them, and of a jump table. Its entry i is the last bound that is not above low
 * + i << shift, 0 for i = 0; last is the largest i that has an entry after it. */
struct search {
	__u32 bounds;
	__u32 vectors;
	__u32 jump;
	__u32 low;
	__u32 shift;
	__u32 last;
};

enum search_of { MARK, LENGTH, SRC4, DST4, SEARCHES };

/* search6 is search for IPv6: indexes into bounds6. */
struct search6 {
	__u32 first;
	__u32 count;
	__u32 none; /* the vector of packets without an address */
};

struct bound {
	__u64 hi, lo;
	__u32 vector;
	__u32 pad;
};

/* constants of a policy. The verifier knows them and removes
 * what they rule out. */
struct constants {
	__u8 handed; /* time, length and link type come from record, verdicts go there */
	__u8 dry;    /* count, and let every packet pass as it is */
	__u8 link;   /* link type of the interface: LINK_ETHERNET or LINK_RAW */
	__u8 base;   /* enum base */
	__s32 overhead;
	__u32 mpu;
	__u8 queues;	     /* there are any */
	__u8 keyed;	     /* some meter is one for each key */
	__u8 drop_untaken;   /* packets that no class takes */
	__u8 elsewhere;	     /* some meter's state is not in states */
	__u32 pacer;	     /* enum pacer */
	__u32 major;	     /* of HTB: upper half of its class ids */
	__u32 fields;	     /* that any class matches */
	__u32 reads;	     /* and those that keys are made of */
	__u32 stride;	     /* words of a vector, the summary first */
	__u32 not_ip;	     /* vector of packets that are not IP; all classes take those that are */
	__u32 table[TABLES]; /* first entry of each field's table in tables */
	__u32 last[TABLES];  /* index of the entry for packets without the field */
	struct search search[SEARCHES];
	struct search6 src6, dst6;
};

const volatile struct constants policy = {};

struct action {
	__u8 drop;
	__u8 ecn;
	__u8 marks; /* set of fields */
	__u8 dscp, pcp, dei, tc;
	__u8 pad;
	__u32 mark;
	__s32 queue; /* -1 for none */
};

struct class {
	__u32 slot;  /* of its counters */
	__s32 stage; /* its first meter, -1 for none */
	struct action actions[3];
};

/* bucket holds the constants of one bucket, in units of 1/(2*den) byte: a
 * half, because the lowest bit of a state's word is its lock. */
struct bucket {
	__u64 num;  /* units in a nanosecond */
	__u64 den;  /* units in a byte */
	__s64 size; /* units */
	__u64 over; /* bytes: longer packets cost this */
	__u64 full; /* ns after which it is full whatever it held */
};

struct addr {
	__u64 hi, lo; /* IPv4 is in the low 32 bits */
};

/* key is what of a packet has a meter of its own; what has not is zero. */
struct key {
	struct addr src, dst;
	__u16 sport, dport;
	__u16 vlan; /* id */
	__u8 tag;   /* enum kind, and above its two bits the DSCP */
	__u8 proto;
};

/* profile is the parameters of a meter. */
struct profile {
	struct bucket buckets[2]; /* C, then E or P */
	__u64 horizon;		  /* ns after a state's stamp in which its words can be told apart */
	__u64 window;		  /* ns, of a meter that counts in windows; 0 for buckets */
	__u8 coupled;		  /* what overflows C goes into E */
	__u8 peak;		  /* RFC 2698 */
	__u8 excess;		  /* there is an E */
	__u8 limit;		  /* the worst color before that may take from C */
	__u8 sliding;		  /* what was taken in the window before counts, too */
	__u8 pad[3];
};

/* stage is a meter with what stands around it in a policy. */
struct stage {
	struct profile profile;
	struct key mask[2]; /* of a key: the bits that count, of IPv6 the second */
	__u64 yellow, red;  /* the color before, by values below 64: sets */
	__u32 slot;	    /* of its state; with keys that of packets without one */
	__s32 then;	    /* -1 for none */
	__s32 table;	    /* of keys, or an enum store */
	__u8 packets;	    /* count packets */
	__u8 aware;
	__u8 from;   /* enum field */
	__u8 high;   /* the map highs has colors of larger values */
	__u8 tagged; /* the key is that of packets with a VLAN tag, else of IP */
	__u8 empty;  /* new keys begin so */
	__u8 pad[6];
};

/* state of a meter. A word is the time, in units, at which its bucket was last
 * empty: it holds now * num - word, at most its size. bucket.h has the rest. Of a
 * window the words are what was taken in it and in the one before, in bytes, and
 * the stamp is its begin. */
struct state {
	__u64 word[2];
	__u64 stamp; /* ns: both words were written since */
	struct bpf_spin_lock lock;
};

/* budget is the state of a meter that several shapers share, with its parameters.
 * It begins as a state does, but its lock is in locks: user space maps budgets into
 * memory, which the kernel refuses for values with a lock. */
struct budget {
	__u64 word[2];
	__u64 stamp;
	__u32 unused;
	__u32 version; /* of the profile: it counts changes */
	struct profile profile;
};

struct guard {
	struct bpf_spin_lock lock;
};

#define PHASES 3

/* leased is the state of a meter whose limits end by themselves. A phase is in force
 * until its time, the last one without end. One without a den lets nothing through.
 * Words are not shared: whoever has the lock has them, and their lowest bits. */
struct leased {
	__u64 word[2];
	__u64 stamp;
	struct bpf_spin_lock lock;
	__u32 phase; /* in force */
	__u64 until[PHASES - 1]; /* ns */
	__u64 asked[4];		 /* tokens, by the color that they got */
	struct profile phases[PHASES];
};

/* known is the state of a key. Values of an LRU hash have no spin locks. */
struct known {
	__u64 word[2];
	__u64 stamp;
	__u64 lock; /* 1 while a CPU has it */
};

/* early is queue.Early; max 0 is none. */
struct early {
	__u64 min, max;
	__u64 probability; /* of 2^24 */
};

/* queue is queue.Config. A byte takes ns + rest/den. */
struct queue {
	__u64 ns, rest, den;
	__u64 time;	/* limits; 0 for none */
	__u64 bytes;
	__u64 capacity; /* packets */
	__u64 mask;	/* of its ring in waiting, whose length is a power of two */
	__u64 seed;
	__u64 target, interval; /* of CoDel, ns; 0 for none */
	struct early wred[3];
	__u32 ring;	/* its first entry in waiting */
	__u32 slot;	/* of its backlog */
	__u32 class_id; /* of its leaf of HTB */
	__u8 axis;	/* enum axis */
	__u8 ecn;
	__u8 linked; /* HTB decides all of it */
	__u8 pad;
};

/* backlog is the state of a queue. */
struct backlog {
	__u64 next; /* ns, when the queue is free, whole part */
	__u64 frac; /* and the rest, ns/den */
	__u64 drawn; /* random numbers */
	__u64 end;   /* packets that ever waited: the ring ends there */
	__u64 bytes; /* theirs */
	__u64 first_above, drop_next; /* of CoDel, ns */
	__u32 count, last_count;
	__u8 begun;
	__u8 above; /* first_above holds */
	__u8 dropping;
	__u8 pad;
	struct bpf_spin_lock lock;
};

/* departure is a packet in a queue. */
struct departure {
	__u64 at;     /* ns, when it leaves */
	__u64 before; /* bytes that ever waited, when it came */
};

struct count {
	__u64 packets;
	__u64 bytes;
};

struct counts {
	struct count colors[3];
	struct count drops[3][CAUSES];
	struct count marked[3];
	struct count ce[3];
	struct count queued[3];
};

struct high {
	__u32 stage;
	__u32 value;
};

/* record hands one packet in and its verdict out. */
struct record {
	__u64 time; /* ns */
	__u32 wire;
	__u32 captured;
	__u32 start; /* of its bytes in frames */
	__u32 mark;
	__u16 link;
	/* verdict */
	__s16 class;
	__s32 stage; /* that decided, -1 for none */
	__u32 length;
	__u8 done;
	__u8 pre, color;
	__u8 in; /* the color before the stage that decided */
	__u8 kind;
	__u8 dscp_in, dscp_out;
	__u8 cause; /* of a drop */
	__u64 wait; /* ns, where it was queued */
};

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

/* stage and skb mark of 64 and more -> the color before. */
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

/* index -> departure: a ring for each queue that counts what waits. Written by
 * the programs, an entry by whoever took its place under the queue's lock. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct departure);
} waiting SEC(".maps");

/* Maps that outlive a policy. Those by slot have as many as user space found that
 * a policy and the one before need. */

/* slot -> backlog. Written by the programs under its lock; by user space before
 * a slot is in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct backlog);
} backlogs SEC(".maps");

/* slot -> state. Written by the programs by compare-and-swap, or under its
 * lock; by user space before a slot is in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} states SEC(".maps");

/* slot -> budget. All shapers of the host with shared meters have one such map; the
 * others have one of their own that they do not use. Words are written by the
 * programs and by user space by compare-and-swap; all else by the programs under the
 * lock of the same slot, and by user space before a slot is in use. */
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

/* slot -> leased. Written by the programs under its lock; by user space before a slot
 * is in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct leased);
} leases SEC(".maps");

/* slot -> table of keys, whose least recently used ones go. Written by the
 * programs, a value by whoever has its lock; the slots by user space before they
 * are in use. */
struct keys {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct key));
	__uint(value_size, sizeof(struct known));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_TABLES);
	__type(key, __u32);
	__array(values, struct keys);
} known_keys SEC(".maps");

/* 0 -> what is too large for the stack: all of a packet that keys are made of, its
 * key, and the state that it may begin with. Each CPU writes its own, from note_key
 * to color_of_key. */
struct scratch {
	struct key packet;
	struct key key;
	struct known fresh;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

/* slot -> counts; slot 0 has what no class took. Each CPU writes its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counters SEC(".maps");

/* 0 -> ns of bpf_ktime_get_ns from which packets pass as if no program were
 * there, 0 for never. Written by user space, read by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} expiry SEC(".maps");

/* index -> record, where packets are handed in. One program at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} records SEC(".maps");
