package replay

import (
	"hash/maphash"
	"net/netip"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Both counts packets of both directions in classes whose packets draw from the same tokens or the
// same queue. It is zero if the packets of every such class are of one direction only, or of
// unknown directions.
type Both struct {
	In, Out int64 // packets whose direction is known
	// Packets of TCP connections of which both sides sent packets, if no direction is
	// known. Only the first BothSample packets are counted.
	ToServers, ToClients int64
}

// BothSample bounds the work and the memory of finding TCP connections of both directions. A
// capture with both directions shows them from its beginning.
const BothSample = 1 << 14

// bothCounter computes Both.
type bothCounter struct {
	known   map[int32]*[2]int64 // packets by class, received and sent
	sampled int                 // packets of unknown direction
	flagged bool                // flags, which may tell a direction, were seen
	tcp     map[uint64]int32    // indexes of counts, by the hash of class and connection
	counts  [][2]int64          // packets of connections, by direction
}

// connections is the seed of the hash of connections.
var connections = maphash.MakeSeed()

type classConnection struct {
	class int32
	connection
}

// complete reports whether no packet of the batch can add anything: the sample is complete, and no
// packet of the capture so far, of this link type and with so many networks inside, shows a
// direction.
func (b *bothCounter) complete(link dataplane.LinkType, inside int) bool {
	return b.sampled == BothSample && !b.flagged && link == dataplane.LinkEthernet && inside == 0
}

// packet counts a packet of a class.
func (b *bothCounter) packet(rec *record, class int32, inside []netip.Prefix) {
	if way := rec.way(inside); way != AnyWay {
		if b.known == nil {
			b.known = map[int32]*[2]int64{}
		}
		n := b.known[class]
		if n == nil {
			n = new([2]int64)
			b.known[class] = n
		}
		n[way-In]++
		return
	}
	if b.sampled == BothSample {
		return
	}
	b.sampled++
	dataplane.ParseOnce(rec.Packet)
	if rec.Proto != protoTCP || !rec.HasPorts {
		return
	}
	c, back := connectionOf(rec.Packet)
	if b.tcp == nil {
		b.tcp = map[uint64]int32{}
	}
	key := maphash.Comparable(connections, classConnection{class, c})
	i, known := b.tcp[key]
	if !known {
		i = int32(len(b.counts))
		b.tcp[key] = i
		b.counts = append(b.counts, [2]int64{})
	}
	if back {
		b.counts[i][1]++
	} else {
		b.counts[i][0]++
	}
}

func (b *bothCounter) result() (out Both) {
	for _, n := range b.known {
		if n[0] > 0 && n[1] > 0 {
			out.In += n[0]
			out.Out += n[1]
		}
	}
	if b.known != nil {
		return out
	}
	for _, n := range b.counts {
		if n[0] > 0 && n[1] > 0 {
			out.ToServers += n[0]
			out.ToClients += n[1]
		}
	}
	return out
}

// connection identifies a TCP connection: the side with the smaller port, usually the server,
// is first.
type connection struct {
	kind           dataplane.PacketKind
	server, client dataplane.Addr
	ports          uint32
}

// connectionOf returns the connection of a packet with ports. With back, its server sent the
// packet.
func connectionOf(p *dataplane.Packet) (c connection, back bool) {
	src, dst, from, to := p.Src, p.Dst, p.SrcPort, p.DstPort
	back = from < to || from == to && (src.Hi < dst.Hi || src.Hi == dst.Hi && src.Lo < dst.Lo)
	if back {
		src, dst, from, to = dst, src, to, from
	}
	return connection{p.Kind, dst, src, uint32(to)<<16 | uint32(from)}, back
}
