package tap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// udpPacket describes a UDP packet in a buffer.
type udpPacket struct {
	dst     net.HardwareAddr // nil: a fixed one
	tags    []byte           // VLAN tags
	v6      bool
	tos     byte // traffic class
	ttl     byte // hop limit
	id      uint16
	frag    uint16
	host    byte // last byte of the source address; that of the destination is 1
	port    uint16
	payload []byte
	partial bool // leave the checksum to the device
}

// buffer builds the packet. room is the spare capacity after it.
func (d udpPacket) buffer(room int) []byte {
	b := make([]byte, HeaderLen, HeaderLen+100+len(d.payload)+room)
	if d.dst == nil {
		d.dst = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	}
	b = append(append(b, d.dst...), 2, 0, 0, 0, 0, 2)
	b = append(b, d.tags...)
	n := uint16(8 + len(d.payload))
	be := binary.BigEndian
	at := 0
	if d.v6 {
		b = be.AppendUint16(b, 0x86dd)
		b = append(b, 6<<4|d.tos>>4, d.tos<<4, 0, 7)
		b = append(be.AppendUint16(b, n), 17, d.ttl)
		src, dst := [16]byte{0xfd, 15: d.host}, [16]byte{0xfd, 15: 1}
		b = append(append(b, src[:]...), dst[:]...)
		at = len(b)
	} else {
		b = be.AppendUint16(b, 0x0800)
		at = len(b) + 20
		b = be.AppendUint16(append(b, 0x45, d.tos), 20+n)
		b = be.AppendUint16(be.AppendUint16(b, d.id), d.frag)
		b = append(b, d.ttl, 17, 0, 0, 10, 0, 0, d.host, 10, 0, 0, 1)
		be.PutUint16(b[at-10:], slowChecksum(b[at-20:at]))
	}
	b = be.AppendUint16(be.AppendUint16(b, d.port), 4789)
	b = be.AppendUint16(b, n)
	b = append(append(b, 0, 0), d.payload...)
	if d.partial {
		b[0] = 1
		binary.NativeEndian.PutUint16(b[6:], uint16(at-HeaderLen))
		binary.NativeEndian.PutUint16(b[8:], 6)
		be.PutUint16(b[at+6:], ^slowChecksum(pseudoHeader(b, at)))
	} else {
		fillUDP(b, at)
	}
	return b[: len(b) : len(b)+room]
}

// slowChecksum is the checksum of RFC 1071, word by word.
func slowChecksum(b []byte) uint16 {
	var sum uint32
	for i, v := range b {
		sum += uint32(v) << (8 * (1 - i%2))
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// pseudoHeader returns the pseudo header for the UDP datagram at udp.
func pseudoHeader(b []byte, udp int) []byte {
	addrs := b[udp-8 : udp]
	if b[udp-40]>>4 == 6 && be16(b[udp-42:]) == 0x86dd {
		addrs = b[udp-32 : udp]
	}
	return binary.BigEndian.AppendUint32(append(slices.Clone(addrs), 0, 17), uint32(len(b)-udp))[:len(addrs)+6]
}

// fillUDP writes the checksum of the datagram at udp.
func fillUDP(b []byte, udp int) {
	copy(b[udp+6:], []byte{0, 0})
	check := slowChecksum(append(pseudoHeader(b, udp), b[udp:]...))
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[udp+6:], check)
}

// splitGSO splits a super packet like the kernel, and checks the fields that
// the kernel relies on.
func splitGSO(t testing.TB, b []byte) (segments [][]byte) {
	t.Helper()
	host, be := binary.NativeEndian, binary.BigEndian
	hdrLen, size, start := int(host.Uint16(b[2:])), int(host.Uint16(b[4:])), int(host.Uint16(b[6:]))
	if b[0] != 1 || host.Uint16(b[8:]) != 6 || hdrLen != start+8 {
		t.Fatalf("virtio header % x", b[:HeaderLen])
	}
	udp := HeaderLen + start
	headers, payload := b[:udp+8], b[udp+8:]
	v4 := be.Uint16(b[udp-22:]) == 0x0800 && b[udp-20] == 0x45
	if want := ^slowChecksum(pseudoHeader(b, udp)); be.Uint16(b[udp+6:]) != want || int(be.Uint16(b[udp+4:])) != len(b)-udp {
		t.Fatalf("UDP header % x, want the sum %#x", b[udp:udp+8], want)
	}
	if v4 && (slowChecksum(b[udp-20:udp]) != 0 || int(be.Uint16(b[udp-18:])) != len(b)-udp+20) ||
		!v4 && int(be.Uint16(b[udp-36:])) != len(b)-udp {
		t.Fatalf("IP header % x", b[udp-40:udp])
	}
	if size == 0 || len(payload) <= size || len(payload) > 64*size || len(b)-udp+20 > 65535 {
		t.Fatalf("%d bytes in segments of %d", len(payload), size)
	}
	for part := range slices.Chunk(payload, size) {
		s := append(slices.Clone(headers), part...)
		clear(s[:HeaderLen])
		if v4 {
			be.PutUint16(s[udp-18:], uint16(28+len(part)))
			be.PutUint16(s[udp-16:], be.Uint16(b[udp-16:])+uint16(len(segments)))
			be.PutUint16(s[udp-10:], 0)
			be.PutUint16(s[udp-10:], slowChecksum(s[udp-20:udp]))
		} else {
			be.PutUint16(s[udp-36:], uint16(8+len(part)))
		}
		be.PutUint16(s[udp+4:], uint16(8+len(part)))
		fillUDP(s, udp)
		segments = append(segments, s)
	}
	return segments
}

// flowOf identifies the UDP flow of a frame; "" is a frame of unknown flow.
func flowOf(b []byte) string {
	at := HeaderLen + 12
	for at+4 <= len(b) && (be16(b[at:]) == 0x8100 || be16(b[at:]) == 0x88a8) {
		at += 4
	}
	switch {
	case len(b) >= at+2+20+8 && be16(b[at:]) == 0x0800 && b[at+2] == 0x45 && b[at+2+9] == 17 && be16(b[at+2+6:])&0x3fff == 0:
		return string(b[at+2+12 : at+2+24])
	case len(b) >= at+2+40+8 && be16(b[at:]) == 0x86dd && b[at+2]>>4 == 6 && b[at+2+6] == 17:
		return string(b[at+2+8 : at+2+44])
	}
	return ""
}

// firstOf returns the index of the first frame of a flow, or -1 if a frame
// before it may be of the same flow.
func firstOf(frames [][]byte, flow string) int {
	for i, b := range frames {
		if f := flowOf(b); f == flow {
			return i
		} else if f == "" || flow == "" {
			break
		}
	}
	return -1
}

// checkCoalesce compares the output with frames, and returns its number of
// frames.
func checkCoalesce(t testing.TB, frames [][]byte, c *coalescer) int {
	t.Helper()
	var came [][]byte
	for _, b := range frames {
		came = append(came, slices.Clone(b))
	}
	out := c.coalesce(nil, frames)
	for i, b := range out {
		if k := firstOf(came, flowOf(b)); k >= 0 && bytes.Equal(b, came[k]) {
			came = slices.Delete(came, k, k+1)
			continue
		}
		if len(b) < HeaderLen || b[1] != 5 {
			t.Fatalf("frame %d did not arrive, or overtook another:\n% x", i, b)
		}
		for _, s := range splitGSO(t, b) {
			k := firstOf(came, flowOf(s))
			if k < 0 {
				t.Fatalf("a segment of frame %d did not arrive, or overtook another:\n% x", i, s)
			}
			w := came[k]
			came = slices.Delete(came, k, k+1)
			udp := int(binary.NativeEndian.Uint16(b[6:])) + HeaderLen
			if w[0]&1 != 0 { // the kernel would fill it in
				fillUDP(w, udp)
			}
			clear(w[:HeaderLen])
			if be16(s[udp-22:]) == 0x0800 && s[udp-14]&0x40 != 0 { // the id has no meaning with DF
				copy(s[udp-16:], w[udp-16:udp-14])
				copy(s[udp-10:], []byte{0, 0})
				binary.BigEndian.PutUint16(s[udp-10:], slowChecksum(s[udp-20:udp]))
			}
			if !bytes.Equal(s, w) {
				t.Fatalf("a segment of frame %d is\n% x, want\n% x", i, s, w)
			}
		}
	}
	if len(came) > 0 {
		t.Fatalf("%d of %d frames are missing in the output", len(came), len(frames))
	}
	return len(out)
}

func TestCoalesce(t *testing.T) {
	type edit = func(i int, d *udpPacket)
	none := func(int, *udpPacket) {}
	third := func(f func(*udpPacket)) edit {
		return func(i int, d *udpPacket) {
			if i == 2 {
				f(d)
			}
		}
	}
	// alter changes a byte of the third packet, counted from the end if at is
	// negative, without updating checksums.
	alter := func(at int, v byte) func(int, []byte) []byte {
		return func(i int, b []byte) []byte {
			if i == 2 {
				b[(at+len(b))%len(b)] ^= v
			}
			return b
		}
	}
	const ip = HeaderLen + 14
	for _, test := range []struct {
		name   string
		n      int
		edit   edit
		broken func(int, []byte) []byte
		want   int
	}{
		{"one", 1, none, nil, 1},
		{"two", 2, none, nil, 1},
		{"maximum number of segments", 64, none, nil, 1},
		{"one segment more", 65, none, nil, 2},
		{"maximum length", 5, func(_ int, d *udpPacket) { d.payload = make([]byte, 13101) }, nil, 1},
		{"one byte longer", 5, func(i int, d *udpPacket) { d.payload = make([]byte, 13102) }, nil, 2},
		{"a shorter packet ends a super packet", 5, third(func(d *udpPacket) { d.payload = d.payload[1:] }), nil, 2},
		{"a longer packet starts a super packet", 5, third(func(d *udpPacket) { d.payload = make([]byte, 101) }), nil, 3},
		{"pairs of longer packets", 5, func(i int, d *udpPacket) { d.payload = make([]byte, 100+i/2) }, nil, 3},
		{"one byte each", 5, func(i int, d *udpPacket) { d.payload = []byte{byte(i)} }, nil, 1},
		{"no payload", 5, func(i int, d *udpPacket) { d.payload = nil }, nil, 5},
		{"no payload at the end", 3, third(func(d *udpPacket) { d.payload = nil }), nil, 2},
		{"other flows", 5, func(i int, d *udpPacket) { d.port += uint16(i) }, nil, 5},
		{"two flows, interleaved", 6, func(i int, d *udpPacket) { d.port += uint16(i % 2); d.frag = 0x4000 }, nil, 2},
		{"maximum number of flows", 64, func(i int, d *udpPacket) { d.port += uint16(i % 32); d.frag = 0x4000 }, nil, 32},
		{"one flow more", 66, func(i int, d *udpPacket) { d.port += uint16(i % 33); d.frag = 0x4000 }, nil, 66},
		{"two hosts, interleaved", 6, func(i int, d *udpPacket) { d.host += byte(i % 2); d.frag = 0x4000 }, nil, 2},
		{"each flow ends once", 6, func(i int, d *udpPacket) { d.port += uint16(i % 2); d.frag = 0x4000; d.payload = d.payload[i/4:] }, nil, 2},
		{"other port", 5, func(i int, d *udpPacket) { d.port += uint16(i % 3 / 2); d.frag = 0x4000 }, nil, 2},
		{"other source", 5, func(i int, d *udpPacket) { d.host += byte(i % 3 / 2); d.frag = 0x4000 }, nil, 2},
		{"other MAC address", 5, third(func(d *udpPacket) { d.dst = net.HardwareAddr{2, 0, 0, 0, 0, 9} }), nil, 3},
		{"other TTL", 5, third(func(d *udpPacket) { d.ttl-- }), nil, 3},
		{"other TOS", 5, third(func(d *udpPacket) { d.tos ^= 3 }), nil, 3},
		{"one tag", 5, func(_ int, d *udpPacket) { d.tags = []byte{0x81, 0, 0, 7} }, nil, 1},
		{"two tags", 5, func(_ int, d *udpPacket) { d.tags = []byte{0x88, 0xa8, 0, 7, 0x81, 0, 0, 8} }, nil, 1},
		{"three tags", 5, func(_ int, d *udpPacket) { d.tags = bytes.Repeat([]byte{0x81, 0, 0, 8}, 3) }, nil, 5},
		{"other tag", 5, third(func(d *udpPacket) { d.tags = []byte{0x81, 0, 0, 7} }), nil, 3},
		{"other priority", 5, func(i int, d *udpPacket) { d.tags = []byte{0x81, 0, byte(i / 4), 7} }, nil, 2},
		{"partial checksums", 5, func(_ int, d *udpPacket) { d.partial = true }, nil, 1},
		{"some partial checksums", 5, third(func(d *udpPacket) { d.partial = true }), nil, 1},
		{"partial checksum elsewhere", 5, third(func(d *udpPacket) { d.partial = true }), alter(headerCsumStart, 1), 3},
		{"partial checksum at another offset", 5, third(func(d *udpPacket) { d.partial = true }), alter(headerSum, 16), 3},
		{"checksum already verified", 5, none, alter(headerFlags, 2), 1},
		{"wrong checksum, already verified", 5, none, func(_ int, b []byte) []byte { b[headerFlags] = 2; b[len(b)-1]++; return b }, 5},
		{"unknown flag", 5, none, alter(headerFlags, 4), 3},
		{"already a super packet", 5, none, alter(headerGSO, 5), 3},
		{"wrong checksum", 5, none, alter(-1, 1), 3},
		{"wrong partial checksum", 5, third(func(d *udpPacket) { d.partial = true }), alter(-100-1, 1), 3},
		{"padding", 5, none, func(_ int, b []byte) []byte { return append(b, 0) }, 5},
		{"truncated", 5, none, func(_ int, b []byte) []byte { return b[:len(b)-1] }, 5},
		{"not IP", 5, none, alter(ip-1, 1), 3},
		{"other version", 5, none, alter(ip, 0x70), 3},
		{"headers only", 5, none, func(i int, b []byte) []byte { return b[:10*i] }, 5},
	} {
		for _, v6 := range []bool{false, true} {
			for _, room := range []int{0, 150, MaxFrame} {
				t.Run(fmt.Sprintf("%s v6 %v room %d", test.name, v6, room), func(t *testing.T) {
					var frames [][]byte
					for i := range test.n {
						d := udpPacket{v6: v6, tos: 1, ttl: 64, id: 0xffff + uint16(i), host: 2, port: 1000, payload: bytes.Repeat([]byte{byte(i)}, 100)}
						test.edit(i, &d)
						b := d.buffer(room + 2)
						if test.broken != nil {
							b = test.broken(i, b)
						}
						frames = append(frames, b)
					}
					want := test.want
					if test.name == "maximum length" && v6 {
						want++ // the IP header is longer
					}
					if got := checkCoalesce(t, frames, newCoalescer(test.n)); got != want {
						t.Errorf("%d frames in the output, want %d", got, want)
					}
				})
			}
		}
	}
}

func TestCoalesceIPv4(t *testing.T) {
	const ip = HeaderLen + 14
	resum := func(b []byte) {
		copy(b[ip+10:], []byte{0, 0})
		binary.BigEndian.PutUint16(b[ip+10:], slowChecksum(b[ip:ip+20]))
	}
	for _, test := range []struct {
		name   string
		id     func(i int) int
		frag   uint16
		broken func(b []byte) // applied to the third packet
		want   int
	}{
		{"ids in order", func(i int) int { return i }, 0, nil, 1},
		{"same id, fragments allowed", func(i int) int { return 7 }, 0, nil, 5},
		{"a gap", func(i int) int { return i + i/3 }, 0, nil, 2},
		{"same id, DF", func(i int) int { return 7 }, 0x4000, nil, 1},
		{"any id, DF", func(i int) int { return 9999 * i }, 0x4000, nil, 1},
		{"first fragment", func(i int) int { return i }, 0x2000, nil, 5},
		{"later fragment", func(i int) int { return i }, 1, nil, 5},
		{"reserved bit", func(i int) int { return i }, 0x8000, nil, 5},
		{"other DF", func(i int) int { return i }, 0, func(b []byte) { b[ip+6] ^= 0x40; resum(b) }, 3},
		{"other protocol", func(i int) int { return i }, 0, func(b []byte) { b[ip+9] = 136; resum(b) }, 3},
		{"header checksum", func(i int) int { return i }, 0, func(b []byte) { b[ip+10]++ }, 3},
		{"no UDP checksum", func(i int) int { return i }, 0, func(b []byte) { b[ip+26], b[ip+27] = 0, 0 }, 3},
		{"options", func(i int) int { return i }, 0, func(b []byte) { b[ip]++; resum(b) }, 3},
		{"UDP length", func(i int) int { return i }, 0, func(b []byte) { b[ip+25]--; fillUDP(b, ip+20) }, 3},
		{"no UDP checksum, although zero would be correct", func(i int) int { return i }, 0, func(b []byte) {
			for v := 0; be16(b[ip+26:]) != 0xffff; v++ {
				binary.BigEndian.PutUint16(b[ip+28:], uint16(v))
				fillUDP(b, ip+20)
			}
			b[ip+26], b[ip+27] = 0, 0
		}, 3},
		{"negative zero", func(i int) int { return i }, 0x4000, func(b []byte) {
			id := b[ip+4:]
			for v := 0; be16(b[ip+10:]) != 0; v++ {
				binary.BigEndian.PutUint16(id, uint16(v))
				resum(b)
			}
			b[ip+10], b[ip+11] = 0xff, 0xff
		}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			var frames [][]byte
			for i := range 5 {
				d := udpPacket{ttl: 64, id: uint16(test.id(i)), frag: test.frag, host: 2, port: 1000, payload: make([]byte, 40)}
				frames = append(frames, d.buffer(MaxFrame))
			}
			if test.broken != nil {
				test.broken(frames[2])
			}
			if got := checkCoalesce(t, frames, newCoalescer(0)); got != test.want {
				t.Errorf("%d frames in the output, want %d", got, test.want)
			}
		})
	}
}

