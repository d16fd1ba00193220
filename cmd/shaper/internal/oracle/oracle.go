// Package oracle is a slow reference model of `shaper replay`: it decides every
// packet of a capture by the rules of the specification, in exact fractions, one
// rule after the other. Tests compare the program with it.
//
// It knows every type of meter, alone, per key and in envelopes, chains, markings, and
// queues with WRED and CoDel, at rates of their own or on links.
package oracle

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// Decide reads a policy (YAML text) and a capture file (pcap or pcapng, perhaps
// gzipped) and returns the rows of `shaper replay --decisions`, as CSV fields in
// the documented order, header not included, one per packet.
//
// A capture that breaks off gives the rows of what could be read, and the error.
func Decide(policy []byte, capture string) ([][]string, error) {
	rows, err := replay(policy, capture)
	var out [][]string
	for i, r := range rows {
		out = append(out, r.fields(i+1))
	}
	return out, err
}

// replay decides the whole capture: only then has every packet left its queue.
func replay(text []byte, capture string) ([]*row, error) {
	p, err := parsePolicy(text)
	if err != nil {
		return nil, err
	}
	packets, err := readCapture(capture)

	var rows []*row
	var clock *big.Int // the largest stamp so far
	for i, packet := range packets {
		if clock == nil || packet.time.Cmp(clock) > 0 {
			clock = packet.time
		}
		if i > 0 && packet.section != packets[i-1].section {
			p.empty() // a new section ends the waiting
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

// empty lets everything leave that waits for a link.
func (p *policy) empty() {
	for _, l := range p.links {
		l.run(nil)
	}
}

// row is what was decided about one packet. Empty strings stay empty fields.
type row struct {
	packet  packet
	frame   frame
	length  int64 // metered bytes
	class   string
	pre     string
	color   string
	action  action
	dropped bool
	ecn     bool // has got CE
	marked  bool
	queued  bool
	reason  string

	departure *big.Int
	sent      *big.Int // the departure on the clock, which its own stamp may be behind
}

func (r *row) drop(reason string) {
	r.dropped = true
	r.reason = reason
}

// leave ends the waiting in a queue.
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

// actions names what was done, in the order in which it is done.
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

// decide takes one packet through classify, meter and act.
func (p *policy) decide(packet packet, clock *big.Int) (*row, error) {
	f := parseFrame(packet.linkType, packet.data, packet.wire)
	length, err := p.length.of(f)
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

// meter sends the packet through the class's chain of meters. A red packet skips
// the later ones, and the last one that saw the packet gives the reason.
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

// act does what the class says for the color, in the order ecn, mark, queue.
func (p *policy) act(r *row, c color, clock *big.Int) {
	a, f := r.action, r.frame
	capable := f.isIP() && f.ecn() != 0
	if a.drop || a.ecn && !capable && a.elseDrop {
		r.dropped = true
		return
	}
	r.ecn = a.ecn && capable
	r.marked = a.mark >= 0 || // a mark beside the packet has no header to miss
		a.dscp >= 0 && f.isIP() ||
		a.pcp >= 0 && f.hasVLAN ||
		a.mpls >= 0 && f.hasMPLS
	if a.queue != "" {
		r.queued = true
		p.queues[a.queue].offer(&queued{row: r, arrival: clock, capable: capable, color: c})
	}
}

// floor is the largest whole number that is not above x.
func floor(x *big.Rat) *big.Int {
	// Div is Euclidean: with a positive divisor it rounds down.
	return new(big.Int).Div(x.Num(), x.Denom())
}

// ceil is the smallest whole number that is not below x.
func ceil(x *big.Rat) *big.Int {
	n := floor(new(big.Rat).Neg(x))
	return n.Neg(n)
}

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }
