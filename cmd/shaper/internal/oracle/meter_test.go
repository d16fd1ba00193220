package oracle

import (
	"math/big"
	"testing"

	"go.yaml.in/yaml/v3"
)

// step is a packet at a meter: its time in ms, its length, its input color, and the expected
// outcome with the tokens left in c and in e (or p).
type step struct {
	at     int64
	length int64
	pre    color
	reason string
	c, x   string
}

func meterOf(t *testing.T, text string) *meter {
	t.Helper()
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	m, err := parseMeter(n.Content[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// At these rates a millisecond is one byte (8kbit) or an eighth of a byte (1kbit).
func TestMeterByHand(t *testing.T) {
	tests := []struct {
		name, meter string
		steps       []step
	}{
		{"rfc2697 bounds", "{type: srtcm, cir: 8kbit, cbs: 1000, ebs: 500}", []step{
			{0, 1001, green, "rfc2697-red", "1000", "500"},
			{0, 1000, green, "rfc2697-green", "0", "500"},
			{0, 501, green, "rfc2697-red", "0", "500"},
			{0, 500, green, "rfc2697-yellow", "0", "0"},
			{0, 1, green, "rfc2697-red", "0", "0"},
			{1, 1, green, "rfc2697-green", "0", "0"},
			{1001, 1, green, "rfc2697-green", "999", "0"}, // C just full, nothing for E
			{1003, 1000, green, "rfc2697-green", "0", "1"},
			{99999, 1001, green, "rfc2697-red", "1000", "500"},
		}},
		{"rfc2697 E gets only the overflow", "{type: srtcm, cir: 8kbit, cbs: 10, ebs: 10, initial: empty}", []step{
			{5000, 1, green, "rfc2697-red", "0", "0"}, // the clock starts here
			{5010, 11, green, "rfc2697-red", "10", "0"},
			{5013, 11, green, "rfc2697-red", "10", "3"},
			{5013, 10, green, "rfc2697-green", "0", "3"},
			{5013, 3, green, "rfc2697-yellow", "0", "0"},
		}},
		{"rfc2697 aware", "{type: srtcm, cir: 8kbit, cbs: 1000, ebs: 500, color: aware}", []step{
			{0, 100, yellow, "rfc2697-pre-yellow", "1000", "400"},
			{0, 100, red, "rfc2697-pre-red", "1000", "400"},
			{0, 401, yellow, "rfc2697-red", "1000", "400"},
			{0, 400, yellow, "rfc2697-pre-yellow", "1000", "0"},
			{0, 1000, green, "rfc2697-green", "0", "0"},
		}},
		{"rfc2697 blind does not look", "{type: srtcm, cir: 8kbit, cbs: 10, ebs: 0}", []step{
			{0, 10, red, "rfc2697-green", "0", "0"},
			{9, 10, yellow, "rfc2697-red", "9", "0"},
			{8, 10, yellow, "rfc2697-red", "9", "0"}, // a step back adds no tokens
			{10, 10, yellow, "rfc2697-green", "0", "0"},
		}},
		{"rfc2697 without C", "{type: srtcm, cir: 8kbit, cbs: 0, ebs: 10}", []step{
			{0, 10, green, "rfc2697-yellow", "0", "0"},
			{4, 5, green, "rfc2697-red", "0", "4"},
			{4, 4, green, "rfc2697-yellow", "0", "0"},
		}},
		{"rfc2697 keeps the fraction", "{type: srtcm, cir: 1kbit, cbs: 1, ebs: 0}", []step{
			{0, 1, green, "rfc2697-green", "0", "0"},
			{3, 1, green, "rfc2697-red", "3/8", "0"},
			{7, 1, green, "rfc2697-red", "7/8", "0"},
			{8, 1, green, "rfc2697-green", "0", "0"},
		}},
		{"rfc2698 bounds", "{type: trtcm, cir: 8kbit, cbs: 500, pir: 16kbit, pbs: 1000}", []step{
			{0, 1001, green, "rfc2698-red", "500", "1000"},
			{0, 501, green, "rfc2698-yellow", "500", "499"},
			{0, 500, green, "rfc2698-red", "500", "499"},
			{0, 499, green, "rfc2698-green", "1", "0"},
			{1, 3, green, "rfc2698-red", "2", "2"},
			{1, 2, green, "rfc2698-green", "0", "0"},
			{4, 4, green, "rfc2698-yellow", "3", "2"},
			{9999, 1, green, "rfc2698-green", "499", "999"},
		}},
		{"rfc2698 aware", "{type: trtcm, cir: 8kbit, cbs: 500, pir: 16kbit, pbs: 1000, color: aware}", []step{
			{0, 1, red, "rfc2698-pre-red", "500", "1000"},
			{0, 1000, yellow, "rfc2698-pre-yellow", "500", "0"},
			{1, 3, yellow, "rfc2698-red", "500", "2"},
			{1, 2, yellow, "rfc2698-pre-yellow", "500", "0"},
			{251, 500, green, "rfc2698-green", "0", "0"},
		}},
		{"rfc4115 bounds", "{type: trtcm4115, cir: 8kbit, cbs: 500, eir: 16kbit, ebs: 1000}", []step{
			{0, 1001, green, "rfc4115-red", "500", "1000"},
			{0, 1000, green, "rfc4115-yellow", "500", "0"},
			{0, 501, green, "rfc4115-red", "500", "0"},
			{0, 500, green, "rfc4115-green", "0", "0"},
			{1, 2, green, "rfc4115-yellow", "1", "0"},
			{1, 1, green, "rfc4115-green", "0", "0"},
		}},
		{"rfc4115 aware", "{type: trtcm4115, cir: 8kbit, cbs: 500, eir: 16kbit, ebs: 1000, color: aware}", []step{
			{0, 1, red, "rfc4115-pre-red", "500", "1000"},
			{0, 1000, yellow, "rfc4115-pre-yellow", "500", "0"},
			{0, 1, yellow, "rfc4115-red", "500", "0"},
			{1000, 501, green, "rfc4115-yellow", "500", "499"}, // C was full: no overflow
		}},
		{"rfc4115 coupled", "{type: trtcm4115, cir: 8kbit, cbs: 10, eir: 0bit, ebs: 10, coupling: true}", []step{
			{0, 10, green, "rfc4115-green", "0", "10"},
			{0, 10, green, "rfc4115-yellow", "0", "0"},
			{10, 11, green, "rfc4115-red", "10", "0"},
			{17, 11, green, "rfc4115-red", "10", "7"},
			{99, 11, green, "rfc4115-red", "10", "10"},
		}},
		{"rfc4115 uncoupled", "{type: trtcm4115, cir: 8kbit, cbs: 10, eir: 0bit, ebs: 10}", []step{
			{0, 10, green, "rfc4115-green", "0", "10"},
			{0, 10, green, "rfc4115-yellow", "0", "0"},
			{99, 11, green, "rfc4115-red", "10", "0"},
		}},
		{"token bucket", "{type: token-bucket, rate: 8kbit, burst: 10, color: aware}", []step{
			{0, 11, green, "token-bucket-red", "10", ""},
			{0, 4, yellow, "token-bucket-pre-yellow", "6", ""},
			{0, 4, red, "token-bucket-pre-red", "6", ""},
			{0, 7, yellow, "token-bucket-red", "6", ""},
			{0, 6, green, "token-bucket-green", "0", ""},
		}},
		{"packets", "{type: token-bucket, rate: 100p/1s, burst: 3, count: packets, initial: 50%}", []step{
			{0, 1500, green, "token-bucket-green", "0", ""}, // half of 3 is 1
			{9, 64, green, "token-bucket-red", "9/10", ""},
			{10, 64, green, "token-bucket-green", "0", ""},
		}},
		{"gcra", "{type: gcra, rate: 8kbit, burst: 10, color: aware, initial: 50%}", []step{
			{7, 6, green, "gcra-red", "5", ""},
			{7, 5, yellow, "gcra-pre-yellow", "0", ""},
			{9, 2, red, "gcra-pre-red", "2", ""},
			{9, 3, yellow, "gcra-red", "2", ""},
			{9, 2, green, "gcra-green", "0", ""},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := meterOf(t, test.meter)
			for i, s := range test.steps {
				now := whole(s.at * 1e6)
				_, reason, _ := m.decide(frame{}, now, s.length, s.pre)
				b, x := m.state.(*buckets), ""
				if b.e != nil {
					x = b.e.tokens.RatString()
				}
				if b.p != nil {
					x = b.p.tokens.RatString()
				}
				if c := b.c.tokens.RatString(); reason != s.reason || c != s.c || x != s.x {
					t.Errorf("step %d: got %s, tokens %s and %s; want %s, %s and %s", i, reason, c, x,
						s.reason, s.c, s.x)
				}
			}
		})
	}
}

func TestPrecolor(t *testing.T) {
	usual := defaultPrecolor()
	for dscp := range 64 {
		want := green
		switch dscp {
		case 12, 20, 28, 36:
			want = yellow
		case 14, 22, 30, 38:
			want = red
		}
		f := frame{kind: ipv4, trafficClass: byte(dscp<<2 | 3)}
		if got := usual.of(f); got != want {
			t.Errorf("DSCP %d is %s, want %s", dscp, got, want)
		}
	}
	if got := usual.of(frame{kind: nonIP, trafficClass: 12 << 2}); got != green {
		t.Errorf("without IP header: got %s, want green", got)
	}
}

func TestUnits(t *testing.T) {
	tests := []struct {
		parse      func(string) (*big.Rat, error)
		text, want string
	}{
		{rateOf, "8bit", "1/1000000000"},
		{rateOf, "1.5mbit", "3/16000"},
		{rateOf, "125MB/s", "1/8"},
		{rateOf, "10kB/1min", "1/6000000"},
		{rateOf, "1B/8s", "1/8000000000"},
		{rateOf, "10", ""},
		{rateOf, "10kbps", ""},
		{rateOf, "10MBIT", ""},
		{rateOf, "8 Mbit/s", "1/1000"},
		{rateOf, "8Kbit", "1/1000000"},
		{rateOf, "8  kbit", ""},
		{rateOf, "100p/1s", ""},
		{burstOf, "64KiB", "65536"},
		{burstOf, "1.5kB", "1500"},
		{burstOf, "64 KiB", "65536"},
		{burstOf, "1500", "1500"},
		{burstOf, "1.5B", ""},
		{burstOf, "15ms", "1"}, // 1.875 bytes at 1 kbit/s
		{burstOf, "7ms", ""},
		{burstOf, "10kb", ""},
		{parseShare, "50%", "1/2"},
		{parseShare, "101%", ""},
	}
	for _, test := range tests {
		got, err := test.parse(test.text)
		if err != nil && test.want == "" {
			continue
		}
		if err != nil || got.RatString() != test.want {
			t.Errorf("%s: got %v, %v; want %s", test.text, got, err, test.want)
		}
	}
}

func rateOf(s string) (*big.Rat, error) { return parseRate(s, false) }

func burstOf(s string) (*big.Rat, error) {
	kbit, err := parseRate("1kbit", false)
	if err != nil {
		return nil, err
	}
	return parseBurst(s, kbit, false)
}