// TestCoalesceCut truncates packets at every length; IPv4 lengths are adjusted.
func TestCoalesceCut(t *testing.T) {
	for _, d := range []udpPacket{{}, {v6: true}, {tags: []byte{0x81, 0, 0, 1, 0x81, 0, 0, 1}}, {tags: []byte{0x81, 0, 0, 1}, v6: true}} {
		d.payload = make([]byte, 40)
		whole := d.buffer(0)
		for n := range whole {
			cut := slices.Clone(whole[:n])
			if ip := HeaderLen + 14 + len(d.tags); !d.v6 && n > ip+4 {
				binary.BigEndian.PutUint16(cut[ip+2:], uint16(n-ip))
			}
			if got := checkCoalesce(t, [][]byte{cut, slices.Clone(cut), whole}, newCoalescer(1)); got != 3 {
				t.Errorf("%+v cut to %d: %d frames in the output, want 3", d, n, got)
			}
		}
	}
}

// TestCoalesceRoom checks which buffer a super packet grows in.
func TestCoalesceRoom(t *testing.T) {
	frames := func(room int) (frames [][]byte) {
		for i := range 8 {
			frames = append(frames, udpPacket{ttl: 64, id: uint16(i), host: 2, port: 1000, payload: make([]byte, 100)}.buffer(room))
		}
		return frames
	}
	for _, test := range []struct{ room, spare, want int }{
		{0, 0, 8},
		{99, 0, 8},
		{100, 0, 4},
		{700, 0, 1},
		{0, 1, 1},
		{699, 1, 1},
	} {
		if got := checkCoalesce(t, frames(test.room), newCoalescer(test.spare)); got != test.want {
			t.Errorf("room %d, %d spare: %d frames in the output, want %d", test.room, test.spare, got, test.want)
		}
	}
	if got := checkCoalesce(t, frames(0), &coalescer{spare: [][]byte{make([]byte, 0, 200), make([]byte, 0, MaxFrame)}}); got != 8 {
		t.Errorf("a short spare: %d frames in the output, want 8", got)
	}
}

// randomUDP returns a batch of few flows, most of whose packets can be merged.
func randomUDP(r *rand.Rand) (frames [][]byte) {
	var flow udpPacket
	for range r.IntN(40) {
		if len(frames) == 0 || r.IntN(6) == 0 {
			flow = udpPacket{
				v6: r.IntN(2) == 0, ttl: byte(63 + r.IntN(2)), id: uint16(r.Uint32()), frag: uint16(r.IntN(2)) * 0x4000,
				host: byte(r.IntN(2)), port: uint16(r.IntN(2)), payload: make([]byte, r.IntN(300)),
				tags: bytes.Repeat([]byte{0x81, 0, 0, 1}, r.IntN(3)), partial: r.IntN(3) == 0,
			}
		}
		d := flow
		d.payload = make([]byte, len(flow.payload))
		for i := range d.payload {
			d.payload[i] = byte(r.Uint32())
		}
		switch r.IntN(12) {
		case 0:
			d.payload = d.payload[:r.IntN(len(d.payload)+1)]
		case 1:
			d.id++
		}
		flow.id++
		frames = append(frames, d.buffer(r.IntN(2)*r.IntN(1<<r.IntN(17))))
	}
	return frames
}

func TestCoalesceRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	came, left := 0, 0
	for range 3000 {
		frames := randomUDP(r)
		for _, b := range frames {
			switch {
			case r.IntN(20) == 0:
				b[r.IntN(min(len(b), 80))] ^= 1 << r.IntN(8)
			case r.IntN(40) == 0:
				b[r.IntN(len(b))] ^= 1 << r.IntN(8)
			}
		}
		came += len(frames)
		left += checkCoalesce(t, frames, newCoalescer(r.IntN(3)))
	}
	if left > came*2/3 {
		t.Errorf("%d of %d frames in the output: too few were merged", left, came)
	}
}

// FuzzCoalesce mutates a batch. Each 4 bytes of edits are a frame, an offset,
// and the bits to flip there or a length to truncate to.
func FuzzCoalesce(f *testing.F) {
	f.Add(uint64(1), []byte{0, 0, 24, 1})
	f.Add(uint64(2), []byte{1, 0, 1, 5, 2, 0, 60, 0})
	f.Fuzz(func(t *testing.T, seed uint64, edits []byte) {
		r := rand.New(rand.NewPCG(seed, 1))
		frames := randomUDP(r)
		for ; len(edits) >= 4 && len(frames) > 0; edits = edits[4:] {
			b := &frames[int(edits[0])%len(frames)]
			at := int(be16(edits[1:])) % (len(*b) + 1)
			if edits[3] == 0 || at == len(*b) {
				*b = (*b)[:at]
			} else {
				(*b)[at] ^= edits[3]
			}
		}
		checkCoalesce(t, frames, newCoalescer(r.IntN(3)))
	})
}

// kernelBatch fills one super packet with different packets.
func kernelBatch(d udpPacket) (frames [][]byte) {
	for i := range maxSegments {
		d.id, d.partial = 0xfff0+uint16(i), i%2 == 0
		d.payload = bytes.Repeat([]byte{byte(i)}, 1000-i/(maxSegments-1))
		frames = append(frames, d.buffer(MaxFrame))
	}
	return frames
}

// coalesceTAPs opens TAP devices tap0 and so on in a new namespace.
func coalesceTAPs(t *testing.T, n int) (*nettest.Namespace, []*Interface) {
	t.Helper()
	ns := nettest.New(t)
	if _, err := os.Stat(tun); err != nil {
		t.Skipf("%v: modprobe tun", err)
	}
	var devices []*Interface
	for i := range n {
		var device *Interface
		var err error
		ns.Do(func() { device, err = Open(Config{Name: fmt.Sprintf("tap%d", i)}) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := device.Close(); err != nil {
				t.Error(err)
			}
		})
		devices = append(devices, device)
	}
	return ns, devices
}

func writeSuper(t *testing.T, to *Interface, frames [][]byte) {
	t.Helper()
	out := newCoalescer(0).coalesce(nil, frames)
	if n, err := to.Ports()[0].Write(out); n != 1 || len(out) != 1 || err != nil {
		t.Fatalf("wrote %d of %d frames, want 1: %v", n, len(out), err)
	}
}

// TestCoalesceSocket receives the datagrams of a super packet from a socket.
func TestCoalesceSocket(t *testing.T) {
	ns, taps := coalesceTAPs(t, 1)
	var err error
	ns.Do(func() {
		var link netlink.Link
		if link, err = netlink.LinkByName("tap0"); err != nil {
			return
		}
		for _, ip := range []net.IPNet{{IP: net.IP{10, 0, 0, 1}, Mask: net.CIDRMask(24, 32)}, {IP: net.ParseIP("fd00::1"), Mask: net.CIDRMask(64, 128)}} {
			if err = netlink.AddrAdd(link, &netlink.Addr{IPNet: &ip}); err != nil {
				return
			}
		}
		err = netlink.LinkSetHardwareAddr(link, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"10.0.0.1", "fd00::1"} {
		var conn *net.UDPConn
		listen := func() { conn, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr), Port: 4789}) }
		ns.Do(listen)
		for end := time.Now().Add(20 * time.Second); errors.Is(err, unix.EADDRNOTAVAIL) && time.Now().Before(end); ns.Do(listen) {
			time.Sleep(10 * time.Millisecond) // new addresses are tentative at first
		}
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		frames := kernelBatch(udpPacket{v6: addr == "fd00::1", ttl: 64, host: 2, port: 1000})
		writeSuper(t, taps[0], frames)
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 2000)
		for i := range frames {
			n, from, err := conn.ReadFromUDP(b)
			if err != nil || from.Port != 1000 || !bytes.Equal(b[:n], bytes.Repeat([]byte{byte(i)}, 1000-i/63)) {
				t.Fatalf("%s: datagram %d: %d bytes with value %d from %v: %v", addr, i, n, b[0], from, err)
			}
		}
	}
}

