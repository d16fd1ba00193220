package marker

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// checksum is the checksum of RFC 1071 over a header that includes its checksum
// field: 0 if that is correct.
func checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func randomIPv4(r *rand.Rand) []byte {
	h := make([]byte, IPv4HeaderLen+4*r.IntN(11))
	for i := range h {
		h[i] = byte(r.Uint32())
	}
	h[0] = 0x40 | byte(len(h)/4)
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return h
}

func TestIPv4KeepsChecksumAndECN(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		h := randomIPv4(r)
		if checksum(h) != 0 {
			t.Fatal("the test's own checksum is wrong")
		}
		for dscp := range uint8(64) {
			before := bytes.Clone(h)
			SetDSCPv4(h, dscp)
			if DSCPv4(h) != dscp || h[1]&3 != before[1]&3 || checksum(h) != 0 {
				t.Fatalf("DSCP %d: got % x from % x", dscp, h, before)
			}
			once := bytes.Clone(h)
			SetDSCPv4(h, dscp)
			if !bytes.Equal(h, once) {
				t.Fatalf("marking twice: got % x, want % x as after marking once", h, once)
			}
			once[1], once[10], once[11] = before[1], before[10], before[11]
			if !bytes.Equal(once, before) {
				t.Fatalf("DSCP %d: got % x, want only the DSCP and checksum of % x changed", dscp, once,
					before)
			}
		}
		capable := h[1]&3 != NotECT
		if SetCEv4(h) != capable || capable && h[1]&3 != CE || checksum(h) != 0 {
			t.Fatalf("SetCEv4: got % x", h)
		}
	}
}

// TestNoNegativeZero checks the case of RFC 1624 §3: a sum that passes zero,
// for which RFC 1141 gives 0xffff. Every checksum occurs once.
func TestNoNegativeZero(t *testing.T) {
	h := make([]byte, IPv4HeaderLen)
	h[0], h[1] = 0x45, 0x00
	for id := range uint32(0x10000) {
		binary.BigEndian.PutUint16(h[4:], uint16(id))
		h[1], h[10], h[11] = 0, 0, 0
		binary.BigEndian.PutUint16(h[10:], checksum(h))
		SetDSCPv4(h, 46)
		if checksum(h) != 0 {
			t.Fatalf("id %#x: got a wrong checksum in % x", id, h)
		}
		if binary.BigEndian.Uint16(h[10:]) == 0xffff {
			t.Fatalf("id %#x: checksum 0xffff, the negative zero of RFC 1624 §3", id)
		}
	}
}

// TestEveryChecksum compares each change of the second byte, by DSCP, CE or
// both, with equation 3 of RFC 1624 §3 as arithmetic modulo 0xffff, for every
// checksum a header can have, correct or not. A mark that changes nothing must
// not change a byte.
func TestEveryChecksum(t *testing.T) {
	for _, test := range []struct{ tos, dscp uint8 }{
		{0x00, 0}, {0x00, 46}, {0xff, 63}, {0xff, 0}, {0xfc, 63}, {0xfc, 0}, {0x03, 0}, {0x01, 0}, {0x02, 63}, {0xb9, 46}, {0xb9, 12}, {0xfd, 63},
	} {
		for sum := range uint32(0x10000) {
			for _, ce := range []bool{false, true} {
				h := make([]byte, IPv4HeaderLen)
				h[0], h[1] = 0x45, test.tos
				binary.BigEndian.PutUint16(h[10:], uint16(sum))
				tos := uint32(test.dscp<<2 | test.tos&3)
				if ce {
					SetCEv4(h)
					if tos&3 != 0 {
						tos |= 3
					}
				}
				SetDSCPv4(h, test.dscp)
				want := sum
				if tos != uint32(test.tos) {
					// The sum of ~HC, ~m and m' is above 0, so in one's
					// complement it is never 0, but 0xffff.
					inverse := (0xffff - sum + 0xffff - uint32(test.tos) + tos) % 0xffff
					if inverse == 0 {
						inverse = 0xffff
					}
					want = 0xffff - inverse
				}
				if got := uint32(binary.BigEndian.Uint16(h[10:])); got != want || uint32(h[1]) != tos {
					t.Fatalf("TOS %02x, DSCP %d, CE %v, checksum %04x: TOS %02x with checksum %04x, want %02x with %04x",
						test.tos, test.dscp, ce, sum, h[1], got, tos, want)
				}
			}
		}
	}
}

func TestIPv6KeepsOtherFields(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for range 2000 {
		h := make([]byte, IPv6HeaderLen)
		for i := range h {
			h[i] = byte(r.Uint32())
		}
		h[0] = 0x60 | h[0]&0x0f
		before := bytes.Clone(h)
		dscp := uint8(r.IntN(64))
		SetDSCPv6(h, dscp)
		word, old := binary.BigEndian.Uint32(h), binary.BigEndian.Uint32(before)
		const field = 0x0fc00000
		if word&^field != old&^field || word>>22&63 != uint32(dscp) || DSCPv6(h) != dscp {
			t.Fatalf("DSCP %d: got %08x from %08x", dscp, word, old)
		}
		capable := old>>20&3 != NotECT
		if SetCEv6(h) != capable || capable != (binary.BigEndian.Uint32(h)>>20&3 == CE) {
			t.Fatalf("SetCEv6: got %08x", word)
		}
		if !bytes.Equal(h[4:], before[4:]) {
			t.Fatal("bytes after the first word changed")
		}
	}
}

