package advise

import (
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

const (
	mostConnections = 1 << 16       // tracked; packets of others only count
	bulkBytes       = 1 << 17       // payload from which on a connection counts as bulk
	mostHoles       = 32            // of one sender
	overtaken       = 3_000_000     // ns, the longest time by which reordering delays a packet
	stale           = 1_000_000_000 // ns, after which no echo is expected
)

// Connections measures the TCP connections of a capture: round-trip times, retransmissions, bytes
// in flight and rates. It needs both directions for some of them.
type Connections struct {
	all      map[endpoints]*connection
	list     []*connection // in the order of their first packets
	tcp, any dataplane.Count
}

// endpoints identify a connection. The lower endpoint is first.
type endpoints struct {
	kind         dataplane.PacketKind
	a, b         dataplane.Addr
	aPort, bPort uint16
}

// connection is a connection with its two directions: from the first endpoint, and to it.
type connection struct {
	endpoints
	side      [2]half
	syn       int64 // time of the client's first SYN, ns; valid if opening
	opening   bool
	client    int   // side of the client
	handshake int64 // ns from the first SYN to the client's ACK; 0 if it was not seen
}

// half is a direction of a connection: the data of one sender, and its acknowledgements by the
// other.
type half struct {
	begun, chosen bool
	first, last   int64  // times of the first and the last packet with data, ns
	next          uint32 // sequence number after the largest one sent
	acked         uint32 // largest acknowledgement
	wasAcked      bool
	packets       int64 // with data
	bytes         int64 // of these packets
	payload       int64 // bytes of data, retransmissions included
	retransmitted int64 // packets
	selective     int64 // acknowledgements with SACK blocks (RFC 2018): data was lost or reordered
	flight        int64 // most bytes sent and not acknowledged
	mss           int64 // option of the SYN, bytes; 0 if it was not seen
	stream        *Stream
	key           int32 // of the stream: of the latest packet of a class with a meter
	holes         []hole
	echo          // of the sender's timestamps (RFC 7323) or sequence numbers
}

// hole is a gap in the sequence numbers, and the time at which it appeared.
type hole struct {
	from, to uint32
	at       int64 // ns
}

// echo measures the time from a packet of the sender to its echo by the other endpoint, at the
// place of the capture.
type echo struct {
	stamp   uint32 // TSval of the pending packet
	latest  uint32 // TSval of the latest packet
	byStamp bool
	pending bool
	end     uint32 // acknowledgement number expected for the pending packet
	at      int64  // ns
	least   int64  // ns, smallest measured; 0 for none
}

func (e *echo) measured(now int64) {
	e.pending = false
	if t := now - e.at; t > 0 && (e.least == 0 || t < e.least) {
		e.least = t
	}
}

// newConnections returns an empty set.
func newConnections() *Connections {
	return &Connections{all: map[endpoints]*connection{}}
}

// Watch adds a parsed packet, chosen or not.
func (c *Connections) Watch(p *dataplane.Packet) {
	segment, ok := readSegment(p)
	if !ok {
		return
	}
	id, from := endpointsOf(p)
	conn := c.all[id]
	// or the ports are used again
	if conn == nil || segment.flags&(synFlag|ackFlag) == synFlag &&
		conn.side[from].payload+conn.side[1-from].payload > 0 {
		if len(c.list) == mostConnections {
			return
		}
		conn = &connection{endpoints: id}
		c.all[id] = conn
		c.list = append(c.list, conn)
	}
	conn.packet(&segment, from, p.Time, int64(p.L3Len))
}

// Choose adds the metered bytes of a watched packet selected by --filter and --direction. Its
// acknowledgement need not be selected. It returns the direction of the packet's connection, or
// nil.
func (c *Connections) Choose(p *dataplane.Packet, n dataplane.Count) *half {
	c.any = c.any.Plus(n)
	if _, ok := readSegment(p); !ok {
		return nil
	}
	c.tcp = c.tcp.Plus(n)
	id, from := endpointsOf(p)
	conn := c.all[id]
	if conn == nil {
		return nil
	}
	conn.side[from].chosen = true
	return &conn.side[from]
}

// endpointsOf returns the endpoints of a packet, and which of them sent it.
func endpointsOf(p *dataplane.Packet) (id endpoints, from int) {
	if later(p.Src, p.Dst, p.SrcPort, p.DstPort) {
		return endpoints{p.Kind, p.Dst, p.Src, p.DstPort, p.SrcPort}, 1
	}
	return endpoints{p.Kind, p.Src, p.Dst, p.SrcPort, p.DstPort}, 0
}

// later reports whether the source comes after the destination in the order of endpoints.
func later(src, dst dataplane.Addr, sport, dport uint16) bool {
	switch {
	case src.Hi != dst.Hi:
		return src.Hi > dst.Hi
	case src.Lo != dst.Lo:
		return src.Lo > dst.Lo
	}
	return sport > dport
}

// packet adds a segment of sender from, at a time in ns, in a packet of n bytes.
func (c *connection) packet(s *segment, from int, now, n int64) {
	out, in := &c.side[from], &c.side[1-from]
	if s.flags&rstFlag != 0 {
		return
	}
	switch s.flags & (synFlag | ackFlag) {
	case synFlag:
		c.opening, c.syn, c.client = !out.begun, now, from // a repeated SYN measures nothing
	case ackFlag:
		if c.opening && from == c.client {
			c.opening, c.handshake = false, now-c.syn
		}
	}
	if s.flags&synFlag != 0 {
		out.mss = s.mss
	}
	end := s.seq + s.payload
	if s.flags&(synFlag|finFlag) != 0 {
		end++
	}
	out.sent(s, end, now, n)
	if s.flags&ackFlag != 0 {
		in.acknowledged(s, now)
	}
}

// sent adds a segment of the sender. end is the next sequence number after it.
func (h *half) sent(s *segment, end uint32, now, n int64) {
	again := false
	switch {
	case !h.begun:
		h.begun, h.next, h.acked = true, end, s.seq
	case end == s.seq:
	case !after(end, h.next):
		again = h.isRepeated(s.seq, end, now)
	default:
		if after(s.seq, h.next) && len(h.holes) < mostHoles {
			h.holes = append(h.holes, hole{h.next, s.seq, now})
		}
		h.next = end
	}
	if s.payload > 0 {
		if h.packets == 0 {
			h.first = now
		}
		h.last = now
		h.packets++
		h.bytes += n
		h.payload += int64(s.payload)
		if again {
			h.retransmitted++
		}
		if h.wasAcked {
			h.flight = max(h.flight, int64(int32(h.next-h.acked)))
		}
	}
	switch {
	case s.stamped:
		// A packet after the first one of its TSval may be echoed by the echo of the first one.
		if s.tsVal != h.latest && (!h.pending || now-h.at > stale) {
			h.pending, h.byStamp, h.stamp, h.at = true, true, s.tsVal, now
		}
		h.latest = s.tsVal
	case again:
		h.pending = false // the acknowledgement may be of either transmission (RFC 6298 §3)
	case !h.pending && end != s.seq:
		h.pending, h.byStamp, h.end, h.at = true, false, end, now
	}
}

// isRepeated reports whether a packet with earlier sequence numbers was sent again. Data missing
// from a gap was lost before it reached the place of the capture, or overtaken: then it arrives
// within overtaken.
func (h *half) isRepeated(seq, end uint32, now int64) bool {
	for i, g := range h.holes {
		if after(g.from, seq) || after(end, g.to) {
			continue
		}
		h.holes = slices.Delete(h.holes, i, i+1)
		if g.from != seq {
			h.holes = append(h.holes, hole{g.from, seq, g.at})
		}
		if g.to != end && len(h.holes) < mostHoles {
			h.holes = append(h.holes, hole{end, g.to, g.at})
		}
		return now-g.at > overtaken
	}
	return true
}

// acknowledged adds an acknowledgement by the other endpoint.
func (h *half) acknowledged(s *segment, now int64) {
	if s.selective {
		h.selective++
	}
	if h.begun && (!h.wasAcked || after(s.ack, h.acked)) {
		h.acked, h.wasAcked = s.ack, true
	}
	if !h.pending {
		return
	}
	if h.byStamp && s.stamped && s.tsEc == h.stamp || !h.byStamp && !after(h.end, s.ack) {
		h.measured(now)
	}
}

// rtt returns the smallest round-trip time of the connection, ns, or 0 if it is unknown. From a
// SYN to the end of the handshake it is seen from the client's side alone. Otherwise it is the sum
// of the times to both endpoints and back.
func (c *connection) rtt() int64 {
	a, b := c.side[0].least, c.side[1].least
	if a == 0 || b == 0 {
		return c.handshake
	}
	return minKnown(a+b, c.handshake)
}

// minKnown returns the smaller of two positive values, of which 0 means unknown.
func minKnown(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
