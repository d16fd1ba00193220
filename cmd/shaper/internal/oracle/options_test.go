package oracle

import "testing"

// TestMeterLimits checks values at the limits, and the next ones beyond.
func TestMeterLimits(t *testing.T) {
	for _, test := range [][2]string{
		{"type: gcra, rate: 8bit, burst: 9", "type: gcra, rate: 8bit"},
		{"type: gcra, rate: 8bit, burst: 9", "type: gcra, rate: 8bit, burst: 9, warmup: 1s"},
		{"type: token-bucket, rate: 8bit, burst: 9, warmup: 1us", "type: token-bucket, rate: 8bit, burst: 9, warmup: 999ns"},
		{"type: token-bucket, rate: 8bit, burst: 9, warmup: 8784h", "type: token-bucket, rate: 8bit, burst: 9, warmup: 9"},
		{"type: fixed-window, limit: 1, window: 1us", "type: fixed-window, limit: 0, window: 1us"},
		{"type: fixed-window, limit: 131072GiB, window: 8784h", "type: fixed-window, limit: 140737488355329, window: 8784h"},
		{"type: fixed-window, limit: 1, window: 1.5us", "type: fixed-window, limit: 1, window: 999ns"},
		{"type: fixed-window, limit: 1, window: 8784h", "type: fixed-window, limit: 1, window: 31622400000000001ns"},
		{"type: fixed-window, limit: 1kB, window: 1s", "type: fixed-window, limit: 1kB, window: 1s, count: packets"},
		{"type: fixed-window, limit: 1, window: 1s", "type: fixed-window, limit: 1s, window: 1s"},
		{"type: fixed-window, limit: 1, window: 1s", "type: fixed-window, limit: 1, window: 1s, slots: 9"},
		{"type: sliding-counter, limit: 1, window: 1s", "type: sliding-counter, limit: 1, window: 1s, entries: 9"},
		{"type: sliding-window, limit: 1, window: 4096us, slots: 4096", "type: sliding-window, limit: 1, window: 4097us, slots: 4097"},
		{"type: sliding-window, limit: 1, window: 1us, slots: 1", "type: sliding-window, limit: 1, window: 1us, slots: 0"},
		{"type: sliding-window, limit: 1, window: 1010ns", "type: sliding-window, limit: 1, window: 1011ns"},
		{"type: sliding-log, limit: 1, window: 1s, entries: 1048576", "type: sliding-log, limit: 1, window: 1s, entries: 1048577"},
		{"type: sliding-log, limit: 1, window: 1s, entries: 1", "type: sliding-log, limit: 1, window: 1s, entries: 0"},
		{"type: tswtcm, cir: 8bit, pir: 8bit, window: 1h", "type: tswtcm, cir: 8bit, pir: 8bit, window: 3600000000001ns"},
		{"type: tswtcm, cir: 8bit, pir: 8bit, window: 1us", "type: tswtcm, cir: 8bit, pir: 8bit, window: 999ns"},
		{"type: tswtcm, cir: 8bit, pir: 8bit, window: 1s", "type: tswtcm, cir: 8bit, pir: 7bit, window: 1s"},
		{"type: tswtcm, cir: 8bit, pir: 8bit, window: 1s", "type: tswtcm, cir: 0bit, pir: 8bit, window: 1s"},
		{"type: tswtcm, cir: 8bit, pir: 8bit, window: 1s", "type: tswtcm, cir: 8bit, pir: 8bit, window: 1s, initial: full"},
		{"type: tswtcm, cir: 8bit, pir: 8bit, window: 1s", "type: tswtcm, cir: 8bit, pir: 8bit, window: 1s, per: src"},
		{"type: tswtcm, cir: 8bit, pir: 8bit, window: 1s, seed: 18446744073709551615", "type: tswtcm, cir: 8bit, pir: 8bit, window: 1s, seed: 18446744073709551616"},
		{"type: gcra, rate: 8bit, burst: 9, per: src", "type: gcra, rate: 8bit, burst: 9, keys: 9"},
		{"type: gcra, rate: 8bit, burst: 9, per: flow", "type: gcra, rate: 8bit, burst: 9, new: full"},
		{"type: gcra, rate: 8bit, burst: 9, per: vlan", "type: gcra, rate: 8bit, burst: 9, evict: lru"},
		{"type: gcra, rate: 8bit, burst: 9, per: dscp", "type: gcra, rate: 8bit, burst: 9, per: sport"},
		{"type: gcra, rate: 8bit, burst: 9, per: dst, new: empty", "type: gcra, rate: 8bit, burst: 9, per: dst, initial: empty"},
		{"type: gcra, rate: 8bit, burst: 9, per: src, new: full", "type: gcra, rate: 8bit, burst: 9, per: src, new: 50%"},
		{"type: gcra, rate: 8bit, burst: 9, per: src, keys: 4194304", "type: gcra, rate: 8bit, burst: 9, per: src, keys: 4194305"},
		{"type: gcra, rate: 8bit, burst: 9, per: src, keys: 1", "type: gcra, rate: 8bit, burst: 9, per: src, keys: 0"},
		{"type: gcra, rate: 8bit, burst: 9, per: src/32", "type: gcra, rate: 8bit, burst: 9, per: src/33"},
		{"type: gcra, rate: 8bit, burst: 9, per: 'dst/1,128'", "type: gcra, rate: 8bit, burst: 9, per: 'dst/1,129'"},
		{"type: gcra, rate: 8bit, burst: 9, per: src/9", "type: gcra, rate: 8bit, burst: 9, per: vlan/9"},
		{"type: gcra, rate: 8bit, burst: 9, per: src, evict: idle", "type: gcra, rate: 8bit, burst: 9, per: src, evict: idle, new: empty"},
		{"type: sliding-log, limit: 1, window: 1s, per: src, keys: 1024", "type: sliding-log, limit: 1, window: 1s, per: src, keys: 1025"},
		{"type: sliding-window, limit: 1, window: 4096us, slots: 4096, per: src, keys: 16384", "type: sliding-window, limit: 1, window: 4096us, slots: 4096, per: src, keys: 16385"},
		{"type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e, rank: 1", "type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e, rank: 0"},
		{"type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e, rank: 64", "type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e, rank: 65"},
		{"type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1", "type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e"},
		{"type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1", "type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, rank: 1"},
		{"type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1", "type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: f, rank: 1"},
		{"type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1", "type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e, rank: 1, per: src"},
		{"type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, per: src", "type: trtcm4115, cir: 1p/1s, cbs: 1, eir: 1p/1s, ebs: 1, count: packets, envelope: e, rank: 1"},
		{"type: trtcm, cir: 8bit, cbs: 1, pir: 8bit, pbs: 1", "type: trtcm, cir: 8bit, cbs: 1, pir: 8bit, pbs: 1, envelope: e, rank: 1"},
		{"type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e, rank: 1, eirmax: 0bit", "type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, eirmax: 8bit"},
		{"type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e, rank: 1, cirmax: 9bit", "type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e, rank: 1, cirmax: 9p/1s"},
	} {
		for i, meter := range test {
			policy := "classes: [{name: a, meter: {" + meter + "}}]\nenvelopes: {e: {eirmax: 8bit}}"
			if _, err := parsePolicy([]byte(policy)); (err != nil) != (i == 1) {
				t.Errorf("%s: got %v, want an error: %v", meter, err, i == 1)
			}
		}
	}
}

func TestRefusedEnvelopes(t *testing.T) {
	const member = "meter: {type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e, rank: 1}"
	for _, policy := range []string{
		"envelopes: {e: {cir: 8bit}}\nclasses: []",
		"envelopes: {e: {cirmax: 8}}\nclasses: []",
		"envelopes: {e: {cirmax: 8bit, eirmax: 1p/1s}}\nclasses: []",
		"envelopes: {e: {}}\nclasses: [{name: a, " + member + "}, {name: b, " + member + "}]",
		"envelopes: {e: {coupling: 1}}\nclasses: []",
		"envelopes: {e: {coupling: true}}\nclasses: [{name: a, " + member + "}, {name: b, meter: {type: trtcm4115, cir: 8bit, cbs: 1, eir: 8bit, ebs: 1, envelope: e, rank: 2, coupling: true}}]",
		"envelopes: {e: {}}\nclasses: [{name: a, " + member + "}, {name: b, meter: {type: trtcm4115, cir: 1p/1s, cbs: 1, eir: 1p/1s, ebs: 1, count: packets, envelope: e, rank: 2}}]",
	} {
		if _, err := parsePolicy([]byte(policy)); err == nil {
			t.Errorf("got nil, want an error: %s", policy)
		}
	}
}
