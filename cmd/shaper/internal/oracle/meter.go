package oracle

import "math/big"

type color int

const (
	green color = iota
	yellow
	red
)

func (c color) String() string { return [...]string{"green", "yellow", "red"}[c] }

// meter is one stage of a chain, with one state, or one per key.
type meter struct {
	kind     string
	aware    bool
	precolor precolor
	packets  bool   // a packet costs one token, whatever its length
	then     string // next meter of the chain, or ""

	state state  // nil for a per-key meter
	keys  *table // nil: none
}

// state is the state of a meter, with its decision rule. Its clock never goes back.
type state interface {
	// decide colors a packet and debits its cost.
	decide(now, cost *big.Rat, in color) color
}

var reasonPrefix = map[string]string{"srtcm": "rfc2697", "trtcm": "rfc2698", "trtcm4115": "rfc4115"}

// decide colors one packet.
func (m *meter) decide(
	f frame, now *big.Rat, length int64, pre color,
) (after color, reason string, paid charge) {
	cost := whole(length)
	if m.packets {
		cost = whole(1)
	}
	if !m.aware {
		pre = green
	}
	paid = charge{state: m.state, at: now, cost: cost, in: pre}
	switch {
	case m.keys == nil:
		after = m.state.decide(now, cost, pre)
	case pre == red: // no key is used
		after = red
	default:
		paid.state = m.keys.of(f, now)
		if paid.state != m.keys.shared {
			paid.keys = m.keys
			paid.key, _ = m.keys.key(f)
		}
		after = paid.state.decide(now, cost, pre)
	}
	paid.after = after

	prefix := reasonPrefix[m.kind]
	if prefix == "" {
		prefix = m.kind
	}
	switch {
	case pre == red:
		return after, prefix + "-pre-red", paid
	case pre == yellow && after == yellow:
		return after, prefix + "-pre-yellow", paid
	}
	return after, prefix + "-" + after.String(), paid
}
