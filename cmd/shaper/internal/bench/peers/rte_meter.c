/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times DPDK's rte_meter on a stream of packets, one run at a time, so that a
 * caller can interleave it with other meters.
 *
 * usage: rte_meter STREAM
 *
 * STREAM holds records of two little-endian 64-bit words: arrival in ns,
 * length in bytes. Each line on stdin names a run; the answer on stdout is
 * the ns it took per packet and the colors it gave, green yellow red.
 *
 *   srtcm, trtcm               one meter, a packet at a time
 *   srtcm-burst, trtcm-burst   the same, BURST packets with the time of their first
 *   srtcm-n, trtcm-n           NMETERS meters at random, a packet at a time
 *   srtcm-ahead, trtcm-ahead   the same, BURST packets with the time of their first,
 *                              after a prefetch of their meters
 *
 * Every run is a loop of its own with rte_meter inlined, its profile and, where
 * there is one, its meter in locals, and times already in cycles. A run over
 * NMETERS touches all of them first.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_meter.h>
#include <rte_prefetch.h>

#define NMETERS (1u << 20)
#define BURST 32
#define CACHE_LINE 64

struct packet {
	uint64_t time; /* ns in the file, cycles in memory */
	uint64_t length;
};

static struct packet *packets;
static uint32_t *pick;
static uint8_t *colors; /* what the packets got */
static size_t count;

static struct rte_meter_srtcm_profile srtcm_profile;
static struct rte_meter_trtcm_profile trtcm_profile;
static struct rte_meter_srtcm *srtcms;
static struct rte_meter_trtcm *trtcms;

/* CPU time, which does not depend on other threads and processes. */
static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *what)
{
	fprintf(stderr, "rte_meter: %s\n", what);
	exit(1);
}

static void load(const char *path)
{
	FILE *f = fopen(path, "rb");
	long size;

	if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) <= 0)
		die("cannot read the stream");
	rewind(f);
	count = size / sizeof(*packets) / BURST * BURST;
	packets = malloc(size);
	pick = malloc(count * sizeof(*pick));
	colors = calloc(count, 1);
	if (!packets || !pick || !colors ||
	    fread(packets, sizeof(*packets), count, f) != count)
		die("cannot load the stream");
	fclose(f);

	uint64_t x = 88172645463325252ull;
	for (size_t i = 0; i < count; i++) {
		packets[i].time *= rte_get_tsc_hz() / 1e9;
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		pick[i] = x % NMETERS;
	}
}

static void answer(double start)
{
	double ns = (seconds() - start) * 1e9 / count;
	uint64_t got[3] = { 0 };

	for (size_t i = 0; i < count; i++)
		got[colors[i]]++;
	printf("%.3f %lu %lu %lu\n", ns, got[RTE_COLOR_GREEN], got[RTE_COLOR_YELLOW],
	       got[RTE_COLOR_RED]);
	fflush(stdout);
}

/* Locals that no store of a color can alias. */
#define LOCALS(kind)								\
	struct rte_meter_##kind##_profile profile = kind##_profile;		\
	const struct packet *restrict in = packets;				\
	uint8_t *restrict out = colors;						\
	const size_t n = count;

#define RUNS(kind)								\
static void reset_##kind(struct rte_meter_##kind *m)				\
{										\
	rte_meter_##kind##_config(m, &kind##_profile);				\
	memset(m, 0, offsetof(struct rte_meter_##kind, tc));			\
}										\
										\
static void run_##kind(void)							\
{										\
	LOCALS(kind)								\
	reset_##kind(kind##s);							\
	struct rte_meter_##kind m = kind##s[0];					\
	double start = seconds();						\
	for (size_t i = 0; i < n; i++)						\
		out[i] = rte_meter_##kind##_color_blind_check(&m, &profile,	\
			in[i].time, in[i].length);				\
	answer(start);								\
}										\
										\
static void run_##kind##_burst(void)						\
{										\
	LOCALS(kind)								\
	reset_##kind(kind##s);							\
	struct rte_meter_##kind m = kind##s[0];					\
	double start = seconds();						\
	for (size_t i = 0; i < n; i += BURST) {					\
		uint64_t now = in[i].time;					\
		for (size_t j = i; j < i + BURST; j++)				\
			out[j] = rte_meter_##kind##_color_blind_check(&m,	\
				&profile, now, in[j].length);			\
	}									\
	answer(start);								\
}										\
										\
