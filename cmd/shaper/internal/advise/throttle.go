package advise

import "slices"

// Sender is the bulk data of one direction of a connection.
type Sender struct {
	RTT           int64   `json:"rtt_ns,omitempty"` // smallest; 0 if it is unknown
	Packets       int64   `json:"packets"`
	Bytes         int64   `json:"bytes"` // metered
	Rate          float64 `json:"rate_bps"`
	Retransmitted int64   `json:"retransmitted"`
	Selective     int64   `json:"selective_acks"`
	Flight        int64   `json:"bytes_in_flight,omitempty"` // most
	MSS           int64   `json:"mss,omitempty"`

	first, last int64
}

// lost reports whether packets of the sender were lost: it is throttled by the network.
func (s *Sender) lost() bool { return s.Retransmitted > 0 || s.Selective > 0 }

// Senders returns all senders of much data.
func (c *Connections) Senders() (list []Sender) {
	for _, conn := range c.list {
		for i := range conn.side {
			h := &conn.side[i]
			if h.payload < bulkBytes {
				continue
			}
			s := Sender{
				RTT: conn.rtt(), Packets: h.packets, Bytes: h.bytes, Retransmitted: h.retransmitted, Selective: h.selective,
				Flight: h.flight, MSS: least(conn.side[0].mss, conn.side[1].mss), first: h.first, last: h.last,
			}
			if h.last > h.first {
				s.Rate = float64(h.bytes) * 8e9 / float64(h.last-h.first)
			}
			list = append(list, s)
		}
	}
	return list
}

// Throttle summarizes how TCP sent.
type Throttle struct {
	Share         float64 `json:"tcp_share"`  // of all bytes
	Senders       int     `json:"senders"`    // of much data
	Concurrent    int     `json:"concurrent"` // most of them at one time
	Throttled     bool    `json:"throttled"`  // packets were lost of senders of a tenth of all bytes or more
	RTT           int64   `json:"rtt_ns"`     // smallest; 0 if it is unknown
	Retransmitted int64   `json:"retransmitted"`
	Selective     int64   `json:"selective_acks"`
	Packets       int64   `json:"packets"`         // of the senders
	Flight        int64   `json:"bytes_in_flight"` // most of one sender; 0 if it is unknown
	Rate          float64 `json:"rate_bps"`        // of the sender of the most bytes
	MSS           int64   `json:"mss"`             // its MSS; 0 if it is unknown
}

// Throttle summarizes all senders.
func (c *Connections) Throttle() Throttle {
	t := Throttle{}
	if c.any.Bytes > 0 {
		t.Share = float64(c.tcp.Bytes) / float64(c.any.Bytes)
	}
	list := c.Senders()
	t.Senders = len(list)
	lost, most := int64(0), int64(0)
	var begin, end []int64 // of the senders, ns
	for i := range list {
		s := &list[i]
		t.RTT = least(t.RTT, s.RTT)
		t.Retransmitted += s.Retransmitted
		t.Selective += s.Selective
		t.Packets += s.Packets
		t.Flight = max(t.Flight, s.Flight)
		if s.Bytes > most {
			most, t.Rate, t.MSS = s.Bytes, s.Rate, s.MSS
		}
		if s.lost() {
			lost += s.Bytes
		}
		begin, end = append(begin, s.first), append(end, s.last)
	}
	slices.Sort(begin)
	slices.Sort(end)
	ended := 0
	for i, at := range begin {
		for end[ended] < at {
			ended++
		}
		t.Concurrent = max(t.Concurrent, i+1-ended)
	}
	t.Throttled = lost > 0 && lost*10 >= c.any.Bytes
	return t
}
