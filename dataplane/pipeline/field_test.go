package pipeline

import (
	"bytes"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
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
		return frametest.Concat(frametest.Ethernet(frametest.EtherQinQ),
			frametest.Tag(pcp, dei, 1, frametest.EtherVLAN), frametest.Tag(7, 1-dei, 2, frametest.EtherIPv4),
			ipPacket(14, 20)[14:])
	}
	labeled := frametest.Concat(frametest.Ethernet(frametest.EtherMPLS), frametest.MplsLabel(1, 5, 0),
		frametest.MplsLabel(2, 3, 1), ipPacket(14, 20)[14:])
	for _, test := range []struct {
		name  string
		from  dataplane.PreColor
		frame []byte
		mark  uint32
		want  meter.Color
	}{
		{"AF11", dataplane.PreColor{}, ipPacket(10, 20), 0, green},
		{"AF12", dataplane.PreColor{}, ipPacket(12, 20), 0, yellow},
		{"AF13", dataplane.PreColor{}, ipPacket(14, 20), 0, red},
		{"AF43 in IPv6", dataplane.PreColor{}, frametest.Concat(frametest.Ethernet(frametest.EtherIPv6), frametest.V6{Class: 38<<2 | 3}.Packet()), 0, red},
		{"EF", dataplane.PreColor{}, ipPacket(46, 20), 0, green},
		{"default", dataplane.PreColor{}, ipPacket(0, 20), 0, green},
		{"CS1", dataplane.PreColor{}, ipPacket(8, 20), 0, green},
		{"no IP", dataplane.PreColor{Map: colors(0, red)}, arp, 0, green},
		{"malformed", dataplane.PreColor{Map: colors(0, red)}, ipPacket(0, 20)[:33], 0, green},
		{"own map", dataplane.PreColor{Map: colors(0, yellow, 63, red)}, ipPacket(0, 20), 0, yellow},
		{"own map, last value", dataplane.PreColor{Map: colors(0, yellow, 63, red)}, ipPacket(63, 20), 0, red},
		{"own map, missing value", dataplane.PreColor{Map: colors(0, yellow, 63, red)}, ipPacket(14, 20), 0, green},
		{"empty map", dataplane.PreColor{Map: colors()}, ipPacket(14, 20), 0, green},
		{"PCP", dataplane.PreColor{From: dataplane.PCP, Map: colors(1, yellow, 7, red)}, tagged(1, 0), 0, yellow},
		{"PCP, missing value", dataplane.PreColor{From: dataplane.PCP, Map: colors(1, yellow, 7, red)}, tagged(2, 0), 0, green},
		{"PCP, default", dataplane.PreColor{From: dataplane.PCP}, tagged(1, 0), 0, green},
		{"PCP, no tag", dataplane.PreColor{From: dataplane.PCP, Map: colors(0, red)}, ipPacket(14, 20), 0, green},
		{"DEI, default", dataplane.PreColor{From: dataplane.DEI}, tagged(0, 1), 0, yellow},
		{"DEI 0, default", dataplane.PreColor{From: dataplane.DEI}, tagged(7, 0), 0, green},
		{"DEI, own map", dataplane.PreColor{From: dataplane.DEI, Map: colors(0, red)}, tagged(0, 0), 0, red},
		{"DEI, no tag", dataplane.PreColor{From: dataplane.DEI, Map: colors(0, red)}, ipPacket(14, 20), 0, green},
		{"MPLS, top label", dataplane.PreColor{From: dataplane.MPLSTC, Map: colors(5, yellow, 3, red)}, labeled, 0, yellow},
		{"MPLS, default", dataplane.PreColor{From: dataplane.MPLSTC}, labeled, 0, green},
		{"MPLS, no label", dataplane.PreColor{From: dataplane.MPLSTC, Map: colors(0, red)}, ipPacket(14, 20), 0, green},
		{"mark", dataplane.PreColor{From: dataplane.SKBMark, Map: colors(7, yellow, 64, red, uint32(1<<32-1), yellow)}, arp, 7, yellow},
		{"mark 64", dataplane.PreColor{From: dataplane.SKBMark, Map: colors(7, yellow, 64, red, uint32(1<<32-1), yellow)}, arp, 64, red},
		{"largest mark", dataplane.PreColor{From: dataplane.SKBMark, Map: colors(7, yellow, 64, red, uint32(1<<32-1), yellow)}, arp, 1<<32 - 1, yellow},
		{"mark, missing value", dataplane.PreColor{From: dataplane.SKBMark, Map: colors(7, yellow, 64, red)}, arp, 65, green},
		{"mark, default", dataplane.PreColor{From: dataplane.SKBMark}, ipPacket(14, 20), 65, green},
	} {
		for _, aware := range []bool{true, false} {
			l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{
				Name: "a", Match: dataplane.Match{Length: []dataplane.Range{{First: 0, Last: 1500}}},
				Meter: &dataplane.Meter{
					Params: meter.TRTCM{CIR: frametest.Mega, CBS: 1500, PIR: frametest.Mega, PBS: 1500},
					Aware:  aware, PreColor: test.from,
				},
			}}})
			want := green
			if aware {
				want = test.want
			}
			v := verdictOf(l,
				&dataplane.Packet{Data: test.frame, Link: dataplane.LinkEthernet, Mark: test.mark})
			if v.Pre != want || v.Color != want {
				t.Errorf("%s, aware %v: input color %v, color %v, want %v", test.name, aware, v.Pre, v.Color,
					want)
			}
		}
	}
}

