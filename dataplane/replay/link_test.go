package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// sharedLink has two queues on a link of one byte per microsecond: EF is sent
// first, AF12 bypasses the link, and all other packets are dropped by CoDel
// after 1 ms above a target of 1 ms.
func sharedLink(t testing.TB) Go {
	t.Helper()
	link := &dataplane.Link{Name: "wan", Rate: byteRate}
	to := func(priority int, cfg queue.Config) *dataplane.Action {
		return &dataplane.Action{Queue: &dataplane.Queue{Config: cfg, Link: link, Priority: priority}}
	}
	dscp := func(v uint64) dataplane.Match {
		return dataplane.Match{DSCP: []dataplane.Range{{First: v, Last: v}}}
	}
	return newPipeline(
		t,
		dataplane.Class{Name: "ef", Match: dscp(ef), Green: to(0, queue.Config{Packets: 100})},
		dataplane.Class{Name: "af12", Match: dscp(af12)},
		dataplane.Class{Name: "rest", Green: to(1, queue.Config{
			Packets: 100, ECN: true, CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Millisecond},
		})},
	)
}

// TestLinkOrder checks the order (departure, number) for packets of a link,
// whose departures are decided late.
func TestLinkOrder(t *testing.T) {
	for _, test := range []struct {
		name  string
		in    []arrival
		order []uint16
		at    []int64 // µs
	}{
		{"an idle link", []arrival{{0, 100, 0}, {100, 100, ef}, {300, 100, 0}}, []uint16{1, 2, 3}, []int64{0, 100, 300}},
		{"by priority", []arrival{{0, 100, 0}, {0, 100, 0}, {0, 100, 0}, {50, 100, ef}, {60, 100, ef}}, []uint16{1, 4, 5, 2, 3}, []int64{0, 100, 200, 300, 400}},
		{"packets overtake queued ones", []arrival{{0, 100, 0}, {10, 100, 0}, {20, 50, af12}, {150, 50, af12}}, []uint16{1, 3, 2, 4}, []int64{0, 20, 100, 150}},
		{"a tie goes to the smaller number", []arrival{{0, 100, 0}, {0, 100, 0}, {100, 50, af12}, {100, 50, ef}}, []uint16{1, 2, 3, 4}, []int64{0, 100, 100, 200}},
		{"a tie with a packet later in the file", []arrival{{0, 50, af12}, {0, 100, 0}, {0, 50, af12}}, []uint16{1, 2, 3}, []int64{0, 0, 0}},
		{"a timestamp that goes back is kept; the order follows the clock", []arrival{{0, 100, 0}, {50, 100, 0}, {120, 50, af12}, {30, 50, af12}}, []uint16{1, 2, 3, 4}, []int64{0, 100, 120, 30}},
		{"a queued packet whose timestamp goes back departs by the clock", []arrival{{100, 100, 0}, {40, 100, 0}, {150, 50, af12}}, []uint16{1, 3, 2}, []int64{100, 150, 200}},
	} {
		t.Run(test.name, func(t *testing.T) {
			checkDepartures(t, sharedLink(t), test.in, test.order, test.at)
		})
	}
}

