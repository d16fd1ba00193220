package oracle

import "math/big"

// Bounds of reordering and of pauses: the defaults of --max-step and --max-gap.
var (
	maxStep = big.NewInt(1e9)
	maxGap  = big.NewInt(24 * 3600 * 1e9)
)

// setting is a time to which the clock of a capture was set.
type setting struct {
	shift *big.Int // to add to its timestamps
	last  *big.Int // largest of its timestamps
}

// timesOf returns the times at which the packets of a capture are metered: their timestamps, but without
// the steps of the clock that stamped them.
func timesOf(packets []packet) []*big.Int {
	var out []*big.Int
	var settings []*setting
	var current *setting
	now := new(big.Int) // largest time so far
	for _, p := range packets {
		if current == nil {
			current = &setting{new(big.Int), p.time}
			settings, now = append(settings, current), p.time
		}
		if next := choose(settings, current, p.time, now); next != nil {
			current = next
		} else {
			current = &setting{new(big.Int).Sub(now, p.time), p.time}
			settings = append(settings, current)
		}
		current.last = largest(current.last, p.time)
		at := new(big.Int).Add(p.time, current.shift)
		out, now = append(out, at), largest(now, at)
	}
	return out
}

// choose returns the setting to which a timestamp belongs, or nil for a new one.
func choose(settings []*setting, current *setting, stamp, now *big.Int) *setting {
	by := new(big.Int).Sub(stamp, current.last)
	goesOn := by.Cmp(new(big.Int).Neg(maxStep)) >= 0 && by.Cmp(maxGap) <= 0
	if goesOn && (len(settings) == 1 || by.Cmp(maxStep) <= 0 && by.Sign() >= 0) {
		return current
	}
	distance := func(s *setting) *big.Int { // of the time that a setting gives the packet from the latest one
		return new(big.Int).Sub(new(big.Int).Add(stamp, s.shift), now)
	}
	var best *setting
	if goesOn {
		best = current
	}
	for _, s := range settings {
		d := distance(s)
		bound := maxStep
		if best != nil {
			bound = new(big.Int).Sub(new(big.Int).Abs(distance(best)), big.NewInt(1))
		}
		if s != current && d.Cmp(new(big.Int).Neg(maxStep)) >= 0 && new(big.Int).Abs(d).Cmp(bound) <= 0 {
			best = s
		}
	}
	return best
}
