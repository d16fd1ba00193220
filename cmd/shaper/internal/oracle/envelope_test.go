package oracle

import (
	"fmt"
	"strings"
	"testing"
)

// flowStep is a packet of one flow of an envelope, and the tokens of all flows after it.
type flowStep struct {
	flow   int
	at     int64 // time, ns
	length int64
	in     color
	reason string
	tokens string // C and E of each flow
}

// runFlows runs packets through the first meters of a policy's classes.
func runFlows(t *testing.T, policy string, steps []flowStep) {
	t.Helper()
	p, err := parsePolicy([]byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range steps {
		_, reason, _ := p.classes[s.flow].chain[0].decide(frame{}, whole(s.at), s.length, s.in)
		var tokens []string
		for _, c := range p.classes {
			if m, ok := c.chain[0].state.(*member); ok {
				tokens = append(tokens,
					fmt.Sprint(m.flow.c.tokens.RatString(), " ", m.flow.e.tokens.RatString()))
			}
		}
		if got := strings.Join(tokens, ", "); reason != s.reason || got != s.tokens {
			t.Errorf("step %d: got %s, tokens %s; want %s, %s", i, reason, got, s.reason, s.tokens)
		}
	}
}

func TestEnvelopeByRank(t *testing.T) {
	// All tokens enter at the highest rank and overflow from one rank to the next.
	runFlows(t, `
envelopes: {e: {}}
classes:
  - {name: low, meter: {type: trtcm4115, cir: 0bit, cbs: 100, eir: 0bit, ebs: 100, envelope: e, rank: 1, initial: empty}}
  - {name: high, meter: {type: trtcm4115, cir: 1B/1ns, cbs: 10, eir: 2B/1ns, ebs: 5, envelope: e, rank: 64, color: aware}}
  - {name: mid, meter: {type: trtcm4115, cir: 0bit, cbs: 8, eir: 0bit, ebs: 8, envelope: e, rank: 7, initial: 50%}}
`, []flowStep{
		{0, 50, 1, green, "rfc4115-red", "0 0, 10 5, 4 4"}, // the clock starts
		{0, 53, 3, green, "rfc4115-red", "0 2, 10 5, 7 8"},
		{0, 60, 7, green, "rfc4115-yellow", "6 9, 10 5, 8 8"},
		{1, 60, 10, green, "rfc4115-green", "6 9, 0 5, 8 8"},
		{1, 70, 11, green, "rfc4115-red", "6 29, 10 5, 8 8"}, // C just full: no overflow
		{1, 71, 1, red, "rfc4115-pre-red", "7 31, 10 5, 8 8"},
		{2, 71, 8, green, "rfc4115-green", "7 31, 10 5, 0 8"},
		{0, 71, 7, green, "rfc4115-green", "0 31, 10 5, 0 8"},
		{1, 80, 5, yellow, "rfc4115-pre-yellow", "1 49, 10 0, 8 8"},
		{0, 81, 0, green, "rfc4115-green", "2 49, 10 2, 8 8"},
	})
}

func TestEnvelopeCaps(t *testing.T) {
	// The highest rank is coupled: the overflow of its C stays with it, as E.
	runFlows(t, `
envelopes: {e: {cirmax: 1B/1ns, eirmax: 3B/2ns}}
classes:
  - {name: high, meter: {type: trtcm4115, cir: 2B/1ns, cbs: 10, eir: 1B/1ns, ebs: 5, envelope: e, rank: 9, initial: empty, coupling: true}}
  - {name: low, meter: {type: trtcm4115, cir: 1B/1ns, cbs: 20, eir: 1B/1ns, ebs: 30, envelope: e, rank: 8, initial: empty}}
`, []flowStep{
		{1, 100, 1, green, "rfc4115-red", "0 0, 0 0"},
		{1, 108, 99, green, "rfc4115-red", "8 5, 8 11"},   // E: 8, of which 3 overflow; 8 + 3
		{1, 118, 99, green, "rfc4115-red", "10 5, 18 26"}, // C: 8 too many; E: 10 + 8 is capped to 15; 10 + 15 too
		{1, 128, 99, green, "rfc4115-red", "10 5, 20 30"},
		{0, 128, 10, green, "rfc4115-green", "0 5, 20 30"},
		{1, 128, 20, green, "rfc4115-green", "0 5, 0 30"},
		{1, 128, 30, green, "rfc4115-yellow", "0 5, 0 0"},
		{0, 129, 2, green, "rfc4115-yellow", "1 3, 1 3/2"}, // C: 2 is capped to 1; E: 1 of 1 falls; 2 is capped to 3/2
	})
	// Also without a cap, no overflow of its C goes to the C below.
	runFlows(t, `
envelopes: {e: {}}
classes:
  - {name: high, meter: {type: trtcm4115, cir: 1B/1ns, cbs: 10, eir: 0bit, ebs: 5, envelope: e, rank: 2, coupling: true, initial: empty}}
  - {name: low, meter: {type: trtcm4115, cir: 0bit, cbs: 10, eir: 0bit, ebs: 50, envelope: e, rank: 1, initial: empty}}
`, []flowStep{
		{0, 0, 1, green, "rfc4115-red", "0 0, 0 0"},
		{0, 12, 11, green, "rfc4115-red", "10 2, 0 0"},
		{1, 22, 8, green, "rfc4115-red", "10 5, 0 7"},
	})
	// A cap also applies to overflow, and passes fractions.
	runFlows(t, `
envelopes: {e: {cirmax: 1B/3ns}}
classes:
  - {name: high, meter: {type: trtcm4115, cir: 1B/1ns, cbs: 1, eir: 0bit, ebs: 0, envelope: e, rank: 2}}
  - {name: low, meter: {type: trtcm4115, cir: 1B/3ns, cbs: 9, eir: 0bit, ebs: 0, envelope: e, rank: 1, initial: empty}}
`, []flowStep{
		{0, 0, 1, green, "rfc4115-green", "0 0, 0 0"},
		{0, 1, 1, green, "rfc4115-red", "1/3 0, 1/3 0"},
		{0, 5, 1, green, "rfc4115-green", "0 0, 5/3 0"}, // 1/3 + 4/3: 2/3 overflow, but 4/3 + 2/3 is capped to 4/3
	})
}

func TestEnvelopeOwnCaps(t *testing.T) {
	// The cap of a flow replaces that of the envelope, larger or smaller. With zero, no tokens
	// enter, and so none overflow.
	runFlows(t, `
envelopes: {e: {cirmax: 2B/1ns, eirmax: 2B/1ns}}
classes:
  - {name: high, meter: {type: trtcm4115, cir: 5B/1ns, cbs: 10, eir: 5B/1ns, ebs: 10, envelope: e, rank: 3, cirmax: 4B/1ns, initial: empty}}
  - {name: mid, meter: {type: trtcm4115, cir: 0bit, cbs: 5, eir: 0bit, ebs: 5, envelope: e, rank: 2, cirmax: 1B/1ns, eirmax: 0bit, initial: empty}}
  - {name: low, meter: {type: trtcm4115, cir: 1B/2ns, cbs: 99, eir: 1B/2ns, ebs: 99, envelope: e, rank: 1, initial: empty}}
`, []flowStep{
		{0, 0, 1, green, "rfc4115-red", "0 0, 0 0, 0 0"},
		{0, 2, 99, green, "rfc4115-red", "8 4, 0 0, 1 1"},
		{0, 4, 99, green, "rfc4115-red", "10 8, 2 0, 2 2"},    // 6 overflow from high, of which mid gets 2
		{0, 8, 99, green, "rfc4115-red", "10 10, 5 0, 5 4"},   // 16 overflow, 4 pass the cap, 1 overflows, 1 + 2
		{0, 12, 99, green, "rfc4115-red", "10 10, 5 0, 11 6"}, // 4 overflow from mid, 4 + 2
	})
}

func TestEnvelopeCF0(t *testing.T) {
	runFlows(t, `
envelopes: {e: {coupling: true}}
classes:
  - {name: low, meter: {type: trtcm4115, cir: 1B/1ns, cbs: 10, eir: 0bit, ebs: 50, envelope: e, rank: 1, initial: empty}}
  - {name: high, meter: {type: trtcm4115, cir: 1B/1ns, cbs: 10, eir: 1B/2ns, ebs: 20, envelope: e, rank: 2, eirmax: 1B/1ns, initial: empty}}
`, []flowStep{
		{0, 0, 1, green, "rfc4115-red", "0 0, 0 0"},
		{0, 10, 99, green, "rfc4115-red", "10 0, 10 5"},
		{0, 12, 99, green, "rfc4115-red", "10 0, 10 7"},  // 4 of low are left for high, which gets 1 of them
		{1, 12, 10, green, "rfc4115-green", "10 0, 0 7"}, // high needs its own tokens again
		{0, 16, 99, green, "rfc4115-red", "10 0, 4 11"},  // 4 of low, 2 of which are used
		{0, 30, 99, green, "rfc4115-red", "10 5, 10 20"}, // 14 into high, where 9 have room
	})
	// Without the flag the overflow is lost.
	runFlows(t, `
envelopes: {e: {coupling: false}}
classes:
  - {name: low, meter: {type: trtcm4115, cir: 1B/1ns, cbs: 10, eir: 0bit, ebs: 50, envelope: e, rank: 1, initial: empty}}
  - {name: high, meter: {type: trtcm4115, cir: 1B/1ns, cbs: 10, eir: 1B/2ns, ebs: 20, envelope: e, rank: 2, initial: empty}}
`, []flowStep{
		{0, 0, 1, green, "rfc4115-red", "0 0, 0 0"},
		{0, 10, 99, green, "rfc4115-red", "10 0, 10 5"},
		{0, 12, 99, green, "rfc4115-red", "10 0, 10 6"},
	})
}

func TestEnvelopeMembers(t *testing.T) {
	// A meter that two classes use is one flow; a meter that no class uses is not a flow.
	runFlows(t, `
envelopes: {e: {cirmax: 10p/1ns}}
meters:
  gone: {type: trtcm4115, cir: 9p/1ns, cbs: 1, eir: 9p/1ns, ebs: 1, envelope: e, rank: 3, count: packets}
  late: {type: trtcm4115, cir: 1p/1ns, cbs: 1, eir: 0p/1ns, ebs: 0, envelope: e, rank: 2, count: packets, color: aware}
classes:
  - {name: a, meter: {type: token-bucket, rate: 1bit, burst: 64}, then: late}
  - {name: b, meter: {type: token-bucket, rate: 1bit, burst: 64}, then: late}
  - {name: c, meter: {type: trtcm4115, cir: 0p/1ns, cbs: 9, eir: 0p/1ns, ebs: 0, envelope: e, rank: 1, count: packets, initial: empty}}
`, []flowStep{
		{2, 0, 9, green, "rfc4115-red", "0 0"},
		{2, 3, 9, green, "rfc4115-green", "2 0"}, // only the overflow of late
		{2, 3, 9, green, "rfc4115-green", "1 0"},
	})
}

// TestEnvelopeOfOne compares an envelope of one flow with RFC 4115, with and without coupling.
func TestEnvelopeOfOne(t *testing.T) {
	capture := writePcap(t, 1, mixedPackets(t))
	for _, options := range []string{"", ", coupling: true", ", initial: 20%, color: aware"} {
		meter := "type: trtcm4115, cir: 200kbit, cbs: 3000, eir: 100kbit, ebs: 3000" + options
		alone, err := Decide([]byte("classes: [{name: all, meter: {"+meter+"}}]"), capture)
		if err != nil {
			t.Fatal(err)
		}
		member, err := Decide(
			[]byte("classes: [{name: all, meter: {"+meter+", envelope: e, rank: 1}}]\nenvelopes: {e: {}}"),
			capture)
		if err != nil {
			t.Fatal(err)
		}
		for i := range alone {
			if fmt.Sprint(alone[i]) != fmt.Sprint(member[i]) {
				t.Fatalf("%s: got %q alone, %q as a member of an envelope", meter, alone[i], member[i])
			}
		}
	}
}
