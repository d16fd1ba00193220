package tap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"testing"
)

// flowOf identifies the UDP flow of a frame; "" is a frame of unknown flow.
func flowOf(b []byte) string {
	at := HeaderLen + 12
	for at+4 <= len(b) && (be16(b[at:]) == 0x8100 || be16(b[at:]) == 0x88a8) {
		at += 4
	}
	switch {
	case len(b) >= at+2+20+8 && be16(b[at:]) == 0x0800 && b[at+2] == 0x45 && b[at+2+9] == 17 &&
		be16(b[at+2+6:])&0x3fff == 0:
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
			t.Fatalf("frame %d of the output was not in the input, or overtook another:\n% x", i, b)
		}
		for _, s := range splitGSO(t, b) {
			k := firstOf(came, flowOf(s))
			if k < 0 {
				t.Fatalf("a segment of frame %d was not in the input, or overtook another:\n% x", i, s)
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
		t.Fatalf("%d of %d frames are missing in the output, want 0", len(came), len(frames))
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
						d := udpPacket{
							v6: v6, tos: 1, ttl: 64, id: 0xffff + uint16(i), host: 2, port: 1000,
							payload: bytes.Repeat([]byte{byte(i)}, 100),
						}
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
						t.Errorf("got %d frames in the output, want %d", got, want)
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
				d := udpPacket{
					ttl: 64, id: uint16(test.id(i)), frag: test.frag, host: 2, port: 1000,
					payload: make([]byte, 40),
				}
				frames = append(frames, d.buffer(MaxFrame))
			}
			if test.broken != nil {
				test.broken(frames[2])
			}
			if got := checkCoalesce(t, frames, newCoalescer(0)); got != test.want {
				t.Errorf("got %d frames in the output, want %d", got, test.want)
			}
		})
	}
}

// TestCoalesceCut truncates packets at every length; IPv4 lengths are adjusted.
func TestCoalesceCut(t *testing.T) {
	for _, d := range []udpPacket{
		{}, {v6: true}, {tags: []byte{0x81, 0, 0, 1, 0x81, 0, 0, 1}}, {tags: []byte{0x81, 0, 0, 1}, v6: true},
	} {
		d.payload = make([]byte, 40)
		whole := d.buffer(0)
		for n := range whole {
			cut := slices.Clone(whole[:n])
			if ip := HeaderLen + 14 + len(d.tags); !d.v6 && n > ip+4 {
				binary.BigEndian.PutUint16(cut[ip+2:], uint16(n-ip))
			}
			if got := checkCoalesce(t, [][]byte{cut, slices.Clone(cut), whole}, newCoalescer(1)); got != 3 {
				t.Errorf("%+v cut to %d: got %d frames in the output, want 3", d, n, got)
			}
		}
	}
}

// TestCoalesceRoom checks which buffer a super packet grows in.
func TestCoalesceRoom(t *testing.T) {
	frames := func(room int) (frames [][]byte) {
		for i := range 8 {
			frames = append(frames, udpPacket{
				ttl: 64, id: uint16(i), host: 2, port: 1000, payload: make([]byte, 100),
			}.buffer(room))
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
			t.Errorf("room %d, %d spare: got %d frames in the output, want %d", test.room, test.spare, got,
				test.want)
		}
	}
	if got := checkCoalesce(t, frames(0),
		&coalescer{spare: [][]byte{make([]byte, 0, 200), make([]byte, 0, MaxFrame)}}); got != 8 {
		t.Errorf("a short spare: got %d frames in the output, want 8", got)
	}
}