func TestTags(t *testing.T) {
	for tci := range 0x10000 {
		h := binary.BigEndian.AppendUint16(nil, uint16(tci))
		if PCP(h) != uint8(tci>>13) || DEI(h) != uint8(tci>>12&1) {
			t.Fatalf("tci %04x: got PCP %d, DEI %d, want %d, %d", tci, PCP(h), DEI(h), tci>>13, tci>>12&1)
		}
		SetPCP(h, 5)
		SetDEI(h, 1)
		if want := uint16(tci&0x0fff | 5<<13 | 1<<12); binary.BigEndian.Uint16(h) != want {
			t.Fatalf("tci %04x became % x, want %04x", tci, h, want)
		}
		SetDEI(h, 0)
		if want := uint16(tci&0x0fff | 5<<13); binary.BigEndian.Uint16(h) != want {
			t.Fatalf("tci %04x became % x, want %04x", tci, h, want)
		}
	}
	for tc := range uint8(8) {
		entry := []byte{0xab, 0xcd, 0xef, 0x40}
		SetTC(entry, tc)
		if want := []byte{0xab, 0xcd, 0xe1 | tc<<1, 0x40}; !bytes.Equal(entry, want) || TC(entry) != tc {
			t.Fatalf("TC %d: got % x, want % x", tc, entry, want)
		}
	}
}

func TestAFColors(t *testing.T) {
	colors := AF()
	for dscp, want := range map[string]meter.Color{
		"af11": meter.Green, "af12": meter.Yellow, "af13": meter.Red,
		"af42": meter.Yellow, "af43": meter.Red, "ef": meter.Green, "be": meter.Green, "cs1": meter.Green,
	} {
		v, err := ParseDSCP(dscp)
		if err != nil || colors[v] != want {
			t.Errorf("%s = %d: got %v, %v; want %v", dscp, v, colors[v], err, want)
		}
	}
	n := 0
	for _, c := range colors {
		if c != meter.Green {
			n++
		}
	}
	if n != 8 {
		t.Errorf("%d codepoints are not green, want the 8 of RFC 2597", n)
	}
}

func TestDSCPNames(t *testing.T) {
	for name, want := range map[string]uint8{
		"af11": 10, "af12": 12, "af13": 14, "af43": 38, "ef": 46, "cs6": 48, "be": 0, "63": 63, "le": 1,
	} {
		if got, err := ParseDSCP(name); got != want || err != nil {
			t.Errorf("%s: got %d, %v; want %d", name, got, err, want)
		}
	}
	for _, name := range []string{"", "64", "-1", "af14", "af51", "cs8", "AF11", "0x2e"} {
		if got, err := ParseDSCP(name); err == nil {
			t.Errorf("%q: got DSCP %d, want an error", name, got)
		}
	}
	for dscp := range uint8(64) {
		if got, err := ParseDSCP(DSCPName(dscp)); got != dscp || err != nil {
			t.Errorf("%s: got DSCP %d, want %d", DSCPName(dscp), got, dscp)
		}
	}
}

// TestDSCPNameOfEach compares the names of all codepoints with the tables of RFC 2474,
// RFC 2597 and RFC 3246. le, va and default are parsed, but not returned.
func TestDSCPNameOfEach(t *testing.T) {
	names := map[uint8]string{
		0: "be", 8: "cs1", 16: "cs2", 24: "cs3", 32: "cs4", 40: "cs5", 48: "cs6", 56: "cs7",
		10: "af11", 12: "af12", 14: "af13", 18: "af21", 20: "af22", 22: "af23",
		26: "af31", 28: "af32", 30: "af33", 34: "af41", 36: "af42", 38: "af43", 46: "ef",
	}
	for dscp := range uint8(64) {
		want := names[dscp]
		if want == "" {
			want = strconv.Itoa(int(dscp))
		}
		if got := DSCPName(dscp); got != want {
			t.Errorf("%d has the name %s, want %s", dscp, got, want)
		}
	}
}

func FuzzSetDSCPv4(f *testing.F) {
	f.Add([]byte("\x45\x00\x00\x14aaaaaaaaaaaaaaaa"), uint8(46))
	f.Fuzz(func(t *testing.T, h []byte, dscp uint8) {
		if len(h) < IPv4HeaderLen {
			return
		}
		h = h[:len(h)&^1]
		dscp &= 63
		before := checksum(h)
		was := bytes.Clone(h)
		SetDSCPv4(h, dscp)
		// A wrong sum stays wrong by the same difference; 0 and 0xffff are the
		// same number.
		if after := checksum(h); after != before && after^before != 0xffff {
			t.Fatalf("% x with sum %04x became % x with %04x", was, before, h, after)
		}
		if DSCPv4(h) != dscp || h[1]&3 != was[1]&3 {
			t.Fatalf("% x became % x", was, h)
		}
	})
}

func TestAllocations(t *testing.T) {
	v4, v6 := randomIPv4(rand.New(rand.NewPCG(3, 1))), make([]byte, IPv6HeaderLen)
	if n := testing.AllocsPerRun(100, func() {
		SetDSCPv4(v4, 46)
		SetCEv4(v4)
		SetDSCPv6(v6, 46)
		SetCEv6(v6)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// FuzzParseDSCP parses codepoints. The name of an accepted codepoint parses to the same codepoint.
func FuzzParseDSCP(f *testing.F) {
	for _, s := range []string{"be", "cs7", "af43", "ef", "63", "064", "+1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		dscp, err := ParseDSCP(s)
		if err != nil {
			return
		}
		if again, err := ParseDSCP(DSCPName(dscp)); err != nil || again != dscp || dscp > 63 {
			t.Errorf("%q is %d, named %s, which is %d, %v", s, dscp, DSCPName(dscp), again, err)
		}
	})
}
