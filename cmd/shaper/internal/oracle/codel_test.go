package oracle

import (
	"math/big"
	"testing"
)

// TestCodelByHand has times in ns at the default target of 5 ms and interval of 100 ms.
func TestCodelByHand(t *testing.T) {
	const ms = 1_000_000
	steps := []struct {
		t, wait  int64
		victim   bool
		count    int64
		dropNext int64
	}{
		{0, 5*ms - 1, false, 0, 0},
		{10 * ms, 5 * ms, false, 0, 0}, // exactly the target counts as above
		{110*ms - 1, 9 * ms, false, 0, 0},
		{110 * ms, 5 * ms, true, 1, 210 * ms},
		{210*ms - 1, 5 * ms, false, 1, 210 * ms},
		{210 * ms, 5 * ms, true, 2, 280_710_678}, // 100 ms / sqrt(2) is 70.710678
		{210 * ms, 5 * ms, false, 2, 280_710_678},
		{280_710_678, 5 * ms, true, 3, 338_445_704}, // sqrt(3): 57.735026
		{338_445_704, 5 * ms, true, 4, 388_445_704},
		{350 * ms, 5*ms - 1, false, 4, 388_445_704}, // below: dropping ends
		{360 * ms, 5 * ms, false, 4, 388_445_704},
		{459 * ms, 5 * ms, false, 4, 388_445_704},
		{460 * ms, 5 * ms, true, 3, 517_735_026}, // again, soon after: count continues at 4 - 1
		{517_735_026, 5 * ms, true, 4, 567_735_026},
		{568 * ms, 0, false, 4, 567_735_026},
		{600 * ms, 5 * ms, false, 4, 567_735_026},
		{700 * ms, 5 * ms, true, 1, 800 * ms}, // 4 - 3 is not above 1
		{800 * ms, 5 * ms, true, 2, 870_710_678},
		{880 * ms, 5 * ms, true, 3, 928_445_704}, // late: the next time counts from drop_next
		{890 * ms, 0, false, 3, 928_445_704},
		{900 * ms, 5 * ms, false, 3, 928_445_704},
		{2_528_445_704, 5 * ms, true, 1, 2_628_445_704}, // 16 intervals later: from 1
		{2_628_445_704, 5 * ms, true, 2, 2_699_156_382},
		{2_700 * ms, 5 * ms, true, 3, 2_756_891_408},
		{2_760 * ms, 0, false, 3, 2_756_891_408},
		{2_761 * ms, 5 * ms, false, 3, 2_756_891_408},
		{4_356_891_407, 5 * ms, true, 2, 4_427_602_085}, // 1 ns less: 3 - 1
	}
	c := mustParse(t, "queues: {q: {rate: 8mbit, limit: 1s, codel: {}, fair: false}}").queues["q"].codel
	for i, s := range steps {
		victim := c.victim(big.NewInt(s.t), big.NewInt(s.wait))
		if victim != s.victim || c.count != s.count || c.dropNext.Int64() != s.dropNext {
			t.Errorf("step %d: got %v, count %d, next %s; want %+v", i+1, victim, c.count, c.dropNext, s)
		}
	}
}

