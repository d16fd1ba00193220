/* SPDX-License-Identifier: Apache-2.0 */
/* Runs admit of bpf/src/queue.h on several CPUs in all schedules with a limited number of preemptions, and
 * judges each decision by the packets that were admitted before it.
 *
 * A CPU can be preempted before each access to shared memory, also while it holds the lock: others may read
 * without it. The queue sends a byte per ns. Its ring holds entries of earlier laps. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "policy.h"

static void reach(void);
static void *lookup(void *map, const void *key);
static long update(void *map, const void *key, const void *value);
static void take(void);
static void release(void);

#undef READ
#undef WRITE
#define READ(x) (reach(), *(volatile typeof(x) *)&(x))
#define WRITE(x, v) (reach(), *(volatile typeof(x) *)&(x) = (v))
#define bpf_map_lookup_elem(map, key) lookup(map, key)
#define bpf_map_update_elem(map, key, value, flags) update(map, key, value)
#define bpf_spin_lock(lock) take()
#define bpf_spin_unlock(lock) release()
#include "queue.h"

enum { MAX_CPUS = 4, MAX_PREEMPTIONS = 4, RING = 1 << 17, STACK = 1 << 16, BYTES = 1000, ONE = 1 };

static struct queue queue;
static struct backlog backlog;
static struct departure ring[RING];

static struct cpu {
	ucontext_t context;
	char stack[STACK];
	int left; /* packets to come */
} cpus[MAX_CPUS], *running;
static ucontext_t scheduler;

static __u64 departures[2 * RING]; /* of all admitted packets, in order */
static int admitted;
static __u64 now, tick; /* time of the latest packet; ns between packets */
static int held;	/* the lock */
static __u64 next;	/* of the backlog, when the lock was taken */

static int preemptions[MAX_PREEMPTIONS], number, used; /* accesses before which a CPU is preempted */
static int accesses, ready;
static long spurious, missed;

static void reach(void)
{
	if (accesses++ == preemptions[used] && used < number) {
		used++;
		swapcontext(&running->context, &scheduler);
	}
}

static void *lookup(void *map, const void *key)
{
	reach();
	if (map == &queues)
		return &queue;
	if (map == &backlogs)
		return &backlog;
	return map == &waiting ? &ring[*(const __u32 *)key] : NULL;
}

/* update copies words, as the kernel does. */
static long update(void *map, const void *key, const void *value)
{
	__u64 *to = (__u64 *)&ring[*(const __u32 *)key];

	for (unsigned i = 0; i < sizeof(struct departure) / sizeof(*to); i++)
		WRITE(to[i], ((const __u64 *)value)[i]);
	return 0;
}

static void take(void)
{
	reach();
	while (held)
		swapcontext(&running->context, &scheduler);
	held = 1;
	next = backlog.next;
}

static void release(void)
{
	if (backlog.next != next)
		departures[admitted++] = backlog.next - BYTES;
	held = 0;
}

/* queued counts the first packets that have not departed at a time. */
static __u64 queued(int first, __u64 at)
{
	__u64 n = 0;

	for (int i = first - 1; i >= 0 && departures[i] > at; i--)
		n++;
	return n;
}

/* send admits one packet and judges the decision. */
static void send(void)
{
	__u64 at = now += tick;
	int before = admitted;
	__u64 last, out = admit(0, at, (__u64)ONE << 32 | BYTES, GREEN, 0);

	last = held && backlog.next != next && backlog.next - BYTES > at; /* a packet that another CPU is admitting */
	if ((out & 7) < ADMIT && queued(admitted, at) + last + ONE <= queue.capacity)
		spurious++; /* whenever it was counted, there was room */
	if ((out & 7) >= ADMIT && queued(before, at) + ONE > queue.capacity) {
		long excess = queued(before, at) + ONE - queue.capacity;

		missed = excess > missed ? excess : missed;
	}
}

static void run_cpu(void)
{
	for (; running->left > 0; running->left--)
		send();
	ready &= ~(1 << (running - cpus));
	swapcontext(&running->context, &scheduler);
}

/* execute runs one schedule, and returns the number of accesses. */
static int execute(int active, int packets, int between, int laps, int room)
{
	int limit; /* accesses of the preparation do not count */

	memset(&backlog, 0, sizeof(backlog));
	memset(ring, 0, (queue.mask + 1) * sizeof(*ring));
	limit = number;
	number = used = admitted = held = 0;
	running = cpus;
	now = 1 << 20;
	tick = 0;
	for (__u64 i = 0; i <= queue.capacity; i++)
		send();
	tick = BYTES;
	for (__u64 i = 0; i < laps * (queue.mask + 1); i++)
		send();
	now += room * BYTES;
	tick = between;
	number = limit;
	accesses = 0;
	ready = (1 << active) - 1;
	for (int i = 0; i < active; i++) {
		struct cpu *c = &cpus[i];

		c->left = packets;
		getcontext(&c->context);
		c->context.uc_stack.ss_sp = c->stack;
		c->context.uc_stack.ss_size = STACK;
		makecontext(&c->context, run_cpu, 0);
	}
	for (int i = 0; ready; i = (i + 1) % active) {
		if (!(ready & 1 << i))
			continue;
		running = &cpus[i];
		swapcontext(&scheduler, &running->context);
	}
	return accesses;
}

/* next_schedule is the next list of preemptions at less than end accesses; 0: there is none. */
static int next_schedule(int end)
{
	for (int i = number - 1; i >= 0; i--) {
		if (++preemptions[i] <= end - (number - i)) {
			for (int k = i + 1; k < number; k++)
				preemptions[k] = preemptions[k - 1] + 1;
			return 1;
		}
	}
	return 0;
}

/* Arguments: capacity, mask, CPUs, packets of each, preemptions, ns between packets, laps of the ring before, packets
 * that have room. Prints the numbers of schedules and of dropped packets that had room, and by how many packets
 * the backlog exceeded the capacity. */
int main(int argc, char **argv)
{
	int a[9] = {}, end;
	long runs = 0;

	for (int i = 1; i < argc && i < 9; i++)
		a[i] = atoi(argv[i]);
	queue.capacity = a[1];
	queue.mask = a[2];
	queue.paces[0].ns = queue.paces[0].den = 1;
	queue.axis = BY_PACKETS;
	number = a[5];
	for (int i = 0; i < number; i++)
		preemptions[i] = i;
	do {
		end = execute(a[3], a[4], a[6], a[7], a[8]);
		runs++;
	} while (next_schedule(end));
	printf("%ld %ld %ld\n", runs, spurious, missed);
	return 0;
}
