package policyfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// parameters reads the parameters of a meter's type.
func (l *loader) parameters(d *draft) {
	for i, name := range slices.Concat(d.Required, d.Optional) {
		n := d.value(name)
		if n == nil {
			if i < len(d.Required) {
				l.fail(d.node, "%s is missing: %s", name, d.suggest(name))
			}
			continue
		}
		if v, ok := l.parameter(d, name, n); ok {
			d.params = meter.WithField(d.params, name, v)
		}
	}
}

// parameter reads the value of a parameter. Its Go type determines the unit.
func (l *loader) parameter(d *draft, name string, n *yaml.Node) (v any, ok bool) {
	switch meter.Field(d.params, name).(type) {
	case meter.Rate:
		parse := ParseRate
		if d.packets {
			parse = ParsePacketRate
		}
		return parsed(l, n, name, parse)
	case int64:
		return l.depth(d, name, n)
	case time.Duration:
		t, ok := parsed(l, n, name, ParseDuration)
		if ok && t == 0 && slices.Contains(d.Optional, name) {
			l.fail(n, "%s must be above zero, such as 10s: omit %s to have none", name, name)
		}
		return t, ok
	case int:
		return parsed(l, n, name, parseInt)
	case uint64:
		return parsed(l, n, name, parseSeed)
	case bool:
		return l.boolean(n, name)
	}
	panic("meter type " + d.Name + " has a parameter of unknown unit: " + name)
}

// depth reads a burst or a limit. A burst may be given as a time at its rate.
func (l *loader) depth(d *draft, name string, n *yaml.Node) (any, bool) {
	rate, isBurst := d.rateOf(name)
	s, single := l.text(n, name)
	switch {
	case !single:
		return nil, false
	case isBurst && (isDuration(s) || strings.HasSuffix(s, "m")):
		span, err := ParseDuration(s)
		if err != nil {
			l.fail(n, "%s: %v", name, err)
			return nil, false
		}
		r := meter.Field(d.params, rate).(meter.Rate)
		if r == (meter.Rate{}) {
			return nil, false // the error in the rate was reported already
		}
		return l.burstOf(n, name, r, span)
	case d.packets:
		return parsed(l, n, name, ParsePackets)
	case isBurst:
		return parsed(l, n, name, ParseSize)
	}
	return parsed(l, n, name, parseLimit)
}

// rateOf returns the name of the rate at which a burst refills.
func (d *draft) rateOf(burst string) (rate string, ok bool) {
	for _, b := range d.Defaults.Buckets() {
		rate = strings.ToLower(b.RateName)
		if strings.EqualFold(b.BurstName, burst) && slices.Contains(d.Required, rate) {
			return rate, true
		}
	}
	return "", false
}

// burstOf returns the bytes of a rate in a time.
func (l *loader) burstOf(n *yaml.Node, burst string, r meter.Rate, span time.Duration) (int64, bool) {
	b, ok := r.Burst(span)
	switch {
	case !ok:
		l.fail(n, "%s: %v at %v is more than 2^63 bytes", burst, span, r)
	case b == 0:
		l.fail(n, "%s: %v at %v is less than one byte: give a longer time, or bytes", burst, span, r)
	}
	return b, ok && b > 0
}

// suggest returns advice on a missing parameter.
func (d *draft) suggest(name string) string {
	switch meter.Field(d.params, name).(type) {
	case meter.Rate:
		if d.packets {
			return "give a rate, such as " + name + ": 100p/1s"
		}
		return "give a rate, such as " + name + ": 10mbit"
	case time.Duration:
		return "give a time, such as " + name + ": 1s"
	case int64:
		if rate, ok := d.rateOf(name); ok {
			return d.suggestBurst(name, meter.Field(d.params, rate).(meter.Rate))
		}
		if d.packets {
			return "give the packets that pass in a window, such as " + name + ": 100"
		}
		return "give the bytes that pass in a window, such as " + name + ": 125kB"
	}
	return "give a number, such as " + name + ": 10"
}

// suggestBurst suggests 20 ms at the rate of the bucket, or two packets of 1500 bytes if that is
// more.
func (d *draft) suggestBurst(name string, r meter.Rate) string {
	if d.packets {
		return fmt.Sprintf("give a number of packets, such as %s: 10", name)
	}
	if b, ok := r.Burst(20 * time.Millisecond); ok && b >= 3000 {
		return fmt.Sprintf("give a size, such as %s: 20ms (%d bytes at its rate)", name, b)
	}
	return fmt.Sprintf("give a size, such as %s: 3000 (two packets of 1500 bytes)", name)
}

// ParsePackets reads a number of packets.
func ParsePackets(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf(
			"%q is not a number of packets: this meter counts packets, so give a bare number", s)
	}
	return n, nil
}