// TestLinkDropsAndMarks checks that packets dropped by CoDel at departure are
// missing, and that marked ones have CE and a correct checksum.
func TestLinkDropsAndMarks(t *testing.T) {
	kilo := func(ecn byte, id uint16) []byte { return ethernetFrame(tos(1000, 20<<2|ecn, id)) }
	want := [][]byte{kilo(2, 1), kilo(1, 2), kilo(3, 3), kilo(0, 5), kilo(0, 6), kilo(0, 8), kilo(0, 9)}
	// 4 would depart at 3 ms: drops are at 2, 3, 3.7 ms and so on
	at := []int64{0, 1e6, 2e6, 3e6, 4e6, 5e6, 6e6}
	for name, c := range map[string]*capture{
		"pcap": littleEndian().pcap(magicNano, ethernet), "pcapng": bigEndian().section(),
	} {
		t.Run(name, func(t *testing.T) {
			add := func(data []byte) { c.packet(0, 0, data) }
			if name == "pcapng" {
				c.iface(ethernet, 0, c.resolution(9))
				add = func(data []byte) { c.enhanced(0, 0, data) }
			}
			add(kilo(2, 1)) // no delay
			add(kilo(1, 2)) // delayed by the target
			add(kilo(2, 3)) // delayed for an interval: marked
			add(kilo(0, 4)) // not ECN-capable: dropped
			add(kilo(0, 5)) // departs instead
			add(kilo(0, 7)) // at 4 ms: dropped
			add(kilo(0, 6))
			add(kilo(0, 8)) // spared: one frame is queued behind it
			add(kilo(0, 9))
			in := bytes.Clone(c.bytes)
			out, _ := mustReplay(t, c.bytes, sharedLink(t))
			got := readBack(t, out)
			if len(got) != len(want) {
				t.Fatalf("packets %v sent, want %d", idsOf(got), len(want))
			}
			for i, p := range got {
				if p.at != at[i] || !bytes.Equal(p.data, want[i]) {
					t.Errorf("packet %d at %d:\n% x, want at %d\n% x", p.id(), p.at, p.data[:40], at[i],
						want[i][:40])
				}
			}
			if !bytes.Equal(c.bytes, in) {
				t.Error("the input was changed")
			}
		})
	}
}

// events lists the calls of Each and Settled in order.
func events(t *testing.T, in []byte, p Go, cfg Config) (list []string, err error) {
	t.Helper()
	cfg.Each = func(p *dataplane.Packet, v *dataplane.Verdict) error {
		if p.ID != v.ID {
			t.Errorf("packet %d got the verdict of packet %d", p.ID, v.ID)
		}
		if v.Done&dataplane.Waiting != 0 {
			list = append(list, fmt.Sprintf("%d queued", v.ID))
		} else {
			list = append(list, fmt.Sprintf("%d %v at %d", v.ID, v.Reason, v.Departure/1000))
		}
		return nil
	}
	cfg.Settled = func(v *dataplane.Verdict) error {
		list = append(list,
			fmt.Sprintf("%d %v sent %v at %d", v.ID, v.Reason, !v.Done.Dropped(), v.Departure/1000))
		return nil
	}
	_, err = Run(t.Context(), bytes.NewReader(in), p, cfg)
	return list, err
}

// TestLinkSections checks that queued packets are written and settled before
// their section ends, with or without an output.
func TestLinkSections(t *testing.T) {
	one := littleEndian().section()
	one.iface(ethernet, 0)
	one.enhanced(0, 5, ethernetFrame(ipv4(1000, 0,
		1))).enhanced(0, 5, ethernetFrame(ipv4(500, 0, 2))).enhanced(0, 5, ethernetFrame(ipv4(100, ef, 3)))
	one.block(5, one.body(0, 0, 0).bytes) // not a new section
	one.enhanced(0, 6, ethernetFrame(ipv4(100, ef, 4)))
	two := bigEndian().section()
	two.iface(ethernet, 0).enhanced(0, 7, ethernetFrame(ipv4(100, ef, 5))) // queued until the link is free
	two.enhanced(0, 1700,
		ethernetFrame(ipv4(60, af12, 6))).enhanced(0, 1705, ethernetFrame(ipv4(60, af12, 7)))
	in := slices.Concat(one.bytes, two.bytes)

	want := []string{
		"1 queued", "1 no-meter sent true at 5",
		"2 queued", "3 queued", "4 queued",
		"3 no-meter sent true at 1005",
		"4 no-meter sent true at 1105",
		"2 no-meter sent true at 1205",
		"5 queued",
		"6 no-meter at 1700",
		"7 no-meter at 1705", "5 no-meter sent true at 1705",
	}
	var out bytes.Buffer
	for name, cfg := range map[string]Config{"with an output": {Output: &out}, "without": {}} {
		if got, err := events(t, in, sharedLink(t), cfg); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: events %q, want %q: %v", name, got, want, err)
		}
	}
	if got := blockKinds(t, out.Bytes()); !slices.Equal(got,
		[]uint32{blockSection, 1, 6, 5, 6, 6, 6, blockSection, 1, 6, 6, 6}) {
		t.Errorf("got blocks %#x, want the packets of each section in that section", got)
	}
	if got := idsOf(readBack(t, out.Bytes())); !slices.Equal(got, []uint16{1, 3, 4, 2, 6, 5, 7}) {
		t.Errorf("got order %v, want 1 3 4 2 6 5 7", got)
	}
}

