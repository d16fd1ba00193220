package pipeline

import (
	"math"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestLengthRule has rows at and next to each bound of the rule.
func TestLengthRule(t *testing.T) {
	for _, test := range []struct {
		rule  dataplane.LengthRule
		frame []byte
		wire  int64
		want  int64
	}{
		{dataplane.LengthRule{}, ipPacket(0, 29), 60, 29},
		{dataplane.LengthRule{}, ipPacket(0, 1000), 0, 1000},
		{dataplane.LengthRule{}, ipPacket(0, 20), 1 << 20, 1<<20 - 14},
		{dataplane.LengthRule{Base: dataplane.L2}, ipPacket(0, 29), 60, 60},
		{dataplane.LengthRule{Base: dataplane.L2}, ipPacket(0, 29), 0, 43},
		{dataplane.LengthRule{Base: dataplane.L1}, ipPacket(0, 29), 0, 84},
		{dataplane.LengthRule{Base: dataplane.L1}, ipPacket(0, 46), 0, 84},
		{dataplane.LengthRule{Base: dataplane.L1}, ipPacket(0, 47), 0, 85},
		{dataplane.LengthRule{Base: dataplane.L1}, ipPacket(0, 1500), 0, 1538},
		{dataplane.LengthRule{Base: dataplane.L2, Overhead: 4}, ipPacket(0, 1500), 0, 1518},
		{dataplane.LengthRule{Overhead: -20}, ipPacket(0, 1500), 0, 1480},
		{dataplane.LengthRule{Overhead: -21}, ipPacket(0, 20), 0, 0},
		{dataplane.LengthRule{MPU: 64}, ipPacket(0, 63), 0, 64},
		{dataplane.LengthRule{MPU: 64}, ipPacket(0, 65), 0, 65},
		{dataplane.LengthRule{Base: dataplane.L2, Overhead: 4, MPU: 64}, ipPacket(0, 45), 0, 64},
		{dataplane.LengthRule{Base: dataplane.L2, Overhead: 4, MPU: 64}, ipPacket(0, 47), 0, 65},
		{dataplane.LengthRule{Overhead: -2000, MPU: 64}, ipPacket(0, 1500), 0, 64},
		{dataplane.LengthRule{Base: dataplane.L2}, arp, 0, 60},
		{dataplane.LengthRule{}, arp, 0, 46},
		{dataplane.LengthRule{Base: dataplane.L2}, ipPacket(0, 20), 1<<32 - 1, 1<<32 - 1},
		{dataplane.LengthRule{Base: dataplane.L1}, ipPacket(0, 20), 1<<32 - 25, 1<<32 - 1},
		{dataplane.LengthRule{Base: dataplane.L1}, ipPacket(0, 20), 1<<32 - 24, 1<<32 - 1}, // capped at 32 bits
		{dataplane.LengthRule{Base: dataplane.L1, Overhead: 1 << 15}, ipPacket(0, 20), 1<<32 - 1, 1<<32 - 1},
		{dataplane.LengthRule{Base: dataplane.L1, Overhead: -1 << 15}, ipPacket(0, 20), 1<<32 - 1, 1<<32 + 23 - 1<<15},
		{dataplane.LengthRule{Base: dataplane.L1, Overhead: 1 << 15}, ipPacket(0, 20), math.MaxInt32, min(math.MaxInt32+24+1<<15, math.MaxInt)},
		{dataplane.LengthRule{Overhead: 1 << 15, MPU: 1 << 15}, ipPacket(0, 20), 0, 20 + 1<<15},
		{dataplane.LengthRule{Overhead: -1 << 15, MPU: 1 << 15}, ipPacket(0, 20), 0, 1 << 15},
	} {
		if int64(int(test.wire)) != test.wire {
			continue // an int has 32 bits
		}
		l := newPipeline(t, &dataplane.Policy{Length: test.rule, Classes: []dataplane.Class{
			{Name: "a", Match: dataplane.Match{Length: frametest.Values(uint32(test.want))}},
		}})
		v := verdictOf(l,
			&dataplane.Packet{Data: test.frame, WireLen: int(test.wire), Link: dataplane.LinkEthernet})
		if int64(v.Length) != test.want || v.Class != 0 ||
			l.Stats()[0].Colors[meter.Green] != (dataplane.Count{Packets: 1, Bytes: test.want}) {
			t.Errorf("%+v, frame of %d bytes: length %d (class %d, counters %+v), want %d", test.rule,
				max(int64(len(test.frame)), test.wire), v.Length, v.Class, l.Stats()[0], test.want)
		}
	}
}

func TestAcceptsLinkType(t *testing.T) {
	links := []dataplane.LinkType{
		dataplane.LinkNull, dataplane.LinkEthernet, dataplane.LinkRawBSD, dataplane.LinkRawOBSD,
		dataplane.LinkRaw, dataplane.LinkLoop, dataplane.LinkSLL, dataplane.LinkIPv4, dataplane.LinkIPv6,
		dataplane.LinkSLL2, 127,
	}
	for _, rule := range []dataplane.LengthRule{
		{},
		{Overhead: 4, MPU: 64},
		{Base: dataplane.L2},
		{Base: dataplane.L1},
		{Base: dataplane.L2, Overhead: 4},
	} {
		l := newPipeline(t, &dataplane.Policy{Length: rule, Classes: []dataplane.Class{{Name: "a"}}})
		for _, link := range links {
			want := rule.Base == dataplane.L3 || link == dataplane.LinkEthernet
			if err := l.Accepts(link); (err == nil) != want {
				t.Errorf("%+v on link type %d: error %v, want accepted %v", rule, link, err, want)
			}
		}
	}
}

// TestSegments checks that a GSO packet counts as its segments: two of 1514 bytes and a last
// one.
func TestSegments(t *testing.T) {
	for _, test := range []struct {
		rule       dataplane.LengthRule
		last, want int
	}{
		{dataplane.LengthRule{}, 60, 1500 + 1500 + 46},
		{dataplane.LengthRule{}, 1514, 4500},
		{dataplane.LengthRule{}, 54, 1500 + 1500 + 40}, // no padding before segmentation
		{dataplane.LengthRule{Base: dataplane.L2}, 54, 1514 + 1514 + 54},
		{dataplane.LengthRule{Base: dataplane.L1}, 54, 1538 + 1538 + 84},
		{dataplane.LengthRule{Base: dataplane.L1}, 60, 1538 + 1538 + 84},
		{dataplane.LengthRule{Base: dataplane.L1}, 61, 1538 + 1538 + 85},
		{dataplane.LengthRule{Overhead: -20}, 60, 1480 + 1480 + 26},
		{dataplane.LengthRule{Overhead: -47}, 60, 1453 + 1453},
		{dataplane.LengthRule{Overhead: 38, MPU: 84}, 60, 1538 + 1538 + 84},
		{dataplane.LengthRule{Overhead: 38, MPU: 84}, 61, 1538 + 1538 + 85},
		{dataplane.LengthRule{MPU: 2000}, 60, 6000},
	} {
		policy := &dataplane.Policy{Length: test.rule, Classes: []dataplane.Class{{Name: "a"}}}
		l := newPipeline(t, policy)
		v := verdictOf(l, &dataplane.Packet{
			Data: ipPacket(0, 40), WireLen: 2*1514 + test.last, Link: dataplane.LinkEthernet, Segments: 3,
			Segment: 1514,
		})
		if v.Length != test.want || v.Packets != 3 ||
			l.Stats()[0].Colors[meter.Green] != (dataplane.Count{Packets: 3, Bytes: int64(test.want)}) {
			t.Errorf("%+v: %d bytes in %d packets, counted as %v; want %d bytes in 3", test.rule, v.Length,
				v.Packets, l.Stats()[0].Colors[meter.Green], test.want)
		}
	}
	most := newPipeline(t, &dataplane.Policy{
		Length:  dataplane.LengthRule{Base: dataplane.L1, Overhead: 1 << 15},
		Classes: []dataplane.Class{{Name: "a"}},
	})
	if v := verdictOf(most, &dataplane.Packet{
		Data: ipPacket(0, 40), WireLen: 1 << 20, Link: dataplane.LinkEthernet, Segments: 1 << 18, Segment: 4,
	}); v.Length != min(1<<32-1, math.MaxInt) {
		t.Errorf("a length that does not fit 32 bits: got %d, want the largest", v.Length)
	}
	for segments := range 2 { // padded by Ethernet: 29 bytes in a frame of 60
		padded := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "a"}}})
		v := verdictOf(padded, &dataplane.Packet{
			Data: frametest.PadTo(ipPacket(0, 29), 60), Link: dataplane.LinkEthernet, Segments: segments,
			Segment: 1514,
		})
		if v.Length != 29 || v.Packets != 1 {
			t.Errorf("%d segments: got %d bytes in %d packets, want 29 in 1", segments, v.Length, v.Packets)
		}
	}
	for segments := range 2 {
		l := newPipeline(t,
			&dataplane.Policy{Length: dataplane.LengthRule{MPU: 64}, Classes: []dataplane.Class{{Name: "a"}}})
		v := verdictOf(l, &dataplane.Packet{
			Data: ipPacket(0, 40), WireLen: 1014, Link: dataplane.LinkEthernet, Segments: segments,
			Segment: 1000,
		})
		if v.Length != 1000 || v.Packets != 1 {
			t.Errorf("%d segments: got %d bytes in %d packets, want 1000 in 1", segments, v.Length, v.Packets)
		}
	}
}

