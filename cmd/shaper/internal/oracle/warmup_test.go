package oracle

import "testing"

// At step k of these meters a ns adds 1 + k/50 bytes, and 3 at the end.
func TestWarmup(t *testing.T) {
	m := verdicts(t, "{type: token-bucket, rate: 3B/1ns, burst: 3000, warmup: 100us}", []verdict{
		{0, 1001, green, "token-bucket-red"}, // a third of the burst
		{0, 1000, green, "token-bucket-green"},
		{1, 2, green, "token-bucket-red"},
		{1, 1, green, "token-bucket-green"},
		{1000, 1000, green, "token-bucket-red"},
		{1000, 999, green, "token-bucket-green"},
		{1050, 52, green, "token-bucket-red"}, // step 1: 50 * 1.02
		{1050, 51, green, "token-bucket-green"},
		{2000, 970, green, "token-bucket-red"},
		{2000, 969, green, "token-bucket-green"},
		{4000, 2101, green, "token-bucket-red"}, // two steps: 1040 + 1060
		{4000, 2100, green, "token-bucket-green"},
		{99_999, 3001, green, "token-bucket-red"},
		{99_999, 3000, green, "token-bucket-green"},
		{100_000, 3, green, "token-bucket-red"}, // 2.98
		{100_000, 2, green, "token-bucket-green"},
		{100_001, 4, green, "token-bucket-red"}, // warm: 0.98 + 3
		{100_001, 3, green, "token-bucket-green"},
		{200_000, 3000, green, "token-bucket-green"}, // a pause of 99,999 ns
		{200_001, 4, green, "token-bucket-red"},
		{200_001, 3, green, "token-bucket-green"},
		{300_001, 1001, green, "token-bucket-red"}, // a pause of 100,000 ns
		{300_001, 1000, green, "token-bucket-green"},
		{300_002, 2, green, "token-bucket-red"},
		{300_002, 1, green, "token-bucket-green"},
	})
	if tokens := m.state.(*warmBucket).tokens; tokens.Sign() != 0 {
		t.Errorf("got %s tokens, want none", tokens.RatString())
	}
}

func TestWarmupOfRed(t *testing.T) {
	// Every packet keeps the meter warm, also one with red input.
	verdicts(t, "{type: token-bucket, rate: 3B/1ns, burst: 3000, warmup: 1us, color: aware}", []verdict{
		{0, 1000, yellow, "token-bucket-pre-yellow"},
		{999, 1, red, "token-bucket-pre-red"},
		{1998, 3000, green, "token-bucket-green"},
		{2997, 9999, green, "token-bucket-red"},
		{3996, 3000, green, "token-bucket-green"},
		{4996, 1001, green, "token-bucket-red"},
	})
	// Such a packet also starts the clock.
	verdicts(t, "{type: token-bucket, rate: 3B/1ns, burst: 3000, warmup: 1us, color: aware}", []verdict{
		{0, 1, red, "token-bucket-pre-red"},
		{10, 1011, green, "token-bucket-red"},
		{10, 1010, green, "token-bucket-green"},
	})
}

func TestWarmupFractions(t *testing.T) {
	tests := []struct {
		meter  string
		at     int64
		tokens string
	}{
		// A third of the burst, or less; both exact.
		{"burst: 1000, warmup: 1us", 0, "1000/3"},
		{"burst: 1000, warmup: 1us, initial: 33.39%", 0, "333"},
		{"burst: 1000, warmup: 1us, initial: 33.4%", 0, "1000/3"},
		// Steps at 10.01 ns, 20.02 ns and so on.
		{"burst: 30000, warmup: 1001ns, initial: empty", 10, "10"},
		{"burst: 30000, warmup: 1001ns, initial: empty", 11, "55099/5000"},   // 10.01 + 0.99 * 1.02
		{"burst: 30000, warmup: 1001ns, initial: empty", 21, "106197/5000"},  // 10.01 * (1 + 1.02) + 0.98 * 1.04
		{"burst: 30000, warmup: 1001ns, initial: empty", 1000, "198901/100"}, // 10.01 * (1 + ... + 2.98) - 2.98
	}
	for _, test := range tests {
		m := meterOf(t, "{type: token-bucket, rate: 3B/1ns, "+test.meter+"}")
		m.decide(frame{}, whole(0), 1e9, green)
		m.decide(frame{}, whole(test.at), 1e9, green)
		if got := m.state.(*warmBucket).tokens.RatString(); got != test.tokens {
			t.Errorf("%s at %d: got %s tokens, want %s", test.meter, test.at, got, test.tokens)
		}
	}
}
