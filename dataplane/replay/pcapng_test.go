package replay

import (
	"bytes"
	"encoding/binary"
	"math"
	exact "math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// block is a block of a pcapng capture, parsed without the reader under test.
type block struct {
	kind  uint32
	bytes []byte
}

func blocks(t *testing.T, raw []byte) []block {
	t.Helper()
	var out []block
	var order binary.ByteOrder = binary.LittleEndian
	for len(raw) > 0 {
		if len(raw) >= 12 && binary.LittleEndian.Uint32(raw) == blockSection {
			order = binary.LittleEndian
			if order.Uint32(raw[8:]) != sectionMagic {
				order = binary.BigEndian
			}
		}
		if len(raw) < 12 || int(order.Uint32(raw[4:])) > len(raw) {
			t.Fatalf("got %d bytes at the end that are no block", len(raw))
		}
		size := order.Uint32(raw[4:])
		if size < 12 || order.Uint32(raw[size-4:]) != size {
			t.Fatalf("a block has two lengths: %d at its start", size)
		}
		out = append(out, block{order.Uint32(raw), raw[:size]})
		raw = raw[size:]
	}
	return out
}

func blockKinds(t *testing.T, raw []byte) []uint32 {
	t.Helper()
	var out []uint32
	for _, b := range blocks(t, raw) {
		out = append(out, b.kind)
	}
	return out
}

// TestOtherBlocksPass checks that blocks other than packets are copied
// unchanged and in order.
func TestOtherBlocksPass(t *testing.T) {
	for name, c := range map[string]*capture{"little-endian": littleEndian(), "big-endian": bigEndian()} {
		t.Run(name, func(t *testing.T) {
			c.section().iface(ethernet, 0, c.option(2, []byte("eth0")...), c.resolution(9))
			c.enhanced(0, 1e9, ethernetFrame(ipv4(100, 0, 1)))
			c.block(4, []byte("names that were resolved"))
			c.enhanced(0, 1e9, ethernetFrame(ipv4(100, 0, 2)))
			c.block(0xbad, []byte("a custom block"))
			c.iface(rawIP, 0, c.option(2, []byte("tun0")...))
			c.enhanced(1, 1e6, ipv4(50, ef, 3))
			c.block(5, c.body(0, 0, 0).bytes)
			c.block(0x7fff_fffe, nil)
			out, _ := mustReplay(t, c.bytes, bulkQueued(t))
			isOther := func(b block) bool { return b.kind != blockEnhanced && b.kind != blockSection }
			var want, got []block
			for _, b := range blocks(t, c.bytes) {
				if isOther(b) {
					want = append(want, b)
				}
			}
			for _, b := range blocks(t, out) {
				if isOther(b) {
					got = append(got, b)
				}
			}
			if !slices.EqualFunc(got, want, func(a, b block) bool { return bytes.Equal(a.bytes, b.bytes) }) {
				t.Errorf("blocks %v, want %v", got, want)
			}
			if n := len(readBack(t, out)); n != 3 {
				t.Errorf("gopacket reads %d packets, want 3", n)
			}
		})
	}
}

// TestSectionLength checks that only the length of a section changes: to
// unspecified, because dropped packets shorten it.
func TestSectionLength(t *testing.T) {
	c := bigEndian().section().iface(ethernet, 0).enhanced(0, 1, ethernetFrame(ipv4(40, 0, 1)))
	out, _ := mustReplay(t, c.bytes, transparent(t))
	if !bytes.Equal(out[16:24], bytes.Repeat([]byte{0xff}, 8)) {
		t.Errorf("section length % x, want -1", out[16:24])
	}
	if !bytes.Equal(out, unsectioned(c.bytes)) {
		t.Error("bytes other than the section length changed")
	}
}

// TestSections replays sections of both byte orders, with different link types
// and resolutions. Queued packets are written before their section ends.
func TestSections(t *testing.T) {
	one := littleEndian().section()
	one.iface(ethernet, 0, one.resolution(9))
	one.enhanced(0, 5e9, ethernetFrame(ipv4(1000, 0, 1))).enhanced(0, 5e9, ethernetFrame(ipv4(1000, 0, 2)))
	two := bigEndian().section()
	two.iface(rawIP, 0, two.resolution(3)).iface(ethernet, 0)
	two.enhanced(0, 5000, ipv4(60, ef, 3)).enhanced(1, 5_000_100, ethernetFrame(ipv4(60, ef, 4)))
	three := littleEndian().section()
	three.iface(cooked, 0)
	in := slices.Concat(one.bytes, two.bytes, three.bytes)

	var links []dataplane.LinkType
	var out bytes.Buffer
	_, err := Run(t.Context(), bytes.NewReader(in), bulkQueued(t), Config{
		Output: &out,
		Each: func(p *dataplane.Packet, _ *dataplane.Verdict) error {
			links = append(links, p.Link)
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []dataplane.LinkType{1, 1, 101, 1}; !slices.Equal(links, want) {
		t.Errorf("link types %v, want %v", links, want)
	}
	want := []uint32{blockSection, 1, 6, 6, blockSection, 1, 1, 6, 6, blockSection, 1}
	if got := blockKinds(t, out.Bytes()); !slices.Equal(got, want) {
		t.Fatalf("blocks %#x, want %#x", got, want)
	}
	var at []int64
	for _, p := range readBack(t, out.Bytes()) {
		at = append(at, p.at)
	}
	if want := []int64{5e9, 5e9 + 1e6, 5e9, 5e9 + 1e5}; !slices.Equal(at, want) {
		t.Errorf("timestamps %d, want %d", at, want)
	}
}

// TestPacketWithoutTimestamp checks that a packet without a timestamp gets the
// one of the previous packet, even if that goes back.
func TestPacketWithoutTimestamp(t *testing.T) {
	c := littleEndian().section().iface(ethernet, 0)
	data := ethernetFrame(ipv4(40, 0, 1))
	c.simple(data).enhanced(0, 5e6, data).simple(data).enhanced(0, 4e6, data).simple(data)
	var at []int64
	_, err := Run(t.Context(), bytes.NewReader(c.bytes), transparent(t), Config{
		Each: func(p *dataplane.Packet, _ *dataplane.Verdict) error {
			at = append(at, p.Time)
			return nil
		},
	})
	if want := []int64{0, 5e9, 5e9, 4e9, 4e9}; err != nil || !slices.Equal(at, want) {
		t.Errorf("times %d, want %d: %v", at, want, err)
	}
}

// TestTimestamps compares the conversion of timestamps of any resolution and offset
// with exact arithmetic. They are limited to the years 1970 to 2261; all others
// convert back exactly.
func TestTimestamps(t *testing.T) {
	first := new(exact.Int)
	last := exact.NewInt(time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano() - 1)
	check := func(perSec, units uint64, offset int64) {
		t.Helper()
		i := &iface{perSec: perSec, offsetS: offset}
		want := new(exact.Int).Mul(new(exact.Int).SetUint64(units), exact.NewInt(1e9))
		want.Div(want, new(exact.Int).SetUint64(perSec))
		want.Add(want, new(exact.Int).Mul(exact.NewInt(offset), exact.NewInt(1e9)))
		limited := want.Cmp(first) < 0 || want.Cmp(last) > 0
		if limited {
			want = map[bool]*exact.Int{true: first, false: last}[want.Cmp(first) < 0]
		}
		ns, outOfRange := i.ns(units)
		if ns != want.Int64() || outOfRange != limited {
			t.Errorf("%d of %d units, offset %d s: %d ns (out of range: %v), want %v (%v)", units, perSec,
				offset, ns, outOfRange, want, limited)
		}
		back, err := i.units(ns)
		if !limited && perSec <= 1e9 && (err != nil || back != units) {
			t.Errorf("%d of %d units, offset %d s: got %d ns, which convert back to %d units: %v", units,
				perSec, offset, ns, back, err)
		}
	}
	edges := []uint64{
		0, 1, 9_214_646_399, 9_214_646_400, 1<<63 - 1, 1 << 63, 1<<63 + 1, math.MaxUint64 - 1, math.MaxUint64,
	}
	for _, perSec := range []uint64{1, 2, 1e3, 1e6, 1e9, 1 << 30, 1e12, 1e19, 1 << 63} {
		for _, a := range edges {
			for _, b := range edges {
				check(perSec, a, int64(b))
				check(perSec, a, -int64(b))
				check(perSec, a*perSec, int64(b)) // as seconds, modulo 2^64
				check(perSec, a*perSec-1, -int64(b))
				check(perSec, a, int64(b-a/perSec))
			}
		}
	}
}

// TestTimestampOutOfRange checks that a timestamp out of range causes a warning
// with the packet's number, and is written unchanged.
func TestTimestampOutOfRange(t *testing.T) {
	data := ethernetFrame(ipv4(40, 0, 1))
	c := littleEndian().section()
	c.iface(ethernet, 0, c.offset(-1<<62)).iface(ethernet, 0, c.offset(1<<62)).iface(ethernet, 0)
	c.enhanced(2, 5e6, data).simple(data).enhanced(0, 5, data).enhanced(1, 5, data).enhanced(1, 6, data)
	out, s := mustReplay(t, c.bytes, transparent(t))
	if !bytes.Equal(out, unsectioned(c.bytes)) {
		t.Error("got other timestamps in the output than in the input")
	}
	if i := slices.IndexFunc(s.Warnings, func(w string) bool {
		return strings.HasPrefix(w, "3 packets (first: 3): ") &&
			strings.Contains(w, "before 1970 or after 2261")
	}); i < 0 {
		t.Errorf("got warnings %q, want one about times before 1970 or after 2261", s.Warnings)
	}
	var stamps []int64
	_, err := Run(t.Context(), bytes.NewReader(c.bytes), transparent(t),
		Config{Each: func(p *dataplane.Packet, _ *dataplane.Verdict) error {
			stamps = append(stamps, p.Time-p.Shift)
			return nil
		}})
	last := time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano() - 1
	if want := []int64{5e9, 5e9, 0, last, last}; err != nil || !slices.Equal(stamps, want) {
		t.Errorf("timestamps %d, want %d: %v", stamps, want, err)
	}
}
