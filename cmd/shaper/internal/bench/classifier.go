package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

const (
	fewRules  = 16
	manyRules = 1000
	looked    = 1 << 14 // packets per pass
)

// rule is a 5-tuple rule for IPv4. The linear scan compares packets with it.
type rule struct {
	src, dst, srcMask, dstMask uint32
	sport, dport, proto        dataplane.Range
}

func (r *rule) takes(p *dataplane.Packet) bool {
	return uint32(p.Src.Lo)&r.srcMask == r.src && uint32(p.Dst.Lo)&r.dstMask == r.dst &&
		within(r.sport, uint64(p.SrcPort)) && within(r.dport, uint64(p.DstPort)) &&
		within(r.proto, uint64(p.Proto))
}

func within(r dataplane.Range, v uint64) bool { return r.First <= v && v <= r.Last }

func (r *rule) match() dataplane.Match {
	return dataplane.Match{
		Src: prefix(r.src, r.srcMask), Dst: prefix(r.dst, r.dstMask), Proto: []dataplane.Range{r.proto},
		SPort: []dataplane.Range{r.sport}, DPort: []dataplane.Range{r.dport},
	}
}

func prefix(address, mask uint32) []netip.Prefix {
	ones := 0
	for ; mask != 0; mask <<= 1 {
		ones++
	}
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], address)
	return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(b), ones)}
}

func randomRule(r *rand.Rand) rule {
	mask := func() uint32 { return ^uint32(0) << (32 - (8 + r.IntN(21))) }
	port := func() dataplane.Range {
		switch r.IntN(4) {
		case 0:
			return dataplane.Range{First: 0, Last: 0xffff}
		case 1:
			return dataplane.Range{First: 1024, Last: 0xffff}
		case 2:
			first := r.Uint64N(60000)
			return dataplane.Range{First: first, Last: first + r.Uint64N(5000)}
		}
		v := r.Uint64N(10000)
		return dataplane.Range{First: v, Last: v}
	}
	out := rule{
		srcMask: mask(), dstMask: mask(), sport: port(), dport: port(),
		proto: dataplane.Range{First: 6, Last: 6},
	}
	out.src, out.dst = r.Uint32()&out.srcMask, r.Uint32()&out.dstMask
	switch r.IntN(3) {
	case 0:
		out.proto = dataplane.Range{First: 17, Last: 17}
	case 1:
		out.proto.Last = 17
	}
	return out
}

// packet returns a packet that matches the rule.
func (r *rule) packet(random *rand.Rand) dataplane.Packet {
	in := func(span dataplane.Range) uint64 { return span.First + random.Uint64N(span.Last-span.First+1) }
	return dataplane.Packet{
		Kind: dataplane.IPv4, HasPorts: true, L3Len: 100,
		Src:     dataplane.Addr{Lo: uint64(r.src | random.Uint32()&^r.srcMask)},
		Dst:     dataplane.Addr{Lo: uint64(r.dst | random.Uint32()&^r.dstMask)},
		SrcPort: uint16(in(r.sport)), DstPort: uint16(in(r.dport)), Proto: uint8(in(r.proto)),
	}
}

// lookups holds a list of rules, and packets for random rules. One in eight packets matches no
// rule.
type lookups struct {
	rules      []rule
	packets    []dataplane.Packet
	classifier *compiled.Classifier
}

func newLookups(n int) (*lookups, error) {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	l := &lookups{}
	matches := make([]dataplane.Match, n)
	for i := range matches {
		l.rules = append(l.rules, randomRule(r))
		matches[i] = l.rules[i].match()
	}
	for range looked {
		from := &l.rules[r.IntN(n)]
		if r.IntN(8) == 0 {
			other := randomRule(r)
			from = &other
		}
		l.packets = append(l.packets, from.packet(r))
	}
	l.classifier = compiled.NewClassifier(matches)
	hits := map[int]bool{}
	for i := range l.packets {
		got, want := l.classifier.Classify(&l.packets[i], l.packets[i].L3Len), l.scan(&l.packets[i])
		if got != want {
			return nil, fmt.Errorf("the classifier says rule %d, a scan of the list %d", got, want)
		}
		hits[got] = true
	}
	if len(hits) < n*9/10 {
		return nil, fmt.Errorf("only %d of %d rules were hit", len(hits), n)
	}
	return l, nil
}

// scan compares packets with one rule after the other.
func (l *lookups) scan(p *dataplane.Packet) int {
	for i := range l.rules {
		if l.rules[i].takes(p) {
			return i
		}
	}
	return -1
}

func (l *lookups) classify(p *dataplane.Packet) int { return l.classifier.Classify(p, p.L3Len) }

func classifierFigures() []figure {
	few := sync.OnceValues(func() (*lookups, error) { return newLookups(fewRules) })
	many := sync.OnceValues(func() (*lookups, error) { return newLookups(manyRules) })
	by := func(list func() (*lookups, error), find func(*lookups, *dataplane.Packet) int, passes int) side {
		return onSource(list, func(l *lookups) (float64, error) {
			found := 0
			start := time.Now()
			for range passes {
				for i := range l.packets {
					found += find(l, &l.packets[i])
				}
			}
			return since(start, passes*looked), nil
		})
	}
	return []figure{
		timeRatio("classifier: 1,000 rules against 16", 4, 2, by(many, (*lookups).classify, 16),
			by(few, (*lookups).classify, 16)),
		timeRatio("classifier: 1,000 rules against a scan of their list", 1, noAim,
			by(many, (*lookups).classify, 16), by(many, (*lookups).scan, 1)),
	}
}
