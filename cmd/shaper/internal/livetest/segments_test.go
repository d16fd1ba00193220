package livetest

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveBigTCP holds that a super-packet of more than 64 KiB (BIG TCP) counts as
// the packets it becomes. IPv6 has it in a jumbogram, whose hop-by-hop header
// segmentation removes. Where the stack cuts it up after the program, the far end
// sees the packets; where the device is said to do so, it sees the super-packets.
func TestLiveBigTCP(t *testing.T) {
	t.Parallel()
	hereOnly(t)
	const size = 256 << 10
	for _, v6 := range []bool{false, true} {
		for _, tso := range []bool{true, false} {
			t.Run(fmt.Sprintf("v6=%v-tso=%v", v6, tso), func(t *testing.T) {
				m := method{"tc", "egress"}
				p := newPair(t)
				_, at := p.addresses(m, v6)
				p.near.Offload("v0", "tso", tso)
				var err error
				p.near.Do(func() {
					var l netlink.Link
					if l, err = netlink.LinkByName("v0"); err != nil {
						return
					}
					if err = netlink.LinkSetGSOMaxSize(l, size); err == nil {
						err = netlink.LinkSetGSOIPv4MaxSize(l, size)
					}
				})
				if err != nil {
					t.Skipf("a super-packet of %d bytes: %v", size, err)
				}
				r := p.run("--hook", m.hook, "--meter", never)
				behind := newForeign(t, ebpf.SchedCLS, -1, 0)
				behind.filter(p.near, "egress")
				frames, want := p.counts(at, 20_000_000)
				largest := 0
				for _, f := range frames {
					largest = max(largest, len(f.Data))
				}
				if seen := int64(behind.packets()); tso && largest <= 1<<16 || seen >= want.Packets {
					t.Errorf("the largest frame has %d bytes, and the hook saw %d for %d packets: the test shows nothing", largest, seen, want.Packets)
				}
				r.term()
			})
		}
	}
}

// TestLiveSegments holds that a super-packet counts as the packets it becomes:
// where the stack cuts it up after the program, the far end sees these; where
// the device is said to do so, their number follows from the segment size.
func TestLiveSegments(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"tcx", "tc"} {
		for _, v6 := range []bool{false, true} {
			for _, tso := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s-v6=%v-tso=%v", hook, v6, tso), func(t *testing.T) {
					if v6 {
						hereOnly(t)
					}
					m := method{hook, "egress"}
					m.need(t)
					p := newPair(t)
					_, at := p.addresses(m, v6)
					p.near.Offload("v0", "tso", tso)
					r := p.run("--hook", hook, "--meter", never)
					behind := newForeign(t, ebpf.SchedCLS, -1, 0)
					behind.filter(p.near, "egress")
					frames, want := p.counts(at, 2_000_000)
					large := slices.ContainsFunc(frames, func(f nettest.Frame) bool { return len(f.Data) > 1514 })
					seen := int64(behind.packets())
					if large != tso || seen >= want.Packets {
						t.Errorf("%d frames arrived for %d packets that the hook saw and %d counted: the test shows nothing", len(frames), seen, want.Packets)
					}
					r.term()
				})
			}
		}
	}
}

// counts sends a TCP stream to the far end, checks that the shaper counts the packets
// that arrive there and those that veth drops on a busy machine, because the backlog of
// the receiving CPU is full, and returns what arrived.
func (p *pair) counts(at net.IP, size int) (frames []nettest.Frame, want count) {
	p.t.Helper()
	sniffer := p.far.Sniff("v0")
	stream(p.t, p.near, p.far, at, size)
	frames = sniffer.Stop()
	for _, f := range frames {
		packets, bytes := segmentsOf(f.Data[14:])
		want.Packets += packets
		want.Bytes += bytes
	}
	s := p.stats()
	got, lost := s.class(p.t, "all").count, p.lost()
	if got.Packets != want.Packets+lost || lost == 0 && got.Bytes != want.Bytes {
		p.t.Errorf("counted %+v: want %+v, and %d packets that were lost", got, want, lost)
	}
	return frames, want
}

// lost returns how many frames v0 of near could not hand to far.
func (p *pair) lost() (n int64) {
	p.t.Helper()
	var err error
	p.near.Do(func() {
		var l netlink.Link
		if l, err = netlink.LinkByName("v0"); err == nil {
			n = int64(l.Attrs().Statistics.TxDropped)
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// segmentsOf says how many packets a TCP packet becomes on a wire of 1500
// bytes, and how many bytes of IP these have. They lack the hop-by-hop header of a
// jumbogram.
func segmentsOf(ip []byte) (packets, bytes int64) {
	l3 := 20
	if ip[0]>>4 == 6 {
		l3 = 40
	}
	if l3 == 40 && ip[6] == 0 && len(ip) > 1<<16 {
		ip = slices.Concat(ip[:40], ip[48:])
	}
	headers := int64(l3 + int(ip[l3+12]>>4<<2))
	length := int64(len(ip))
	size := int64(1500) - headers
	packets = max(1, (length-headers+size-1)/size)
	return packets, length + (packets-1)*headers
}

// TestLiveUDPSegments holds the same for datagrams that the sender hands down
// as one.
func TestLiveUDPSegments(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"tcx", "tc"} {
		for _, offload := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s-offload=%v", hook, offload), func(t *testing.T) {
				m := method{hook, "egress"}
				m.need(t)
				p := newPair(t)
				_, at := p.addresses(m, false)
				if !offload {
					p.near.Offload("v0", "tx-udp-segmentation", false)
				}
				r := p.run("--hook", hook, "--meter", never, "--green", "dscp=af11")
				in := listen(t, p.far, at)
				conn := sender(t, p.near, at, 0, 0)
				control(t, conn, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1000) })
				if _, err := conn.Write(make([]byte, 10_500)); err != nil {
					t.Fatal(err)
				}
				got := in.take()
				for _, d := range got {
					if d.tos != af11 {
						t.Errorf("TOS %#x: want %#x", d.tos, af11)
					}
				}
				if len(got) != 11 {
					t.Errorf("%d datagrams arrived: want 11", len(got))
				}
				s := p.stats()
				if got, want := s.class(t, "all").count, (count{11, 10_500 + 11*28}); got != want {
					t.Errorf("counted %+v: want %+v", got, want)
				}
				r.term()
			})
		}
	}
}