static void touch_##kind(void)							\
{										\
	struct rte_meter_##kind##_profile profile = kind##_profile;		\
										\
	for (size_t i = 0; i < NMETERS; i++) {					\
		reset_##kind(&kind##s[i]);					\
		rte_meter_##kind##_color_blind_check(&kind##s[i], &profile,	\
			packets[0].time, packets[0].length);			\
	}									\
}										\
										\
static void run_##kind##_n(void)						\
{										\
	LOCALS(kind)								\
	struct rte_meter_##kind *m = kind##s;					\
	const uint32_t *at = pick;						\
										\
	touch_##kind();								\
	double start = seconds();						\
	for (size_t i = 0; i < n; i++)						\
		out[i] = rte_meter_##kind##_color_blind_check(&m[at[i]],	\
			&profile, in[i].time, in[i].length);			\
	answer(start);								\
}										\
										\
static void run_##kind##_ahead(void)						\
{										\
	LOCALS(kind)								\
	struct rte_meter_##kind *m = kind##s;					\
	const uint32_t *at = pick;						\
										\
	touch_##kind();								\
	double start = seconds();						\
	for (size_t i = 0; i < n; i += BURST) {					\
		uint64_t now = in[i].time;					\
		for (size_t j = i; j < i + BURST; j++)				\
			rte_prefetch0(&m[at[j]]);				\
		for (size_t j = i; j < i + BURST; j++)				\
			out[j] = rte_meter_##kind##_color_blind_check(		\
				&m[at[j]], &profile, now, in[j].length);	\
	}									\
	answer(start);								\
}

RUNS(srtcm)
RUNS(trtcm)

int main(int argc, char **argv)
{
	char *eal[] = { argv[0], "--no-huge", "--no-shconf", "--no-pci",
			"--no-telemetry", "--log-level=lib.eal:error", "-m", "64", NULL };
	struct rte_meter_srtcm_params sp = { .cir = 125000000, .cbs = 65536, .ebs = 65536 };
	struct rte_meter_trtcm_params tp = { .cir = 125000000, .cbs = 65536,
					     .pir = 250000000, .pbs = 65536 };
	char line[64];

	if (argc != 2)
		die("usage: rte_meter STREAM");
	if (rte_eal_init(8, eal) < 0)
		die("rte_eal_init failed");
	load(argv[1]);
	if (rte_meter_srtcm_profile_config(&srtcm_profile, &sp) ||
	    rte_meter_trtcm_profile_config(&trtcm_profile, &tp))
		die("a profile was refused");
	srtcms = aligned_alloc(CACHE_LINE, NMETERS * sizeof(*srtcms));
	trtcms = aligned_alloc(CACHE_LINE, NMETERS * sizeof(*trtcms));
	if (!srtcms || !trtcms)
		die("out of memory");

	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "srtcm"))
			run_srtcm();
		else if (!strcmp(line, "trtcm"))
			run_trtcm();
		else if (!strcmp(line, "srtcm-burst"))
			run_srtcm_burst();
		else if (!strcmp(line, "srtcm-n"))
			run_srtcm_n();
		else if (!strcmp(line, "trtcm-burst"))
			run_trtcm_burst();
		else if (!strcmp(line, "trtcm-n"))
			run_trtcm_n();
		else if (!strcmp(line, "srtcm-ahead"))
			run_srtcm_ahead();
		else if (!strcmp(line, "trtcm-ahead"))
			run_trtcm_ahead();
		else
			die("no such run");
	}
	return 0;
}
