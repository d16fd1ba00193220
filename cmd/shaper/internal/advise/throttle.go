package advise

import "slices"

// Throttle summarizes how TCP sent. A sender is a chosen direction of a
// connection with bulkBytes or more.
type Throttle struct {
	Share         float64 `json:"tcp_share"`  // of all bytes
	Senders       int     `json:"senders"`    // of much data
	Concurrent    int     `json:"concurrent"` // most of them at one time
	Throttled     bool    `json:"throttled"`  // packets were lost of senders of a tenth of all bytes or more
	RTT           int64   `json:"rtt_ns"`     // smallest; 0 if it is unknown
	Packets       int64   `json:"packets"`    // of the senders
	Retransmitted int64   `json:"retransmitted"`
	Selective     int64   `json:"selective_acks"`
	Flight        int64   `json:"bytes_in_flight"` // most of one sender; 0 if it is unknown
	Rate          float64 `json:"rate_bit_s"`      // of the sender of the most bytes
	MSS           int64   `json:"mss"`             // its MSS; 0 if it is unknown
}

// Throttle summarizes all senders.
func (c *Connections) Throttle() (t Throttle) {
	if c.any.Bytes > 0 {
		t.Share = float64(c.tcp.Bytes) / float64(c.any.Bytes)
	}
	lost, most := int64(0), int64(0) // bytes
	var begin, end []int64           // of the senders, ns
	for _, conn := range c.list {
		for i := range conn.side {
			h := &conn.side[i]
			if h.payload < bulkBytes || !h.chosen {
				continue
			}
			t.Senders++
			t.RTT = minKnown(t.RTT, conn.rtt())
			t.Packets += h.packets
			t.Retransmitted += h.retransmitted
			t.Selective += h.selective
			t.Flight = max(t.Flight, h.flight)
			if h.bytes > most && h.last > h.first {
				most = h.bytes
				t.Rate, t.MSS = float64(h.bytes)*8e9/float64(h.last-h.first),
					minKnown(conn.side[0].mss, conn.side[1].mss)
			}
			if h.retransmitted+h.selective > 0 {
				lost += h.bytes
			}
			begin, end = append(begin, h.first), append(end, h.last)
		}
	}
	t.Concurrent = mostAtOnce(begin, end)
	t.Throttled = throttled(lost, c.any.Bytes)
	return t
}

// throttled reports whether senders with losses sent a tenth or more of all bytes.
func throttled(lost, all int64) bool { return lost > 0 && lost*10 >= all }

// throttledKeys returns the number of keys of a stream of which senders of a tenth or more of the bytes
// lost packets.
func (c *Connections) throttledKeys(s *Stream) (n int) {
	lost := make([]int64, len(s.keys)) // bytes
	for _, conn := range c.list {
		for i := range conn.side {
			if h := &conn.side[i]; h.stream == s && h.payload >= bulkBytes &&
				h.retransmitted+h.selective > 0 {
				lost[h.key] += h.bytes
			}
		}
	}
	for i := range lost {
		if throttled(lost[i], s.keys[i].Offered.Bytes) {
			n++
		}
	}
	return n
}

// mostAtOnce returns the largest number of overlapping spans of time.
func mostAtOnce(begin, end []int64) (most int) {
	slices.Sort(begin)
	slices.Sort(end)
	ended := 0
	for i, at := range begin {
		for end[ended] < at {
			ended++
		}
		most = max(most, i+1-ended)
	}
	return most
}
