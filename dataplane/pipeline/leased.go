package pipeline

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// leased is a meter with a lease. The zero value, without a lease, colors all packets red.
type leased struct {
	meter    meter.Meter       // has profiles[phase]; the zero Meter if that is nil
	profiles [3]*meter.Profile // by phase; nil if no packet passes, and tokens are lost
	until    [2]int64          // ends of the first two phases, ns
	phase    int
	start    int64     // time at which the lease was set, ns; phases that ended before grant nothing
	asked    [3]uint64 // tokens requested, by the color of the packet
}

// setLease starts a new lease. Each bucket keeps its tokens, up to the new burst.
func (l *leased) setLease(now int64, params meter.Params, lease *compiled.Lease) {
	l.enterPhases(now)
	for i, limits := range lease.Limits {
		l.profiles[i], _ = limits.With(params).Profile()
	}
	l.setProfile(now, l.profiles[0])
	l.phase, l.until, l.start = 0, lease.Ends(), now
	l.enterPhases(now)
}

// setProfile changes the profile of the meter; nil stops all packets.
func (l *leased) setProfile(now int64, p *meter.Profile) {
	switch {
	case p == nil:
		l.meter = meter.Meter{}
	case l.meter.Profile() == nil:
		l.meter = meter.Restore(p, now, 0, 0)
	default:
		l.meter.SetProfile(now, p)
	}
}

// enterPhases enters the phases that have begun.
func (l *leased) enterPhases(now int64) {
	for l.phase < len(l.until) && now >= l.until[l.phase] {
		l.phase++
		l.setProfile(max(l.until[l.phase-1], l.start), l.profiles[l.phase])
	}
}

// color is meter.Meter.Color.
func (l *leased) color(now int64, n int, in meter.Color) meter.Color {
	l.enterPhases(now)
	out := meter.Red
	if l.meter.Profile() != nil {
		out = l.meter.Color(now, n, in)
	}
	l.asked[out] += uint64(n)
	return out
}

// explain is meter.Meter.Explain.
func (l *leased) explain(now int64, n int, in meter.Color, kind meter.Kind) meter.Explanation {
	l.enterPhases(now)
	x := meter.Explanation{Length: n, In: in, Color: meter.Red, Clause: kind.Clause(in, meter.Red)}
	if l.meter.Profile() != nil {
		x = l.meter.Explain(now, n, in)
	}
	l.asked[x.Color] += uint64(n)
	return x
}

// tokens is meter.Meter.Tokens.
func (l *leased) tokens(now int64) (tc, te int64) {
	if l.meter.Profile() == nil {
		return 0, 0
	}
	return l.meter.Tokens(now)
}

// SetLease sets the lease of the meter with a budget on a server. It takes effect at the
// pipeline's clock, or at now (ns) if that is later. Before the first lease no packet
// passes. SetLease does nothing if the plan has no such meter.
func (l *Pipeline) SetLease(now int64, budget string, lease compiled.Lease) {
	if s := l.leasedStage(budget); s != nil {
		s.leased.setLease(max(now, l.now), s.plan.Source.Params, &lease)
	}
}

// Demand returns the number of tokens that packets requested from the meter with a budget on
// a server, by the color of the packets. The count includes pipelines that this one
// inherited from.
func (l *Pipeline) Demand(budget string) [3]uint64 {
	if s := l.leasedStage(budget); s != nil {
		return s.leased.asked
	}
	return [3]uint64{}
}

// leasedStage returns the stage with a budget on a server, or nil.
func (l *Pipeline) leasedStage(budget string) *stage {
	for i := range l.stages {
		if s := &l.stages[i]; s.source == onServer && s.plan.BudgetName == budget {
			return s
		}
	}
	return nil
}
