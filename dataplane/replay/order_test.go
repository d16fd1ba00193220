package replay

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// arrival is an arriving packet.
type arrival struct {
	at   uint32 // µs
	n    int
	dscp byte
}

// TestOrder checks the order (departure, number): packets of DSCP 0 are paced
// at one byte per microsecond, EF packets pass.
func TestOrder(t *testing.T) {
	for _, test := range []struct {
		name  string
		in    []arrival
		order []uint16
		at    []int64 // µs
	}{
		{"packets overtake queued ones", []arrival{{0, 100, 0}, {10, 100, 0}, {20, 50, ef}, {30, 100, 0}, {150, 50, ef}}, []uint16{1, 3, 2, 5, 4}, []int64{0, 20, 100, 150, 200}},
		{"a tie goes to the smaller number", []arrival{{0, 100, 0}, {0, 100, 0}, {100, 50, ef}, {100, 50, ef}}, []uint16{1, 2, 3, 4}, []int64{0, 100, 100, 100}},
		{"a tie with a packet later in the file", []arrival{{0, 50, ef}, {0, 100, 0}, {0, 50, ef}}, []uint16{1, 2, 3}, []int64{0, 0, 0}},
		{"packets queued at the end are written", []arrival{{0, 100, 0}, {1, 100, 0}, {2, 100, 0}, {3, 40, ef}}, []uint16{1, 4, 2, 3}, []int64{0, 3, 100, 200}},
		{"a timestamp that goes back is kept; the order follows the clock", []arrival{{0, 100, 0}, {50, 100, 0}, {120, 50, ef}, {30, 50, ef}}, []uint16{1, 2, 3, 4}, []int64{0, 100, 120, 30}},
		{"a queued packet whose timestamp goes back departs by the clock", []arrival{{100, 100, 0}, {40, 100, 0}, {150, 50, ef}}, []uint16{1, 3, 2}, []int64{100, 150, 200}},
	} {
		t.Run(test.name, func(t *testing.T) {
			checkDepartures(t, bulkQueued(t), test.in, test.order, test.at)
		})
	}
}

// slowQueue has a queue that delays the second of two packets of 40 bytes by 40*7/3
// ns.
func slowQueue(t *testing.T) Go {
	t.Helper()
	return newPipeline(t, dataplane.Class{Name: "all", Green: &dataplane.Action{Queue: &dataplane.Queue{
		Name: "q", Config: queue.Config{Rate: meter.Rate{Bytes: 3, Period: 7}, Packets: 10},
	}}})
}

