package main

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// TestDescribeMeter holds what people read of a meter.
func TestDescribeMeter(t *testing.T) {
	for text, want := range map[string]string{
		"srtcm cir=1mbit cbs=2kB ebs=0":                                        "CIR 1mbit, CBS 2000 B (16 ms), EBS 0 B (0 ns)",
		"trtcm4115 cir=1mbit cbs=2kB eir=0bit ebs=1 coupling=true initial=50%": "CIR 1mbit, CBS 2000 B (16 ms), EIR 0bit, EBS 1 B (never refills), coupling, initial 1/2",
		"gcra rate=100p/1s burst=10 count=packets initial=empty":               "rate 1p/10ms, burst 10 p (100 ms), initial 0/1",
		"token-bucket rate=1mbit burst=2kB warmup=1min":                        "rate 1mbit, burst 2000 B (16 ms), warmup 1m0s",
		"fixed-window limit=125kB window=1s":                                   "limit 125000 B, window 1s",
		"sliding-counter limit=9 window=10ms count=packets initial=50%":        "limit 9 p, window 10ms, initial 1/2",
		"sliding-window limit=9kB window=1s slots=4":                           "limit 9000 B, window 1s, slots 4 (64 B)",
		"sliding-log limit=9kB window=1s":                                      "limit 9000 B, window 1s, entries 65536 (1 MiB)",
		"sliding-log limit=9kB window=1s entries=100":                          "limit 9000 B, window 1s, entries 100 (1.562 KiB)",
		"tswtcm cir=1mbit pir=2mbit window=1s":                                 "CIR 1mbit, PIR 2mbit, window 1s, seed 0",
		"tswtcm cir=1p/1s pir=2p/1s window=1s seed=3 count=packets":            "CIR 1p/1s, PIR 1p/500ms, window 1s, seed 3",
		"gcra rate=1mbit burst=2kB per=src/24,64":                              "rate 1mbit, burst 2000 B (16 ms), per src/24,64, at most 65536 keys, new ones full, least recently used goes",
		"gcra rate=1mbit burst=2kB per=flow keys=9 new=empty":                  "rate 1mbit, burst 2000 B (16 ms), per flow, at most 9 keys, new ones empty, least recently used goes",
		"gcra rate=1mbit burst=2kB per=vlan evict=idle keys=1":                 "rate 1mbit, burst 2000 B (16 ms), per vlan, at most 1 key, new ones full, least recently used goes where it is idle",
		"sliding-window limit=9kB window=1s per=dst keys=64":                   "limit 9000 B, window 1s, slots 10 (160 B), per dst, at most 64 keys, new ones full, least recently used goes (10 KiB of entries)",
	} {
		f, err := policyfile.OneLiner{Meter: text}.Load()
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := describeMeter(f.Policy.Classes[0].Meter); got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
	}
}

// TestMetersOf leaves out the tokens of a meter for each key: each has its own.
func TestMetersOf(t *testing.T) {
	f, err := policyfile.Load("p.yaml", []byte(`classes:
  - {name: a, meter: {type: gcra, rate: 1mbit, burst: 2kB, per: src/24, then: sum}}
meters: {sum: {type: tswtcm, cir: 1mbit, pir: 2mbit, window: 1s, color: aware, then: last}, last: {type: fixed-window, limit: 7, window: 1s, color: aware}}
`))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := f.Compile()
	if err != nil {
		t.Fatal(err)
	}
	got := metersOf(plan.Outline(), 0, &sample{tokens: [][2]int64{{1, 0}, {2, 3}, {4, 0}}})
	if m := got[0]; m.Per != "src/24" || m.Buckets == nil || len(m.Buckets) != 0 {
		t.Errorf("%+v", m)
	}
	if b := got[1].Buckets; got[1].Per != "" || len(b) != 2 || b[0] != (bucketOfJSON{"below CIR", 2, 125000}) || b[1] != (bucketOfJSON{"below PIR", 3, 250000}) {
		t.Errorf("%+v", got[1])
	}
	if b := got[2].Buckets; len(b) != 1 || b[0] != (bucketOfJSON{"left", 4, 7}) {
		t.Errorf("%+v", got[2])
	}
}
