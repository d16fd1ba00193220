package policyfile

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestFamily checks the exact parameters of all meter types but those of RFC 2697, 2698 and
// 4115, in files and in one-liners.
func TestFamily(t *testing.T) {
	const srtcm = "type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 3kB"
	mbit := meter.Rate{Bytes: 1, Period: 8000}
	three := meter.SRTCM{CIR: mbit, CBS: 2000, EBS: 3000}
	keyed := func(k dataplane.Key) dataplane.Meter { return dataplane.Meter{Params: three, Per: k} }
	for _, test := range []struct {
		text string
		want dataplane.Meter
	}{
		{"type: gcra, rate: 1mbit, burst: 20ms", dataplane.Meter{Params: meter.TokenBucket{Rate: mbit, Burst: 2500, GCRA: true}}},
		{"type: token-bucket, rate: 1mbit, burst: 2kB, warmup: 1.5s", dataplane.Meter{Params: meter.TokenBucket{Rate: mbit, Burst: 2000, Warmup: 1500 * time.Millisecond}}},
		{"type: fixed-window, limit: 125kB, window: 1s", dataplane.Meter{Params: meter.FixedWindow{Limit: 125000, Window: time.Second}}},
		{"type: fixed-window, limit: 1, window: 1us, initial: empty", dataplane.Meter{Params: meter.FixedWindow{Limit: 1, Window: time.Microsecond}, Initial: dataplane.Fraction{Num: 0, Den: 1}}},
		{"type: fixed-window, window: 366d, limit: 128TiB", dataplane.Meter{Params: meter.FixedWindow{Limit: 1 << 47, Window: 366 * 24 * time.Hour}}},
		{"type: fixed-window, limit: 100, window: 1min, count: packets", dataplane.Meter{Params: meter.FixedWindow{Limit: 100, Window: time.Minute}, Packets: true}},
		{"type: sliding-window, limit: 64KiB, window: 1s", dataplane.Meter{Params: meter.SlidingWindow{Limit: 65536, Window: time.Second, Slots: 10}}},
		{"type: sliding-window, limit: 64KiB, window: 4096us, slots: 4096", dataplane.Meter{Params: meter.SlidingWindow{Limit: 65536, Window: 4096 * time.Microsecond, Slots: 4096}}},
		{"type: sliding-counter, limit: 2000, window: 10ms, initial: 50%", dataplane.Meter{Params: meter.SlidingCounter{Limit: 2000, Window: 10 * time.Millisecond}, Initial: dataplane.Fraction{Num: 1, Den: 2}}},
		{"type: sliding-log, limit: 2000, window: 10ms", dataplane.Meter{Params: meter.SlidingLog{Limit: 2000, Window: 10 * time.Millisecond, Entries: 65536}}},
		{"type: sliding-log, limit: 2000, window: 10ms, entries: 1048576", dataplane.Meter{Params: meter.SlidingLog{Limit: 2000, Window: 10 * time.Millisecond, Entries: 1 << 20}}},
		{"type: tswtcm, cir: 1mbit, pir: 1mbit, window: 1s", dataplane.Meter{Params: meter.TSWTCM{CIR: mbit, PIR: mbit, Window: time.Second}}},
		{"type: tswtcm, cir: 10p/1s, pir: 20p/1s, window: 1h, seed: 18446744073709551615, count: packets, color: aware", dataplane.Meter{
			Params: meter.TSWTCM{
				CIR: meter.Rate{Bytes: 1, Period: 1e8}, PIR: meter.Rate{Bytes: 1, Period: 5e7},
				Window: time.Hour, Seed: 1<<64 - 1,
			},
			Packets: true, Aware: true,
		}},
		{srtcm + ", per: src", keyed(dataplane.Key{By: dataplane.BySrc})},
		{srtcm + ", per: dst", keyed(dataplane.Key{By: dataplane.ByDst})},
		{srtcm + ", per: flow", keyed(dataplane.Key{By: dataplane.ByFlow})},
		{srtcm + ", per: vlan", keyed(dataplane.Key{By: dataplane.ByVLAN})},
		{srtcm + ", per: dscp", keyed(dataplane.Key{By: dataplane.ByDSCP})},
		{srtcm + ", per: src/24", keyed(dataplane.Key{By: dataplane.BySrc, V4: 24})},
		{srtcm + ", per: dst/32,128", keyed(dataplane.Key{By: dataplane.ByDst, V4: 32, V6: 128})},
		{"type: srtcm, per: dst/1,1, cir: 1mbit, cbs: 2kB, ebs: 3kB", keyed(dataplane.Key{By: dataplane.ByDst, V4: 1, V6: 1})},
		{srtcm + ", per: src/24,64, keys: 4194304, new: empty, evict: lru", dataplane.Meter{
			Params: three, Per: dataplane.Key{By: dataplane.BySrc, V4: 24, V6: 64}, Keys: 1 << 22,
			Initial: dataplane.Fraction{Num: 0, Den: 1},
		}},
		{srtcm + ", keys: 1, new: full, evict: idle, per: src", dataplane.Meter{Params: three, Per: dataplane.Key{By: dataplane.BySrc}, Keys: 1, Idle: true}},
		{"type: sliding-log, limit: 1kB, window: 1s, entries: 64, per: src, keys: 1024", dataplane.Meter{
			Params: meter.SlidingLog{Limit: 1000, Window: time.Second, Entries: 64},
			Per:    dataplane.Key{By: dataplane.BySrc}, Keys: 1 << 10,
		}},
	} {
		block := "classes:\n- name: a\n  meter:\n    " + strings.ReplaceAll(test.text, ", ", "\n    ") + "\n"
		words := strings.ReplaceAll(strings.TrimPrefix(test.text, "type: "), ": ", "=")
		for form, load := range map[string]func() (*File, error){
			"braces": func() (*File, error) { return Load("p.yaml", []byte("classes: [{name: a, meter: {"+test.text+"}}]")) },
			"block":  func() (*File, error) { return Load("p.yaml", []byte(block)) },
			"spaces": func() (*File, error) { return OneLiner{Meter: strings.ReplaceAll(words, ", ", " ")}.Load() },
			"commas": func() (*File, error) { return OneLiner{Meter: strings.ReplaceAll(words, ", ", ",")}.Load() },
		} {
			f, err := load()
			if err == nil && test.want.Keys < meter.MaxKeys { // whose table would take its time
				_, err = f.Compile()
			}
			if err != nil {
				t.Errorf("%s, in %s: %v", test.text, form, err)
				continue
			}
			want := test.want
			want.Name = f.Policy.Classes[0].Name
			if got := *f.Policy.Classes[0].Meter; !reflect.DeepEqual(got, want) {
				t.Errorf("%s, in %s:\n got %+v\nwant %+v", test.text, form, got, want)
			}
		}
	}
}

