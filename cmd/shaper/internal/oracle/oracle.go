// Package oracle is a slow reference model of `shaper replay`. It decides every packet of a
// capture by the rules of the specification, in exact fractions, one rule after the other.
// Tests compare the program with it.
//
// It supports every meter type, alone, per key, per customer and in envelopes, chains, marks, and
// queues with WRED and CoDel, with their own rates, in trees of links or of customers.
package oracle

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Site is the place where a policy applies. The zero value is egress, with paths relative to the
// current directory.
type Site struct {
	Dir     string // directory of the policy file; "" is the current one
	Ingress bool   // the inner side of packets is the source
}

// Decide is Site.Decide for the zero Site.
func Decide(policy []byte, capture string) ([][]string, error) { return Site{}.Decide(policy, capture) }

// Decide reads a policy (YAML text) and a capture file (pcap or pcapng, which may be gzipped).
// It returns the rows of `shaper replay --decisions` as CSV fields in the documented order, one
// row per packet, without the header.
//
// If the capture is broken, it returns the rows of the packets before the error, and the error.
func (s Site) Decide(policy []byte, capture string) ([][]string, error) {
	rows, err := s.replay(policy, capture)
	var out [][]string
	for i, r := range rows {
		out = append(out, r.fields(i+1))
	}
	return out, err
}

// replay decides the whole capture. In the end all queues are empty.
func (s Site) replay(text []byte, capture string) ([]*row, error) {
	p, err := s.parse(text)
	if err != nil {
		return nil, err
	}
	packets, err := readCapture(capture)
	times := timesOf(packets)

	var rows []*row
	var clock *big.Int // largest time so far
	for i, packet := range packets {
		if clock == nil || times[i].Cmp(clock) > 0 {
			clock = times[i]
		}
		packet.shift.Sub(times[i], packet.time)
		if i > 0 && packet.section != packets[i-1].section {
			p.settle(clock, true) // at the end of a section the queues are emptied
		}
		r, failed := p.decide(packet, clock)
		if failed != nil {
			err = fmt.Errorf("packet %d: %w", i+1, failed)
			break
		}
		rows = append(rows, r)
	}
	if clock != nil {
		p.settle(clock, true)
	}
	if err == nil && len(rows) > 0 &&
		!slices.ContainsFunc(rows, func(r *row) bool { return !r.frame.unread || r.class != "-" }) {
		return nil, errors.New("no packet can be read")
	}
	return rows, err
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
	key     string // customer or key in words
	charges []charge

	departure *big.Int
	sent      *big.Int // departure on the clock, which may be later than the packet's own timestamp
}

func (r *row) drop(reason string) {
	r.dropped = true
	r.reason = reason
}

// leave completes the row of a packet on its way out of its queue.
func (r *row) leave(t *big.Int) { r.departure, r.sent = new(big.Int).Sub(t, &r.packet.shift), t }

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
		r.key,
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
	f.fromCustomers = p.ingress
	if !f.ethernet && p.byMAC() {
		return nil, errors.New("a policy with MAC addresses needs an Ethernet link layer")
	}
	length, err := p.length.meteredBytes(f)
	if err != nil {
		return nil, err
	}
	r := &row{packet: packet, frame: f, length: length, action: pass, departure: packet.time, sent: clock}

	who := p.customers.of(f)
	class := p.classify(f, length, who)
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
	r.key = class.key(f, who)

	p.settle(clock, false)
	var own *queue // queue of a paced customer
	if class.perCustomer {
		own = who.queue
	}
	if own != nil {
		pre := class.chain[0].input(f)
		p := &queued{row: r, arrival: clock, capable: f.isIP() && f.ecn() != 0, color: pre}
		if own.refuses(p) {
			r.pre, r.color = pre.String(), pre.String()
			return r, nil
		}
	}
	pre, after, reason := class.meter(r, new(big.Rat).SetInt(clock), length, who)
	r.pre, r.color, r.reason = pre.String(), after.String(), reason
	r.action = class.actions[after]
	if class.perCustomer {
		if a := who.plan.actions[after]; a != nil {
			r.action = *a
		}
	}
	p.act(r, after, clock, own)
	p.returnTokens(clock)
	return r, nil
}

// meter runs the packet through the class's chain of meters. A red packet skips later meters. The
// reason is that of the last meter reached by the packet. A paced plan is no meter.
func (c *class) meter(r *row, now *big.Rat, length int64, who *customer) (pre, after color, reason string) {
	if len(c.chain) == 0 {
		return green, green, "no-meter"
	}
	pre = c.chain[0].input(r.frame)
	after, reason = pre, "no-meter"
	for i, m := range c.chain {
		if i > 0 && after == red {
			break
		}
		if m.kind == "plan" {
			if who.queue != nil {
				continue
			}
			m = who.meter(m)
		}
		var paid charge
		after, reason, paid = m.decide(r.frame, now, length, after)
		r.charges = append(r.charges, paid)
	}
	return pre, after, reason
}

// input returns the input color of a packet for a chain beginning with the meter.
func (m *meter) input(f frame) color {
	if m.aware {
		return m.precolor.of(f)
	}
	return green
}

// act applies the action for the color, in the order ecn, mark, queue. A customer's own queue
// takes the place of the action's.
func (p *policy) act(r *row, c color, clock *big.Int, own *queue) {
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
	q := p.queues[a.queue] // nil without a queue
	if own != nil {
		q = own
	}
	if q != nil {
		r.queued = true
		q.offer(&queued{row: r, arrival: clock, capable: capable, color: c})
	}
}

// floor returns the largest integer not above x.
func floor(x *big.Rat) *big.Int {
	// Div is Euclidean: with a positive divisor it rounds down.
	return new(big.Int).Div(x.Num(), x.Denom())
}

// ceil returns the smallest integer not below x.
func ceil(x *big.Rat) *big.Int {
	n := floor(new(big.Rat).Neg(x))
	return n.Neg(n)
}

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }
