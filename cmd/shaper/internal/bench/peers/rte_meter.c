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
 *   srtcm, trtcm       one meter, a packet at a time
 *   srtcm-n, trtcm-n   NMETERS meters at random, a packet at a time
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_meter.h>

#define NMETERS (1u << 20)

struct packet {
	uint64_t ns, length;
};

static struct packet *packets;
static uint64_t *cycles;
static uint32_t *pick;
static size_t count;

static struct rte_meter_srtcm_profile srtcm_profile;
static struct rte_meter_trtcm_profile trtcm_profile;
static struct rte_meter_srtcm srtcm, *srtcms;
static struct rte_meter_trtcm trtcm, *trtcms;
static uint64_t colors[3];

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
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
	count = size / sizeof(*packets);
	packets = malloc(size);
	cycles = malloc(count * sizeof(*cycles));
	pick = malloc(count * sizeof(*pick));
	if (!packets || !cycles || !pick ||
	    fread(packets, sizeof(*packets), count, f) != count)
		die("cannot load the stream");
	fclose(f);

	uint64_t x = 88172645463325252ull;
	for (size_t i = 0; i < count; i++) {
		cycles[i] = packets[i].ns * (rte_get_tsc_hz() / 1e9);
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		pick[i] = x % NMETERS;
	}
}

#define RUN(kind, meter)                                                       \
	for (size_t i = 0; i < count; i++)                                     \
		colors[rte_meter_##kind##_color_blind_check(                   \
			(meter), &kind##_profile, cycles[i],                   \
			packets[i].length)]++

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
	srtcms = malloc(NMETERS * sizeof(*srtcms));
	trtcms = malloc(NMETERS * sizeof(*trtcms));
	if (!srtcms || !trtcms)
		die("out of memory");

	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		memset(colors, 0, sizeof(colors));
		rte_meter_srtcm_config(&srtcm, &srtcm_profile);
		rte_meter_trtcm_config(&trtcm, &trtcm_profile);
		srtcm.time = trtcm.time_tc = trtcm.time_tp = 0;
		if (strchr(line, '-'))
			for (size_t i = 0; i < NMETERS; i++) {
				srtcms[i] = srtcm;
				trtcms[i] = trtcm;
			}
		double start = seconds();
		if (!strcmp(line, "srtcm"))
			RUN(srtcm, &srtcm);
		else if (!strcmp(line, "trtcm"))
			RUN(trtcm, &trtcm);
		else if (!strcmp(line, "srtcm-n"))
			RUN(srtcm, &srtcms[pick[i]]);
		else if (!strcmp(line, "trtcm-n"))
			RUN(trtcm, &trtcms[pick[i]]);
		else
			die("no such run");
		printf("%.3f %lu %lu %lu\n", (seconds() - start) * 1e9 / count,
		       colors[RTE_COLOR_GREEN], colors[RTE_COLOR_YELLOW], colors[RTE_COLOR_RED]);
		fflush(stdout);
	}
	return 0;
}
