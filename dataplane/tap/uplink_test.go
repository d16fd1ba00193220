package tap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// udpDatagram returns a UDP frame of 64 bytes with a complete checksum, to port
// discard, from the port with its number.
func udpDatagram(number int) []byte {
	const ip, udp = 14, 34
	f := make([]byte, 60)
	copy(f, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x09\x08\x00")
	copy(f[ip:], "\x45\x00\x00\x2e\x00\x00\x40\x00\x40\x11\x00\x00\x0a\x00\x00\x09\x0a\x00\x00\x08")
	binary.BigEndian.PutUint16(f[ip+10:], ^onesSum(0, f[ip:udp]))
	copy(f[udp:], "\x00\x00\x00\x09\x00\x1a\x00\x00")
	binary.BigEndian.PutUint16(f[udp:], uint16(number))
	return f
}

func isDatagram(f []byte) bool {
	return binary.BigEndian.Uint16(f[macsLen:]) == unix.ETH_P_IP && f[23] == unix.IPPROTO_UDP
}

// TestUplink checks that frames cross a veth pair in both directions in order,
// each once, for several numbers of queues, and that no socket receives frames
// sent by others.
func TestUplink(t *testing.T) {
	const count = 1000
	for _, queues := range []int{1, 4} {
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			a, b := nettest.New(t), nettest.New(t)
			a.Veth(b)
			near, far := uplinkIn(t, a, "v0", queues), uplinkIn(t, b, "v0", queues)
			for _, way := range [][2]*Interface{{near, far}, {far, near}} {
				var sent, got [][]byte
				for i := range count {
					sent = append(sent, udpDatagram(i))
				}
				for q, some := range slices.Collect(slices.Chunk(sent, count/queues)) {
					var out [][]byte
					for _, f := range some {
						out = append(out, withHeader(f))
					}
					if n, err := way[0].Ports()[q].Write(out); n != len(out) || err != nil {
						t.Fatalf("Write returned %d, %v, want %d, nil", n, err, len(out))
					}
				}
				for _, b := range readFrames(t, way[1], count, isDatagram) {
					got = append(got, b[HeaderLen:])
				}
				if queues > 1 { // order is kept within a flow only
					if slices.EqualFunc(got, sent, bytes.Equal) {
						t.Error("all frames arrived at one queue, want several")
					}
					slices.SortFunc(got, func(a, b []byte) int { return bytes.Compare(a[34:36], b[34:36]) })
				}
				if !slices.EqualFunc(got, sent, bytes.Equal) {
					t.Error("got other frames than were sent")
				}
			}
			a.Inject("v0", udpDatagram(1))
			readFrames(t, far, 1, isDatagram)
			noFrames(t, near, isDatagram)
			noFrames(t, far, isDatagram)
		})
	}
}

// noFrames checks that no port has a frame that matches want.
func noFrames(t *testing.T, d Device, want func(frame []byte) bool) {
	t.Helper()
	into := newBuffers(64)
	for q, p := range d.Ports() {
		n, err := p.Read(into)
		if err != nil {
			t.Error(err)
		}
		for _, b := range into[:n] {
			if want(b[HeaderLen:]) {
				t.Errorf("port %d: got unexpected frame %x", q, b[:80])
			}
		}
	}
}

// TestUplinkTags checks that VLAN tags removed by the kernel arrive.
func TestUplinkTags(t *testing.T) {
	a, b := nettest.New(t), nettest.New(t)
	a.Veth(b)
	d := uplinkIn(t, b, "v0", 1)
	var frames [][]byte
	for i, tags := range []string{
		"", "\x81\x00\x61\x23", "\x88\xa8\x70\x07", "\x88\xa8\x70\x07\x81\x00\x01\x00", "\x81\x00\xe0\x00",
	} {
		frames = append(frames, slices.Insert(numberedFrame(100, i), macsLen, []byte(tags)...))
	}
	a.Inject("v0", frames...)
	for i, got := range readFrames(t, d, len(frames), isTest) {
		if want := withHeader(frames[i]); !bytes.Equal(got, want) {
			t.Errorf("got %x, want %x", got, want)
		}
	}
}

// merged returns a buffer with a tagged TCP GSO frame without checksum, for
// segments with size bytes of payload.
func merged(payload, size int) []byte {
	const ip, tcp, end = 18, 38, 58 // with the tag, without TCP options
	f := make([]byte, end+payload)
	copy(f, "\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x81\x00\x60\x05\x08\x00")
	copy(f[ip:], "\x45\x00\x00\x00\x12\x34\x40\x00\x40\x06\x00\x00\x0a\x00\x00\x09\x0a\x00\x00\x08")
	binary.BigEndian.PutUint16(f[ip+2:], uint16(len(f)-ip))
	binary.BigEndian.PutUint16(f[ip+10:], ^onesSum(0, f[ip:tcp]))
	copy(f[tcp:], "\x11\x11\x22\x22\x00\x00\x00\x01\x00\x00\x00\x01\x50\x10\x10\x00")
	pseudo := uint32(unix.IPPROTO_TCP + len(f) - tcp)
	binary.BigEndian.PutUint16(f[tcp+16:], onesSum(pseudo, f[ip+12:tcp]))
	for i := range payload {
		f[end+i] = byte(i ^ i>>8)
	}
	b := withHeader(f)
	b[headerFlags], b[1] = needsCsum, unix.VIRTIO_NET_HDR_GSO_TCPV4
	for i, v := range []uint16{end, uint16(size), tcp, 16} { // hdr_len, gso_size, csum_start, csum_offset
		binary.NativeEndian.PutUint16(b[2+2*i:], v)
	}
	return b
}