// TestRoundedUp checks that a departure is rounded up to the resolution of the
// file. The exact departure is 93 1/3 ns after the first packet.
func TestRoundedUp(t *testing.T) {
	const second = 1_700_000_000
	first, next := ethernetFrame(ipv4(40, 0, 1)), ethernetFrame(ipv4(40, 0, 2))
	ng := func(options func(c *capture) [][]byte, units uint64) []byte {
		c := littleEndian().section()
		return c.iface(ethernet, 0, options(c)...).enhanced(0, units, first).enhanced(0, units, next).bytes
	}
	for _, test := range []struct {
		name string
		in   []byte
		at   int64 // ns
		want uint64
	}{
		{"pcap, ns", littleEndian().pcap(magicNano, ethernet).packet(1, 5, first).packet(1, 5, next).bytes, 1e9 + 5, 1e9 + 99},
		{"pcap, ns, over a second", bigEndian().pcap(magicNano, ethernet).packet(1, 999_999_950, first).packet(1, 999_999_950, next).bytes, 2e9 - 50, 2e9 + 44},
		{"pcap, µs", littleEndian().pcap(magicMicro, ethernet).packet(1, 5, first).packet(1, 5, next).bytes, 1e9 + 5000, 1e6 + 6},
		{"pcap, µs, over a second", bigEndian().pcap(magicMicro, ethernet).packet(1, 999_999, first).packet(1, 999_999, next).bytes, 2e9 - 1000, 2e6},
		{"pcapng, default µs", ng(func(*capture) [][]byte { return nil }, second*1e6), second * 1e9, second*1e6 + 1},
		{"pcapng, 10^-3", ng(func(c *capture) [][]byte { return [][]byte{c.resolution(3)} }, second*1e3), second * 1e9, second*1e3 + 1},
		{"pcapng, 10^-9", ng(func(c *capture) [][]byte { return [][]byte{c.resolution(9)} }, second*1e9), second * 1e9, second*1e9 + 94},
		{"pcapng, 10^-12", ng(func(c *capture) [][]byte { return [][]byte{c.resolution(12)} }, 1e12), 1e9, 1e12 + 94e3},
		{"pcapng, 10^0", ng(func(c *capture) [][]byte { return [][]byte{c.resolution(0)} }, second), second * 1e9, second + 1},
		{"pcapng, 2^-20", ng(func(c *capture) [][]byte { return [][]byte{c.resolution(0x80 | 20)} }, second<<20|1), second*1e9 + 953, second<<20 | 2},
		{"pcapng, 2^-30", ng(func(c *capture) [][]byte { return [][]byte{c.resolution(0x80 | 30)} }, second<<30), second * 1e9, second<<30 | 101},
		{"pcapng, if_tsoffset", ng(func(c *capture) [][]byte { return [][]byte{c.resolution(9), c.offset(second)} }, 5), second*1e9 + 5, 99},
		{"pcapng, negative if_tsoffset", ng(func(c *capture) [][]byte { return [][]byte{c.offset(-10)} }, 30e6), 20e9, 30e6 + 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			var at []int64
			var departures []int64
			var out bytes.Buffer
			_, err := Run(t.Context(), bytes.NewReader(test.in), slowQueue(t), Config{
				Output: &out,
				Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
					at, departures = append(at, p.Time), append(departures, v.Departure)
					return nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(at, []int64{test.at, test.at}) ||
				!slices.Equal(departures, []int64{test.at, test.at + 94}) {
				t.Fatalf("times %d, departures %d, want %d and 94 more", at, departures, test.at)
			}
			if got := lastStamp(out.Bytes()); got != test.want {
				t.Errorf("the timestamp is %d units, want %d", got, test.want)
			}
		})
	}
}

// lastStamp returns the timestamp of the last packet, which has 54 bytes, in
// the time units of its capture.
func lastStamp(raw []byte) uint64 {
	order := binary.ByteOrder(binary.LittleEndian)
	if bytes.HasPrefix(raw, []byte{0xa1}) {
		order = binary.BigEndian
	}
	if !bytes.HasPrefix(raw, []byte{0x0a, 0x0d}) {
		unit := uint64(1e6)
		if order.Uint32(raw) == magicNano {
			unit = 1e9
		}
		header := raw[len(raw)-54-16:]
		return uint64(order.Uint32(header))*unit + uint64(order.Uint32(header[4:]))
	}
	block := raw[len(raw)-int(order.Uint32(raw[len(raw)-4:])):]
	return uint64(order.Uint32(block[12:]))<<32 | uint64(order.Uint32(block[16:]))
}

// TestTimestampBeyondFormat queues a packet past the last second of the format: Run
// fails, and the output has the packets before.
func TestTimestampBeyondFormat(t *testing.T) {
	in := littleEndian().pcap(magicMicro, ethernet).
		packet(math.MaxUint32, 999_999, ethernetFrame(ipv4(40, 0, 1))).
		packet(math.MaxUint32, 999_999, ethernetFrame(ipv4(40, 0, 2))).bytes
	out, _, err := replay(t, in, queued(t))
	if err == nil {
		t.Error("got nil, want an error")
	}
	if got := idsOf(readBack(t, out)); !slices.Equal(got, []uint16{1}) {
		t.Errorf("packets %v, want the first", got)
	}
}

// TestSimpleBlockBecomesEnhanced queues packets without timestamps.
func TestSimpleBlockBecomesEnhanced(t *testing.T) {
	for _, test := range []struct {
		name   string
		c      *capture
		resol  byte
		offset int64
	}{
		{"little-endian", littleEndian(), 6, 0},
		{"big-endian", bigEndian(), 9, 0},
		{"if_tsoffset", littleEndian(), 6, 1000},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := test.c.section()
			c.iface(ethernet, 0, c.resolution(test.resol), c.offset(test.offset))
			c.simple(ethernetFrame(ipv4(45, 0, 1))).simple(ethernetFrame(ipv4(40, 0, 2))).simple(
				ethernetFrame(ipv4(33, ef, 3)))
			out, s := mustReplay(t, c.bytes, bulkQueued(t))
			got := readBack(t, out)
			if s.Packets != 3 || !slices.Equal(idsOf(got), []uint16{1, 3, 2}) {
				t.Fatalf("got %d packets in the order %v, want 1 3 2", s.Packets, idsOf(got))
			}
			if kinds := blockKinds(t, out); !slices.Equal(kinds, []uint32{blockSection, 1, 6, 3, 6}) {
				t.Errorf("blocks %#x, want enhanced blocks for the queued packets", kinds)
			}
			if at := got[2].at - got[0].at; at != 45_000 {
				t.Errorf("the second packet departs %d ns after the first, want 45 µs", at)
			}
			for _, i := range []int{0, 2} {
				if n := len(got[i].data); got[i].wire != n || n != map[uint16]int{1: 59, 2: 54}[got[i].id()] {
					t.Errorf("packet %d: got %d of %d bytes", got[i].id(), n, got[i].wire)
				}
			}
		})
	}
}

