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
	muchBytes = 64 << 20 // of memory; beyond it there is a warning
)

// meterTypes finds surprising properties of meter types.
func (l *linter) meterTypes() {
	for _, m := range l.plan.Meters() {
		switch t := m.Params.(type) {
		case meter.FixedWindow:
			l.add(Warning, m, "type",
				"a fixed window can pass twice its limit, %s, at once around a window boundary: use a sliding-counter, which refills gradually and needs no more memory",
				tokens(2*t.Limit, m.Packets))
		case meter.SlidingLog:
			l.logEntries(m, t)
		case meter.TokenBucket:
			if third := t.Burst / 3; t.Warmup > 0 && !m.Packets && t.Burst >= l.MTU && third < l.MTU {
				l.add(Warning, m, "burst",
					"after a pause of %v the bucket holds only a third of its burst, %d B, below the MTU: a first packet of %d bytes is always red",
					t.Warmup, third, l.MTU)
			}
		}
		if n, entries := policyfile.Memory(m); n > muchBytes {
			l.add(Warning, m, "keys",
				"the %s of meter %s take %d MiB of memory, used or not: reduce them, or use a sliding-counter, which has none",
				entries, m.Name, n>>20)
		}
		l.sprayedKeys(m)
	}
}

// logEntries finds logs whose entries run out before the limit.
func (l *linter) logEntries(m *dataplane.Meter, t meter.SlidingLog) {
	full, size := int64(t.Entries)*smallest, " in packets of 64 bytes"
	if m.Packets {
		full, size = int64(t.Entries), ""
	}
	if full < t.Limit {
		l.add(Warning, m, "entries",
			"the entries of meter %s are full after %s%s: further packets are red although the limit is %s; increase entries",
			m.Name, tokens(full, m.Packets), size, tokens(t.Limit, m.Packets))
	}
}

// sprayedKeys finds per-key meters of which a sender with many addresses gets many.
func (l *linter) sprayedKeys(m *dataplane.Meter) {
	full, evicts := m.Initial.Den == 0, !m.Idle
	switch {
	case m.Per.By == dataplane.NoKey || !full || !evicts:
	case m.Then == nil:
		l.add(Warning, m, "per",
			"a sender that sprays keys (per %v) gets a full burst with each new key: start new keys empty (new: empty), and chain an aggregate meter behind it (then:)",
			m.Per)
	default:
		l.add(Note, m, "per",
			"a sender that sprays keys (per %v) gets a full burst with each new key, and so uses up the tokens of meter %s that known keys need: start new keys empty (new: empty)",
			m.Per, m.Then.Name)
	}
}

func tokens(n int64, packets bool) string {
	if packets {
		return say.Count(n, "packet")
	}
	return fmt.Sprintf("%d B", n)
}
