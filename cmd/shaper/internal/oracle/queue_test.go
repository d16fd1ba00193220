package oracle

import (
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func mustParse(t *testing.T, text string) *policy {
	t.Helper()
	p, err := parsePolicy([]byte("classes: []\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(p.queues)) {
		p.queues[name].share()
	}
	return p
}

// arrive offers packets, then empties the links, and returns the outcome of each packet: the
// departure, with ^ for CE, or the reason of the drop. A line has the time in ns, the queue,
// the length, and the color, with ^ for ECN-capable. The rest of a line is ignored.
func arrive(t *testing.T, p *policy, lines []string) []string {
	t.Helper()
	var rows []*row
	for _, line := range lines {
		field := strings.Fields(line)
		at, ok := new(big.Int).SetString(field[0], 10)
		length, err := strconv.ParseInt(field[2], 10, 64)
		name, capable := strings.CutSuffix(field[3], "^")
		c := slices.Index([]string{"green", "yellow", "red"}, name)
		if !ok || err != nil || c < 0 || p.queues[field[1]] == nil {
			t.Fatalf("invalid test line %q", line)
		}
		r := &row{length: length}
		p.queues[field[1]].offer(&queued{row: r, arrival: at, capable: capable, color: color(c)})
		rows = append(rows, r)
	}
	p.settle(new(big.Int), true)
	var out []string
	for _, r := range rows {
		switch {
		case r.dropped:
			out = append(out, r.reason)
		case r.ecn:
			out = append(out, r.departure.String()+"^")
		default:
			out = append(out, r.departure.String())
		}
	}
	return out
}

// byHand runs lines that end with the expected outcome of the packet.
func byHand(t *testing.T, policy, script string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(script), "\n")
	for i, got := range arrive(t, mustParse(t, policy), lines) {
		if field := strings.Fields(lines[i]); got != field[4] {
			t.Errorf("line %d: %s: got %s, want %s", i+1, strings.TrimSpace(lines[i]), got, field[4])
		}
	}
}

// handTest has queues and links, and a script for them.
type handTest struct{ name, policy, script string }

func runByHand(t *testing.T, tests []handTest) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { byHand(t, test.policy, test.script) })
	}
}

// At 8mbit a byte takes 1000 ns; at 3gbit a byte takes 8/3 ns.
func TestQueue(t *testing.T) {
	runByHand(t, []handTest{
		{"time", "queues: {q: {rate: 8mbit, limit: 1ms, fair: false}}", `
			5       q 1000 green 5
			5       q 1    green 1000005     waits 1 ms: the limit itself
			5       q 1    green queue-full
			1005    q 1    green 1001005
			2000000 q 5000 green 2000000     idle since: now
			5999999 q 1    green queue-full
			6000000 q 1    green 7000000`},
		{"bytes", "queues: {q: {rate: 8mbit, limit: 1000, fair: false}}", `
			0       q 1001 green queue-full
			0       q 1000 green 0           leaves at once, does not wait
			0       q 600  green 1000000
			0       q 401  green queue-full
			0       q 400  green 1600000
			999999  q 1    green queue-full
			1000000 q 601  green queue-full  the 600 leave now
			1000000 q 600  green 2000000`},
		{"packets", "queues: {q: {rate: 8mbit, limit: 2p, fair: false}}", `
			0       q 1000 green 0
			0       q 1000 green 1000000
			0       q 1000 green 2000000
			0       q 1000 green queue-full
			1000000 q 1000 green 3000000
			1000000 q 1000 green queue-full`},
		{"fractions", "queues: {q: {rate: 3gbit, limit: 1s, fair: false}}", `
			0 q 1 green 0
			0 q 1 green 3     8/3
			0 q 1 green 6     16/3: not 8/3 rounded up and added
			0 q 1 green 8     24/3
			8 q 1 green 11    32/3`},
		{"three small packets in 79 bytes", "queues: {q: {rate: 8mbit, limit: 79, fair: false}}", `
			0     q 10 green 0
			0     q 10 green 10000
			0     q 10 green 20000
			0     q 10 green 30000
			0     q 10 green queue-full
			9999  q 10 green queue-full
			10000 q 10 green 40000`},
		{"one small packet in 10 bytes", "queues: {q: {rate: 8mbit, limit: 10, fair: false}}", `
			0 q 4 green 0
			0 q 4 green 4000
			0 q 4 green queue-full`},
		{"time has no such bound", "queues: {q: {rate: 8mbit, limit: 4us, fair: false}}", `
			0 q 1 green 0
			0 q 1 green 1000
			0 q 1 green 2000
			0 q 1 green 3000
			0 q 1 green 4000
			0 q 1 green queue-full`},
	})
}

