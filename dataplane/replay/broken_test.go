package replay

import (
	"bytes"
	"compress/gzip"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// smallCaptures returns captures of three packets.
func smallCaptures() map[string]*capture {
	out := map[string]*capture{
		"pcap":             littleEndian().pcap(magicMicro, ethernet),
		"pcap, big-endian": bigEndian().pcap(magicNano, ethernet),
	}
	for _, c := range out {
		for id := range uint16(3) {
			c.packet(1, uint32(id), ethernetFrame(ipv4(21+int(id), 0, id)))
		}
	}
	for name, c := range map[string]*capture{"pcapng": littleEndian(), "pcapng, big-endian": bigEndian()} {
		c.section().iface(ethernet, 0, c.resolution(9))
		c.enhanced(0, 1e9, ethernetFrame(ipv4(21, 0, 0)))
		c.block(5, c.body(0, 0, 0).bytes)
		c.simple(ethernetFrame(ipv4(22, 0, 1)))
		c.enhanced(0, 2e9, ethernetFrame(ipv4(23, 0, 2)))
		out[name] = c
	}
	return out
}

// wholeRecords returns the offsets at which records of a capture end: the file
// header or a block, and each packet. packets counts the packets before each
// offset.
func wholeRecords(t *testing.T, c *capture) (ends []int, packets []int) {
	t.Helper()
	if c.bytes[0] == 0x0a {
		at, n := 0, 0
		for _, b := range blocks(t, c.bytes) {
			at += len(b.bytes)
			if b.kind == blockEnhanced || b.kind == blockSimple {
				n++
			}
			ends, packets = append(ends, at), append(packets, n)
		}
		return ends, packets
	}
	for at, n := 24, 0; ; n++ {
		ends, packets = append(ends, at), append(packets, n)
		if at == len(c.bytes) {
			return ends, packets
		}
		at += 16 + int(c.Uint32(c.bytes[at+8:]))
	}
}

// TestTruncated cuts captures at every byte. All whole packets must be
// replayed, and the error must have the offset of the record that is cut.
func TestTruncated(t *testing.T) {
	for name, c := range smallCaptures() {
		t.Run(name, func(t *testing.T) {
			ends, packets := wholeRecords(t, c)
			for cut := range len(c.bytes) {
				i, whole := slices.BinarySearch(ends, cut)
				offset, want := 0, 0
				if !whole {
					i--
				}
				if i >= 0 {
					offset, want = ends[i], packets[i]
				}
				out, s, err := replay(t, c.bytes[:cut], transparent(t))
				if s.Packets != int64(want) {
					t.Errorf("cut at %d: got %d packets, want %d", cut, s.Packets, want)
				}
				var broken *BrokenError
				switch {
				case whole && err != nil:
					t.Errorf("cut at %d, between records: got %v, want nil", cut, err)
				case !whole && (!errors.As(err, &broken) || broken.Offset != int64(offset)):
					t.Errorf("cut at %d: got %v, want a broken capture at byte %d", cut, err, offset)
				}
				if !bytes.Equal(out, unsectioned(c.bytes[:offset])) {
					t.Errorf("cut at %d: got %d bytes of output, want the %d of whole records", cut, len(out),
						offset)
				}
				if i < 0 {
					continue // without a header nothing can be read or written
				}
				if back, err := independent(out); err != nil || len(back) != want {
					t.Errorf("cut at %d: gopacket reads %d packets of the output, want %d: %v", cut,
						len(back), want, err)
				}
			}
		})
	}
}

// TestTruncatedGzip cuts a gzipped capture at every byte. All bytes
// decompressed before the cut must be replayed.
func TestTruncatedGzip(t *testing.T) {
	for name, level := range map[string]int{
		"stored": gzip.NoCompression, "compressed": gzip.BestCompression,
	} {
		t.Run(name, func(t *testing.T) {
			c := smallCaptures()["pcap"]
			var zipped bytes.Buffer
			z, err := gzip.NewWriterLevel(&zipped, level)
			if err != nil {
				t.Fatal(err)
			}
			z.Write(c.bytes[:100])
			z.Flush() // so that a cut can leave whole packets
			z.Write(c.bytes[100:])
			z.Close()
			wrong := 0
			for cut := range zipped.Len() {
				out, s, err := replay(t, zipped.Bytes()[:cut], transparent(t))
				if !errors.As(err, new(*BrokenError)) {
					if wrong++; wrong < 4 {
						t.Errorf("cut at %d of %d, after %d packets: got %v (%T), want a BrokenError", cut,
							zipped.Len(), s.Packets, err, err)
					}
				}
				if len(out) > 0 {
					if back, err := independent(out); err != nil || int64(len(back)) != s.Packets {
						t.Errorf("cut at %d: gopacket reads %d packets of the output, want %d: %v", cut,
							len(back), s.Packets, err)
					}
				}
			}
			if wrong >= 4 {
				t.Errorf("got %d cuts without a BrokenError, want fewer than 4", wrong)
			}
		})
	}
}

// TestCorruptGzip flips a byte within a gzipped capture and in its checksum.
func TestCorruptGzip(t *testing.T) {
	c := smallCaptures()["pcap"]
	var zipped bytes.Buffer
	z, err := gzip.NewWriterLevel(&zipped, gzip.NoCompression)
	if err != nil {
		t.Fatal(err)
	}
	z.Write(c.bytes)
	z.Close()
	for name, at := range map[string]int{"checksum": zipped.Len() - 8, "header": 2} {
		t.Run(name, func(t *testing.T) {
			in := bytes.Clone(zipped.Bytes())
			in[at] ^= 0x55
			_, s, err := replay(t, in, transparent(t))
			if !errors.As(err, new(*BrokenError)) {
				t.Errorf("after %d packets: got %v (%T), want a BrokenError", s.Packets, err, err)
			}
		})
	}
}

// TestBroken replays inconsistent captures. The packets before the
// inconsistency must be replayed.
func TestBroken(t *testing.T) {
	data := ethernetFrame(ipv4(40, 0, 7))
	lying := func(size, trailer uint32) *capture {
		c := littleEndian().section().iface(ethernet, 0).enhanced(0, 1, data)
		return c.words(6, size, 0, 0, 1, 40, 40).rawBytes(data[:40]...).words(trailer)
	}
	begun := func() *capture { return littleEndian().pcap(magicMicro, ethernet).packet(1, 0, data) }
	sized := func(captured uint32, n int) []byte {
		return begun().words(1, 0, captured, captured).rawBytes(make([]byte, n)...).bytes
	}
	wholeNG := func() *capture { return littleEndian().section().iface(ethernet, 0).enhanced(0, 1, data) }
	ngOffset := int64(len(wholeNG().bytes))
	for _, test := range []struct {
		name    string
		in      []byte
		offset  int64
		packets int64
		reason  string // substring
	}{
		{"empty", nil, 0, 0, "too short"},
		{"three bytes", []byte{0xd4, 0xc3, 0xb2}, 0, 0, "too short"},
		{"bad magic", []byte("GET / HTTP/1.1\r\n\r\n"), 0, 0, "47 45 54 20 is neither pcap nor pcapng"},
		{"pcap: version 3", littleEndian().words(magicMicro, 3, 0, 0, 65535, 1).bytes, 0, 0, "version 3"},
		{"pcap: captured length beyond the file", sized(100, 40), 94, 1, "40 of 100 captured bytes"},
		{"pcap: captured length at the limit", sized(maxRecord-16, 40), 94, 1, "captured bytes"},
		{"pcap: captured length over the limit", sized(maxRecord-15, 40), 94, 1, "claims 1048561 captured bytes"},
		{"pcap: captured length of 2^31", sized(1<<31, 40), 94, 1, "claims 2147483648 captured bytes"},
		{"pcap: captured length of 2^32-1", sized(math.MaxUint32, 40), 94, 1, "claims 4294967295 captured bytes"},
		{"pcapng: block of 0 bytes", lying(0, 0).bytes, ngOffset, 1, "claims 0 bytes"},
		{"pcapng: block of 8 bytes", lying(8, 8).bytes, ngOffset, 1, "claims 8 bytes"},
		{"pcapng: block of 13 bytes", lying(13, 13).bytes, ngOffset, 1, "claims 13 bytes"},
		{"pcapng: block of 12 bytes", lying(12, 12).bytes, ngOffset, 1, "two lengths, 12 at its start and 0 at its end"},
		{"pcapng: block beyond the file", lying(76, 76).bytes, ngOffset, 1, "72 of 76 bytes"},
		{"pcapng: block over the limit", lying(maxRecord+4, maxRecord+4).bytes, ngOffset, 1, "claims 1048580 bytes"},
		{"pcapng: block of 2^32-1 bytes", lying(math.MaxUint32, math.MaxUint32).bytes, ngOffset, 1, "claims 4294967295 bytes"},
		{"pcapng: block of 2^32-4 bytes", lying(math.MaxUint32-3, math.MaxUint32-3).bytes, ngOffset, 1, "claims 4294967292 bytes"},
		{"pcapng: lengths that differ", lying(72, 76).bytes, ngOffset, 1, "two lengths, 72 at its start and 76 at its end"},
		{"pcapng: captured length beyond the block", wholeNG().block(6, littleEndian().words(0, 0, 1, 44, 44).rawBytes(data[:40]...).bytes).bytes, ngOffset, 1, "44 captured bytes in a block that has 40"},
		{"pcapng: captured length of 2^32-1", wholeNG().block(6, littleEndian().words(0, 0, 1, math.MaxUint32, 40).rawBytes(data[:40]...).bytes).bytes, ngOffset, 1, "claims 4294967295 captured bytes"},
		{"pcapng: packet block too short", wholeNG().block(6, littleEndian().words(0, 0, 1, 0).bytes).bytes, ngOffset, 1, "too short"},
		{"pcapng: simple packet block too short", wholeNG().block(3, nil).bytes, ngOffset, 1, "too short"},
		{"pcapng: interface description too short", wholeNG().block(1, littleEndian().words(1).bytes).bytes, ngOffset, 1, "too short"},
		{"pcapng: option beyond the block", wholeNG().block(1, littleEndian().words(1, 0).rawBytes(9, 0, 5, 0, 0, 0, 0, 0).bytes).bytes, ngOffset, 1, "option beyond its end"},
		{"pcapng: interface out of range", wholeNG().enhanced(1, 1, data).bytes, ngOffset, 1, "interface 1, but the section has 1"},
		{"pcapng: interface 2^32-1", wholeNG().enhanced(math.MaxUint32, 1, data).bytes, ngOffset, 1, "interface 4294967295, but the section has 1"},
		{"pcapng: interface of the previous section", wholeNG().section().enhanced(0, 1, data).bytes, ngOffset + 28, 1, "interface 0, but the section has 0"},
		{"pcapng: packet before interface", littleEndian().section().enhanced(0, 1, data).bytes, 28, 0, "interface 0, but the section has 0"},
		{"pcapng: simple packet before interface", littleEndian().section().simple(data).bytes, 28, 0, "precedes the first interface description"},
		{"pcapng: 10^-20", littleEndian().section().iface(ethernet, 0, littleEndian().resolution(20)).bytes, 28, 0, "0x14"},
		{"pcapng: 2^-64", littleEndian().section().iface(ethernet, 0, littleEndian().resolution(0xc0)).bytes, 28, 0, "0xc0"},
		{"pcapng: version 2", littleEndian().block(blockSection, littleEndian().words(sectionMagic, 2, 0, 0).bytes).bytes, 0, 0, "version 2"},
		{"pcapng: byte-order magic", littleEndian().block(blockSection, littleEndian().words(0x1a2b3c4e, 1, 0, 0).bytes).bytes, 0, 0, "byte-order magic"},
		{"pcapng: section header too short", littleEndian().block(blockSection, littleEndian().words(sectionMagic, 1).bytes).bytes, 0, 0, "too short"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, s, err := replay(t, test.in, transparent(t))
			var broken *BrokenError
			if !errors.As(err, &broken) {
				t.Fatalf("got %v, want a BrokenError", err)
			}
			if broken.Offset != test.offset || s.Packets != test.packets ||
				!strings.Contains(broken.Reason, test.reason) {
				t.Errorf("after %d packets: got %v, want after %d at byte %d: ...%s...", s.Packets, err,
					test.packets, test.offset, test.reason)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one line", err)
			}
			if want := unsectioned(test.in[:test.offset]); !bytes.Equal(out, want) {
				t.Errorf("got %d bytes of output, want the %d before the broken record", len(out), len(want))
			}
			if test.offset > 0 {
				if back, err := independent(out); err != nil || int64(len(back)) != test.packets {
					t.Errorf("gopacket reads %d packets of the output, %v, want %d", len(back), err,
						test.packets)
				}
			}
		})
	}
}

