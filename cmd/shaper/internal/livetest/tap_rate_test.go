package livetest

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestLiveTapRate sends 40 packets of 1000 bytes into shaper tap --rate at once, and then a
// routing packet. The routing packet must not be queued, and the others must be 10 ms apart.
func TestLiveTapRate(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--rate", "800kbit", "--both")
	r.out.awaitMatch(t, `^t0 egress: .*policy --rate 800kbit \(5 classes\)\nt0 ingress: `)
	routing := ipv4Frame(100)
	routing[15] = 48 << 2                                // CS6
	sum := binary.BigEndian.Uint16(routing[24:]) - 48<<2 // checksum for the new TOS
	binary.BigEndian.PutUint16(routing[24:], sum)
	s := p.far.Sniff("v0")
	begin := time.Now().UnixNano() // the first packet may be late itself
	p.near.Inject("t0", append(ipv4Frames(40, 1000), routing)...)
	eventually(t, func() error {
		for _, c := range p.statsList("t0", "--direction", "egress")[0].Classes {
			if c.Name == "control-dscp" && c.Green.Packets == 1 && c.Queued.Packets == 0 {
				return nil
			}
		}
		return errors.New("the routing packet is not counted")
	})
	r.stopBySIGTERM()
	var bulk []int64
	first := int64(0)
	for _, f := range s.Stop() {
		if f.Data[15] == 48<<2 {
			first = f.Time
		} else {
			bulk = append(bulk, f.Time)
		}
	}
	if len(bulk) < 10 || first == 0 {
		t.Fatalf("%d packets arrived, and the routing packet at %d", len(bulk), first)
	}
	if first > bulk[len(bulk)-1] {
		t.Errorf("the routing packet was queued")
	}
	for i, at := range bulk { // no packet may be early
		if after := time.Duration(at - begin); after < time.Duration(i)*10*time.Millisecond {
			t.Errorf("packet %d arrived %v after the start", i, after)
		}
	}
}

// TestLiveTapWarnings checks that shaper tap prints the warnings of shaper check.
func TestLiveTapWarnings(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--meter", "gcra rate=1mbit burst=1499")
	if list := r.err.awaitWarnings(t, 1); !strings.HasPrefix(list[0],
		"shaper: warning: --meter:1:23: burst of 1499 B is below the MTU") {
		t.Errorf("warnings %q, want one about the burst", list)
	}
	r.stopBySIGTERM()
}
