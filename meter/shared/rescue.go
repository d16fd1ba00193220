package shared

import (
	"math"
	"math/big"
	"strconv"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

const (
	rescueKeys   = 1 << 16 // maximum number of keys with their own local meter, per limit
	rescueShards = 1 << 6
	rescueLog    = 1 << 20 // log entries of all local meters of a limit
)

// rescue holds the local meters of a limit, one per key. If there are too many keys, the remaining
// ones share a meter.
type rescue struct {
	meters *meter.Shards[string]
}

// makeRescue makes the local meters of a limit with FailRescue.
func (l *Limiter) makeRescue() error {
	share := l.limit.Share
	switch {
	case l.limit.Fail > FailRescue:
		return fault("Fail", "%d is unknown: use FailClosed, FailOpen or FailRescue", l.limit.Fail)
	case l.limit.Fail != FailRescue && share != 0:
		return fault("Share", "of %v needs FailRescue", share)
	case l.limit.Fail != FailRescue:
		return nil
	case !(share > 0 && share <= 1): // also not NaN
		return fault("Share",
			"of %v must be above 0 and at most 1: it is the part of the limit that this process allows without the store",
			share)
	}
	params, err := shareOf(l.limit.Params, share)
	if err != nil {
		return err
	}
	profile, err := params.Profile()
	if err != nil {
		return fault("Share", "of %v: %v", share, err)
	}
	keys := rescueKeys
	if p, ok := params.(meter.SlidingLog); ok {
		keys = min(keys, max(rescueLog/p.Entries, rescueShards))
	}
	// Idle, because otherwise a sender with many keys could evict its own and
	// regain their bursts.
	meters, err := meter.NewShards[string](profile, meter.TableConfig{Keys: keys, Idle: true}, rescueShards)
	if err != nil {
		return fault("Share", "of %v: %v", share, err)
	}
	l.rescue = &rescue{meters}
	return nil
}

// shareOf returns the parameters of a share of a limit, rounded down.
func shareOf(params LimitParams, share float64) (LimitParams, error) {
	part, _ := new(big.Rat).SetString(strconv.FormatFloat(share, 'g', -1, 64)) // 0.1 is 1/10
	var err error
	most := func(n int64) int64 {
		all := new(big.Int).Mul(big.NewInt(n), part.Num())
		some := all.Quo(all, part.Denom()).Int64()
		if some < 1 {
			err = fault("Share", "of %v leaves less than 1 of %d: use a larger share, or FailClosed", share,
				n)
		}
		return some
	}
	rate := func(r meter.Rate) meter.Rate {
		s := new(big.Rat).Mul(part, big.NewRat(r.Bytes, int64(r.Period)))
		if !s.Num().IsInt64() || !s.Denom().IsInt64() {
			err = fault("Share", "of %v has too many digits for a Rate of %v", share, r)
		}
		return meter.Rate{Bytes: s.Num().Int64(), Period: time.Duration(s.Denom().Int64())}
	}
	switch p := params.(type) {
	case meter.TokenBucket:
		p.Rate, p.Burst = rate(p.Rate), most(p.Burst)
		params = p
	case meter.FixedWindow:
		p.Limit = most(p.Limit)
		params = p
	case meter.SlidingCounter:
		p.Limit = most(p.Limit)
		params = p
	case meter.SlidingLog:
		p.Limit = most(p.Limit)
		params = p
	}
	return params, err
}

// decideLocally decides by the limit's fail mode, because of an error of the
// store. It takes nothing if taking is false.
func (s *Backend) decideLocally(r Request, err error, taking bool) Decision {
	l := r.Limiter
	d := Decision{Time: time.Now(), Err: err}
	switch l.limit.Fail {
	case FailOpen:
		d.Source, d.Allowed, d.Taken, d.Remaining = FromOpen, true, r.N, l.most
	case FailRescue:
		d.Source = FromRescue
		l.rescue.decide(&d, l.key(r.Budget, r.Key), r.N, r.Part, taking)
	default:
		d.Source, d.Allowed, d.ResetAfter = FromClosed, r.N == 0, s.config.Retry
		if !d.Allowed {
			d.RetryAfter = s.config.Retry
		}
	}
	return d
}

// allLocally makes the decisions of All by the limits' fail modes. It first
// checks and then takes. If another goroutine takes in between, all requests
// are refused although some have been taken, so the sum stays within the
// shares.
func (s *Backend) allLocally(requests []Request, err error) []Decision {
	decisions := make([]Decision, len(requests))
	all := true
	for _, taking := range []bool{false, true} {
		for i, r := range requests {
			decisions[i] = s.decideLocally(r, err, taking)
			all = all && decisions[i].Allowed
		}
		if !all {
			break
		}
	}
	for i := range decisions {
		decisions[i].Allowed = all
		if !all {
			decisions[i].Taken = 0
		}
	}
	return decisions
}

// decide fills in a decision with the local meter of a key.
func (m *rescue) decide(d *Decision, key string, n int64, part, taking bool) {
	now := meter.Now()
	m.meters.Do(key, func(t *meter.Table[string]) {
		take := n
		if part {
			take = min(n, t.Decide(key, now, 0).Remaining)
		}
		fits := t.Peek(key, now, toInt(take), meter.Green) == meter.Green
		if fits && taking {
			t.Color(key, now, toInt(take), meter.Green)
			d.Taken = take
		}
		d.Allowed = fits && take == n
		after := t.Decide(key, now, 0)
		d.Remaining, d.ResetAfter = after.Remaining, after.ResetAfter
		if !d.Allowed {
			var ever bool
			if d.RetryAfter, ever = t.RetryAfter(key, now, toInt(n-d.Taken)); !ever {
				d.RetryAfter = meter.Never
			}
		}
	})
}

// toInt converts n to an int. A 32-bit int may truncate it, but not below a
// limit.
func toInt(n int64) int { return int(min(n, math.MaxInt)) }