// TestQueueCapacity checks the maximum number of packets of queues.
func TestQueueCapacity(t *testing.T) {
	for text, want := range map[string]int64{
		"{rate: 8mbit, limit: 39}":        1,
		"{rate: 8mbit, limit: 40}":        2,
		"{rate: 8mbit, limit: 1310719}":   65535,
		"{rate: 8mbit, limit: 1310720}":   65536,
		"{rate: 8mbit, limit: 10GB}":      65536,
		"{rate: 8mbit, limit: 3p}":        65536, // the limit itself
		"{link: wan, limit: 100us}":       5,     // packets of 100 bytes
		"{link: wan, limit: 99999999s}":   65536,
		"{link: wan, limit: 65536p}":      65536,
		"{link: wan, limit: 9999999999s}": 65536,
	} {
		p := mustParse(t, "links: {wan: {rate: 8mbit}}\nqueues: {q: "+text+"}")
		if got := p.queues["q"].holds(); got != want {
			t.Errorf("%s: got %d packets, want %d", text, got, want)
		}
	}
}

// TestRandomNumbers checks the published first outputs of splitmix64, and the 24 bits of seeds,
// computed independently of this code.
func TestRandomNumbers(t *testing.T) {
	for k, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423} {
		if got := splitmix64(1234567 + uint64(k+1)*0x9E3779B97F4A7C15); got != want {
			t.Errorf("output %d of 1234567: got %d, want %d", k+1, got, want)
		}
	}
	for seed, want := range map[uint64][]uint64{
		0:         seed0,
		7:         {6540257, 281660, 15112256, 9779947, 7590715, 4184766, 7850948, 5504214},
		1<<64 - 1: {14997873, 15310840, 3682296, 7151027, 11837511, 13835693, 15814444, 4218276},
	} {
		q := &queue{seed: seed}
		for k, r := range want {
			if got := q.draw(); got != r {
				t.Errorf("number %d of seed %d: got %d, want %d", k+1, seed, got, r)
			}
		}
	}
}

// As parts of 2^24: 0.883, 0.432, 0.026, 0.971, 0.106, 0.327, 0.174, 0.772.
var seed0 = []uint64{14819496, 7239838, 443485, 16288696, 1784201, 5491615, 2917018, 12944403}

func TestProbability(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1 << 24, "1.000": 1 << 24, "0.5": 1 << 23,
		"0.1":                         1677722, // 1677721.6
		"0.0000000298023223876953125": 1,       // 2^-25: half is rounded up
		"0.0000000298023223876953124": 0,
		"0.99999998":                  1 << 24,
	} {
		var n yaml.Node
		if err := yaml.Unmarshal([]byte("{min: 1p, max: 2p, probability: "+text+"}"), &n); err != nil {
			t.Fatal(err)
		}
		w, err := parseWRED(n.Content[0], func(n *yaml.Node) (*big.Rat, error) {
			_, value, err := parseLevel(n.Value, nil)
			return value, err
		})
		if err != nil || w.share.Int64() != want {
			t.Errorf("%s: got %v, %v, want %d", text, w, err, want)
		}
	}
}

