package walk

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
)

// Random addresses are from 10.0.0.0/14 and 2001:db8::/46, so that random prefixes often nest.

func randomAddr4(r *rand.Rand) [4]byte {
	return [4]byte{10, byte(r.IntN(4)), byte(r.IntN(4)), byte(r.Uint32())}
}

func randomAddr6(r *rand.Rand) [16]byte {
	a := [16]byte{0x20, 1, 0xd, 0xb8, 0, byte(r.IntN(4)), 0, byte(r.IntN(4))}
	a[8+r.IntN(8)] = byte(r.Uint32())
	return a
}

func randomPrefix(r *rand.Rand) netip.Prefix {
	if r.IntN(2) == 0 {
		return netip.PrefixFrom(netip.AddrFrom4(randomAddr4(r)),
			kerneltest.Pick(r, r.IntN(33), 14+r.IntN(19))).Masked()
	}
	return netip.PrefixFrom(netip.AddrFrom16(randomAddr6(r)),
		kerneltest.Pick(r, r.IntN(129), 46+r.IntN(83), 64)).Masked()
}

func randomPrefixes(r *rand.Rand) []netip.Prefix {
	var out []netip.Prefix
	for range 1 + r.IntN(4) {
		out = append(out, randomPrefix(r))
	}
	return out
}

// randomPackets have times from start on, mostly a few ms apart, and sometimes years.
func randomPackets(r *rand.Rand, n int, start int64) []dataplane.Packet {
	out := make([]dataplane.Packet, n)
	for i := range out {
		start += kerneltest.Pick(r, 0, 0, r.Int64N(1000), r.Int64N(1e6), r.Int64N(1e7), r.Int64N(1e7),
			r.Int64N(1e9), -r.Int64N(1e9))
		if r.IntN(200) == 0 {
			start += r.Int64N(1e17)
		}
		out[i] = randomPacket(r, randomAddr4(r), randomAddr4(r), randomAddr6(r), randomAddr6(r))
		out[i].Time = start
	}
	return out
}

// randomEthernet returns the addresses of a frame, of four each.
func randomEthernet(r *rand.Rand) []byte {
	b := ethernet()
	b[5], b[11] = byte(r.IntN(4)), byte(r.IntN(4))
	return b
}

// randomPacket is a random stack of headers. One in five is truncated at a random byte.
func randomPacket(r *rand.Rand, src4, dst4 [4]byte, src6, dst6 [16]byte) dataplane.Packet {
	p := dataplane.Packet{Link: dataplane.LinkEthernet, Mark: kerneltest.Pick(r, marks...)}
	var b []byte
	ip := kerneltest.Pick[uint16](r, 4, 6)
	ethertype := map[uint16]uint16{4: 0x800, 6: 0x86dd}[ip]
	switch r.IntN(10) {
	case 0:
		p.Link = kerneltest.Pick(r, dataplane.LinkRaw, dataplane.LinkRawBSD, dataplane.LinkIPv4,
			dataplane.LinkIPv6)
	case 1:
		b = kerneltest.Be16(randomEthernet(r), uint16(r.Uint32()))
	default:
		b = randomEthernet(r)
		for range kerneltest.Pick(r, 0, 0, 0, 1, 1, 2, 3, 4) {
			b = kerneltest.Be16(b, kerneltest.Pick[uint16](r, 0x8100, 0x88a8, 0x9100), uint16(r.Uint32()))
		}
		switch r.IntN(8) {
		case 0:
			b = kerneltest.Be16(b, kerneltest.Pick[uint16](r, 0x8847, 0x8848))
			for labels := kerneltest.Pick(r, 1, 1, 2, 15, 16, 17); labels > 0; labels-- {
				label := r.Uint32() &^ 0x100
				if labels == 1 {
					label |= 0x100
				}
				b = binary.BigEndian.AppendUint32(b, label)
			}
		case 1:
			b = append(kerneltest.Be16(b, 0x8864, 0x1100, 1, 50), kerneltest.Pick(r, []byte{0, 0x21},
				[]byte{0, 0x57}, []byte{0xc0, 0x21}, []byte{0x21}, []byte{0x57})...)
		default:
			b = kerneltest.Be16(b, ethertype)
		}
	}
	payload := kerneltest.Pick(r, 0, 1, 3, r.IntN(60), r.IntN(1480), 1480)
	total := payload
	if r.IntN(8) == 0 {
		// a wrong length in the header, also below its own
		total = kerneltest.Pick(r, r.IntN(1<<16), -r.IntN(60))
	}
	proto := kerneltest.Pick[byte](r, 6, 6, 17, 17, 33, 132, 136, 1, 58, byte(r.Uint32()))
	fragment := kerneltest.Pick[uint16](r, 0, 0, 0, 0x4000, 0x2000, uint16(r.Uint32()))
	if ip == 4 {
		b = ipv4(b, kerneltest.Pick(r, 0, 0, 0, 1, 10), byte(r.Uint32()), proto, total, fragment, src4, dst4)
	} else {
		extensions := kerneltest.Pick(r, 0, 0, 0, 1, 2, 15, 16, 17)
		var chain []byte
		next := proto
		for range extensions {
			kind := kerneltest.Pick[byte](r, 0, 43, 60, 135, 139, 140, 44, 51)
			size := kerneltest.Pick(r, 0, 0, 1, r.IntN(4))
			header := make([]byte, 8*(size+1))
			switch kind {
			case 44:
				header = make([]byte, 8)
				if r.IntN(4) == 0 {
					header[2], header[3] = byte(fragment>>8), byte(fragment)
				}
			case 51:
				size = kerneltest.Pick(r, 0, 1, 4, 5)
				header = make([]byte, 4*(size+2))
				header[1] = byte(size)
			default:
				header[1] = byte(size)
			}
			header[0] = next
			next = kind
			chain = append(header, chain...)
		}
		b = append(ipv6(b, byte(r.Uint32()), next, min(total+len(chain), math.MaxUint16), src6, dst6),
			chain...)
	}
	data := make([]byte, payload)
	for i := range min(payload, 14) { // up to the flags of TCP
		data[i] = byte(r.Uint32())
	}
	if payload > 4 && r.IntN(3) > 0 { // ports that random policies match
		copy(data, kerneltest.Be16(nil, kerneltest.Pick[uint16](r, 0, 1, 53, 1024),
			kerneltest.Pick[uint16](r, 53, 80, 65535)))
	}
	b = append(b, data...)
	if r.IntN(20) == 0 {
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
	}
	p.WireLen = len(b)
	if r.IntN(10) == 0 { // padding, or bytes that were not captured
		p.WireLen = max(p.WireLen, 60) + kerneltest.Pick(r, 0, 0, 4, 8, 12, r.IntN(70_000))
	}
	if r.IntN(5) == 0 {
		b = b[:r.IntN(len(b)+1)]
	}
	p.Data = b
	return p
}

// packetFor is a packet at or next to a bound of a match, so that it often matches.
func packetFor(r *rand.Rand, m *dataplane.Match) dataplane.Packet {
	address := func(list []netip.Prefix, v6 bool) netip.Addr {
		random := netip.AddrFrom4(randomAddr4(r))
		if v6 {
			random = netip.AddrFrom16(randomAddr6(r))
		}
		for _, i := range r.Perm(len(list)) {
			if p := list[i]; p.Addr().Is6() == v6 {
				return kerneltest.Pick(r, p.Addr(), p.Addr(), lastAddress(p), p.Addr().Prev(),
					lastAddress(p).Next(), random)
			}
		}
		return random
	}
	v6 := m.Src[r.IntN(len(m.Src))].Addr().Is6()
	src, dst := address(m.Src, v6), address(m.Dst, v6)
	if !src.IsValid() || !dst.IsValid() { // before the first or after the last address
		return packetFor(r, m)
	}
	port := func(list []dataplane.Range) uint16 {
		if len(list) == 0 {
			return uint16(r.Uint32())
		}
		a := list[r.IntN(len(list))]
		return uint16(kerneltest.Pick(r, a.First, a.Last, a.First-1, a.Last+1))
	}
	b := ethernet()
	tos := byte(r.Uint32())
	if v6 {
		b = ipv6(kerneltest.Be16(b, 0x86dd), tos, 6, 20, src.As16(), dst.As16())
	} else {
		b = ipv4(kerneltest.Be16(b, 0x800), 0, tos, 6, 20, 0, src.As4(), dst.As4())
	}
	b = tcp(b, 0, port(m.SPort), port(m.DPort))
	return dataplane.Packet{Data: b, WireLen: len(b), Link: dataplane.LinkEthernet}
}

// lastAddress is the last address of a prefix.
func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
