package compiled

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
)

// againstScan compares the classifier with a linear scan of the matches.
func againstScan(t testing.TB, r *rand.Rand, rules, packets int) {
	t.Helper()
	matches := make([]dataplane.Match, rules)
	sparse := 2 + r.IntN(8)
	for i := range matches {
		matches[i] = frametest.RandomMatch(r, sparse)
	}
	c := NewClassifier(matches)
	for range packets {
		s := frametest.AimedSample(r, &matches[r.IntN(rules)])
		p := s.Packet()
		if p.Kind != s.Kind {
			t.Fatalf("sample %+v is parsed as %s", s, frametest.Describe(p))
		}
		want := slices.IndexFunc(matches, func(m dataplane.Match) bool { return s.Matches(&m) })
		if got := c.Classify(p, s.Length); got != want {
			t.Fatalf("%d rules: %s, length %d: first match %d, want %d by linear scan%s",
				rules, frametest.Describe(p), s.Length, got, want, ruleText(matches, got, want))
		}
	}
}

// ruleText lists some matches.
func ruleText(matches []dataplane.Match, which ...int) string {
	var b strings.Builder
	for _, i := range which {
		if i >= 0 {
			fmt.Fprintf(&b, "\n%d: %+v", i, matches[i])
		}
	}
	return b.String()
}

func TestClassifierAgainstScan(t *testing.T) {
	r := frametest.Seeded(t)
	for range 120 {
		againstScan(t, r, 1+r.IntN(5), 200)
	}
	for range 20 {
		againstScan(t, r, 1+r.IntN(300), 500)
	}
	for _, rules := range []int{63, 64, 65, 127, 128, 129} { // at and next to the bits of a word
		againstScan(t, r, rules, 500)
	}
}

func TestClassifierWithoutMatches(t *testing.T) {
	defer frametest.NoPanic(t)
	s := frametest.Sample{
		Kind: dataplane.IPv4, Ethertype: frametest.EtherIPv4, Src: frametest.Src4, Dst: frametest.Dst4,
	}
	if got := NewClassifier(nil).Classify(s.Packet(), 24); got != -1 {
		t.Errorf("a classifier without matches: got match %d, want -1", got)
	}
}

// TestClassifierMaxClasses finds the last class of the largest policy.
func TestClassifierMaxClasses(t *testing.T) {
	matches := make([]dataplane.Match, MaxClasses)
	for i := range matches {
		matches[i].SPort = []dataplane.Range{{First: uint64(i), Last: uint64(i)}}
	}
	c := NewClassifier(matches)
	for _, port := range []uint16{0, 63, 64, 4031, 4032, MaxClasses - 1} {
		s := frametest.Sample{
			Kind: dataplane.IPv4, Ethertype: frametest.EtherIPv4, Proto: frametest.ProtoTCP, Ports: true,
			Sport: port, Src: frametest.Src4, Dst: frametest.Dst4,
		}
		if got := c.Classify(s.Packet(), 24); got != int(port) {
			t.Errorf("port %d: got class %d, want %[1]d", port, got)
		}
	}
}

// TestClassifierSummaries classifies a packet for which all summary bits are set, although at
// most the last class matches: classes match its DSCP or its protocol, but not both.
func TestClassifierSummaries(t *testing.T) {
	matches := make([]dataplane.Match, MaxClasses)
	for i := range matches {
		matches[i] = dataplane.Match{
			DSCP:  frametest.Values(uint32(i % 2)),
			Proto: frametest.Values([]uint32{frametest.ProtoUDP, frametest.ProtoTCP}[i%2]),
		}
	}
	s := frametest.Sample{
		Kind: dataplane.IPv4, Ethertype: frametest.EtherIPv4, Dscp: 1, Proto: frametest.ProtoUDP,
		Src: frametest.Src4, Dst: frametest.Dst4,
	}
	if got := NewClassifier(matches).Classify(s.Packet(), 24); got != -1 {
		t.Errorf("got class %d, want none", got)
	}
	matches[MaxClasses-1] = dataplane.Match{
		DSCP: frametest.Values(1), Proto: frametest.Values(frametest.ProtoUDP),
	}
	if got := NewClassifier(matches).Classify(s.Packet(), 24); got != MaxClasses-1 {
		t.Errorf("got class %d, want the last", got)
	}
}

func FuzzClassifier(f *testing.F) {
	f.Add(uint64(1), uint16(1))
	f.Add(uint64(2), uint16(65))
	f.Fuzz(func(t *testing.T, seed uint64, rules uint16) {
		againstScan(t, rand.New(rand.NewPCG(seed, 1)), 1+int(rules%130), 30)
	})
}

func BenchmarkClassify(b *testing.B) {
	for _, rules := range []int{16, 1000} {
		b.Run(fmt.Sprintf("%d", rules), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			matches := make([]dataplane.Match, rules)
			for i := range matches {
				matches[i] = dataplane.Match{
					Src: []netip.Prefix{netip.PrefixFrom(
						netip.AddrFrom4([4]byte{10, byte(r.IntN(256)), byte(r.IntN(256))}), 24)},
					Proto: []dataplane.Range{{First: frametest.ProtoTCP, Last: frametest.ProtoTCP}},
					DPort: []dataplane.Range{{First: uint64(r.IntN(1 << 16)), Last: 0xffff}},
				}
			}
			c := NewClassifier(matches)
			packets := make([]*dataplane.Packet, 256)
			for i := range packets {
				m := matches[r.IntN(rules)]
				s := frametest.Sample{
					Kind: dataplane.IPv4, Ethertype: frametest.EtherIPv4, Proto: frametest.ProtoTCP,
					Ports: true, Dst: frametest.Dst4, Src: m.Src[0].Addr().Next(),
					Dport: uint16(frametest.NearBound(r, m.DPort, 0xffff)),
				}
				packets[i] = s.Packet()
			}
			for i := 0; b.Loop(); i++ {
				c.Classify(packets[i%len(packets)], 100)
			}
		})
	}
}

