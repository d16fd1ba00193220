package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// randomEnvelope writes an envelope, unless the meters are for the eBPF program, and returns a
// function for random meters, some of which are flows of the envelope.
func randomEnvelope(r *rand.Rand, b *strings.Builder, kernel bool) func() string {
	if kernel {
		return func() string { return randomMeter(r, true) }
	}
	packets, coupled := r.IntN(4) == 0, r.IntN(3) == 0
	rate := func() string {
		if packets {
			return fmt.Sprintf("%dp/%s", r.IntN(1000), pickWord(r, "1s", "300ms"))
		}
		return pickWord(r, randomRate(r), "0bit", "999kbit")
	}
	size, count := func() string { return pickWord(r, "1500", "3000", "9KiB", "1", "100kB") }, ""
	if packets {
		size, count = func() string { return fmt.Sprint(1 + r.IntN(20)) }, ", count: packets"
	}
	caps := "" // in bytes
	if !packets {
		c, e := randomRate(r), pickWord(r, randomRate(r), "999kbit")
		caps = pickWord(r, "", "cirmax: "+c, "eirmax: "+e, "cirmax: "+c+", eirmax: "+e)
	}
	if coupled {
		caps = strings.TrimPrefix(caps+", coupling: true", ", ")
	}
	fmt.Fprintf(b, "envelopes:\n  e: {%s}\n", caps)
	ranks := r.Perm(64)
	return func() string {
		if r.IntN(4) > 0 {
			return randomMeter(r, false)
		}
		rank, coupling := 1+ranks[0], pickWord(r, "", ", coupling: true")
		ranks = ranks[1:]
		if coupled {
			coupling = ""
		}
		own := pickWord(r, "", "", ", cirmax: "+rate()) + pickWord(r, "", "", ", eirmax: "+rate())
		return fmt.Sprintf("type: trtcm4115, cir: %s, cbs: %s, eir: %s, ebs: %s%s%s%s%s, envelope: e, rank: %d",
			rate(), size(), rate(), size(), count, coupling, own, randomInitial(r), rank)
	}
}

func randomInitial(r *rand.Rand) string {
	return pickWord(r, "", "", ", initial: empty", ", initial: 33.3%")
}

// randomMeter returns a meter of any type, or of one that the eBPF program supports.
func randomMeter(r *rand.Rand, kernel bool) string {
	var meter string
	switch kinds := r.IntN(3); {
	case kinds == 0:
		meter = randomBuckets(r)
	case kinds == 1 && !kernel:
		meter = randomSlow(r)
	default:
		meter = randomFamily(r)
	}
	switch {
	case strings.Contains(meter, "tswtcm"):
		return meter
	case r.IntN(3) == 0:
		return meter + ", " + randomKeys(r, kernel)
	}
	return meter + randomInitial(r)
}

// randomKeys returns a small table, so that keys are evicted. For the eBPF program the table is
// large, because it is exact only without evictions.
func randomKeys(r *rand.Rand, kernel bool) string {
	per := "per: " + pickWord(r, "src", "dst", "src/31", "'src/24,64'", "dst/9", "flow", "vlan", "dscp")
	if kernel {
		return per + pickWord(r, "", ", new: empty", ", new: full, evict: lru")
	}
	return per + pickWord(r, "", ", new: empty", ", new: empty, evict: lru", ", evict: idle",
		", new: full, evict: idle") +
		pickWord(r, ", keys: 1", ", keys: 2", ", keys: 5", ", keys: 64")
}

// randomBuckets returns one of the meters of the RFCs, or a token bucket.
func randomBuckets(r *rand.Rand) string {
	burst := func() string { return pickWord(r, "1500", "3000", "9KiB", "64", "100kB", "1") }
	rate := fmt.Sprint(1 + r.IntN(10_000_000))
	switch r.IntN(5) {
	case 0:
		return fmt.Sprintf("type: srtcm, cir: %s, cbs: %s, ebs: %s", randomRate(r), burst(), burst())
	case 1:
		return fmt.Sprintf("type: trtcm, cir: %sbit, cbs: %s, pir: %skbit, pbs: %s", rate, burst(), rate,
			burst())
	case 2:
		return fmt.Sprintf("type: trtcm4115, cir: %s, cbs: %s, eir: %sbit, ebs: %s", randomRate(r), burst(),
			rate, burst())
	case 3:
		return fmt.Sprintf("type: trtcm4115, cir: %sbit, cbs: %s, eir: 999kbit, ebs: %s, coupling: true",
			rate, burst(), burst())
	}
	if r.IntN(3) == 0 {
		return fmt.Sprintf("type: token-bucket, rate: %dp/%s, burst: %d, count: packets", 1+r.IntN(1000),
			pickWord(r, "1s", "300ms"), 1+r.IntN(20))
	}
	return fmt.Sprintf("type: token-bucket, rate: %s, burst: %s", randomRate(r), burst())
}