// Packets of 1000 bytes take 1 ms.
func TestCodelQueue(t *testing.T) {
	const codel = "codel: {target: 2ms, interval: 4ms}"
	runByHand(t, []handTest{
		{"drop", "queues: {q: {rate: 8mbit, limit: 1s, " + codel + ", fair: false}}", `
			0 q 1000 green^ 0
			0 q 1000 green  1000000
			0 q 1000 green  2000000   waits the target: above it from 6 ms on
			0 q 1000 green  3000000
			0 q 1000 green  4000000
			0 q 1000 green  5000000
			0 q 1000 green^ codel     at 6 ms; again at 10
			0 q 1000 green  6000000
			0 q 1000 green  7000000
			0 q 1000 green  8000000
			0 q 1000 green  9000000
			0 q 1000 green  codel     at 10; again 4 / sqrt(2) later, at 12.83
			0 q 1000 green  10000000
			0 q 1000 green  11000000
			0 q 1000 green  12000000
			0 q 1000 green  codel     at 13; again 4 / sqrt(3) later, at 15.14
			0 q 1000 green  13000000
			0 q 1000 green  14000000
			0 q 1000 green  15000000
			0 q 1000 green  codel     at 16`},
		{"CE", "queues: {q: {rate: 8mbit, limit: 1s, ecn: true, " + codel + ", fair: false}}", `
			0 q 1000 green^ 0
			0 q 1000 green^ 1000000
			0 q 1000 green^ 2000000
			0 q 1000 green^ 3000000
			0 q 1000 green^ 4000000
			0 q 1000 green^ 5000000
			0 q 1000 green^ 6000000^
			0 q 1000 green^ 7000000
			0 q 1000 green^ 8000000
			0 q 1000 green^ 9000000
			0 q 1000 green^ 10000000^
			0 q 1000 green^ 11000000
			0 q 1000 green^ 12000000
			0 q 1000 green^ 13000000^ at 12.83; again at 15.14
			0 q 1000 green^ 14000000
			0 q 1000 green^ 15000000
			0 q 1000 green^ 16000000^ again 2 later, at 17.14
			0 q 1000 green^ 17000000
			0 q 1000 green  codel     at 18; again 4 / sqrt(5) later, at 18.93
			0 q 1000 green^ 18000000
			0 q 1000 green^ 19000000^`},
		// Number 1 of seed 7, 0.39, is below 1/2. WRED and CoDel set the same CE.
		{"CE by both", "queues: {q: {rate: 8mbit, limit: 99p, ecn: true, seed: 7, wred: {yellow: {min: 4p, max: 6p, probability: 1}}, " + codel + "}}", `
			0 q 1000 green   0
			0 q 1000 green   1000000
			0 q 1000 green   2000000
			0 q 1000 green   3000000
			0 q 1000 green   4000000
			0 q 1000 green   5000000
			0 q 1000 yellow^ 6000000^
			0 q 1000 green   7000000   CoDel had its victim
			0 q 1000 green   8000000
			0 q 1000 green   9000000
			0 q 1000 green   codel`},
		{"CoDel does not see what WRED drops", "queues: {q: {rate: 8mbit, limit: 99p, ecn: true, seed: 7, wred: {yellow: {min: 4p, max: 6p, probability: 1}}, " + codel + "}}", `
			0 q 1000 green   0
			0 q 1000 green   1000000
			0 q 1000 green   2000000
			0 q 1000 green   3000000
			0 q 1000 green   4000000
			0 q 1000 green   5000000
			0 q 1000 yellow  wred
			0 q 1000 green   codel
			0 q 1000 green   6000000`},
	})
}

// TestDefaults has the defaults of queues: fair by flow with a rate of its own and without wred, and CoDel
// by the rate. At 400kbit, 3000 bytes take 60 ms; at 99kbit 242.4 ms; at 8kbit 3 s.
func TestDefaults(t *testing.T) {
	const ms = 1_000_000
	const wred = "wred: {red: {min: 1ms, max: 2ms, probability: 1}}"
	for text, want := range map[string]struct {
		fair             bool
		target, interval int64 // 0: no CoDel
	}{
		"rate: 10mbit, limit: 1s":                            {true, 5 * ms, 100 * ms},
		"rate: 4800kbit, limit: 1s":                          {true, 5 * ms, 100 * ms},
		"rate: 4799999bit, limit: 1s":                        {true, 6 * ms, 100 * ms},
		"rate: 400kbit, limit: 1s":                           {true, 60 * ms, 120 * ms},
		"rate: 99kbit, limit: 9p":                            {true, 243 * ms, 486 * ms},
		"rate: 8kbit, limit: 1s":                             {true, 1500 * ms, 3000 * ms},
		"rate: 400kbit, limit: 1s, codel: {target: 70ms}":    {true, 70 * ms, 140 * ms},
		"rate: 400kbit, limit: 1s, codel: {interval: 7ms}":   {true, 60 * ms, 7 * ms},
		"rate: 400kbit, limit: 1s, codel: {target: 2s}":      {true, 2000 * ms, 3000 * ms},
		"rate: 400kbit, limit: 1s, codel: false":             {true, 0, 0},
		"rate: 400kbit, limit: 1s, fair: src":                {true, 60 * ms, 120 * ms},
		"rate: 400kbit, limit: 1s, fair: false":              {},
		"rate: 400kbit, limit: 1s, fair: false, codel: true": {false, 60 * ms, 120 * ms},
		"rate: 400kbit, limit: 1s, " + wred:                  {},
		"rate: 400kbit, limit: 1s, fair: flow, " + wred:      {true, 60 * ms, 120 * ms},
		"link: l, limit: 1s":                                 {},
		"link: l, limit: 1s, fair: false":                    {},
		"link: l, limit: 1s, codel: {}":                      {false, 24 * ms, 100 * ms},
		"link: l, limit: 1s, fair: flow":                     {true, 24 * ms, 100 * ms},
	} {
		q := mustParse(t, "links: {l: {rate: 1mbit}}\nqueues: {q: {"+text+"}}").queues["q"]
		var target, interval int64
		if q.codel != nil {
			target, interval = q.codel.target.Int64(), q.codel.interval.Int64()
		}
		if fair := q.key != nil; fair != want.fair || target != want.target || interval != want.interval {
			t.Errorf("%s: fair %v, target %d, interval %d; want %+v", text, fair, target, interval, want)
		}
	}
}
