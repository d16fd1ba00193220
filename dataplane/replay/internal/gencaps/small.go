package main

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/gopacket/layers"
)

// mixed returns a few packets of all kinds, at intervals of step.
func mixed(seed uint64, packets int, step time.Duration) *capture {
	rng := rand.New(rand.NewPCG(seed, seed))
	c := &capture{}
	for i := range packets {
		f := flow4
		if rng.IntN(3) == 0 {
			f = flow6
		}
		f = f.marked([]uint8{dscpBE, dscpAF11, dscpAF12, dscpAF13, dscpEF}[rng.IntN(5)])
		ip := f.udp(filler(20 + rng.IntN(1000)))
		if rng.IntN(4) == 0 {
			ip = f.tcp(layers.TCP{ACK: true, Seq: uint32(i), Window: 501}, filler(rng.IntN(1400)))
		}
		c.add(time.Duration(i)*step, pad(framed(ip), 60))
	}
	return c
}

func bigEndian() []byte {
	c := mixed(7, 100, 1234567*time.Nanosecond)
	return pcapFormat{order: binary.BigEndian, snap: 262144, link: linkEthernet}.file(c.packets)
}

// bigEndianNG lacks if_tsresol, so its timestamps are in microseconds.
func bigEndianNG() []byte {
	f := &pcapng{order: binary.BigEndian}
	f.section(f.option(optComment, []byte("a section in the other byte order")), f.option(optEnd, nil))
	f.iface(linkEthernet, 0, f.option(optInterfaceName, []byte("be0")), f.option(optEnd, nil))
	for i, p := range mixed(8, 120, 500*us).packets {
		if i == 10 {
			p.comment = "the eleventh packet"
		}
		f.enhanced(0, stamp(p.at, 6), p)
	}
	return gzipStored(f.buf)
}

// back contains all clock errors: small and large steps back, two packets at the same time, a
// fraction over one second, and a timestamp far ahead at the end.
func back() []byte {
	c := mixed(9, 60, 10*ms)
	c.snap(128)
	p := c.packets
	p[10].at -= 15 * ms         // between two earlier packets
	p[20].at -= us              // one tick less than its interval; no step back
	p[21].at = p[20].at - us    // one tick back
	p[30].at -= 2 * time.Second // before the first packet
	p[40].at = p[39].at         // the same timestamp
	p[45].carry = true
	p[59].at += 30 * 24 * time.Hour
	return pcapFormat{order: binary.LittleEndian, snap: 128, link: linkEthernet}.file(p)
}

// cooked mixes interfaces of different link types and resolutions in one section, and other blocks
// between the packets.
func cooked() []byte {
	f := &pcapng{order: binary.LittleEndian}
	f.section(f.option(optComment, []byte("six interfaces, five of them known")),
		f.option(optSectionProgram, []byte("gencaps")), f.option(optEnd, nil))
	add := func(link uint16, name string, options ...[]byte) {
		options = slices.Insert(options, 0, f.option(optInterfaceName, []byte(name)))
		f.iface(link, 262144, append(options, f.option(optEnd, nil))...)
	}
	resolution := func(b byte) []byte { return f.option(optInterfaceResolution, []byte{b}) }
	add(linkEthernet, "eth0") // no if_tsresol: microseconds
	add(linkSLL, "any", resolution(9))
	add(linkSLL2, "any2", resolution(0x80|20))
	add(linkRaw, "tun0", resolution(3))
	// The offset, in seconds, is added to every timestamp.
	add(linkNull, "lo0", f.option(optInterfaceOffset, f.order.AppendUint64(nil, 1000)), resolution(9))
	add(linkUser0, "usb7", resolution(6))
	stamps := []func(at time.Duration) uint64{
		func(at time.Duration) uint64 { return stamp(at, 6) },
		func(at time.Duration) uint64 { return stamp(at, 9) },
		func(at time.Duration) uint64 { return stamp2(at, 20) },
		func(at time.Duration) uint64 { return stamp(at, 3) },
		func(at time.Duration) uint64 { return stamp(at-1000*time.Second, 9) },
		func(at time.Duration) uint64 { return stamp(at, 6) },
	}
	const rounds = 20
	for i := range rounds {
		for n, data := range cookedFrames(i) {
			// Whole milliseconds stay in order at the coarsest resolution.
			at := time.Duration(i*len(stamps)+n) * 2 * ms
			p := packet{data: data, wire: len(data)}
			if n == 1 && i == 3 {
				p.comment = "outgoing, in the flags as well"
				f.enhanced(uint32(n), stamps[n](at), p, f.option(optPacketFlags, f.words(2)))
				continue
			}
			f.enhanced(uint32(n), stamps[n](at), p)
		}
		cookedExtra(f, i)
	}
	end := stamp(time.Duration(rounds*len(stamps))*2*ms, 6)
	f.block(blockStatistics, f.words(0, uint32(end>>32), uint32(end)),
		f.option(optStatisticsReceived, f.order.AppendUint64(nil, rounds+1)),
		f.option(optStatisticsDropped, f.order.AppendUint64(nil, 0)),
		f.option(optEnd, nil))
	return f.buf
}

// cookedFrames returns one packet for each interface.
func cookedFrames(i int) [][]byte {
	dscp := []uint8{dscpBE, dscpAF11, dscpAF12, dscpAF13, dscpEF}[i%5]
	f := flow4
	if i%3 == 2 {
		f = flow6
	}
	ip := f.marked(dscp).udp(filler(10 + 40*i))
	kind := etherType(ip)
	direction := byte(i & 1 * 4) // 0: to us, 4: sent by us
	sll := slices.Concat([]byte{0, direction, 0, 1, 0, 6}, macA[:], []byte{0, 0}, be.AppendUint16(nil, kind),
		ip)
	sll2 := slices.Concat(be.AppendUint16(nil, kind), []byte{0, 0, 0, 0, 0, 3, 0, 1, direction, 6}, macA[:],
		[]byte{0, 0}, ip)
	if i == 5 { // a padded frame keeps its padding in the cooked format
		small := flow4.udp(filler(1))
		sll = pad(slices.Concat(sll[:14], be.AppendUint16(nil, typeIPv4), small), 62)
		sll2 = pad(slices.Concat(be.AppendUint16(nil, typeIPv4), sll2[2:20], small), 66)
	}
	if i == 6 { // VLAN tag after the cooked header
		sll = slices.Concat(sll[:14], []byte{0x81, 0, 0x60, 10}, be.AppendUint16(nil, kind), ip)
		sll2 = slices.Concat([]byte{0x81, 0}, sll2[2:20], []byte{0x60, 10}, be.AppendUint16(nil, kind), ip)
	}
	family := byte(2)
	if kind == typeIPv6 {
		family = []byte{24, 28, 30, 10}[i%4] // the BSDs, Darwin and Linux use different values
	}
	// LINKTYPE_NULL uses the byte order of the capturing machine.
	null := slices.Concat([]byte{family, 0, 0, 0}, ip)
	if i%2 == 1 {
		null = slices.Concat([]byte{0, 0, 0, family}, ip)
	}
	return [][]byte{pad(framed(ip), 60), sll, sll2, ip, null, filler(20 + i)}
}

// cookedExtra writes a block other than a timestamped packet after round i.
func cookedExtra(f *pcapng, i int) {
	const pen = 32473 // assigned by IANA for examples in documents (RFC 5612)
	switch i {
	case 4:
		v4 := flow4.src.As4()
		v6 := flow6.src.As16()
		f.block(blockNames,
			f.option(1, slices.Concat(v4[:], []byte("host.example.com\x00"))),
			f.option(2, slices.Concat(v6[:], []byte("host6.example.com\x00"))),
			f.option(optEnd, nil))
	case 8:
		f.block(blockCustom, f.words(pen), []byte("carried as it is"))
	case 10:
		f.block(blockLocal, []byte("a block type nobody knows"))
	case 12: // no timestamp: the previous packet's counts
		frame := framed(flow4.udp(filler(101)))
		f.block(blockSimple, f.words(uint32(len(frame))), frame)
	}
}