// TestEnvelopes checks the exact values of envelopes and their flows.
func TestEnvelopes(t *testing.T) {
	f, err := loadAndCompile(`classes:
  - {name: a, match: {dscp: ef}, meter: {type: trtcm4115, cir: 1mbit, cbs: 2kB, eir: 0bit, ebs: 0, envelope: customer, rank: 64}}
  - {name: b, match: {proto: udp}, meter: low}
  - {name: c, match: {proto: tcp}, meter: {type: trtcm4115, cir: 1p/1s, cbs: 2, eir: 1p/1s, ebs: 2, envelope: packets, rank: 1, cirmax: 20p/1s, count: packets}}
  - {name: d, meter: {type: trtcm4115, cir: 1p/1s, cbs: 2, eir: 1p/1s, ebs: 2, envelope: free, rank: 1, count: packets, initial: 50%}}
meters: {low: {type: trtcm4115, cir: 1mbit, cbs: 2kB, eir: 1mbit, ebs: 2kB, coupling: true, rank: 1, envelope: customer, cirmax: 2MB/s, eirmax: 0bit}}
envelopes:
  customer: {cirmax: 8mbit, eirmax: 1MB/s}
  packets: {eirmax: 10p/1s}
  free: {coupling: false}
  unused: {cirmax: 1mbit, coupling: true}
`)
	if err != nil {
		t.Fatal(err)
	}
	mbyte := meter.Rate{Bytes: 1, Period: 1000}
	want := []dataplane.Envelope{
		{Name: "customer", CIRMax: mbyte, EIRMax: mbyte},
		{Name: "packets", EIRMax: meter.Rate{Bytes: 1, Period: 1e8}, Packets: true},
		{Name: "free"},
		{Name: "unused", CIRMax: meter.Rate{Bytes: 1, Period: 8000}, Coupling: true},
	}
	for i, e := range f.Policy.Envelopes {
		if *e != want[i] {
			t.Errorf("got %+v, want %+v", *e, want[i])
		}
	}
	for i, want := range []struct {
		envelope, rank int
		own, limits    string // cirmax and eirmax
	}{
		{0, 64, "- -", "8mbit 8mbit"},
		{0, 1, "16mbit 0bit", "16mbit 0bit"},
		{1, 1, "160bit -", "160bit 80bit"}, // 8 bit are a packet here
		{2, 1, "- -", "- -"},
	} {
		m := f.Policy.Classes[i].Meter
		text := func(cirmax, eirmax *meter.Rate) string {
			out := []string{"-", "-"}
			for i, r := range []*meter.Rate{cirmax, eirmax} {
				if r != nil {
					out[i] = r.String()
				}
			}
			return strings.Join(out, " ")
		}
		own, limits := text(m.CIRMax, m.EIRMax), text(m.Limits())
		if m.Envelope != f.Policy.Envelopes[want.envelope] || m.Rank != want.rank || own != want.own ||
			limits != want.limits {
			t.Errorf("class %d: envelope %v, rank %d, %s, limits %s; want %+v", i, m.Envelope, m.Rank, own,
				limits, want)
		}
	}
}

