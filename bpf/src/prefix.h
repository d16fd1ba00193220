/* SPDX-License-Identifier: Apache-2.0 */
/* The hash table of the prefixes of customers, shared by user space and the programs. */
#pragma once

#include "policy.h"

#define BUCKET_PREFIXES 3
#define MAX_PROBES 1024 /* buckets in which a prefix can be, from that of its hash */

/* The kind of a prefix is its length for IPv6, and IPV4_PREFIX plus its length for IPv4.
 * Other keys of a customer are numbers: VLAN IDs, MAC addresses, marks, IDs of cgroups. */
enum prefix_kind { IPV4_PREFIX = 192, NUMBER = 255 };

/* Numbers in a bucket that are not numbers of customers. A look-up ends at a bucket with
 * a slot that was never used. */
enum prefix_number { NEVER_USED = 0, TAKEN = 0x80000000, REMOVED = 0x80000001 };

/* prefix_bucket is a cache line of the hash table of prefixes. Only the number of a slot
 * changes while programs may read it. */
struct prefix_bucket {
	struct addr addr[BUCKET_PREFIXES];
	__u32 number[BUCKET_PREFIXES]; /* of its customer, from 1 */
	__u8 kind[BUCKET_PREFIXES];
	__u8 pad;
};

#define ANY_LENGTH 129 /* above all lengths of prefixes */
#define NO_LENGTH 255

/* prefix_search is how the programs search prefixes. */
struct prefix_search {
	__u64 seed;    /* of the hash */
	__u32 buckets; /* in the table */
	/* by kind - IPV4 and length: the next shorter one in use, or NO_LENGTH. below[0] is of depths if
	 * customers are known by cgroup. */
	__u8 below[2][ANY_LENGTH + 1];
};