// onesSum is the Internet checksum (RFC 1071) before the complement.
func onesSum(s uint32, b []byte) uint16 {
	for i, v := range b {
		s += uint32(v) << (8 * (1 - i%2))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// TestUplinkMerged checks that a tagged GSO frame arrives whole if the devices
// support offloads, and otherwise segmented with checksums.
func TestUplinkMerged(t *testing.T) {
	isTCP := func(f []byte) bool { return binary.BigEndian.Uint16(f[macsLen:]) == unix.ETH_P_8021Q }
	a, b := nettest.New(t), nettest.New(t)
	a.Veth(b)
	near, far := uplinkIn(t, a, "v0", 2), uplinkIn(t, b, "v0", 1)
	want := merged(10000, 1400)
	if n, err := near.Ports()[0].Write([][]byte{slices.Clone(want)}); n != 1 || err != nil {
		t.Fatalf("Write returned %d, %v, want 1, nil", n, err)
	}
	if got := readFrames(t, far, 1, isTCP)[0]; !bytes.Equal(got, want) {
		t.Errorf("not segmented: got %d bytes %x, want %d %x", len(got), got[:80], len(want), want[:80])
	}

	a.Offload("v0", "tx-checksum", false)
	if n, err := near.Ports()[0].Write([][]byte{slices.Clone(want)}); n != 1 || err != nil {
		t.Fatalf("Write returned %d, %v, want 1, nil", n, err)
	}
	var payload []byte
	for _, got := range readFrames(t, far, 8, isTCP) {
		f := got[HeaderLen:]
		if got[1] != unix.VIRTIO_NET_HDR_GSO_NONE || got[headerFlags]&needsCsum != 0 || len(f) > 58+1400 {
			t.Fatalf("segmented: got %d bytes, want at most %d without GSO and with checksums: %x", len(got),
				HeaderLen+58+1400, got[:80])
		}
		pseudo := uint32(unix.IPPROTO_TCP + len(f) - 38)
		if ip, tcp := onesSum(0, f[18:38]), onesSum(uint32(onesSum(pseudo, f[30:38])),
			f[38:]); ip != 0xffff || tcp != 0xffff {
			t.Errorf("segmented: IP and TCP checksums sum to %#x and %#x, want 0xffff", ip, tcp)
		}
		payload = append(payload, f[58:]...)
	}
	if !bytes.Equal(payload, want[HeaderLen+58:]) {
		t.Errorf("segmented: got a payload of %d bytes that differs from the one sent", len(payload))
	}
	noFrames(t, near, isTCP) // although the segments are not from a socket
}

// TestUplinkRefusals checks that only the frame that cannot be sent is lost.
func TestUplinkRefusals(t *testing.T) {
	a, b := nettest.New(t), nettest.New(t)
	a.Veth(b)
	d := uplinkIn(t, a, "v0", 1)
	s := b.Sniff("v0")
	wrong := withHeader(numberedFrame(60, 2))
	wrong[1] = 77 // unknown GSO type
	frames := [][]byte{
		withHeader(numberedFrame(1515, 0)), withHeader(numberedFrame(1514, 1)), wrong,
		{},
		{1, 2, 3},
		withHeader(numberedFrame(60, 5)),
	}
	if sent, err := d.Ports()[0].Write(frames); sent != 2 || err != nil {
		t.Errorf("Write returned %d, %v, want 2, nil", sent, err)
	}
	for i, b := range frames {
		if lost := len(b) == 0; lost != (i != 1 && i != 5) {
			t.Errorf("frame %d: got lost %v, want %v", i, lost, !lost)
		}
	}
	s.Wait(2, kernelLimit)
	if got := s.Stop(); len(got) != 2 {
		t.Errorf("got %d frames, want 2", len(got))
	}
	b.Inject("v0", numberedFrame(1000, 6))
	if k, err := d.Ports()[0].Read([][]byte{make([]byte, 500), make([]byte, 500)}); k != 0 || err != nil {
		t.Errorf("small buffer: Read returned %d, %v, want 0, nil", k, err)
	}
	b.Inject("v0", numberedFrame(100, 7))
	readFrames(t, d, 1, isTest)
}

// TestUplinkUp checks that the first frame passes after an interface was down: when the sockets were opened,
// or meanwhile.
func TestUplinkUp(t *testing.T) {
	for _, openDown := range []bool{false, true} {
		a, b := nettest.New(t), nettest.New(t)
		a.Veth(b)
		setUp(t, a, "v0", !openDown)
		d := uplinkIn(t, a, "v0", 2)
		setUp(t, a, "v0", false)
		setUp(t, a, "v0", true)
		a.AwaitCarrier("v0")
		s := b.Sniff("v0")
		for i, p := range d.Ports() {
			if sent, err := p.Write([][]byte{withHeader(numberedFrame(60, 1))}); sent != 1 || err != nil {
				t.Errorf("opened down %v: Write returned %d, %v, want 1, nil", openDown, sent, err)
			}
			if !s.Wait(i+1, time.Minute) {
				t.Errorf("opened down %v: frame %d is lost", openDown, i)
			}
		}
	}
}

// TestUplinkDown checks that an interface works again after it was down, and
// that a port notices its deletion, up or down.
func TestUplinkDown(t *testing.T) {
	for _, downFirst := range []bool{false, true} {
		a, b := nettest.New(t), nettest.New(t)
		a.Veth(b)
		d := uplinkIn(t, a, "v0", 2)
		if downFirst {
			setUp(t, a, "v0", false)
			into := newBuffers(1)
			for _, p := range d.Ports() {
				if sent, err := p.Write([][]byte{withHeader(numberedFrame(60, 1))}); sent != 0 || err != nil {
					t.Errorf("device down: Write returned %d, %v, want 0, nil", sent, err)
				}
				if _, err := p.Read(into); err != nil {
					t.Errorf("device down: Read returned %v, want nil", err)
				}
			}
			setUp(t, a, "v0", true)
			a.AwaitCarrier("v0")
			b.Inject("v0", numberedFrame(60, 2))
			readFrames(t, d, 1, isTest)
			setUp(t, a, "v0", false)
		}
		result := make(chan error)
		for _, p := range d.Ports() {
			go func() { result <- awaitGone(p) }()
		}
		time.Sleep(10 * time.Millisecond) // so that most calls are blocked
		a.Delete("v0")
		for _, p := range d.Ports() {
			if err := <-result; !errors.Is(err, ErrGone) {
				t.Errorf("set down first %v: got %v, want ErrGone", downFirst, err)
			}
			if n, err := p.Write([][]byte{withHeader(numberedFrame(60, 1))}); n != 0 ||
				!errors.Is(err, ErrGone) {
				t.Errorf("Write returned %d, %v, want 0, ErrGone", n, err)
			}
		}
	}
}

// TestOpenUplinkErrors checks that errors state a remedy.
func TestOpenUplinkErrors(t *testing.T) {
	n, other := nettest.New(t), nettest.New(t)
	n.Veth(other)
	for _, row := range []struct {
		name   string
		queues int
		want   string
	}{
		{"nope", 1, "no such interface"},
		{"v0", 257, "1 to 256"},
		{"lo", 1, "not Ethernet"},
	} {
		var err error
		n.Do(func() { _, err = OpenUplink(row.name, row.queues) })
		if err == nil || !strings.Contains(err.Error(), row.want) ||
			!strings.HasPrefix(err.Error(), fmt.Sprintf("open uplink %q: ", row.name)) {
			t.Errorf("%s: got %v, want %q", row.name, err, row.want)
		}
	}
	for capability, want := range map[int]string{
		unix.CAP_NET_RAW: "CAP_NET_RAW", unix.CAP_NET_ADMIN: "CAP_NET_ADMIN",
	} {
		var err error
		n.Do(func() { withoutCapability(t, capability, func() { _, err = OpenUplink("v0", 1) }) })
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v", want, err)
		}
	}
}
