package tap

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
)

// gsoFrame returns a buffer with a GSO frame, segmented into packets with size
// bytes of payload. If kind is not UDP, d becomes TCP with a number of 4-byte
// options.
func gsoFrame(d udpPacket, kind byte, options, size int) []byte {
	d.partial = true
	b := d.buffer(0)
	at := HeaderLen + int(host16(b[headerCsumStart:]))
	headers := at - HeaderLen + udpLen
	if kind&^gsoECN != gsoUDP {
		tcp := make([]byte, 20+4*options)
		tcp[12] = byte(5+options) << 4
		b = slices.Concat(b[:at], tcp, d.payload)
		if d.v6 {
			b[at-40+6] = 6
			setBE16(b[at-36:], uint16(len(b)-at))
		} else {
			b[at-20+9] = 6
			setBE16(b[at-18:], uint16(len(b)-at+20))
		}
		headers = at - HeaderLen + len(tcp)
	}
	b[headerGSO] = kind
	setHost16(b[headerHdrLen:], headers)
	setHost16(b[headerSize:], size)
	return b
}

// split returns the segments of a GSO frame, without the fields that no meter
// reads.
func split(b []byte) (frames [][]byte) {
	headers, size := int(host16(b[headerHdrLen:])), int(host16(b[headerSize:]))
	l4 := int(host16(b[headerCsumStart:]))
	for payload := range slices.Chunk(b[HeaderLen+headers:], size) {
		f := slices.Concat(b[HeaderLen:HeaderLen+headers], payload)
		if ip := l4 - 40; ip > 2 && be16(f[ip-2:]) == typeIPv6 {
			setBE16(f[ip+4:], uint16(len(f)-l4))
		} else {
			setBE16(f[l4-18:], uint16(len(f)-l4+20))
		}
		frames = append(frames, f)
	}
	return frames
}

// TestDescribe checks that a GSO frame counts as its segments under all length
// rules.
func TestDescribe(t *testing.T) {
	r := seededRandom(t)
	for range 300 {
		v6 := r.IntN(2) == 0
		kind := byte(gsoUDP)
		if r.IntN(2) == 0 {
			kind = map[bool]byte{false: gsoTCP4, true: gsoTCP6}[v6] | byte(r.IntN(2))*gsoECN
		}
		d := udpPacket{
			v6: v6, tags: bytes.Repeat([]byte{0x81, 0, 0, 7}, r.IntN(3)),
			payload: make([]byte, 1+r.IntN(40_000)),
		}
		b := gsoFrame(d, kind, r.IntN(11), 1+r.IntN(1500))
		frames := split(b)
		rule := dataplane.LengthRule{
			Base: dataplane.LengthBase(r.IntN(3)), Overhead: r.IntN(60) - 30, MPU: r.IntN(90),
		}
		whole, cut := newAlonePipeline(t, &dataplane.Policy{
			Length: rule, Classes: []dataplane.Class{{Name: "all"}},
		}), newAlonePipeline(t, &dataplane.Policy{Length: rule, Classes: []dataplane.Class{{Name: "all"}}})
		var p dataplane.Packet
		var v dataplane.Verdict
		describe(&p, b)
		whole.l.Process(&p, &v)
		wire := 0
		for _, f := range frames {
			cut.processAll([]arrival{{b: withHeader(f)}})
			wire += len(f)
		}
		if got, want := whole.l.Stats()[0], cut.l.Stats()[0]; got != want || p.WireLen != wire {
			t.Fatalf("%+v v6 %v kind %d: got %d bytes as %+v, want %d as %+v: % x", rule, v6, kind, p.WireLen,
				got.Total(), wire, want.Total(), b[:100])
		}
	}
}

// TestDescribeRows has frames computed by hand.
func TestDescribeRows(t *testing.T) {
	const eth, ip4, ip6, tcp = 14, 20, 40, 20
	header := func(kind byte, size, csumStart int) []byte {
		h := make([]byte, HeaderLen)
		h[headerFlags], h[headerGSO] = needsCsum, kind
		setHost16(h[headerSize:], size)
		setHost16(h[headerCsumStart:], csumStart)
		return h
	}
	frame := func(headers int, offset byte, payload int) []byte {
		f := make([]byte, headers+payload)
		if offset > 0 {
			f[headers-int(offset)*4+12] = offset << 4
		}
		return f
	}
	for name, row := range map[string]struct {
		header                  []byte
		frame                   []byte
		wire, segments, segment int
	}{
		"none":          {make([]byte, HeaderLen), frame(54, 5, 946), 1000, 0, 0},
		"checksum only": {header(0, 0, 34), frame(54, 5, 946), 1000, 0, 0},
		"TCPv4":         {header(gsoTCP4, 1448, eth+ip4), frame(eth+ip4+tcp+12, 8, 2*1448+1), 3*66 + 2*1448 + 1, 3, 66 + 1448},
		"TCPv4 exact":   {header(gsoTCP4, 1448, eth+ip4), frame(eth+ip4+tcp+12, 8, 2*1448), 2*66 + 2*1448, 2, 66 + 1448},
		"TCPv4 ECN":     {header(gsoTCP4|gsoECN, 1000, eth+ip4), frame(eth+ip4+tcp, 5, 1001), 2*54 + 1001, 2, 1054},
		"TCPv6":         {header(gsoTCP6, 1000, eth+ip6), frame(eth+ip6+tcp, 5, 3000), 3*74 + 3000, 3, 1074},
		"UDP":           {header(gsoUDP, 100, eth+ip4), frame(eth+ip4+udpLen, 0, 250), 3*42 + 250, 3, 142},
		"one segment":   {header(gsoUDP, 100, eth+ip4), frame(eth+ip4+udpLen, 0, 100), 142, 0, 0},
		"size 0":        {header(gsoTCP4, 0, eth+ip4), frame(eth+ip4+tcp, 5, 3000), 3054, 0, 0},
		"UFO":           {header(3, 1000, eth+ip4), frame(eth+ip4+udpLen, 0, 3000), 3042, 0, 0},
		"unknown":       {header(77, 1000, eth+ip4), frame(eth+ip4+udpLen, 0, 3000), 3042, 0, 0},
		"beyond":        {header(gsoUDP, 1, 60000), frame(eth+ip4+udpLen, 0, 3000), 3042, 0, 0},
		"TCP beyond":    {header(gsoTCP4, 1, 100), frame(eth+ip4+tcp, 5, 50), 104, 0, 0},
		"TCP at edge":   {header(gsoTCP4, 1, 92), frame(eth+ip4+tcp, 5, 50), 104, 0, 0},
	} {
		var p dataplane.Packet
		describe(&p, append(row.header, row.frame...))
		if p.WireLen != row.wire || p.Segments != row.segments || p.Segment != row.segment ||
			!bytes.Equal(p.Data, row.frame) || p.Link != dataplane.LinkEthernet {
			t.Errorf("%s: got %d bytes in %d segments of %d, want %d in %d of %d", name, p.WireLen,
				p.Segments, p.Segment, row.wire, row.segments, row.segment)
		}
	}
}

