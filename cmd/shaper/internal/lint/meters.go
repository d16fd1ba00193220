package lint

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

const (
	smallest  = 64       // bytes of the smallest Ethernet frame
	muchBytes = 64 << 20 // of memory
)

// meters looks for what the types do that people may not expect.
func (l *linter) meters() {
	for _, m := range l.plan.Meters() {
		switch t := m.Params.(type) {
		case meter.FixedWindow:
			l.add(Warning, m, "type", "a fixed window lets twice its limit through at the border of two windows, %s at once: sliding-counter does not, and takes no more memory", amount(2*t.Limit, m.Packets))
		case meter.SlidingLog:
			l.log(m, t)
		case meter.TokenBucket:
			if third := t.Burst / 3; t.Warmup > 0 && !m.Packets && t.Burst >= l.MTU && third < l.MTU {
				l.add(Warning, m, "burst", "after a pause of %v the bucket holds a third of its burst, %d B, below the MTU: the first packet of %d bytes is red each time", t.Warmup, third, l.MTU)
			}
		}
		if n, entries := policyfile.Memory(m); n > muchBytes {
			l.add(Warning, m, "keys", "the %s of meter %s take %d MiB of memory, in use or not: give it fewer, or a sliding-counter, which needs none", entries, m.Name, n>>20)
		}
		l.sprayed(m)
	}
}

// log looks for entries that run out before the limit.
func (l *linter) log(m *dataplane.Meter, t meter.SlidingLog) {
	lets, each := int64(t.Entries)*smallest, " of 64 bytes"
	if m.Packets {
		lets, each = int64(t.Entries), ""
	}
	if lets < t.Limit {
		l.add(Warning, m, "entries", "%d packets%s use up the entries of meter %s when %s have passed, and the next are red before its limit of %s: give it more entries",
			t.Entries, each, m.Name, amount(lets, m.Packets), amount(t.Limit, m.Packets))
	}
}

// sprayed looks for meters that one sender gets as many of as he has addresses.
func (l *linter) sprayed(m *dataplane.Meter) {
	full, forgets := m.Initial.Den == 0, !m.Idle
	switch {
	case m.Per.By == dataplane.NoKey || !full || !forgets:
	case m.Then == nil:
		l.add(Warning, m, "per", "a sender that sprays keys (per %v) gets a new burst with each: let new keys begin empty (new: empty), and put a meter for the sum behind it (then:)", m.Per)
	default:
		l.add(Note, m, "per", "a sender that sprays keys (per %v) gets a new burst with each, and so takes what meter %s lets through from those who are known: let new keys begin empty (new: empty)", m.Per, m.Then.Name)
	}
}

func amount(n int64, packets bool) string {
	if packets {
		return say.Count(n, "packet")
	}
	return fmt.Sprintf("%d B", n)
}