// TestLinkIsQueue checks that a link with one queue is equivalent to a queue of
// that rate. CoDel is excluded: on a link it knows the backlog behind a packet.
func TestLinkIsQueue(t *testing.T) {
	captures := map[string][]byte{}
	for name, c := range smallCaptures() {
		captures[name] = c.bytes
	}
	for _, name := range []string{
		"bursts.pcap", "voice-bulk.pcapng", "cooked.pcapng", "back.pcap", "big-endian.pcapng.gz",
	} {
		captures[name] = readCapture(t, filepath.Join(ownPcaps, name))
	}
	thin := 0
	for name, in := range captures {
		for _, early := range []queue.Early{{}, {Min: 1, Max: 40, Probability: queue.Certain / 2}} {
			type outcome struct {
				out      []byte
				verdicts map[int64]dataplane.Verdict
			}
			replayed := func(q *dataplane.Queue) outcome {
				q.Packets, q.ECN, q.WRED = queue.MaxPackets, true, [3]queue.Early{early}
				o := outcome{verdicts: map[int64]dataplane.Verdict{}}
				var out bytes.Buffer
				keep := func(v *dataplane.Verdict) error {
					o.verdicts[v.ID] = *v
					return nil
				}
				p := newPipeline(t, dataplane.Class{Name: "all", Green: &dataplane.Action{
					Queue: q, Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: af12}},
				}})
				if _, err := Run(t.Context(), bytes.NewReader(in), p, Config{
					Output: &out, Settled: keep,
					Each: func(_ *dataplane.Packet, v *dataplane.Verdict) error { return keep(v) },
				}); err != nil {
					t.Fatal(err)
				}
				o.out = out.Bytes()
				return o
			}
			rate := meter.BitRate(7e6)
			alone := replayed(&dataplane.Queue{Config: queue.Config{Rate: rate}})
			shared := replayed(&dataplane.Queue{Link: &dataplane.Link{Rate: rate}})
			for id, v := range alone.verdicts {
				if v != shared.verdicts[id] {
					t.Errorf("%s: got %+v for a queue, but %+v for a link", name, v, shared.verdicts[id])
					break
				}
				if v.Reason == dataplane.WRED {
					thin++
				}
			}
			same := func(a, b packet) bool {
				return a.at == b.at && a.wire == b.wire && bytes.Equal(a.data, b.data)
			}
			if a, b := readBack(t, alone.out), readBack(t, shared.out); !slices.EqualFunc(a, b, same) {
				t.Errorf("%s, WRED %v: output differs: got %d packets from a queue, %d from a link", name,
					early, len(a), len(b))
			}
		}
	}
	if thin == 0 {
		t.Error("WRED dropped no packet: the test lost its purpose")
	}
}

// queuedCapture has packets that are all queued behind the first.
func queuedCapture() *capture {
	c := littleEndian().pcap(magicMicro, ethernet)
	for id := range uint16(5) {
		c.packet(1, 0, ethernetFrame(ipv4(100, ef, id)))
	}
	return c
}

// TestLinkAtTheEnd checks that queued packets are written, however a run ends.
func TestLinkAtTheEnd(t *testing.T) {
	whole := queuedCapture().bytes
	all := []uint16{0, 1, 2, 3, 4}
	for _, test := range []struct {
		name string
		in   []byte
		each func(id int64) error
		want []uint16
		err  error
	}{
		{"a whole capture", whole, nil, all, nil},
		{"a broken capture", append(bytes.Clone(whole), 1, 2, 3), nil, all, &BrokenError{}},
		{"a capture that ends within a packet", whole[:len(whole)-1], nil, all[:4], &BrokenError{}},
		{"Each fails", whole, func(id int64) error {
			if id == 4 {
				return errDisk
			}
			return nil
		}, all[:3], errDisk}, // the packet for which Each fails is not queued
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			var settled int
			_, err := Run(t.Context(), bytes.NewReader(test.in), sharedLink(t), Config{
				Output: &out,
				Each: func(p *dataplane.Packet, _ *dataplane.Verdict) error {
					if test.each != nil {
						return test.each(p.ID)
					}
					return nil
				},
				Settled: func(*dataplane.Verdict) error {
					settled++
					return nil
				},
			})
			if fmt.Sprintf("%T", err) != fmt.Sprintf("%T", test.err) {
				t.Errorf("got %v, want %v", err, test.err)
			}
			got := readBack(t, out.Bytes())
			if !slices.Equal(idsOf(got), test.want) {
				t.Errorf("packets %v, want %v", idsOf(got), test.want)
			}
			for i, p := range got {
				if want := 1e9 + int64(i)*1e5; p.at != want {
					t.Errorf("packet %d departs at %d, want %d", i, p.at, want)
				}
			}
			if settled < len(test.want) {
				t.Errorf("%d packets were settled, want %d", settled, len(test.want))
			}
		})
	}
}