// FuzzDescribe processes arbitrary headers and frames: no panic, and no count
// is below the length of the frame.
func FuzzDescribe(f *testing.F) {
	for i := range 20 {
		f.Add(gsoFrame(udpPacket{v6: i%2 == 0, payload: make([]byte, 1+i*100)},
			[]byte{gsoTCP4, gsoTCP6, gsoUDP, 3, 0, gsoUDP | gsoECN}[i%6], i%11, 1+i*70), uint8(i))
	}
	f.Add(ipFrame(1, 100, 3), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, base uint8) {
		if len(b) <= HeaderLen || len(b) > MaxFrame {
			return
		}
		l, err := pipeline.New(&dataplane.Policy{
			Length: dataplane.LengthRule{Base: dataplane.LengthBase(base % 3)},
			Classes: []dataplane.Class{{
				Name:  "all",
				Green: &dataplane.Action{ECN: dataplane.CE, Marks: []dataplane.Mark{{Value: 12}}},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var p dataplane.Packet
		var v dataplane.Verdict
		describe(&p, b)
		if p.WireLen < len(b)-HeaderLen || p.Segments == 1 || p.Segments < 0 || p.Segments > 1 &&
			(p.WireLen-1)/p.Segment+1 != p.Segments {
			t.Fatalf("frame of %d bytes: got wire length %d, %d segments of %d", len(b)-HeaderLen, p.WireLen,
				p.Segments, p.Segment)
		}
		l.Process(&p, &v)
		if v.Length < 0 || v.Packets < 1 || base%3 > 0 && v.Length < len(b)-HeaderLen {
			t.Fatalf("frame of %d bytes: metered as %d bytes, %d packets", len(b)-HeaderLen, v.Length,
				v.Packets)
		}
		var c dataplane.Count
		addFrame(&c, b)
		if c.Packets != int64(v.Packets) || c.Bytes != int64(p.WireLen) {
			t.Fatalf("addFrame counted %+v, want %d packets, %d bytes", c, v.Packets, p.WireLen)
		}
	})
}

// TestPool checks that a copy has the same bytes in the smallest sufficient
// buffer, and that the memory of a pool is bounded.
func TestPool(t *testing.T) {
	var p pool
	for _, row := range [][2]int{
		{11, 32},
		{32, 32},
		{33, 64},
		{512, 512},
		{513, 576},
		{1526, 1536}, // a full Ethernet frame
		{2048, 2048},
		{2049, 2304},
		{57344, 57344},
		{57345, 61440},
		{61441, 65536},
		{65537, MaxFrame},
		{MaxFrame, MaxFrame},
	} {
		b := bytes.Repeat([]byte{byte(row[0])}, row[0])
		c := p.copy(b)
		if !bytes.Equal(b, c) || &b[0] == &c[0] || cap(c) != row[1] {
			t.Errorf("a copy of %d bytes has %d, capacity %d, want %d", len(b), len(c), cap(c), row[1])
		}
		p.put(c)
		if again := p.copy(b[:1]); row[1] == 32 && &again[0] != &c[0] {
			t.Errorf("copy did not reuse the free buffer of %d bytes", row[1])
		}
	}
	p = pool{}
	p.put(make([]byte, 777)) // not a buffer of the pool
	if p.bytes != 0 {
		t.Errorf("got %d bytes in the pool after put of a foreign buffer, want 0", p.bytes)
	}
	for range 2 * maxPool / MaxFrame {
		p.put(make([]byte, MaxFrame))
	}
	p.put(make([]byte, 32))
	sum := 0
	for _, list := range p.free {
		for _, b := range list {
			sum += cap(b)
		}
	}
	if sum > maxPool || sum < maxPool-MaxFrame || sum != p.bytes {
		t.Errorf("got %d bytes in the pool, counted as %d: want them equal and in [%d, %d]", sum, p.bytes,
			maxPool-MaxFrame, maxPool)
	}
	for p.bytes > 0 {
		p.copy(make([]byte, MaxFrame))
		p.copy(make([]byte, 1))
	}
}

// TestSlab checks that numbers are reused and frames are not retained.
func TestSlab(t *testing.T) {
	var s slab
	waiting := map[int64][]byte{}
	r := seededRandom(t)
	for i := range 1000 {
		if r.IntN(2) == 0 || len(waiting) == 0 {
			n, f := s.next(), fmt.Append(nil, i)
			if waiting[n] != nil {
				t.Fatalf("next returned %d, which is in use", n)
			}
			s.put(ticket{frame: f})
			waiting[n] = f
			continue
		}
		for n, want := range waiting {
			if got := s.remove(n).frame; !bytes.Equal(got, want) {
				t.Fatalf("got %s, want %s", got, want)
			}
			delete(waiting, n)
			break
		}
	}
	kept := slices.DeleteFunc(s.tickets, func(t ticket) bool { return t.frame == nil })
	if len(kept) != len(waiting) {
		t.Errorf("%d tickets are stored, want %d", len(kept), len(waiting))
	}
}
