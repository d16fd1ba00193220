package dataplane

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// againstScan compares the classifier with a linear scan of the matches.
func againstScan(t testing.TB, r *rand.Rand, rules, packets int) {
	t.Helper()
	matches := make([]Match, rules)
	sparse := 2 + r.IntN(8)
	for i := range matches {
		matches[i] = randomMatch(r, sparse)
	}
	c := NewClassifier(matches)
	for range packets {
		s := aimed(r, &matches[r.IntN(rules)])
		p := s.packet()
		if p.Kind != s.kind {
			t.Fatalf("sample %+v is parsed as %s", s, describe(p))
		}
		want := slices.IndexFunc(matches, func(m Match) bool { return s.matches(&m) })
		if got := c.Classify(p, s.length); got != want {
			t.Fatalf("%d rules: %s, length %d: first match %d, want %d by linear scan%s",
				rules, describe(p), s.length, got, want, ruleText(matches, got, want))
		}
	}
}

// ruleText lists some matches.
func ruleText(matches []Match, which ...int) string {
	var b strings.Builder
	for _, i := range which {
		if i >= 0 {
			fmt.Fprintf(&b, "\n%d: %+v", i, matches[i])
		}
	}
	return b.String()
}

func TestClassifierAgainstScan(t *testing.T) {
	r := seeded(t)
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

// noPanic turns a panic into a failure, so that other tests continue.
func noPanic(t *testing.T) {
	if x := recover(); x != nil {
		t.Errorf("panic: %v", x)
	}
}

func TestClassifierWithoutMatches(t *testing.T) {
	defer noPanic(t)
	s := sample{kind: IPv4, ethertype: etherIPv4, src: src4, dst: dst4}
	if got := NewClassifier(nil).Classify(s.packet(), 24); got != -1 {
		t.Errorf("match %d of none", got)
	}
}

// TestClassifierMaxClasses finds the last class of the largest policy.
func TestClassifierMaxClasses(t *testing.T) {
	matches := make([]Match, MaxClasses)
	for i := range matches {
		matches[i].SPort = []Range{{uint32(i), uint32(i)}}
	}
	c := NewClassifier(matches)
	for _, port := range []uint16{0, 63, 64, 4031, 4032, MaxClasses - 1} {
		s := sample{kind: IPv4, ethertype: etherIPv4, proto: protoTCP, ports: true, sport: port, src: src4, dst: dst4}
		if got := c.Classify(s.packet(), 24); got != int(port) {
			t.Errorf("port %d is in class %d", port, got)
		}
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
			matches := make([]Match, rules)
			for i := range matches {
				matches[i] = Match{
					Src:   []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(r.IntN(256)), byte(r.IntN(256))}), 24)},
					Proto: []Range{{protoTCP, protoTCP}},
					DPort: []Range{{uint32(r.IntN(1 << 16)), 0xffff}},
				}
			}
			c := NewClassifier(matches)
			packets := make([]*Packet, 256)
			for i := range packets {
				m := matches[r.IntN(rules)]
				s := sample{
					kind: IPv4, ethertype: etherIPv4, proto: protoTCP, ports: true, dst: dst4,
					src: m.Src[0].Addr().Next(), dport: uint16(near(r, m.DPort, 0xffff)),
				}
				packets[i] = s.packet()
			}
			for i := 0; b.Loop(); i++ {
				c.Classify(packets[i%len(packets)], 100)
			}
		})
	}
}