// TestMarks compares all bytes of the marked frame with a frame that was built with the
// mark.
func TestMarks(t *testing.T) {
	payload := frametest.PadTo(frametest.UDP, 80)
	plain := func(tos byte) []byte {
		return frametest.Concat(frametest.Ethernet(frametest.EtherIPv4),
			frametest.V4{Tos: tos, Options: 8}.Packet(payload))
	}
	six := func(class byte) []byte {
		return frametest.Concat(frametest.Ethernet(frametest.EtherIPv6),
			frametest.V6{Class: class, Next: frametest.ProtoUDP}.Packet(payload))
	}
	deep := func(pcp, dei uint16, tc uint32, tos byte) []byte {
		return frametest.Concat(frametest.Ethernet(frametest.EtherQinQ),
			frametest.Tag(pcp, dei, 0xabc, frametest.EtherVLAN), frametest.Tag(2, 0, 2, frametest.EtherMPLS),
			frametest.MplsLabel(0xfffff, tc, 0), frametest.MplsLabel(2, 2, 1),
			frametest.V4{Tos: tos}.Packet(payload))
	}
	dscp, tagged, labeled := []dataplane.Mark{{Field: dataplane.DSCP, Value: 46}},
		[]dataplane.Mark{{Field: dataplane.PCP, Value: 5}, {Field: dataplane.DEI, Value: 1}},
		[]dataplane.Mark{{Field: dataplane.MPLSTC, Value: 6}}
	for _, test := range []struct {
		name   string
		action dataplane.Action
		frame  []byte
		want   []byte
		done   dataplane.Done
		dscp   int // on departure, -1 without IP
		mark   uint32
	}{
		{"DSCP of IPv4 keeps ECN", dataplane.Action{Marks: dscp}, plain(0x2b), plain(46<<2 | 3), dataplane.Marked, 46, 0},
		{"DSCP of IPv6 keeps ECN and flow label", dataplane.Action{Marks: dscp}, six(0x2a), six(46<<2 | 2), dataplane.Marked, 46, 0},
		{"the same DSCP counts as a mark", dataplane.Action{Marks: dscp}, plain(46 << 2), plain(46 << 2), dataplane.Marked, 46, 0},
		{"DSCP 0", dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 0}}}, plain(0xff), plain(3), dataplane.Marked, 0, 0},
		{"DSCP, no IP", dataplane.Action{Marks: dscp}, arp, arp, dataplane.Pass, -1, 0},
		{"DSCP, malformed", dataplane.Action{Marks: dscp}, plain(0)[:40], plain(0)[:40], dataplane.Pass, -1, 0},
		{"PCP and DEI", dataplane.Action{Marks: tagged}, deep(2, 0, 1, 8), deep(5, 1, 1, 8), dataplane.Marked, 2, 0},
		{"PCP alone", dataplane.Action{Marks: tagged[:1]}, deep(2, 0, 1, 8), deep(5, 0, 1, 8), dataplane.Marked, 2, 0},
		{"DEI cleared", dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DEI, Value: 0}}}, deep(7, 1, 1, 8), deep(7, 0, 1, 8), dataplane.Marked, 2, 0},
		{"PCP and DEI, no tag", dataplane.Action{Marks: tagged}, plain(8), plain(8), dataplane.Pass, 2, 0},
		{"MPLS, the top label", dataplane.Action{Marks: labeled}, deep(2, 0, 1, 8), deep(2, 0, 6, 8), dataplane.Marked, 2, 0},
		{"MPLS, no label", dataplane.Action{Marks: labeled}, plain(8), plain(8), dataplane.Pass, 2, 0},
		{"skb mark", dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.SKBMark, Value: 1<<32 - 1}}}, arp, arp, dataplane.Marked, -1, 1<<32 - 1},
		{"all fields", dataplane.Action{ECN: dataplane.CE, Marks: []dataplane.Mark{{Field: dataplane.SKBMark, Value: 7}, {Field: dataplane.MPLSTC, Value: 6}, {Field: dataplane.DEI, Value: 1}, {Field: dataplane.PCP, Value: 5}, {Field: dataplane.DSCP, Value: 46}}}, deep(2, 0, 1, 9), deep(5, 1, 6, 46<<2|3), dataplane.Marked | dataplane.ECNSet, 46, 7},
		{"fields that the packet does not have", dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.MPLSTC, Value: 6}, {Field: dataplane.DSCP, Value: 46}, {Field: dataplane.PCP, Value: 5}}}, plain(8), plain(46 << 2), dataplane.Marked, 46, 0},
		{"ECT(0)", dataplane.Action{ECN: dataplane.CE}, plain(46<<2 | 2), plain(46<<2 | 3), dataplane.ECNSet, 46, 0},
		{"ECT(1)", dataplane.Action{ECN: dataplane.CE}, six(46<<2 | 1), six(46<<2 | 3), dataplane.ECNSet, 46, 0},
		{"CE", dataplane.Action{ECN: dataplane.CEOrDrop}, plain(46<<2 | 3), plain(46<<2 | 3), dataplane.ECNSet, 46, 0},
		{"not ECN-capable", dataplane.Action{ECN: dataplane.CE}, plain(46 << 2), plain(46 << 2), dataplane.Pass, 46, 0},
		{"not ECN-capable or dropped", dataplane.Action{ECN: dataplane.CEOrDrop}, six(46 << 2), six(46 << 2), 0, 46, 0},
		{"ECN, no IP", dataplane.Action{ECN: dataplane.CE}, arp, arp, dataplane.Pass, -1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newPipeline(t, &dataplane.Policy{Classes: []dataplane.Class{{
				Name: "a", Match: dataplane.Match{Length: []dataplane.Range{{First: 0, Last: 1500}}},
				Green: &test.action,
			}}})
			p := dataplane.Packet{Data: bytes.Clone(test.frame), Link: dataplane.LinkEthernet}
			v := verdictOf(l, &p)
			if !bytes.Equal(p.Data, test.want) {
				t.Errorf("got  % x\nwant % x", p.Data, test.want)
			}
			done := test.done
			if !done.Dropped() {
				done |= dataplane.Pass
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