// TestFamilyErrors is TestErrors for the keys of TestFamily.
func TestFamilyErrors(t *testing.T) {
	const (
		srtcm  = "type: srtcm, cir: 1mbit, cbs: 2kB, ebs: 2kB"
		bucket = "type: token-bucket, rate: 1mbit, burst: 2kB"
		window = "type: fixed-window, limit: 1kB, window: 1s"
		slots  = "type: sliding-window, limit: 1kB, window: 1s"
		log    = "type: sliding-log, limit: 1kB, window: 1s"
		tsw    = "type: tswtcm, cir: 1mbit, pir: 1mbit"
		flow   = "type: trtcm4115, cir: 1mbit, cbs: 2kB, eir: 1mbit, ebs: 2kB"
		packet = "type: trtcm4115, cir: 1p/1s, cbs: 2, eir: 1p/1s, ebs: 2, count: packets"
	)
	for _, test := range []struct {
		name, keys, at string // part with the error, or "" for the whole meter
		says           []string
	}{
		// GCRA and warm-up.
		{"gcra without burst", "type: gcra, rate: 8mbit", "", []string{"burst is missing", "burst: 20ms"}},
		{"gcra without rate", "type: gcra, burst: 2kB", "", []string{"rate is missing", "rate: 10mbit"}},
		{"gcra rate zero", "type: gcra, burst: 2kB, rate: 0bit", "0bit", []string{"rate must be above zero"}},
		{"gcra burst zero", "type: gcra, rate: 1mbit, burst: 0", "0", []string{"burst must be above zero"}},
		{"gcra with an interval", "type: gcra, rate: 1mbit, burst: 2kB, limit: 5", "limit: 5", []string{`"limit"`, "type gcra", "burst"}},
		{"warmup zero", bucket + ", warmup: 0s", "0s", []string{"warmup", "above zero", "10s"}},
		{"warmup below 1 us", bucket + ", warmup: 999ns", "999ns", []string{"warmup", "999ns", "1µs"}},
		{"warmup over a day", bucket + ", warmup: 25h", "25h", []string{"warmup", "24h"}},
		{"warmup a number", bucket + ", warmup: 10", "10", []string{"warmup", "not a time"}},
		{"warmup m", bucket + ", warmup: 10m", "10m", []string{"10min", "10ms"}},
		{"warmup nothing", bucket + ", warmup: ", "}", []string{"warmup", "nothing"}},
		{"warmup of gcra", "type: gcra, rate: 1mbit, burst: 2kB, warmup: 1s", "warmup: 1s", []string{`"warmup"`, "type gcra"}},
		{"warmup of a burst too large", "type: token-bucket, rate: 1mbit, burst: 16TiB, warmup: 10s", "16TiB", []string{"warm-up", "largest burst"}},
		// Windows.
		{"no limit", "type: fixed-window, window: 1s", "", []string{"limit is missing", "limit: 125kB"}},
		{"no limit in packets", "type: sliding-log, window: 1s, count: packets", "", []string{"limit is missing", "limit: 100"}},
		{"no window", "type: sliding-counter, limit: 1kB", "", []string{"window is missing", "window: 1s"}},
		{"limit a rate", "type: fixed-window, limit: 10mbit, window: 1s", "10mbit", []string{"10mbit", "not a size", "125kB"}},
		{"limit a rate in a time", "type: fixed-window, limit: 1MB/s, window: 1s", "1MB/s", []string{"not a size", "window: 1s"}},
		{"limit a time", "type: fixed-window, limit: 20ms, window: 1s", "20ms", []string{"20ms", "not a size", "125kB"}},
		{"limit ambiguous", "type: fixed-window, limit: 64k, window: 1s", "64k", []string{"64kB", "64KiB"}},
		{"limit below zero", "type: fixed-window, limit: -1, window: 1s", "-1", []string{"limit", "-1"}},
		{"limit zero", "type: fixed-window, window: 1s, limit: 0", "0", []string{"limit must be above zero"}},
		{"limit zero of slots", "type: sliding-window, window: 1s, limit: 0", "0", []string{"limit must be above zero"}},
		{"limit zero of a log", "type: sliding-log, window: 1s, limit: 0B", "0B", []string{"limit must be above zero"}},
		{"limit too large", "type: sliding-counter, window: 1s, limit: 140737488355329", "140737488355329", []string{"limit is above 2^47"}},
		{"limit far too large", "type: sliding-log, window: 1s, limit: 999999999999999999", "999999999999999999", []string{"limit is above 2^47"}},
		{"limit in bytes where packets count", "type: fixed-window, limit: 1kB, window: 1s, count: packets", "1kB", []string{"packets", "bare number"}},
		{"limit a list", "type: fixed-window, limit: [1], window: 1s", "[1]", []string{"limit", "single value"}},
		{"window a number", "type: fixed-window, limit: 1kB, window: 60", "60", []string{"window", "not a time"}},
		{"window m", "type: fixed-window, limit: 1kB, window: 1m", "1m", []string{"1min", "1ms"}},
		{"window zero", "type: fixed-window, limit: 1kB, window: 0s", "0s", []string{"window of 0s", "1µs"}},
		{"window zero of slots", "type: sliding-window, limit: 1kB, window: 0s", "0s", []string{"window of 0s", "1µs"}},
		{"window zero of a log", "type: sliding-log, limit: 1kB, window: 0s", "0s", []string{"window of 0s", "1µs"}},
		{"window below 1 us", "type: sliding-counter, limit: 1kB, window: 999ns", "999ns", []string{"window of 999ns", "1µs"}},
		{"window over 366 d", "type: fixed-window, limit: 1kB, window: 367d", "367d", []string{"window", "8784h"}},
		{"window over 292 y", "type: fixed-window, limit: 1kB, window: 200000d", "200000d", []string{"window", "292 years"}},
		{"burst of a window", window + ", burst: 2kB", "burst: 2kB", []string{`"burst"`, "limit"}},
		{"slots of a fixed window", window + ", slots: 4", "slots: 4", []string{`"slots"`, "type fixed-window"}},
		{"slots that do not divide", slots + ", slots: 7", "7}", []string{"slots 7 do not divide", "1s"}},
		{"slots zero", slots + ", slots: 0", "0}", []string{"slots 0", "1 and 4096"}},
		{"slots below zero", slots + ", slots: -1", "-1", []string{"slots -1", "1 and 4096"}},
		{"slots 4097", "type: sliding-window, limit: 1kB, window: 4097us, slots: 4097", "4097}", []string{"slots 4097", "1 and 4096"}},
		{"slots a word", slots + ", slots: many", "many", []string{"slots", "many", "whole number"}},
		{"slots far out of range", slots + ", slots: 99999999999", "99999999999", []string{"slots", "out of range"}},
		{"entries zero", log + ", entries: 0", "0}", []string{"entries 0", "1 and 1048576"}},
		{"entries 1048577", log + ", entries: 1048577", "1048577", []string{"entries", "1 and 1048576"}},
		{"entries a size", log + ", entries: 64k", "64k", []string{"entries", "whole number"}},
		{"entries of slots", slots + ", entries: 5", "entries: 5", []string{`"entries"`, "slots"}},
		// RFC 2859.
		{"tswtcm without window", tsw, "", []string{"window is missing", "window: 1s"}},
		{"tswtcm without pir", "type: tswtcm, cir: 1mbit, window: 1s", "", []string{"pir is missing", "pir: 10mbit"}},
		{"tswtcm with a burst", tsw + ", window: 1s, cbs: 2kB", "cbs: 2kB", []string{`"cbs"`, "window"}},
		{"tswtcm PIR below CIR", "type: tswtcm, cir: 2mbit, window: 1s, pir: 1mbit", "1mbit", []string{"below", "RFC 2859"}},
		{"tswtcm CIR zero", "type: tswtcm, cir: 0bit, window: 1s, pir: 1mbit", "0bit", []string{"above zero", "RFC 2859"}},
		{"tswtcm window over 1 h", tsw + ", window: 61min", "61min", []string{"window", "1h"}},
		{"tswtcm window zero", tsw + ", window: 0s", "0s", []string{"window", "1µs"}},
		{"tswtcm seed", tsw + ", window: 1s, seed: 18446744073709551616", "18446744073709551616", []string{"seed", "2^64"}},
		{"tswtcm initial", tsw + ", window: 1s, initial: empty", "empty", []string{"initial", "RFC 2859"}},
		{"tswtcm rates in bytes where packets count", "type: tswtcm, cir: 1p/1s, pir: 1mbit, window: 1s, count: packets", "1mbit", []string{"100p/1s"}},
		{"seed of a bucket", bucket + ", seed: 5", "seed: 5", []string{`"seed"`}},
		// Per-key meters.
		{"keys without per", srtcm + ", keys: 100", "100", []string{"keys", "per: src"}},
		{"new without per", srtcm + ", new: full", "full", []string{"new", "per: src"}},
		{"evict without per", srtcm + ", evict: idle", "idle", []string{"evict", "per: src"}},
		{"all three without per", srtcm + ", evict: idle, new: full, keys: 7", "7", []string{"per: src"}},
		{"initial with per", srtcm + ", per: src, initial: empty", "empty", []string{"initial", "new: empty"}},
		{"initial full with per", srtcm + ", per: src, initial: full", "full", []string{"initial", "new: full"}},
		{"per unknown", srtcm + ", keys: 9, per: source, new: full", "source", []string{`"source"`, "src", "dst", "flow", "vlan", "dscp", "src/24,64"}},
		{"per in capitals", srtcm + ", per: SRC", "SRC", []string{`"SRC"`, "src"}},
		{"per a list", srtcm + ", per: [src, dst]", "[src", []string{"per", "the only list is [vlan, mac]"}},
		{"per nothing", srtcm + ", per: ", "}", []string{"per", "nothing"}},
		{"per nothing of a v4 prefix", srtcm + ", per: src/", "src/", []string{`""`, "1 to 32"}},
		{"per src/33", srtcm + ", per: src/33, evict: idle", "src/33", []string{`"33"`, "v4", "1 to 32"}},
		{"per src/0", srtcm + ", per: src/0", "src/0", []string{`"0"`, "1 to 32"}},
		{"per dst/24,129", srtcm + ", per: dst/24,129", "dst/24", []string{`"129"`, "v6", "1 to 128"}},
		{"per dst/24,0", srtcm + ", per: dst/24,0", "dst/24", []string{`"0"`, "1 to 128"}},
		{"per with three prefixes", srtcm + ", per: 'dst/24,64,8'", "'dst", []string{`"64,8"`, "1 to 128"}},
		{"per a mask", srtcm + ", per: src/255.255.255.0", "src/255", []string{`"255.255.255.0"`, "1 to 32"}},
		{"per vlan/3", srtcm + ", per: vlan/3", "vlan/3", []string{`"vlan/3"`, "only src, dst and address", "write vlan"}},
		{"per flow/24", srtcm + ", per: flow/24,64", "flow/24", []string{"only src, dst and address"}},
		{"a number for a key", srtcm + ", per: src, 64: 1", "64: 1", []string{`"64"`}},
		{"a number for a key elsewhere", srtcm + ", 64, per: src", "64,", []string{`"64"`}},
		{"keys 0", srtcm + ", per: src, keys: 0", "0}", []string{"keys", "1 and 4194304"}},
		{"keys 4194305", srtcm + ", per: src, keys: 4194305", "4194305", []string{"keys", "1 and 4194304"}},
		{"keys a size", srtcm + ", per: src, keys: 64k", "64k", []string{"keys", "whole number"}},
		{"new half", srtcm + ", per: src, new: 50%", "50%", []string{"new", "full, empty"}},
		{"evict random", srtcm + ", per: src, evict: random", "random", []string{"evict", "lru, idle"}},
		{"new empty with evict idle", srtcm + ", per: src, evict: idle, new: empty", "empty", []string{"new must be full", "idle"}},
		{"too many entries", log + ", per: src, entries: 1024, keys: 65537", "65537", []string{"keys 65537", "1024 entries"}},
		{"too many entries by default", log + ", per: src", "", []string{"65536 entries"}},
		{"too many slots", "type: sliding-window, limit: 1kB, window: 4096us, slots: 4096, per: src, keys: 16385", "16385", []string{"4096 entries"}},
		{"per of tswtcm", tsw + ", window: 1s, per: src", "src", []string{"per", "tswtcm", "average"}},
		// Envelopes.
		{"rank without envelope", flow + ", rank: 2", "2}", []string{"rank", "envelope:"}},
		{"envelope without rank", flow + ", envelope: e", "e}", []string{"rank: 2", "larger"}},
		{"unknown envelope", flow + ", rank: 2, envelope: x", "x}", []string{`"x"`, "envelopes:"}},
		{"envelope a list", flow + ", rank: 2, envelope: [e]", "[e]", []string{"envelope", "single value"}},
		{"envelope of srtcm", srtcm + ", envelope: e, rank: 1", "e,", []string{"trtcm4115", "not srtcm"}},
		{"envelope of a window", window + ", envelope: e, rank: 1", "e,", []string{"trtcm4115", "not fixed-window"}},
		{"rank 0", flow + ", envelope: e, rank: 0", "0}", []string{"rank 0", "1 and 64"}},
		{"rank 65", flow + ", envelope: e, rank: 65", "65", []string{"rank 65", "1 and 64"}},
		{"rank a word", flow + ", envelope: e, rank: high", "high", []string{"rank", "high"}},
		{"rank of another flow", flow + ", envelope: e, rank: 7", "7}", []string{"rank 7", "another flow", `"e"`}},
		{"flow in packets", packet + ", envelope: e, rank: 1", "packets, env", []string{"count", "another flow"}},
		{"flow in packets of an envelope in bytes", packet + ", envelope: bytes, rank: 1", "packets, env", []string{"count", "differs", `"bytes"`}},
		{"flow in bytes of an envelope in packets", flow + ", envelope: packets, rank: 1", "", []string{"count", "differs", `"packets"`}},
		{"flow with per", flow + ", envelope: e, rank: 1, per: src", "src", []string{"per", "envelope"}},
		{"cirmax without envelope", flow + ", cirmax: 2mbit", "2mbit", []string{"cirmax is only for a flow", "envelope:"}},
		{"eirmax without envelope", flow + ", eirmax: 0bit", "0bit", []string{"eirmax is only for a flow", "envelope:"}},
		{"cirmax of srtcm", srtcm + ", cirmax: 2mbit", "2mbit", []string{"cirmax is only for a flow"}},
		{"cirmax without unit", flow + ", envelope: e, rank: 1, cirmax: 1000", "1000", []string{"cirmax", "1000bit"}},
		{"cirmax in packets", flow + ", envelope: e, rank: 1, cirmax: 1p/1s", "1p/1s", []string{"cirmax"}},
		{"eirmax negative", flow + ", envelope: e, rank: 1, eirmax: -1bit", "-1bit", []string{"eirmax"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			const before = "  - {name: a, meter: "
			text := "classes:\n  - {name: b, match: {proto: udp}, meter: {" + flow +
				", envelope: e, rank: 7}}\n" +
				before + "{" + test.keys +
				"}}\nenvelopes: {e: {}, bytes: {cirmax: 1mbit}, packets: {eirmax: 1p/1s}}\n"
			column := len(before) + 1
			if test.at != "" {
				column += 1 + strings.LastIndex(test.keys+"}", test.at)
			}
			oneError(t, text, fmt.Sprintf("3:%d", column), test.says)
		})
	}
}

// TestEnvelopeErrors is TestErrors for entries of envelopes.
func TestEnvelopeErrors(t *testing.T) {
	for _, test := range []struct {
		name, text, at string
		says           []string
	}{
		{"a list", "[e]", "[e]", []string{"mapping"}},
		{"one a scalar", "{e: 1mbit}", "1mbit", []string{"mapping"}},
		{"twice", "{e: {}, e: {}}", "e: {}}", []string{`duplicate key "e"`}},
		{"unknown key", "{e: {pirmax: 1mbit}}", "pirmax", []string{`"pirmax"`, "cirmax, coupling, eirmax"}},
		{"rate without unit", "{e: {cirmax: 1000}}", "1000", []string{"1000bit"}},
		{"rate zero", "{e: {cirmax: 1mbit, eirmax: 0bit}}", "0bit", []string{"eirmax", "no limit"}},
		{"bytes beside packets", "{e: {cirmax: 1mbit, eirmax: 1p/1s}}", "1p/1s", []string{"eirmax", "packets"}},
		{"packets in bits", "{e: {cirmax: 1p/1}}", "1p/1}", []string{"cirmax", "1p/1"}},
		{"coupling a number", "{e: {coupling: 1}}", "1}", []string{"coupling", "true, false"}},
		{"coupling beside that of a flow", "{two: {coupling: true}}", "true", []string{"coupling", "a flow", "[R150]"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			const (
				before = "envelopes: "
				flow   = "type: trtcm4115, cir: 1mbit, cbs: 2kB, eir: 1mbit, ebs: 2kB, envelope: "
			)
			class := "{name: a}"
			if strings.HasPrefix(test.text, "{two") {
				class = "{name: b, match: {proto: udp}, meter: {" + flow +
					"two, rank: 2, coupling: true}}, {name: a, meter: {" + flow + "two, rank: 1}}"
			}
			place := fmt.Sprintf("2:%d", len(before)+1+strings.LastIndex(test.text, test.at))
			oneError(t, "classes: ["+class+"]\n"+before+test.text+"\n", place, test.says)
		})
	}
}