// randomFamily returns one of the other meters that every plane supports.
func randomFamily(r *rand.Rand) string {
	switch r.IntN(3) {
	case 0:
		return fmt.Sprintf("type: gcra, rate: %s, burst: %s", randomRate(r),
			pickWord(r, "1500", "3000", "9KiB", "64", "100kB", "1"))
	case 1:
		return fmt.Sprintf("type: gcra, rate: %dp/%s, burst: %d, count: packets", 1+r.IntN(1000),
			pickWord(r, "1s", "300ms"), 1+r.IntN(20))
	}
	return fmt.Sprintf("type: %s, %s, window: %s", pickWord(r, "fixed-window", "sliding-counter"),
		randomLimit(r), randomTime(r))
}

// randomSlow returns one of the meters that the eBPF program does not support.
func randomSlow(r *rand.Rand) string {
	switch r.IntN(6) {
	case 5: // a burst that does not fit 64 bits exactly
		odd, small := fmt.Sprintf("%dbit", 2*r.IntN(5_000_000)+1), pickWord(r, "1500", "3000", "64")
		return pickWord(r,
			fmt.Sprintf("type: srtcm, cir: %s, cbs: %s, ebs: 5GiB", odd, small),
			fmt.Sprintf("type: trtcm, cir: %s, cbs: %s, pir: 7GiB/1h, pbs: 4GiB", odd, small),
			fmt.Sprintf("type: trtcm4115, cir: %s, cbs: 5GiB, eir: %s, ebs: %s%s", odd, odd, small,
				pickWord(r, "", ", coupling: true")),
			fmt.Sprintf("type: %s, rate: %s, burst: 5GiB", pickWord(r, "gcra", "token-bucket"), odd))
	case 0:
		rate := pickWord(r, randomRate(r), fmt.Sprintf("%dB/7ms", 1+r.IntN(9000)), "100kB/1min")
		return fmt.Sprintf("type: token-bucket, rate: %s, burst: %s, warmup: %s", rate,
			pickWord(r, "1500", "9KiB", "4001"), randomTime(r))
	case 1:
		slots := []int{1, 2, 7, 10, 64}[r.IntN(5)]
		slot := 1000 + r.Int64N([]int64{1e4, 1e6, 1e8}[r.IntN(3)])
		meter := fmt.Sprintf("type: sliding-window, %s, window: %dns", randomLimit(r), slot*int64(slots))
		if slots == 10 {
			return meter
		}
		return fmt.Sprintf("%s, slots: %d", meter, slots)
	case 2:
		return fmt.Sprintf("type: sliding-log, %s, window: %s, entries: %d", randomLimit(r), randomTime(r),
			[]int{1, 3, 50, 65536}[r.IntN(4)])
	case 3:
		cir := 1 + r.IntN(1000)
		return fmt.Sprintf("type: tswtcm, cir: %dp/1s, pir: %dp/1s, window: %dms, count: packets", cir,
			cir+r.IntN(2*cir+1), 1+r.IntN(900))
	}
	cir := 1 + r.IntN(2_000_000)/(1+r.IntN(9))
	return fmt.Sprintf("type: tswtcm, cir: %dB/s, pir: %dB/s, window: %s%s", cir, cir+r.IntN(2*cir+1),
		pickWord(r, randomTime(r), "70ms", "777777ns"),
		pickWord(r, "", fmt.Sprintf(", seed: %d", r.Uint64()>>r.IntN(64))))
}

// randomTime returns a window or a warm-up.
func randomTime(r *rand.Rand) string {
	return fmt.Sprintf("%dns", 1000+r.Int64N([]int64{1, 1e5, 1e7, 1e8, 1e9}[r.IntN(5)]))
}

func randomLimit(r *rand.Rand) string {
	if r.IntN(4) == 0 {
		return fmt.Sprintf("limit: %d, count: packets", 1+r.IntN(40))
	}
	return "limit: " + pickWord(r, "1", "1500", "4000", "9KiB", "30kB", "100kB")
}