// TestSegmentsAreMetered meters and queues GSO packets of two segments with a meter of
// packets.
func TestSegmentsAreMetered(t *testing.T) {
	q := &dataplane.Queue{Config: queue.Config{Rate: frametest.Mega, Time: time.Second}}
	policy := &dataplane.Policy{Classes: []dataplane.Class{{
		Name: "a",
		Meter: &dataplane.Meter{
			Params:  meter.TokenBucket{Rate: meter.Rate{Bytes: 1, Period: time.Second}, Burst: 3},
			Packets: true,
		},
		Green: &dataplane.Action{Queue: q},
	}}}
	l, sum := newPipeline(t, policy), newTally(policy)
	for i, want := range []string{
		"a green>green queue@0 token-bucket-green", "a green>red drop token-bucket-red",
	} {
		v := verdictOf(l, &dataplane.Packet{
			Data: ipPacket(0, 40), WireLen: 1514 + 514, Link: dataplane.LinkEthernet, Segments: 2,
			Segment: 1514,
		})
		if got := verdict(policy, v); got != want {
			t.Errorf("packet %d: got %s, want %s", i, got, want)
		}
		sum.addVerdict(v)
	}
	v, _ := process(l, 0, ipPacket(0, 40)) // takes the third token; departs after 2000 bytes
	if got := verdict(policy, v); got != "a green>green queue@2000000 token-bucket-green" {
		t.Errorf("third packet: got %q, want green in the queue", got)
	}
	sum.addVerdict(v)
	sum.check(t, l)
	if got := l.Stats()[0].Colors; got != [3]dataplane.Count{
		meter.Green: {Packets: 3, Bytes: 2040}, meter.Red: {Packets: 2, Bytes: 2000},
	} {
		t.Errorf("counters %v, want 3 green and 2 red packets", got)
	}
}
