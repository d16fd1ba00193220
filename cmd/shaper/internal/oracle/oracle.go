// Package oracle is a slow reference model of `shaper replay`: it decides every
// packet of a capture by the rules of the specification, in exact fractions, one
// rule after the other. Tests compare the program with it.
//
// It knows the meters srtcm (RFC 2697), trtcm (RFC 2698), trtcm4115 (RFC 4115,
// with coupling) and token-bucket, chains, markings and queues. Keyed meters,
// WRED, envelopes and the other meter types are outside of it: a policy that
// names them is an error.
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
	p, err := parsePolicy(policy)
	if err != nil {
		return nil, err
	}
	packets, readErr := readCapture(capture)

	var rows [][]string
	var clock *big.Int // the largest stamp so far
	for i, packet := range packets {
		if clock == nil || packet.time.Cmp(clock) > 0 {
			clock = packet.time
		}
		row, err := p.decide(packet, clock)
		if err != nil {
			return rows, fmt.Errorf("packet %d: %w", i+1, err)
		}
		rows = append(rows, row.fields(i+1))
	}
	return rows, readErr
}

// row is what was decided about one packet. Empty strings stay empty fields.
type row struct {
	time      *big.Int // the packet's own stamp
	length    int64    // metered bytes
	class     string
	pre       string
	color     string
	actions   []string
	dscpIn    string
	dscpOut   string
	departure string
	reason    string
}

func (r row) fields(number int) []string {
	return []string{
		strconv.Itoa(number),
		r.time.String(),
		strconv.FormatInt(r.length, 10),
		r.class,
		r.pre,
		r.color,
		strings.Join(r.actions, "+"),
		r.dscpIn,
		r.dscpOut,
		r.departure,
		r.reason,
	}
}

// decide takes one packet through classify, meter and act.
func (p *policy) decide(packet packet, clock *big.Int) (row, error) {
	f := parseFrame(packet.linkType, packet.data, packet.wire)
	length, err := p.length.of(f)
	if err != nil {
		return row{}, err
	}
	r := row{time: packet.time, length: length}
	if f.isIP() {
		r.dscpIn = strconv.Itoa(f.dscp())
	}

	class := p.classify(f, length)
	if class == nil {
		r.class = "-"
		r.actions = []string{"pass"}
		r.dscpOut = r.dscpIn
		r.departure = packet.time.String()
		switch f.kind {
		case nonIP:
			r.reason = "not-ip"
		case malformed:
			r.reason = "malformed"
		default:
			r.reason = "no-meter"
		}
		return r, nil
	}
	r.class = class.name

	now := new(big.Rat).SetInt(clock)
	pre, after, reason := class.meter(f, now, length)
	r.pre, r.color, r.reason = pre.String(), after.String(), reason

	p.act(&r, f, class.actions[after], now)
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
		after, reason = m.decide(now, length, after)
	}
	return pre, after, reason
}

// act does what the class says for the color, in the order ecn, mark, queue.
func (p *policy) act(r *row, f frame, a action, now *big.Rat) {
	drop := func() {
		r.actions = []string{"drop"}
		r.dscpOut, r.departure = "", ""
	}
	if a.drop {
		drop()
		return
	}

	r.dscpOut = r.dscpIn
	r.departure = r.time.String()

	if a.ecn {
		switch {
		case f.isIP() && f.ecn() != 0:
			r.actions = append(r.actions, "ecn")
		case a.elseDrop:
			drop()
			return
		}
	}

	marked := a.mark >= 0 // a mark beside the packet has no header to miss
	if a.dscp >= 0 && f.isIP() {
		r.dscpOut = strconv.Itoa(a.dscp)
		marked = true
	}
	if a.pcp >= 0 && f.hasVLAN {
		marked = true
	}
	if a.mpls >= 0 && f.hasMPLS {
		marked = true
	}
	if marked {
		r.actions = append(r.actions, "mark")
	}

	if a.queue != "" {
		depart, ok := p.queues[a.queue].offer(now, r.length)
		if !ok {
			drop()
			r.reason = "queue-full"
			return
		}
		r.actions = append(r.actions, "queue")
		r.departure = ceil(depart).String()
	}

	if len(r.actions) == 0 {
		r.actions = []string{"pass"}
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
