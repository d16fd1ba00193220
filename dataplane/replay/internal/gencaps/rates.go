package main

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/google/gopacket/layers"
)

// voiceBulk is a typical load for classes and queues: calls and video, not to be delayed by bulk
// transfers, each with its DSCP.
func voiceBulk() []byte {
	const length = 2300 * ms
	rng := rand.New(rand.NewPCG(2, 2))
	c := &capture{}
	jitter := func(most time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(most))) }
	for call := range 2 {
		f := site(call).ports(uint16(16384+2*call), uint16(16384+2*call)).marked(dscpEF)
		for at, seq := 3*ms, uint16(0); at < length; at, seq = at+20*ms, seq+1 {
			c.add(at+jitter(200*us), f.frame(f.udp(rtp(0, seq, 160, 160))))
			r := f.reverse()
			c.add(at+9*ms+jitter(800*us), r.frame(r.udp(rtp(0, seq, 160, 160))))
		}
	}
	video := site(2).ports(5004, 5004).marked(dscpAF41)
	for at, seq := 7*ms, uint16(0); at < length; at += 33 * ms {
		packets := 1 + rng.IntN(4)
		for i := range packets {
			c.add(at+time.Duration(i)*130*us+jitter(20*us),
				video.frame(video.udp(rtp(96, seq, 3000, 900+rng.IntN(300)))))
			seq++
		}
	}
	for i, dscp := range []uint8{dscpAF11, dscpAF12, dscpAF13, dscpBE} {
		f := site(3+i).ports(uint16(50000+i), 443).marked(dscp)
		c.bulk(rng, time.Duration(20*i)*ms, length, f)
	}
	c.sort()
	c.snap(96)
	for i, comment := range map[int]string{
		0:                  "first packet of the first call",
		len(c.packets) / 2: "half way; comments stay with their packet",
		len(c.packets) - 1: "last packet",
	} {
		c.packets[i].comment = comment
	}
	return voiceBulkFile(c.packets)
}

func voiceBulkFile(packets []packet) []byte {
	f := &pcapng{order: binary.LittleEndian}
	f.section(
		f.option(optComment,
			[]byte("voice EF, video AF41, bulk AF11 AF12 AF13 and best effort on one uplink")),
		f.option(optSectionHardware, []byte("virtual")),
		f.option(optSectionOS, []byte("none")),
		f.option(optSectionProgram, []byte("gencaps")),
		f.option(optEnd, nil),
	)
	f.iface(linkEthernet, 96,
		f.option(optInterfaceName, []byte("uplink0")),
		f.option(optInterfaceDescription, []byte("uplink of a branch office")),
		f.option(optInterfaceSpeed, f.order.AppendUint64(nil, 100_000_000)),
		f.option(optInterfaceResolution, []byte{9}),
		f.option(optEnd, nil),
	)
	for _, p := range packets {
		f.enhanced(0, stamp(p.at, 9), p)
	}
	return f.buf
}

// site returns a flow between the n-th pair of hosts.
func site(n int) flow {
	f := flow4
	f.smac[5], f.src = byte(10+n), netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + n)})
	f.dst = netip.AddrFrom4([4]byte{203, 0, 113, byte(50 + n)})
	return f
}

// rtp returns an RTP packet (RFC 3550 §5.1) with n bytes of media.
func rtp(kind byte, seq uint16, step uint32, n int) []byte {
	b := []byte{0x80, kind}
	b = be.AppendUint16(b, seq)
	b = be.AppendUint32(b, uint32(seq)*step)
	b = be.AppendUint32(b, 0x5eed0000|uint32(kind))
	return append(b, filler(n)...)
}

// bulk adds trains of eight data segments, each train with one acknowledgement.
func (c *capture) bulk(rng *rand.Rand, at, until time.Duration, f flow) {
	seq, r := rng.Uint32(), f.reverse()
	for ; at < until; at += time.Duration(120+rng.IntN(60)) * ms {
		for i := range 8 {
			t := layers.TCP{ACK: true, Seq: seq, Ack: 1, Window: 501}
			c.add(at+time.Duration(i)*125*us, f.frame(f.tcp(t, filler(1448))))
			seq += 1448
		}
		t := layers.TCP{ACK: true, Seq: 1, Ack: seq, Window: 2048}
		c.add(at+18*ms, r.frame(r.tcp(t, nil)))
	}
}

// burstBytes is the IP length of every packet of bursts.
const burstBytes = 1000

// bursts drives CIR 10mbit CBS 64KiB PIR 20mbit PBS 128KiB (and an srTCM of CBS
// 64KiB EBS 64KiB) through all colors: one packet per 80 us is 100 Mbit/s. The
// second half repeats the first with colors in the DSCP.
func bursts() []byte {
	rng := rand.New(rand.NewPCG(3, 3))
	c := &capture{}
	at := time.Duration(0)
	train := func(packets int, every, idle time.Duration, dscp func(i int) uint8) {
		for i := range packets {
			f := flow4.marked(dscp(i))
			c.add(at, framed(f.udp(filler(burstBytes-28))))
			at += every
		}
		at += idle - every
	}
	none := func(int) uint8 { return dscpBE }
	thirds := func(i int) uint8 { return []uint8{dscpAF11, dscpAF12, dscpAF13}[i%3] }
	mostlyGreen := func(int) uint8 {
		return []uint8{dscpAF11, dscpAF11, dscpAF11, dscpAF12, dscpAF13, dscpBE}[rng.IntN(6)]
	}
	for _, dscp := range []func(int) uint8{none, thirds} {
		train(300, 80*us, 30*ms, dscp)   // empties both buckets; 30 ms refill only a part
		train(150, 80*us, 300*ms, dscp)  // 300 ms fill both
		train(60, 80*us, 300*ms, dscp)   // fits the committed burst
		train(200, 533*us, 400*ms, dscp) // 15 Mbit/s, between the two rates
	}
	train(150, 80*us, 0, mostlyGreen)
	c.snap(64)
	return pcapFormat{order: binary.LittleEndian, nano: true, snap: 64, link: linkEthernet}.file(c.packets)
}

// border shows how kinds of meters differ at 800kbit, which is 100 packets of
// burstBytes per second. Bursts start and end at full seconds, where windows
// do; there are pauses after which buckets are full, and seconds above the
// rate.
func border() []byte {
	c := &capture{}
	frame := framed(flow4.udp(filler(burstBytes - 28)))
	train := func(from, to time.Duration, packets int) {
		for i := range packets {
			c.add(from+(to-from)*time.Duration(i)/time.Duration(packets), frame)
		}
	}
	train(0, 2000*ms, 160)       // within the rate
	train(2800*ms, 3000*ms, 100) // a second's worth before a window's end,
	train(3000*ms, 3200*ms, 100) // and another after it
	train(4900*ms, 5100*ms, 100) // one across a window's end
	train(6950*ms, 8950*ms, 600) // three times the rate, for two seconds
	train(10500*ms, 12000*ms, 300)
	c.snap(64)
	return pcapFormat{order: binary.LittleEndian, nano: true, snap: 64, link: linkEthernet}.file(c.packets)
}