// TestFinestResolutions checks the finest and coarsest clocks that 64 bits can
// count. Fractions of a nanosecond are lost if a packet is queued.
func TestFinestResolutions(t *testing.T) {
	for resol, want := range map[byte]uint64{
		0: 3 << 30, 19: 1e10, 0x80: 3 << 30, 0xbf: 1<<63/1_000_000_000 + 1,
	} {
		c := littleEndian().section()
		units := want + 1
		if resol == 0 || resol == 0x80 {
			units = want
		}
		c.iface(ethernet, 0, c.resolution(resol)).enhanced(0, units, ethernetFrame(ipv4(40, 0, 1)))
		out, _ := mustReplay(t, c.bytes, queued(t))
		if got := lastStamp(out); got != want {
			t.Errorf("%#x: %d units become %d, want %d", resol, units, got, want)
		}
	}
}

// TestHeaderOnly replays captures without packets.
func TestHeaderOnly(t *testing.T) {
	for name, in := range map[string][]byte{
		"pcap":              littleEndian().pcap(magicMicro, ethernet).bytes,
		"pcap, FCS bits":    littleEndian().pcap(magicMicro, ethernet|0x44000000).bytes,
		"pcapng":            littleEndian().section().bytes,
		"pcapng, interface": bigEndian().section().iface(ethernet, 0).bytes,
	} {
		out, s := mustReplay(t, in, transparent(t))
		if want := unsectioned(in); s.Packets != 0 || s.Warnings != nil || !bytes.Equal(out, want) {
			t.Errorf("%s: got %+v, %d bytes of output, want %d", name, s, len(out), len(want))
		}
	}
}
