package dataplane

import (
	"math/big"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Limits are the rates and bursts of a meter's buckets: C, then E or P.
type Limits [2]Limit

// Limit is that of one bucket.
type Limit struct {
	Rate  int64 // eighths of a token per second: bit/s of a meter that counts bytes
	Burst int64 // tokens: bytes, or packets
}

// Lease is what a meter may let through whose budget is on a server: Limits[0] until
// Until[0], Limits[1] until Until[1], and Limits[2] from then on. Times are in ns of
// the pipeline's clock. A second time before the first counts as the first.
type Lease struct {
	Limits [3]Limits
	Until  [2]int64
}

// Ends returns when the first two limits end, in ns: the second never before the first.
func (l *Lease) Ends() [2]int64 { return [2]int64{l.Until[0], max(l.Until[0], l.Until[1])} }

// LimitsOf returns the limits of a meter of buckets, rates rounded down. A rate that
// two buckets share counts for the first.
func LimitsOf(p Params) (l Limits) {
	before := ""
	for i, b := range p.Buckets() {
		l[i].Burst = b.Burst
		if b.RateName != before {
			l[i].Rate = eighths(b.Rate)
		}
		before = b.RateName
	}
	return l
}

func eighths(r meter.Rate) int64 {
	n := new(big.Int).Mul(big.NewInt(r.Bytes), big.NewInt(8e9))
	return n.Div(n, big.NewInt(int64(max(r.Period, 1)))).Int64()
}

// With returns the parameters of a meter of buckets with other limits. They need not
// compile: a zero rate or burst lets nothing through.
func (l Limits) With(p Params) Params {
	if p.Kind().Info().Peak {
		l[0].Rate = min(l[0].Rate, l[1].Rate) // PIR is at least CIR, RFC 2698 §2
	}
	before := ""
	for i, b := range p.Buckets() {
		p = meter.WithField(p, b.BurstName, l[i].Burst)
		if b.RateName != before {
			p = meter.WithField(p, b.RateName, meter.BitRate(l[i].Rate))
		}
		before = b.RateName
	}
	return p
}

// leased is a meter whose limits change with its lease. Its zero value lets nothing
// through.
type leased struct {
	meter    meter.Meter       // of profiles[phase], unless that is nil
	profiles [3]*meter.Profile // nil: nothing passes, and tokens are lost
	until    [2]int64          // ns
	phase    int
	since    int64     // ns, of the lease: phases that were over by then grant nothing
	asked    [3]uint64 // tokens, by the color that they got
}

// set gives the meter a new lease at a time. Each bucket keeps its tokens, cut to the
// new burst.
func (l *leased) set(now int64, of Params, lease *Lease) {
	l.pass(now)
	for i, limits := range lease.Limits {
		if l.profiles[i], _ = limits.With(of).Profile(); i == 0 {
			l.use(now, l.profiles[0])
		}
	}
	l.phase, l.until, l.since = 0, lease.Ends(), now
	l.pass(now)
}

// use puts another profile in force.
func (l *leased) use(now int64, p *meter.Profile) {
	switch {
	case p == nil:
		l.meter = meter.Meter{}
	case l.meter.Profile() == nil:
		l.meter = meter.Restore(p, now, 0, 0)
	default:
		l.meter.SetProfile(now, p)
	}
}

// pass enters the phases that have begun.
func (l *leased) pass(now int64) {
	for l.phase < len(l.until) && now >= l.until[l.phase] {
		l.phase++
		l.use(max(l.until[l.phase-1], l.since), l.profiles[l.phase])
	}
}

// color is meter.Meter.Color.
func (l *leased) color(now int64, n int, in meter.Color) meter.Color {
	l.pass(now)
	out := meter.Red
	if l.meter.Profile() != nil {
		out = l.meter.Color(now, n, in)
	}
	l.asked[out] += uint64(n)
	return out
}

func (l *leased) explain(now int64, n int, in meter.Color, kind meter.Kind) meter.Explanation {
	l.pass(now)
	x := meter.Explanation{Length: n, In: in, Color: meter.Red, Clause: kind.Clause(in, meter.Red)}
	if l.meter.Profile() != nil {
		x = l.meter.Explain(now, n, in)
	}
	l.asked[x.Color] += uint64(n)
	return x
}

func (l *leased) tokens(now int64) (tc, te int64) {
	if l.meter.Profile() == nil {
		return 0, 0
	}
	return l.meter.Tokens(now)
}

// SetLease gives the meter of a budget on a server its limits from the pipeline's time
// on, or from now (ns) if that is later. Before the first lease nothing passes. It
// does nothing if no class leads to such a meter.
func (l *Pipeline) SetLease(now int64, budget string, lease Lease) {
	if s := l.leased(budget); s != nil {
		s.leased.set(max(now, l.now), s.plan.Source.Params, &lease)
	}
}

// Asked returns the tokens that packets asked the meter of a budget on a server for, by
// the color that they got, since the pipeline was made or the one before that it
// inherits from.
func (l *Pipeline) Asked(budget string) [3]uint64 {
	if s := l.leased(budget); s != nil {
		return s.leased.asked
	}
	return [3]uint64{}
}

// leased is the stage of a budget on a server, or nil.
func (l *Pipeline) leased(budget string) *stage {
	for i := range l.stages {
		if s := &l.stages[i]; s.leased != nil && s.plan.BudgetName == budget {
			return s
		}
	}
	return nil
}