// TestCoalesceWire bridges super packets to a device without UDP GSO and
// compares the segments with the packets, byte for byte.
func TestCoalesceWire(t *testing.T) {
	ns, taps := coalesceTAPs(t, 2)
	if err := unix.IoctlSetInt(taps[1].ports[0].(*tapPort).fd, unix.TUNSETOFFLOAD, 0); err != nil {
		t.Fatal(err)
	}
	var err error
	ns.Do(func() {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		err = errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetUp(bridge))
		for _, tap := range taps {
			link, e := netlink.LinkByName(tap.Name())
			if err = errors.Join(err, e); err == nil {
				err = netlink.LinkSetMaster(link, bridge)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	port := taps[1].Ports()[0]
	for _, v6 := range []bool{false, true} {
		for _, tags := range [][]byte{nil, {0x81, 0, 0, 7}, {0x88, 0xa8, 0, 7, 0x81, 0, 0, 8}} {
			t.Run(fmt.Sprintf("v6 %v tags % x", v6, tags), func(t *testing.T) {
				d := udpPacket{dst: net.HardwareAddr{2, 0, 0, 0, 0, 9}, tags: tags, v6: v6, tos: 3, ttl: 64, host: 2, port: 1000}
				frames := kernelBatch(d)
				var want [][]byte
				for _, b := range frames {
					w := slices.Clone(b)
					if w[headerFlags] != 0 {
						fillUDP(w, HeaderLen+int(host16(w[headerCsumStart:])))
					}
					want = append(want, w[HeaderLen:])
				}
				writeSuper(t, taps[0], frames)
				into := [][]byte{make([]byte, MaxFrame)}
				deadline := Now() + int64(5*time.Second)
				for i := 0; i < len(want); {
					n, err := port.Read(into)
					if err == nil && n == 0 && Now() < deadline {
						err = port.Wait(deadline)
						if err == nil {
							continue
						}
					}
					if err != nil || n == 0 {
						t.Fatalf("%d packets arrived, want %d: %v", i, len(want), err)
					}
					got := into[0][HeaderLen:]
					if !bytes.HasPrefix(got, d.dst) { // sent by the bridge itself
						continue
					}
					if into[0][headerGSO] != 0 || !bytes.Equal(got, want[i]) {
						t.Fatalf("packet %d is\n% x, want\n% x", i, got, want[i])
					}
					i++
				}
			})
		}
	}
}

// BenchmarkCoalesce merges batches of 64 packets. bytes is the length of an
// Ethernet frame.
func BenchmarkCoalesce(b *testing.B) {
	for _, test := range []struct {
		name  string
		bytes int
		left  int
		edit  func(i int, d *udpPacket)
	}{
		{"one flow", 64, 1, func(int, *udpPacket) {}},
		{"one flow", 1000, 1, func(int, *udpPacket) {}},
		{"16 flows, interleaved", 64, 16, func(i int, d *udpPacket) { d.port, d.frag = uint16(i%16), 0x4000 }},
		{"64 flows", 64, 64, func(i int, d *udpPacket) { d.port = uint16(i) }},
		{"increasing lengths", 64, 64, func(i int, d *udpPacket) { d.payload = make([]byte, 20+i) }},
		{"fragments", 64, 64, func(i int, d *udpPacket) { d.frag = uint16(i) }},
	} {
		b.Run(fmt.Sprintf("%s of %d bytes", test.name, test.bytes), func(b *testing.B) {
			var frames [][]byte
			for i := range 64 {
				d := udpPacket{ttl: 64, id: uint16(i), host: 2, port: 1000, payload: make([]byte, test.bytes-42)}
				test.edit(i, &d)
				frames = append(frames, d.buffer(MaxFrame))
			}
			var first [][]byte // headers, which merging changes
			for _, f := range frames[:test.left] {
				first = append(first, slices.Clone(f[:HeaderLen+42]))
			}
			c, out := newCoalescer(0), make([][]byte, 0, len(frames))
			b.ReportAllocs()
			for b.Loop() {
				for i, h := range first {
					copy(frames[i], h)
				}
				out = c.coalesce(out[:0], frames)
			}
			if len(out) != test.left {
				b.Fatalf("%d frames in the output, want %d", len(out), test.left)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(frames)), "ns/packet")
		})
	}
}

func TestCoalesceAllocations(t *testing.T) {
	var frames [][]byte
	for i := range 100 {
		d := udpPacket{v6: i >= 50, ttl: 64, id: uint16(i), host: 2, port: 1000, payload: make([]byte, 100)}
		frames = append(frames, d.buffer(0)) // without room, so that no header changes
	}
	out, c := make([][]byte, 0, len(frames)), newCoalescer(2)
	if n := testing.AllocsPerRun(10, func() {
		if got := len(c.coalesce(out, frames)); got != 2 {
			t.Errorf("%d frames in the output, want 2", got)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