// TestFamilyOneLinerErrors checks errors that only a one-liner can have.
func TestFamilyOneLinerErrors(t *testing.T) {
	const gcra = "gcra rate=1mbit burst=2kB"
	for _, test := range []struct {
		name, meter, place string
		says               []string
	}{
		{"burst left out", "gcra rate=8mbit", "1:1", []string{"burst is missing"}},
		{"no limit", "fixed-window window=1s", "1:1", []string{"limit is missing"}},
		{"prefix", gcra + " per=src/24,129", "1:31", []string{`"129"`}},
		{"a word after a prefix", gcra + " per=src/24,aware", "1:38", []string{`"aware"`, "key=value"}},
		{"a number elsewhere", gcra + ",64", "1:27", []string{`"64"`, "key=value"}},
		{"envelope", "trtcm4115 cir=1mbit cbs=2kB eir=1mbit ebs=2kB envelope=e rank=1", "1:56", []string{`"e"`, "policy file"}},
		{"keys without per", gcra + " keys=9", "1:32", []string{"per: src"}},
		{"slots", "sliding-window limit=1kB window=1s slots=7", "1:42", []string{"do not divide"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := OneLiner{Meter: test.meter}.Load()
			if err == nil {
				_, err = f.Compile()
			}
			if err == nil {
				t.Fatal("got nil, want an error")
			}
			if strings.Contains(err.Error(), "\n") ||
				!strings.HasPrefix(err.Error(), "--meter:"+test.place+": ") {
				t.Errorf("want one error at %s:\n%v", test.place, err)
			}
			for _, part := range test.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want it to contain %q", err, part)
				}
			}
		})
	}
}
