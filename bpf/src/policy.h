/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of a policy and the layout of its data, shared by user space and the
 * programs. The Go types are generated from this file. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MAX_CLASSES 1024 /* classes of a policy */
#define MAX_CHAIN 8	 /* meters that one packet passes */
#define MAX_TABLES 128	 /* tables of keys: of a policy and of the previous one */
#define MAX_LENGTH 0xfffff /* maximum length that a queue charges for a packet, bytes */
#define MAX_AHEAD 2000000000ULL /* maximum delay that a sender can request for a packet, ns */

#define READ(x) (*(volatile typeof(x) *)&(x))
#define WRITE(x, v) (*(volatile typeof(x) *)&(x) = (v))
#define BARRIER() asm volatile("" ::: "memory")

/* HERE makes the compiler compute x once and keep the checks of it, as the
 * verifier requires. */
#define HERE(x) asm volatile("" : "+r"(x))

/* READ_FENCED and WRITE_FENCED are in order with all accesses before and after them on every CPU;
 * those of READ and WRITE are on x86 only. The result of an atomic instruction must be needed: clang
 * turns one without a result into one that is not a barrier. An exchange always has one. */
#define READ_FENCED(x) ({ typeof(x) zero = 0; HERE(zero); __sync_fetch_and_add(&(x), zero); })
#define WRITE_FENCED(x, v) __sync_lock_test_and_set(&(x), v)

enum color { GREEN, YELLOW, RED };
enum cause { CAUSE_COLOR, CAUSE_ECN, CAUSE_QUEUE, CAUSE_WRED, CAUSE_CODEL, CAUSES };
enum ecn { NO_ECN, CE, CE_OR_DROP };
enum base { L3, L2, L1 };

/* Numbers of dataplane.Field. In a set, a field is bit 1 << FIELD. */
enum field { DSCP, PCP, DEI, MPLS_TC, SKB_MARK };

/* Where the state of a meter is stored. Numbers from 0 are tables with a state
 * for each key. CUSTOMER: in customers, with the profile in plans. LEASED: in
 * leases, SHARED: in budgets, PRIVATE: in states. */
enum store { CUSTOMER = -4, LEASED = -3, SHARED = -2, PRIVATE = -1 };

/* Done of dataplane.Verdict. */
enum done { PASS = 1, ECN_SET = 2, MARKED = 4, QUEUED = 8 };

/* The verdict of a meter: of RFC 2698, of windows, or of other buckets. */
enum rule { BY_PEAK = 1, BY_WINDOW = 2, BY_BUCKET = 4 };

/* The part of a packet that identifies its customer. */
enum customer_key {
	NO_CUSTOMERS, BY_SOURCE, BY_DESTINATION, BY_OUTER_VLAN, BY_TWO_VLANS,
	BY_SOURCE_MAC, BY_DESTINATION_MAC, BY_VLAN_SOURCE_MAC, BY_VLAN_DESTINATION_MAC, BY_SKB_MARK, BY_CGROUP,
	BY_VNI, BY_TEID, BY_INNER_SOURCE, BY_INNER_DESTINATION,
};

/* The part of a packet that is the key of a meter: BY_FIELDS are those in struct key. */
enum key_by { BY_FIELDS, KEY_MAC, KEY_VLAN_MAC, KEY_MARK, KEY_CGROUP, KEY_VNI, KEY_TEID, KEYS_BY = 8 };

/* Qdisc that holds queued packets. */
enum pacer { NO_PACER, FQ, HTB };

/* Quantity in which the backlog of a queue is measured, queue.Axis. */
enum axis { BY_TIME, BY_BYTES, BY_PACKETS };

/* queue.Fate. */
enum fate { FULL, THIN, STALE, ADMIT, ADMIT_CE };

/* Fields that a class can match. In a set, a field is bit 1 << MATCH. */
enum match {
	BY_PROTO, BY_SPORT, BY_DPORT, BY_DSCP, BY_VLAN, BY_PCP, BY_ETHERTYPE, /* by table */
	TABLES,
	BY_MARK = TABLES, BY_LENGTH, BY_SRC, BY_DST,
	MATCHES,
};

/* Rare fields that a class can match, which all have a value of 64 bits: NO_VALUE in packets without the
 * field. They are in scratch, so policies without them do not pay for them. In a set, a field is bit
 * 1 << RARE. */
enum rare { INNER_VLAN, TCP_FLAGS, ICMP_TYPE, INSIDE_MAC, SRC_MAC, DST_MAC, VNI, TEID, CGROUP, RARE };

#define NO_VALUE (~0ULL)
#define ICMPV6_TYPE 0x10000
#define MAX_LEVELS 8	    /* depths of the cgroups that classes match */
#define MAX_CGROUP_DEPTH 32 /* of the cgroups of customers */

/* rare_search is a rare field whose vector is found by binary search. first is the index of its first bound
 * in vectors, and offsets that of its vector in tables. */
struct rare_search {
	__u32 first;
	__u32 count;
	__u32 offsets;
	__u32 none; /* of cgroups: vector of packets in none of them */
};

/* search is a field whose vector is found by binary search. bounds, vectors and
 * jump are indexes into tables: of the bounds, of their vectors, and of a jump
 * table. Entry i of the jump table is the last bound not above low + i <<
 * shift, and 0 for i = 0. last is the largest i with an entry after it. */
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
	__u32 none; /* vector of packets without an address */
};

struct bound {
	__u64 hi, lo;
	__u32 vector;
	__u32 pad;
};

/* constants of a policy. The verifier knows their values, so it removes dead
 * code. */
struct constants {
	__u8 handed; /* time, length and link type come from a record; the verdict goes there */
	__u8 dry;    /* count packets and pass them unchanged */
	__u8 link;   /* link type of the interface: LINK_ETHERNET or LINK_RAW */
	__u8 base;   /* enum base */
	__s32 overhead;
	__u32 mpu;
	__u8 queues;	     /* the policy has queues */
	__u8 keyed;	     /* some meter has a state per key */
	__u8 drop_untaken;   /* drop unclassified packets */
	__u8 elsewhere;	     /* the state of some meter is not in states */
	__u8 chained;	     /* some meter has a next one */
	__u8 inputs;	     /* set of fields from which meters read input colors */
	__u8 marks;	     /* set of fields that actions write */
	__u8 ecn;	     /* some action has an enum ecn */
	__u8 packets;	     /* some meter counts packets */
	__u8 rules;	     /* set of enum rule, of all meters */
	__u32 pacer;	     /* enum pacer */
	__u32 major;	     /* of HTB: upper half of its class IDs */
	__u32 fields;	     /* set of fields that classes match */
	__u32 reads;	     /* fields plus those that keys consist of */
	__u32 stride;	     /* length of a vector in words; the first one is the summary */
	__u32 start[4];	     /* vectors by whether packets are IP (1) and have a customer (2) */
	__u32 table[TABLES]; /* index in tables of each field's table */
	__u32 last[TABLES];  /* index in the table of the entry for packets without the field */
	struct search search[SEARCHES];
	struct search6 src6, dst6;
	__u16 rare;	/* set of rare fields that classes match */
	__u8 customers; /* enum customer_key */
	__u8 paced;	/* some customer may have a queue */
	__u8 spread;	/* some queue has leaves for flows */
	__u8 once;	/* some budget charges a packet once on its way through the host */
	__u8 ingress;	/* the inner side of packets is their source */
	__u8 key_by;	/* set of enum key_by of meters, bit 1 << KEY */
	__u8 levels;	/* number of depths of cgroups that classes match */
	__u8 level[MAX_LEVELS]; /* the depths, largest first */
	struct rare_search rare_search[RARE];
};

const volatile struct constants policy = {};

struct action {
	__u8 drop;
	__u8 ecn;
	__u8 marks; /* set of fields */
	__u8 dscp, pcp, dei, tc;
	__u8 pad;
	__u32 mark;
	__s32 queue; /* -1: none */
};

struct class {
	__u32 slot;  /* of its counters */
	__s32 stage; /* its first meter, -1: none */
	__u32 customers; /* the first meter is that of the customer's plan */
	struct action actions[3];
};

/* bucket has the constants of a bucket, in units of 1/(2*den) byte: halved,
 * because the lowest bit of a word is its lock. */
struct bucket {
	__u64 num;  /* units per ns */
	__u64 den;  /* units per byte */
	__s64 size; /* units */
	__u64 over; /* bytes; longer packets have the cost of this length */
	__u64 full; /* ns until the bucket is full, whatever its level */
};

struct addr {
	__u64 hi, lo; /* IPv4: in the low 32 bits */
};

/* key has the packet fields that select a meter's state. Unused fields are zero. */
struct key {
	struct addr src, dst;
	__u16 sport, dport;
	__u16 vlan; /* VLAN ID */
	__u8 tag;   /* enum kind in the lowest two bits, DSCP above */
	__u8 proto;
};

/* profile has the parameters of a meter. */
struct profile {
	struct bucket buckets[2]; /* C, then E or P */
	__u64 horizon;		  /* ns after the stamp for which words of a state are unambiguous */
	__u64 window;		  /* ns, of a meter that counts in windows; 0 for buckets */
	__u8 coupled;		  /* overflow of C goes to E */
	__u8 peak;		  /* RFC 2698 */
	__u8 excess;		  /* the meter has an E bucket */
	__u8 limit;		  /* the worst input color that may use C */
	__u8 sliding;		  /* the previous window counts, too */
	__u8 pad[3];
};

/* stage is a meter with its connections in a policy. */
struct stage {
	struct profile profile;
	struct key mask[2]; /* bits of a key that count: [1] for IPv6, [0] otherwise */
	__u64 yellow, red;  /* sets of values below 64 with these input colors */
	__u32 slot;	    /* of its state; with keys, of the state of packets without a key */
	__s32 then;	    /* next stage, -1: none */
	__s32 table;	    /* table of keys, or an enum store */
	__u8 packets;	    /* count packets, not bytes */
	__u8 aware;
	__u8 from;   /* enum field of the input color */
	__u8 high;   /* the map highs has input colors of larger values */
	__u8 tagged; /* packets with a VLAN tag have a key, otherwise IP packets */
	__u8 empty;  /* states of new keys start empty */
	__u16 label; /* of a budget that charges a packet once, 0: none; see note.h */
	__u8 by;     /* enum key_by */
	__u8 pad[3];
};

/* state of a meter. A word is the time, in units, at which its bucket was last
 * empty: the bucket holds now * num - word, at most its size. See bucket.h. For
 * windows, the words are the amounts taken in the current and the previous
 * window, in bytes, and the stamp is the start of the current one. */
struct state {
	__u64 word[2];
	__u64 stamp; /* ns: both words were written since then */
	struct bpf_spin_lock lock;
};

/* budget is the state of a meter that several shapers share, with its
 * parameters. It starts like a state, but its lock is in locks: user space maps
 * budgets into memory, which the kernel refuses for values with a lock. */
struct budget {
	__u64 word[2];
	__u64 stamp;
	__u32 unused;
	__u32 version; /* of the profile: the number of changes */
	struct profile profile;
};

struct guard {
	struct bpf_spin_lock lock;
};

#define PHASES 3

/* leased is the state of a meter whose limits expire. A phase is in force until
 * its time, the last one indefinitely. A phase with den 0 passes nothing. Only
 * the holder of the lock accesses the words, so their lowest bits are not
 * locks. */
struct leased {
	__u64 word[2];
	__u64 stamp;
	struct bpf_spin_lock lock;
	__u32 phase; /* phase in force */
	__u64 until[PHASES - 1]; /* ns */
	__u64 asked[4];		 /* requested tokens, by resulting color */
	struct profile phases[PHASES];
};

/* key_state is the state of a key. Values of an LRU hash cannot have spin locks. */
struct key_state {
	__u64 word[2];
	__u64 stamp;
	__u64 lock; /* 1 while a CPU uses it */
};

/* wred_fate is queue.Early; max 0: none. */
struct early {
	__u64 min, max;
	__u64 probability; /* in units of 1/2^24 */
};

/* pace is a rate: a byte takes ns + rest/den. */
struct pace {
	__u64 ns, rest, den;
};

/* queue is queue.Config. User space changes the rate while programs run: it writes the
 * pace that is not in use, and then increases the version. It writes the times of CoDel
 * in place. */
struct queue {
	struct pace paces[2]; /* paces[version & 1] is in use */
	__u64 time;	/* limits; 0: none */
	__u64 bytes;
	__u64 capacity; /* maximum backlog, packets */
	__u64 mask;	/* of its ring in waiting, whose length is a power of two above capacity */
	__u64 seed;
	__u64 target, interval; /* of CoDel, ns; 0: none */
	struct early wred[3];
	__u32 ring;	/* its first entry in waiting */
	__u32 slot;	/* of its backlog */
	__u32 class_id; /* of its HTB leaf */
	__u8 axis;	/* enum axis */
	__u8 ecn;
	__u8 linked; /* HTB queues the packets and decides drops */
	__u8 pad;
	__u32 version; /* of the rate */
	__u32 flows; /* number of leaves for flows, a power of two; 0: none, one leaf has all packets */
	__u32 flows_id; /* of the first of them */
	__u32 flows_slot; /* their entries in flows begin at flows_slot * flows */
	__u32 pad2;
};

/* flow is the state of the flows with one number in a queue with leaves for flows. */
struct flow {
	__u64 used; /* time until which they have used up their part of the rate, ns */
	__u64 held; /* time of their latest packet in a leaf of their own, ns */
};

/* backlog is the state of a queue. Up to version it is also the start of a
 * customer with a queue, at whose plan it has a hole. */
struct backlog {
	__u64 next; /* time at which the queue is free, whole ns */
	__u64 frac; /* and the fraction, ns/den of the version's pace */
	__u64 first_above; /* of CoDel, ns */
	struct bpf_spin_lock lock;
	__u32 hole[5];
	__u64 drop_next; /* of CoDel, ns */
	__u32 count, last_count;
	__u8 begun;
	__u8 above; /* first_above is set */
	__u8 dropping;
	__u8 pad;
	__u32 version; /* of the rate that frac belongs to */
	__u64 drawn; /* random numbers drawn */
	__u64 end;   /* packets queued so far; the ring ends there */
	__u64 bytes; /* bytes queued so far */
	__u64 packets; /* packets on the wire queued so far */
};

/* departure is a queued packet. */
struct departure {
	__u64 at;     /* departure time, ns */
	__u64 before; /* bytes queued before it, since the start */
	__u64 packets; /* packets on the wire, likewise */
};

struct count {
	__u64 packets;
	__u64 bytes;
};

/* customer is the state of a customer: of its meter, as in struct state, or of its
 * queue, as in struct backlog. The lock guards everything except the counters. Most
 * packets are green and touch only the first 64 bytes. */
struct customer {
	__u64 word[2];
	__u64 stamp;
	struct bpf_spin_lock lock;
	__u32 plan;
	struct count green;
	__u64 queue[3]; /* rest of a backlog */
	struct count yellow, red;
	struct count dropped;
	__u64 id; /* hash of its name */
	__u32 class_id; /* of its HTB leaf, if its queue is linked */
	__u32 pad;
};

/* plan is the treatment of customers: a meter, or a queue for each. */
struct plan {
	__u8 own[3]; /* by color: the action replaces that of the class */
	__u8 paced;  /* customers have a queue, not a meter */
	__u32 pad;
	struct profile profile;
	struct queue queue;
	struct action actions[3];
};

#define MAX_MOVES 16384 /* in one run of shaper_move */

/* move gives a customer another plan, and its queue another leaf. */
struct move {
	__u32 customer; /* number */
	__u32 plan;
	__u32 class_id;
	__u32 pad;
};

#define MAX_ADDITIONS 1024 /* in one run of shaper_add */

/* addition has counts to add to those of a customer. */
struct addition {
	struct count green, yellow, red, dropped;
	__u64 customer; /* number */
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

/* record passes one packet in and its verdict out. */
struct record {
	__u64 time; /* ns */
	__u32 wire;
	__u32 captured;
	__u32 start; /* start of its bytes in frames */
	__u32 mark;
	__u16 link;
	/* verdict */
	__s16 class;
	__s32 stage; /* stage that decided, -1: none */
	__u32 length;
	__u8 done;
	__u8 pre, color;
	__u8 in; /* input color of the stage that decided */
	__u8 kind;
	__u8 dscp_in, dscp_out;
	__u8 cause; /* reason of a drop */
	__u64 delay; /* queueing delay, ns */
	__u32 customer; /* number of the customer that was metered, 0: none */
	__u32 segment; /* length of each segment except the last, if there are several */
	__u32 segments;
	__u32 pad;
	/* of the meter that decided, if the color is not green: see copy_state */
	__u64 word[2];
	__u64 stamp;
};