// TestLinkCancelled cancels a run while packets are queued: they must be
// written.
func TestLinkCancelled(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	q := &dataplane.Queue{
		Config: queue.Config{Packets: queue.MaxPackets}, Link: &dataplane.Link{Rate: meter.BitRate(4e6)},
	}
	var out bytes.Buffer
	queued := int64(0)
	s, err := Run(ctx, newEndless(100), newPipeline(t,
		dataplane.Class{Name: "all", Green: &dataplane.Action{Queue: q}}), Config{
		Output: &out,
		Each: func(p *dataplane.Packet, _ *dataplane.Verdict) error {
			queued++
			if p.ID == 3000 {
				cancel(cause)
			}
			return nil
		},
		Settled: func(*dataplane.Verdict) error {
			queued--
			return nil
		},
	})
	if err != cause || queued != 0 {
		t.Errorf("got %v with %d packets queued after %d, want the cause and none", err, queued, s.Packets)
	}
	got := readBack(t, out.Bytes())
	if int64(len(got)) != s.Packets {
		t.Errorf("got %d packets in the output, want %d", len(got), s.Packets)
	}
	for i, p := range got {
		if want := int64(i) * 200e3; p.at != want {
			t.Fatalf("packet %d departs at %d, want %d", i+1, p.at, want)
		}
	}
}

// TestSettledFails checks that Run returns an error of Settled unchanged, with
// a valid output, whichever packet it is for.
func TestSettledFails(t *testing.T) {
	for fail := range int64(6) {
		in := queuedCapture()
		in.packet(1, 250, ethernetFrame(ipv4(40, af12, 5))) // two or three packets have departed by then
		var out bytes.Buffer
		s, err := Run(t.Context(), bytes.NewReader(in.bytes), sharedLink(t), Config{
			Output: &out,
			Settled: func(v *dataplane.Verdict) error {
				if v.ID == fail {
					return errDisk
				}
				return nil
			},
		})
		if (err == nil) != (fail == 0) || err != nil && err != errDisk {
			t.Errorf("failure at packet %d: got %v after %d packets", fail, err, s.Packets)
		}
		if got := idsOf(readBack(t, out.Bytes())); slices.Contains(got, uint16(fail-1)) {
			t.Errorf("failure at packet %d: got it among %v", fail, got)
		}
	}
}

// TestLinkByteOrders queues packets in a link until the section ends. Their timestamps are
// written in the byte order of their own section, not in that of the next one.
func TestLinkByteOrders(t *testing.T) {
	first, second := littleEndian(), bigEndian()
	for _, c := range []*capture{first, second} {
		c.section().iface(ethernet, 0)
		for id := range uint16(3) {
			c.enhanced(0, 5_000_000, ethernetFrame(ipv4(1000, 0, id)))
		}
	}
	out, _ := mustReplay(t, append(first.bytes, second.bytes...), linked(t))
	var at []int64
	for _, p := range readBack(t, out) {
		at = append(at, p.at)
	}
	want := []int64{5e9, 5e9 + 1e6, 5e9 + 2e6, 5e9 + 3e6, 5e9 + 4e6, 5e9 + 5e6}
	if !slices.Equal(at, want) {
		t.Errorf("got timestamps %d, want %d", at, want)
	}
}