// TestTables checks the documented structure of the tables, on which planes in other languages
// rely: summaries, bounds and jump tables.
func TestTables(t *testing.T) {
	r := frametest.Seeded(t)
	for range 40 {
		matches := make([]dataplane.Match, 1+r.IntN(300))
		sparse := 1 + r.IntN(4) // 1: all matches use all fields, so most words are zero
		for i := range matches {
			matches[i] = frametest.RandomMatch(r, sparse)
		}
		c := NewClassifier(matches)
		if want := 1 + (len(matches)+63)/64; c.Stride != want || len(c.Words)%want != 0 {
			t.Fatalf("%d matches: vectors of %d words in %d, want %d", len(matches), c.Stride, len(c.Words),
				want)
		}
		seen := map[string]bool{}
		for v := 0; v < len(c.Words); v += c.Stride {
			vector := c.Words[v : v+c.Stride]
			summary := uint64(0)
			for i, word := range vector[1:] {
				if word != 0 {
					summary |= 1 << i
				}
			}
			if vector[0] != summary {
				t.Fatalf("vector %x: summary %x, want %x", vector[1:], vector[0], summary)
			}
			if text := fmt.Sprint(vector); seen[text] {
				t.Fatalf("vector %x is stored twice", vector)
			} else {
				seen[text] = true
			}
		}
		for _, ranged := range []*Ranged[uint32]{&c.Mark, &c.Length, &c.Src.V4, &c.Dst.V4} {
			checkJumps(t, ranged)
		}
	}
}

// checkJumps checks the jump table of a field.
func checkJumps(t *testing.T, r *Ranged[uint32]) {
	t.Helper()
	if r.Bounds == nil {
		return
	}
	last := len(r.Bounds) - 1
	if len(r.Offset) != last+1 || r.Bounds[0] != 0 || !slices.IsSorted(r.Bounds) {
		t.Fatalf("got %d bounds from %d and %d offsets, want as many sorted bounds from 0 as offsets", last+1,
			r.Bounds[0], len(r.Offset))
	}
	if n := len(r.Jump); n > maxJumps || r.Jump[0] != 0 || r.Jump[n-1] != uint32(last) {
		t.Fatalf("jump table of %d entries from %d to %d, want at most %d from 0 to %d", n, r.Jump[0],
			r.Jump[n-1], maxJumps, last)
	}
	for i, jump := range r.Jump[1 : len(r.Jump)-1] {
		at := uint64(r.Low) + uint64(i+1)<<r.Shift
		if uint64(r.Bounds[jump]) > at || int(jump) < last && uint64(r.Bounds[jump+1]) <= at {
			t.Fatalf("jump %d: got bound %d, want the last one up to %d", i+1, jump, at)
		}
	}
}

// TestJumpShift has rows at and next to the distance of bounds at which the steps of the jump
// table double.
func TestJumpShift(t *testing.T) {
	for _, first := range []uint32{1, 2, 5, 1 << 31} {
		for distance, shift := range map[uint32]uint8{
			1: 0, maxJumps - 3: 0, maxJumps - 2: 1, 2*maxJumps - 5: 1, 2*maxJumps - 4: 2, 1 << 30: 19,
		} {
			c := NewClassifier(
				[]dataplane.Match{{Mark: []dataplane.Range{
					{First: uint64(first), Last: uint64(first + distance - 1)},
				}}})
			if c.Mark.Shift != shift || c.Mark.Low != first-min(first, 1<<shift) {
				t.Errorf("bounds %d and %d: steps of 1<<%d from %d on, want 1<<%d", first, first+distance,
					c.Mark.Shift, c.Mark.Low, shift)
			}
			checkJumps(t, &c.Mark)
			for _, mark := range []uint32{
				0, first - 1, first, first + distance - 1, first + distance, math.MaxUint32,
			} {
				want := -1
				if mark >= first && mark < first+distance {
					want = 0
				}
				s := frametest.Sample{
					Kind: dataplane.IPv4, Ethertype: frametest.EtherIPv4, Src: frametest.Src4,
					Dst: frametest.Dst4, Mark: mark,
				}
				if got := c.Classify(s.Packet(), 20); got != want {
					t.Errorf("bounds %d and %d: mark %d is in class %d, want %d", first, first+distance, mark,
						got, want)
				}
			}
		}
	}
}

// TestTablesAreOfFields compares the indexes of Tables.Direct with those of dataplane.MatchFields.
func TestTablesAreOfFields(t *testing.T) {
	want := map[int]string{
		protoTable: "proto", sportTable: "sport", dportTable: "dport", dscpTable: "dscp", vlanTable: "vlan",
		pcpTable: "pcp", ethertypeTable: "ethertype", numTables: "mark", numTables + 1: "length",
		firstRare: "inner-vlan", firstRare + 1: "tcp-flags", firstRare + 2: "icmp-type", firstRare + 3: "mac",
		firstRare + 4: "src-mac", firstRare + 5: "dst-mac", firstRare + 6: "vni", firstRare + NumRare - 1: "teid",
	}
	if len(want) != len(dataplane.MatchFields) {
		t.Fatalf("got %d fields, want %d", len(dataplane.MatchFields), len(want))
	}
	for i, name := range want {
		if got := dataplane.MatchFields[i].Name; got != name {
			t.Errorf("field %d is %q, want %q", i, got, name)
		}
	}
}
