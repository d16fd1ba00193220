package dataplane

import (
	"bytes"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

func TestPreColor(t *testing.T) {
	const green, yellow, red = meter.Green, meter.Yellow, meter.Red
	colors := func(pairs ...any) map[uint32]meter.Color {
		m := map[uint32]meter.Color{}
		for i := 0; i < len(pairs); i += 2 {
			value, ok := pairs[i].(uint32)
			if !ok {
				value = uint32(pairs[i].(int))
			}
			m[value] = pairs[i+1].(meter.Color)
		}
		return m
	}
	tagged := func(pcp, dei uint16) []byte {
		return concat(ethernet(etherQinQ), tag(pcp, dei, 1, etherVLAN), tag(7, 1-dei, 2, etherIPv4), ipPacket(14, 20)[14:])
	}
	labeled := concat(ethernet(etherMPLS), mplsLabel(1, 5, 0), mplsLabel(2, 3, 1), ipPacket(14, 20)[14:])
	for _, test := range []struct {
		name  string
		from  PreColor
		frame []byte
		mark  uint32
		want  meter.Color
	}{
		{"AF11", PreColor{}, ipPacket(10, 20), 0, green},
		{"AF12", PreColor{}, ipPacket(12, 20), 0, yellow},
		{"AF13", PreColor{}, ipPacket(14, 20), 0, red},
		{"AF43 in IPv6", PreColor{}, concat(ethernet(etherIPv6), v6{class: 38<<2 | 3}.packet()), 0, red},
		{"EF", PreColor{}, ipPacket(46, 20), 0, green},
		{"default", PreColor{}, ipPacket(0, 20), 0, green},
		{"CS1", PreColor{}, ipPacket(8, 20), 0, green},
		{"no IP", PreColor{Map: colors(0, red)}, arp, 0, green},
		{"malformed", PreColor{Map: colors(0, red)}, ipPacket(0, 20)[:33], 0, green},
		{"own map", PreColor{Map: colors(0, yellow, 63, red)}, ipPacket(0, 20), 0, yellow},
		{"own map, last value", PreColor{Map: colors(0, yellow, 63, red)}, ipPacket(63, 20), 0, red},
		{"own map, missing value", PreColor{Map: colors(0, yellow, 63, red)}, ipPacket(14, 20), 0, green},
		{"empty map", PreColor{Map: colors()}, ipPacket(14, 20), 0, green},
		{"PCP", PreColor{From: PCP, Map: colors(1, yellow, 7, red)}, tagged(1, 0), 0, yellow},
		{"PCP, missing value", PreColor{From: PCP, Map: colors(1, yellow, 7, red)}, tagged(2, 0), 0, green},
		{"PCP, default", PreColor{From: PCP}, tagged(1, 0), 0, green},
		{"PCP, no tag", PreColor{From: PCP, Map: colors(0, red)}, ipPacket(14, 20), 0, green},
		{"DEI, default", PreColor{From: DEI}, tagged(0, 1), 0, yellow},
		{"DEI 0, default", PreColor{From: DEI}, tagged(7, 0), 0, green},
		{"DEI, own map", PreColor{From: DEI, Map: colors(0, red)}, tagged(0, 0), 0, red},
		{"DEI, no tag", PreColor{From: DEI, Map: colors(0, red)}, ipPacket(14, 20), 0, green},
		{"MPLS, top label", PreColor{From: MPLSTC, Map: colors(5, yellow, 3, red)}, labeled, 0, yellow},
		{"MPLS, default", PreColor{From: MPLSTC}, labeled, 0, green},
		{"MPLS, no label", PreColor{From: MPLSTC, Map: colors(0, red)}, ipPacket(14, 20), 0, green},
		{"mark", PreColor{From: SKBMark, Map: colors(7, yellow, 64, red, uint32(1<<32-1), yellow)}, arp, 7, yellow},
		{"mark 64", PreColor{From: SKBMark, Map: colors(7, yellow, 64, red, uint32(1<<32-1), yellow)}, arp, 64, red},
		{"largest mark", PreColor{From: SKBMark, Map: colors(7, yellow, 64, red, uint32(1<<32-1), yellow)}, arp, 1<<32 - 1, yellow},
		{"mark, missing value", PreColor{From: SKBMark, Map: colors(7, yellow, 64, red)}, arp, 65, green},
		{"mark, default", PreColor{From: SKBMark}, ipPacket(14, 20), 65, green},
	} {
		for _, aware := range []bool{true, false} {
			l := newPipeline(t, &Policy{Classes: []Class{{
				Name: "a", Match: Match{Length: []Range{{0, 1500}}},
				Meter: &Meter{Params: meter.TRTCM{CIR: mega, CBS: 1500, PIR: mega, PBS: 1500}, Aware: aware, PreColor: test.from},
			}}})
			want := green
			if aware {
				want = test.want
			}
			v := verdictOf(l, &Packet{Data: test.frame, Link: LinkEthernet, Mark: test.mark})
			if v.Pre != want || v.Color != want {
				t.Errorf("%s, aware %v: input color %v, color %v, want %v", test.name, aware, v.Pre, v.Color, want)
			}
		}
	}
}

// TestMarks compares all bytes of the marked frame with a frame that was built with the
// mark.
func TestMarks(t *testing.T) {
	payload := padTo(udp, 80)
	plain := func(tos byte) []byte { return concat(ethernet(etherIPv4), v4{tos: tos, options: 8}.packet(payload)) }
	six := func(class byte) []byte {
		return concat(ethernet(etherIPv6), v6{class: class, next: protoUDP}.packet(payload))
	}
	deep := func(pcp, dei uint16, tc uint32, tos byte) []byte {
		return concat(ethernet(etherQinQ), tag(pcp, dei, 0xabc, etherVLAN), tag(2, 0, 2, etherMPLS), mplsLabel(0xfffff, tc, 0), mplsLabel(2, 2, 1), v4{tos: tos}.packet(payload))
	}
	dscp, tagged, labeled := []Mark{{DSCP, 46}}, []Mark{{PCP, 5}, {DEI, 1}}, []Mark{{MPLSTC, 6}}
	for _, test := range []struct {
		name   string
		action Action
		frame  []byte
		want   []byte
		done   Done
		dscp   int // on departure, -1 without IP
		mark   uint32
	}{
		{"DSCP of IPv4 keeps ECN", Action{Marks: dscp}, plain(0x2b), plain(46<<2 | 3), Marked, 46, 0},
		{"DSCP of IPv6 keeps ECN and flow label", Action{Marks: dscp}, six(0x2a), six(46<<2 | 2), Marked, 46, 0},
		{"the same DSCP counts as a mark", Action{Marks: dscp}, plain(46 << 2), plain(46 << 2), Marked, 46, 0},
		{"DSCP 0", Action{Marks: []Mark{{DSCP, 0}}}, plain(0xff), plain(3), Marked, 0, 0},
		{"DSCP, no IP", Action{Marks: dscp}, arp, arp, Pass, -1, 0},
		{"DSCP, malformed", Action{Marks: dscp}, plain(0)[:40], plain(0)[:40], Pass, -1, 0},
		{"PCP and DEI", Action{Marks: tagged}, deep(2, 0, 1, 8), deep(5, 1, 1, 8), Marked, 2, 0},
		{"PCP alone", Action{Marks: tagged[:1]}, deep(2, 0, 1, 8), deep(5, 0, 1, 8), Marked, 2, 0},
		{"DEI cleared", Action{Marks: []Mark{{DEI, 0}}}, deep(7, 1, 1, 8), deep(7, 0, 1, 8), Marked, 2, 0},
		{"PCP and DEI, no tag", Action{Marks: tagged}, plain(8), plain(8), Pass, 2, 0},
		{"MPLS, the top label", Action{Marks: labeled}, deep(2, 0, 1, 8), deep(2, 0, 6, 8), Marked, 2, 0},
		{"MPLS, no label", Action{Marks: labeled}, plain(8), plain(8), Pass, 2, 0},
		{"skb mark", Action{Marks: []Mark{{SKBMark, 1<<32 - 1}}}, arp, arp, Marked, -1, 1<<32 - 1},
		{"all fields", Action{ECN: CE, Marks: []Mark{{SKBMark, 7}, {MPLSTC, 6}, {DEI, 1}, {PCP, 5}, {DSCP, 46}}}, deep(2, 0, 1, 9), deep(5, 1, 6, 46<<2|3), Marked | ECNSet, 46, 7},
		{"fields that the packet does not have", Action{Marks: []Mark{{MPLSTC, 6}, {DSCP, 46}, {PCP, 5}}}, plain(8), plain(46 << 2), Marked, 46, 0},
		{"ECT(0)", Action{ECN: CE}, plain(46<<2 | 2), plain(46<<2 | 3), ECNSet, 46, 0},
		{"ECT(1)", Action{ECN: CE}, six(46<<2 | 1), six(46<<2 | 3), ECNSet, 46, 0},
		{"CE", Action{ECN: CEOrDrop}, plain(46<<2 | 3), plain(46<<2 | 3), ECNSet, 46, 0},
		{"not ECN-capable", Action{ECN: CE}, plain(46 << 2), plain(46 << 2), Pass, 46, 0},
		{"not ECN-capable or dropped", Action{ECN: CEOrDrop}, six(46 << 2), six(46 << 2), 0, 46, 0},
		{"ECN, no IP", Action{ECN: CE}, arp, arp, Pass, -1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newPipeline(t, &Policy{Classes: []Class{{Name: "a", Match: Match{Length: []Range{{0, 1500}}}, Green: &test.action}}})
			p := Packet{Data: bytes.Clone(test.frame), Link: LinkEthernet}
			v := verdictOf(l, &p)
			if !bytes.Equal(p.Data, test.want) {
				t.Errorf("got  % x\nwant % x", p.Data, test.want)
			}
			done := test.done
			if !done.Dropped() {
				done |= Pass
			}
			if v.Done != done || p.Mark != test.mark {
				t.Errorf("done %04b, want %04b; mark %d, want %d", v.Done, done, p.Mark, test.mark)
			}
			if v.HasDSCP != (test.dscp >= 0) || v.HasDSCP && int(v.DSCPOut) != test.dscp {
				t.Errorf("DSCP on departure %d (valid %v), want %d", v.DSCPOut, v.HasDSCP, test.dscp)
			}
		})
	}
}
