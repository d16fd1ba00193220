package oracle

import (
	"math/big"
	"slices"
)

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

// knownSettings is the number of settings remembered: the latest used ones.
const knownSettings = 8

// at returns the time of a timestamp under a setting, at most the end of the supported range.
func (s *setting) at(stamp *big.Int) *big.Int {
	t := new(big.Int).Add(stamp, s.shift)
	if t.Cmp(latest) > 0 {
		return latest
	}
	return t
}

// timesOf returns the times at which the packets of a capture are metered: their timestamps, but
// without the steps of the capture's clock.
func timesOf(packets []packet) []*big.Int {
	var out []*big.Int
	var settings []*setting // the latest used one first
	now := new(big.Int)     // largest time so far
	for _, p := range packets {
		if p.untimed {
			out = append(out, p.time) // the clock is not known yet
			continue
		}
		if settings == nil {
			settings, now = []*setting{{new(big.Int), p.time}}, p.time
		}
		use := choose(settings, p.time, now)
		if use == nil {
			use = &setting{new(big.Int).Sub(now, p.time), p.time}
		}
		settings = slices.DeleteFunc(settings, func(s *setting) bool { return s == use })
		settings = append([]*setting{use}, settings...)
		settings = settings[:min(len(settings), knownSettings)]
		use.last = largest(use.last, p.time)
		at := use.at(p.time)
		out, now = append(out, at), largest(now, at)
	}
	return out
}

// choose returns the setting to which a timestamp belongs, or nil for a new one: the one whose time
// is nearest to the latest one. The current one must continue. Any other must be within maxStep,
// because a longer pause is more likely than the return to an earlier setting.
func choose(settings []*setting, stamp, now *big.Int) *setting {
	off := func(s *setting) *big.Int { d := new(big.Int).Sub(s.at(stamp), now); return d.Abs(d) }
	var candidates []*setting
	current := settings[0]
	if by := new(big.Int).Sub(stamp, current.last); new(big.Int).Neg(by).Cmp(maxStep) <= 0 &&
		by.Cmp(maxGap) <= 0 {
		if by.Sign() >= 0 && by.Cmp(maxStep) <= 0 {
			return current
		}
		candidates = append(candidates, current)
	}
	for _, s := range settings[1:] {
		if off(s).Cmp(maxStep) <= 0 {
			candidates = append(candidates, s)
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	return slices.MinFunc(candidates, func(a, b *setting) int { return off(a).Cmp(off(b)) })
}