// TestTruncatedSimpleBlock checks that a packet truncated by the snap length keeps its
// original length.
func TestTruncatedSimpleBlock(t *testing.T) {
	c := littleEndian().section().iface(ethernet, 60)
	data := ethernetFrame(ipv4(200, 0, 1))
	c.block(3, c.body(uint32(len(data))).rawBytes(data[:60]...).bytes)
	out, s := mustReplay(t, c.bytes, queued(t))
	got := readBack(t, out)
	if len(got) != 1 || got[0].wire != len(data) || !bytes.Equal(got[0].data, data[:60]) {
		t.Errorf("got %+v, want one packet with its first 60 bytes", got)
	}
	if len(s.Notes) != 1 || len(s.Warnings) > 0 {
		t.Errorf("notes %q, want one about truncation; warnings %q", s.Notes, s.Warnings)
	}
}

// TestObsoletePacketBlock restamps packet blocks of old captures.
func TestObsoletePacketBlock(t *testing.T) {
	for name, c := range map[string]*capture{"little-endian": littleEndian(), "big-endian": bigEndian()} {
		c.section().iface(ethernet, 0).iface(ethernet, 0, c.resolution(3))
		for id := range uint16(2) {
			data := ethernetFrame(ipv4(40, 0, id+1))
			b := c.body()
			b.bytes = c.AppendUint16(c.AppendUint16(b.bytes, 1), 7) // interface, drop count
			c.block(2, b.words(0, 5000, uint32(len(data)), uint32(len(data))).rawBytes(data...).bytes)
		}
		out, _ := mustReplay(t, c.bytes, queued(t))
		got := readBack(t, out)
		if len(got) != 2 || got[0].at != 5e9 || got[1].at != 5e9+1e6 {
			t.Errorf("%s: got %+v, want packets at 5 s and 1 ms later", name, got)
		}
	}
}

// TestMixedResolutions orders packets of interfaces with different resolutions.
func TestMixedResolutions(t *testing.T) {
	c := littleEndian().section()
	c.iface(ethernet, 0, c.resolution(3)).iface(rawIP, 0, c.resolution(9))
	c.enhanced(0, 1000, ethernetFrame(ipv4(500, 0, 1))) // departs at once
	c.enhanced(0, 1000, ethernetFrame(ipv4(500, 0, 2))) // departs at 1 s + 500 µs, written as 1.001 s
	c.enhanced(1, 1_000_600_000, ipv4(40, ef, 3))
	out, _ := mustReplay(t, c.bytes, bulkQueued(t))
	got := readBack(t, out)
	var at []int64
	for _, p := range got {
		at = append(at, p.at)
	}
	if want := []int64{1e9, 1e9 + 1e6, 1e9 + 6e5}; !slices.Equal(at, want) {
		t.Errorf("timestamps %d, want %d: the order is by exact departure", at, want)
	}
}

// checkDepartures replays packets and compares their order and departures, in
// µs.
func checkDepartures(t *testing.T, engine Go, packets []arrival, order []uint16, at []int64) {
	t.Helper()
	c := littleEndian().pcap(magicMicro, ethernet)
	for i, p := range packets {
		c.packet(7, p.at, ethernetFrame(ipv4(p.n, p.dscp, uint16(i+1))))
	}
	out, _ := mustReplay(t, c.bytes, engine)
	got := readBack(t, out)
	if found := idsOf(got); !slices.Equal(found, order) {
		t.Fatalf("order %v, want %v", found, order)
	}
	for i, p := range got {
		if want := 7e9 + at[i]*1000; p.at != want {
			t.Errorf("packet %d departs at %d, want %d", p.id(), p.at, want)
		}
	}
}
