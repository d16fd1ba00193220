package policyfile

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// pair reads a rate and its burst.
func (l *loader) pair(d *draft, n *yaml.Node, rate, burst string) {
	parse, example := ParseRate, "10mbit"
	if d.packets {
		parse, example = ParsePacketRate, "100p/1s"
	}
	r, ok := d.rates[rate]
	if !d.asked[rate] {
		d.asked[rate] = true
		v := d.values[rate]
		if v == nil {
			l.fail(n, "%s is missing: give a rate, such as %s: %s", rate, rate, example)
		} else if r, ok = parsed(l, v, rate, parse); ok {
			d.rates[rate] = r
		}
	}
	if burst == "" {
		return
	}
	v := d.values[burst]
	if v == nil {
		l.fail(n, "%s is missing: %s", burst, suggest(d, burst, r, ok))
		return
	}
	s, single := l.text(v, burst)
	switch {
	case !single:
	case isDuration(s), strings.HasSuffix(s, "m"):
		span, err := ParseDuration(s)
		if err != nil {
			l.fail(v, "%s: %v", burst, err)
		} else if ok {
			d.bursts[burst] = l.burstOf(v, burst, r, span)
		}
	case d.packets:
		d.bursts[burst], _ = parsed(l, v, burst, ParsePackets)
	default:
		d.bursts[burst], _ = parsed(l, v, burst, ParseSize)
	}
}

// burstOf is what a rate brings in a time.
func (l *loader) burstOf(n *yaml.Node, burst string, r meter.Rate, span time.Duration) int64 {
	b, ok := r.Burst(span)
	switch {
	case !ok:
		l.fail(n, "%s: %v at %v is more than 2^63 bytes", burst, span, r)
	case b == 0:
		l.fail(n, "%s: %v at %v is less than one byte: give a longer time, or bytes", burst, span, r)
	}
	return b
}

// suggest says what a burst that was left out could be: 20 ms at its rate, but
// at least two packets of 1500 bytes.
func suggest(d *draft, burst string, r meter.Rate, ok bool) string {
	if d.packets {
		return fmt.Sprintf("give a number of packets, such as %s: 10", burst)
	}
	if b, fits := r.Burst(20 * time.Millisecond); ok && fits && b >= 3000 {
		return fmt.Sprintf("20 ms at its rate would be %s: 20ms (%d bytes)", burst, b)
	}
	return fmt.Sprintf("two packets of 1500 bytes would be %s: 3000", burst)
}

// ParsePackets reads a number of packets.
func ParsePackets(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a number of packets: this meter counts packets, so give a bare number", s)
	}
	return n, nil
}
