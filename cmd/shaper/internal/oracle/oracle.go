// Package oracle is a slow reference model of `shaper replay`. It decides every packet of a
// capture by the rules of the specification, in exact fractions, one rule after the other.
// Tests compare the program with it.
//
// It supports every meter type, alone, per key and in envelopes, chains, marks, and queues with
// WRED and CoDel, with their own rates or on links.
package oracle

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// Decide reads a policy (YAML text) and a capture file (pcap or pcapng, which may be gzipped).
// It returns the rows of `shaper replay --decisions` as CSV fields in the documented order, one
// row per packet, without the header.
//
// If the capture is broken, it returns the rows of the packets before the error, and the error.
func Decide(policy []byte, capture string) ([][]string, error) {
	rows, err := replay(policy, capture)
	var out [][]string
	for i, r := range rows {
		out = append(out, r.fields(i+1))
	}
	return out, err
}

// replay decides the whole capture. At its end, every packet has left its queue.
func replay(text []byte, capture string) ([]*row, error) {
	p, err := parsePolicy(text)
	if err != nil {
		return nil, err
	}
	packets, err := readCapture(capture)

	var rows []*row
	var clock *big.Int // largest timestamp so far
	for i, packet := range packets {
		if clock == nil || packet.time.Cmp(clock) > 0 {
			clock = packet.time
		}
		if i > 0 && packet.section != packets[i-1].section {
			p.empty() // at the end of a section the queues are emptied
		}
		r, failed := p.decide(packet, clock)
		if failed != nil {
			err = fmt.Errorf("packet %d: %w", i+1, failed)
			break
		}
		rows = append(rows, r)
	}
	p.empty()
	return rows, err
}

// empty sends all packets that are queued on links.
func (p *policy) empty() {
	for _, l := range p.links {
		l.run(nil)
	}
}

// row is the decision about one packet. Empty strings are empty fields.
type row struct {
	packet  packet
	frame   frame
	length  int64 // metered bytes
	class   string
	pre     string
	color   string
	action  action
	dropped bool
	ecn     bool // CE was set
	marked  bool
	queued  bool
	reason  string

	departure *big.Int
	sent      *big.Int // departure on the clock, which may be later than the packet's own timestamp
}

func (r *row) drop(reason string) {
	r.dropped = true
	r.reason = reason
}

// leave completes the row of a packet that leaves its queue.
func (r *row) leave(t *big.Int) { r.departure, r.sent = t, t }

func (r *row) fields(number int) []string {
	var dscpIn, dscpOut, departure string
	if r.frame.isIP() {
		dscpIn = strconv.Itoa(r.frame.dscp())
	}
	if !r.dropped {
		dscpOut = dscpIn
		if r.frame.isIP() && r.action.dscp >= 0 {
			dscpOut = strconv.Itoa(r.action.dscp)
		}
		departure = r.departure.String()
	}
	return []string{
		strconv.Itoa(number),
		r.packet.time.String(),
		strconv.FormatInt(r.length, 10),
		r.class,
		r.pre,
		r.color,
		r.actions(),
		dscpIn,
		dscpOut,
		departure,
		r.reason,
	}
}

// actions joins the names of the actions in their order.
func (r *row) actions() string {
	if r.dropped {
		return "drop"
	}
	var done []string
	if r.ecn {
		done = append(done, "ecn")
	}
	if r.marked {
		done = append(done, "mark")
	}
	if r.queued {
		done = append(done, "queue")
	}
	if len(done) == 0 {
		return "pass"
	}
	return strings.Join(done, "+")
}

// decide classifies, meters and acts on one packet.
func (p *policy) decide(packet packet, clock *big.Int) (*row, error) {
	f := parseFrame(packet.linkType, packet.data, packet.wire)
	length, err := p.length.meteredBytes(f)
	if err != nil {
		return nil, err
	}
	r := &row{packet: packet, frame: f, length: length, action: pass, departure: packet.time, sent: clock}

	class := p.classify(f, length)
	if class == nil {
		r.class = "-"
		switch f.kind {
		case nonIP:
			r.reason = "not-ip"
		case malformed:
			r.reason = "malformed"
		default:
			r.reason = "no-meter"
		}
		r.dropped = p.closed
		return r, nil
	}
	r.class = class.name

	pre, after, reason := class.meter(f, new(big.Rat).SetInt(clock), length)
	r.pre, r.color, r.reason = pre.String(), after.String(), reason
	r.action = class.actions[after]

	p.act(r, after, clock)
	return r, nil
}

// meter runs the packet through the class's chain of meters. A red packet skips later meters.
// The reason is that of the last meter that saw the packet.
func (c *class) meter(f frame, now *big.Rat, length int64) (pre, after color, reason string) {
	if len(c.chain) == 0 {
		return green, green, "no-meter"
	}
	first := c.chain[0]
	pre = green
	if first.aware {
		pre = first.precolor.of(f)
	}
	after = pre
	for i, m := range c.chain {
		if i > 0 && after == red {
			break
		}
		after, reason = m.decide(f, now, length, after)
	}
	return pre, after, reason
}

// act applies the action for the color, in the order ecn, mark, queue.
func (p *policy) act(r *row, c color, clock *big.Int) {
	a, f := r.action, r.frame
	capable := f.isIP() && f.ecn() != 0
	if a.drop || a.ecn && !capable && a.elseDrop {
		r.dropped = true
		return
	}
	r.ecn = a.ecn && capable
	r.marked = a.mark >= 0 || // an skb mark needs no header
		a.dscp >= 0 && f.isIP() ||
		a.pcp >= 0 && f.hasVLAN ||
		a.mpls >= 0 && f.hasMPLS
	if a.queue != "" {
		r.queued = true
		p.queues[a.queue].offer(&queued{row: r, arrival: clock, capable: capable, color: c})
	}
}

// floor returns the largest integer that is not above x.
func floor(x *big.Rat) *big.Int {
	// Div is Euclidean: with a positive divisor it rounds down.
	return new(big.Int).Div(x.Num(), x.Denom())
}

// ceil returns the smallest integer that is not below x.
func ceil(x *big.Rat) *big.Int {
	n := floor(new(big.Rat).Neg(x))
	return n.Neg(n)
}

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }
