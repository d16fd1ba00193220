package livetest

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestLiveBigTCP checks that a super-packet of more than 64 KiB (BIG TCP) is metered as its
// segments. IPv6 uses a jumbogram, whose hop-by-hop header is removed by segmentation. Without
// TSO the stack segments after the program, and the far end sees the segments. With TSO it sees
// the super-packets.
func TestLiveBigTCP(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	const size = 256 << 10
	for _, v6 := range []bool{false, true} {
		for _, tso := range []bool{true, false} {
			t.Run(fmt.Sprintf("v6=%v-tso=%v", v6, tso), func(t *testing.T) {
				m := placement{"tc", "egress"}
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
				r := p.runShaper("--hook", m.hook, "--meter", unlimitedMeter)
				behind := newForeign(t, ebpf.SchedCLS, -1, 0)
				behind.attachFilter(p.near, "egress")
				frames, want := p.checkSegmentCounts(at, 20_000_000)
				largest := 0
				for _, f := range frames {
					largest = max(largest, len(f.Data))
				}
				if seen := int64(behind.packetsSeen()); tso && largest <= 1<<16 || seen >= want.Packets {
					t.Errorf("the largest frame has %d bytes, and the hook saw %d frames for %d packets: want super-packets",
						largest, seen, want.Packets)
				}
				r.stopBySIGTERM()
			})
		}
	}
}

// TestLiveSegments checks that a super-packet is metered as its segments. Without TSO the stack
// segments after the program, and the far end sees the segments. With TSO their number follows
// from the segment size.
func TestLiveSegments(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"tcx", "tc"} {
		for _, v6 := range []bool{false, true} {
			for _, tso := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s-v6=%v-tso=%v", hook, v6, tso), func(t *testing.T) {
					if v6 {
						skipInVM(t)
					}
					m := placement{hook, "egress"}
					m.skipIfUnsupported(t)
					p := newPair(t)
					_, at := p.addresses(m, v6)
					p.near.Offload("v0", "tso", tso)
					r := p.runShaper("--hook", hook, "--meter", unlimitedMeter)
					behind := newForeign(t, ebpf.SchedCLS, -1, 0)
					behind.attachFilter(p.near, "egress")
					frames, want := p.checkSegmentCounts(at, 2_000_000)
					large := slices.ContainsFunc(frames,
						func(f nettest.Frame) bool { return len(f.Data) > 1514 })
					seen := int64(behind.packetsSeen())
					if large != tso || seen >= want.Packets {
						t.Errorf(
							"%d frames arrived, the hook saw %d frames for %d packets: want super-packets",
							len(frames), seen, want.Packets)
					}
					r.stopBySIGTERM()
				})
			}
		}
	}
}

// checkSegmentCounts sends a TCP stream to the far end and returns the frames that arrived
// there. It checks that the shaper counted these packets and the packets that veth dropped: on a
// busy machine, the backlog of the receiving CPU can be full.
func (p *pair) checkSegmentCounts(at net.IP, size int) (frames []nettest.Frame, want packetCount) {
	p.t.Helper()
	sniffer := p.far.Sniff("v0")
	streamTCP(p.t, p.near, p.far, at, size)
	frames = sniffer.Stop()
	for _, f := range frames {
		packets, bytes := segmentsOf(f.Data[14:])
		want.Packets += packets
		want.Bytes += bytes
	}
	s := p.stats()
	got, lost := s.classNamed(p.t, "all").packetCount, p.framesLost()
	if got.Packets != want.Packets+lost || lost == 0 && got.Bytes != want.Bytes {
		p.t.Errorf("counted %+v: want %+v and %d lost packets", got, want, lost)
	}
	return frames, want
}

// framesLost returns the number of frames that v0 of near could not deliver to far.
func (p *pair) framesLost() (n int64) {
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

// segmentsOf returns the number of packets that a TCP packet becomes on a wire with an MTU of
// 1500 bytes, and their bytes of IP, without the hop-by-hop header of a jumbogram.
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

// replayed returns the counts of a replay of frames, in which UDP super-packets have segments of size bytes.
func replayed(t *testing.T, frames []nettest.Frame, size int) packetCount {
	t.Helper()
	var in bytes.Buffer
	w := pcapgo.NewWriterNanos(&in)
	err := w.WriteFileHeader(1<<18, layers.LinkTypeEthernet)
	for _, f := range frames {
		info := gopacket.CaptureInfo{
			Timestamp: time.Unix(0, f.Time), CaptureLength: len(f.Data), Length: len(f.Data),
		}
		err = cmp.Or(err, w.WritePacket(info, f.Data))
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := pipeline.New(&dataplane.Policy{Classes: []dataplane.Class{{Name: "all"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := replay.Run(t.Context(), &in, replay.Go{Pipeline: p},
		replay.Config{UDPSegment: size}); err != nil {
		t.Fatal(err)
	}
	n := p.Stats()[0].Total()
	return packetCount{n.Packets, n.Bytes}
}

// TestLiveUDPSegments checks that UDP GSO packets are metered as their segments, and counted alike by a
// replay of their capture. With offload, the capture has the super-packet.
func TestLiveUDPSegments(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"tcx", "tc"} {
		for _, offload := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s-offload=%v", hook, offload), func(t *testing.T) {
				m := placement{hook, "egress"}
				m.skipIfUnsupported(t)
				p := newPair(t)
				_, at := p.addresses(m, false)
				if !offload {
					p.near.Offload("v0", "tx-udp-segmentation", false)
				}
				r := p.runShaper("--hook", hook, "--meter", unlimitedMeter, "--green", "dscp=af11")
				in := listenUDP(t, p.far, at)
				conn := newSender(t, p.near, at, 0, 0)
				sniffer := p.far.Sniff("v0")
				withFD(t, conn, func(fd int) error {
					return unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1000)
				})
				if _, err := conn.Write(make([]byte, 10_500)); err != nil {
					t.Fatal(err)
				}
				got := in.receiveAll()
				for _, d := range got {
					if d.tos != af11 {
						t.Errorf("TOS %#x: want %#x", d.tos, af11)
					}
				}
				if len(got) != 11 {
					t.Errorf("%d datagrams arrived: want 11", len(got))
				}
				s := p.stats()
				if got, want := s.classNamed(t, "all").packetCount,
					(packetCount{11, 10_500 + 11*28}); got != want {
					t.Errorf("counted %+v: want %+v", got, want)
				}
				// neighbors
				frames := slices.DeleteFunc(sniffer.Stop(),
					func(f nettest.Frame) bool { return len(f.Data) < 500 })
				if want := map[bool]int{true: 1, false: 11}[offload]; len(frames) != want {
					t.Errorf("%d frames captured: want %d", len(frames), want)
				}
				if got, want := replayed(t, frames, 1000), (packetCount{11, 10_500 + 11*28}); got != want {
					t.Errorf("a replay counts %+v: want %+v", got, want)
				}
				r.stopBySIGTERM()
			})
		}
	}
}