// Packets of 1000 bytes take 1 ms.
func TestWRED(t *testing.T) {
	runByHand(t, []handTest{
		// If numbers were drawn below min or from max on, or not at min, other packets would be
		// dropped.
		{"packets", "queues: {q: {rate: 8mbit, limit: 10p, wred: {yellow: {min: 2p, max: 4p, probability: 1}}}}", `
			0       q 1000 green   0
			0       q 1000 green   1000000
			0       q 1000 yellow  2000000   1 waits: below min
			0       q 1000 yellow  3000000   2: min itself, number 1 is for nothing
			0       q 1000 yellow  wred      3: number 2 is below 1/2
			0       q 1000 yellow^ wred      3: number 3 too; no ecn in the queue
			0       q 1000 yellow  4000000   3: number 4 is not
			0       q 1000 yellow  wred      4: max itself
			0       q 1000 green   5000000
			0       q 1000 red     6000000
			3999999 q 1000 yellow  wred      3: number 5
			4000000 q 1000 yellow  7000000   2: number 6
			4000000 q 1000 yellow  wred      3: number 7
			4000000 q 1000 yellow  8000000   3: number 8`},
		{"CE", "queues: {q: {rate: 8mbit, limit: 10p, ecn: true, wred: {yellow: {min: 1p, max: 5p, probability: 1}}}}", `
			0       q 1000 green   0
			0       q 1000 green   1000000
			0       q 1000 green   2000000
			0       q 1000 yellow^ 3000000   2 wait: number 1 is not below 1/4
			0       q 1000 yellow^ 4000000^  3: number 2 is below 1/2
			0       q 1000 yellow  wred      4: number 3, not ECN-capable
			0       q 1000 yellow^ 5000000   4: number 4 is not below 3/4
			0       q 1000 yellow^ wred      5: max, capable or not`},
		// Probability 0 also draws: red has number 5. At max everything is dropped.
		{"probability 0", `queues: {q: {rate: 8mbit, limit: 10p, wred: {
			yellow: {min: 0p, max: 4p, probability: 0}, red: {min: 0p, max: 4p, probability: 1}}}}`, `
			0 q 1000 yellow 0
			0 q 1000 yellow 1000000
			0 q 1000 yellow 2000000
			0 q 1000 yellow 3000000
			0 q 1000 red    wred
			0 q 1000 yellow 4000000
			0 q 1000 yellow wred`},
		// At 2 ms, between 1 and 3, the probability is 838861 / 2^24: number 2 of seed 7 is
		// below.
		{"time", "queues: {q: {rate: 8mbit, limit: 5ms, seed: 7, wred: {red: {min: 1ms, max: 3ms, probability: 0.1}}}}", `
			0 q 1000 red   0           waits 0
			1 q 1    red   1000000     1 ns below min
			1 q 999  red   1001000     number 1
			1 q 1    red   wred        number 2
			1 q 1000 red   2000000     number 3
			1 q 1    red   3000000     1 ns below max: number 4
			1 q 1000 red   wred        999 ns above max
			1 q 1999 green 3001000
			1 q 1    green 5000000
			1 q 1    green queue-full  1000 ns above the limit`},
		{"bytes", `queues: {q: {rate: 8mbit, limit: 1000, wred: {
			green: {min: 500, max: 1000, probability: 1}, red: {min: 300, max: 300, probability: 0}}}}`, `
			0 q 100 green 0
			0 q 299 green 100000
			0 q 1   red   399000       299 bytes wait
			0 q 1   red   wred         300: min is max, nothing is drawn
			0 q 199 green 400000
			0 q 251 green 599000       499: below min
			0 q 251 green queue-full   750: it is full before WRED is asked
			0 q 50  green 850000       750: number 1 is not below 1/2
			0 q 50  green wred         800: number 2 is below 3/5
			0 q 200 green wred         number 3 too
			0 q 200 green 900000       number 4 is not
			0 q 0   green wred         1000: max`},
	})
}

// TestQueueAsLink compares a queue that is alone on a link with a queue of that rate, except
// for CoDel: only a link knows the backlog behind a packet.
func TestQueueAsLink(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, options := range []string{
		"limit: 20kB, ecn: true, wred: {green: {min: 12kB, max: 20kB, probability: 0.3}, yellow: {min: 5000, max: 15000, probability: 0.7}, red: {min: 0, max: 7000, probability: 1}}",
		"limit: 20p, seed: 5, wred: {yellow: {min: 3p, max: 12p, probability: 0.05}, red: {min: 2p, max: 9p, probability: 0.5}}",
	} {
		var lines []string
		now := int64(0)
		for range 3000 {
			if random.IntN(3) == 0 {
				now += random.Int64N(3_500_000)
			}
			length := 40 + random.IntN(1461)
			color := []string{"green", "yellow", "red", "green^", "yellow^", "red^"}[random.IntN(6)]
			lines = append(lines,
				strings.Join([]string{strconv.FormatInt(now, 10), "q", strconv.Itoa(length), color}, " "))
		}
		alone := arrive(t, mustParse(t, "queues: {q: {rate: 10.1mbit, "+options+"}}"), lines)
		linked := arrive(t,
			mustParse(t, "links: {wan: {rate: 10.1mbit}}\nqueues: {q: {link: wan, "+options+"}}"), lines)
		fates := map[string]int{}
		for i := range lines {
			if alone[i] != linked[i] {
				t.Fatalf("%s: packet %d: got %s alone, %s on a link", options, i+1, alone[i], linked[i])
			}
			switch {
			case strings.HasSuffix(alone[i], "^"):
				fates["CE"]++
			case alone[i][0] > '9':
				fates[alone[i]]++
			}
		}
		t.Log(options, fates)
		if len(fates) == 0 {
			t.Errorf("%s: no packet was dropped: the test lost its purpose", options)
		}
	}
}
