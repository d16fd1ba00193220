package advise

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// LossTarget is the maximum share of each key's packets to be colored red, and yellow or red. A
// meter without keys counts as one key.
type LossTarget struct{ Loss, Excess dataplane.Fraction }

// fitBursts returns a meter like p with the smallest bursts whose losses stay within w: with a
// burst one byte smaller, too many packets are red, or not green.
func (s *Stream) fitBursts(p meter.Params, w LossTarget) (meter.Params, error) {
	red, excess := s.allowed(w.Loss), s.allowed(w.Excess)
	committed, err := s.demandAt(p.Buckets()[0].Rate) // on bucket C
	if err != nil {
		return nil, err
	}
	switch p := p.(type) {
	case meter.TokenBucket:
		p.Burst, err = committed.smallest(red)
		return p, err
	case meter.SRTCM: // C sees all packets, as a token bucket does (RFC 2697 §3)
		if p.CBS, err = committed.smallest(excess); err == nil {
			p.EBS, err = s.fitSecond(red, func(burst int64) meter.Params { p.EBS = burst; return p })
		}
		return p, err
	case meter.TRTCM4115: // C sees all packets (RFC 4115 §3)
		if p.CBS, err = committed.smallest(excess); err == nil {
			p.EBS, err = s.fitSecond(red, func(burst int64) meter.Params { p.EBS = burst; return p })
		}
		return p, err
	case meter.TRTCM: // P sees all packets, C those conforming to P (RFC 2698 §3)
		peak, err := s.demandAt(p.PIR)
		if err != nil {
			return nil, err
		}
		if p.PBS, err = peak.smallest(red); err != nil {
			return nil, err
		}
		p.CBS, err = smallest(1, committed.lossFree, func(burst int64) (bool, error) {
			if p.PBS == peak.lossFree { // C sees all packets
				_, all, err := committed.dropped(burst, excess)
				return all, err
			}
			p.CBS = burst
			profile, err := p.Profile()
			if err != nil {
				return false, err
			}
			return s.within(profile, meter.Yellow, excess), nil
		})
		return p, err
	}
	return nil, fmt.Errorf("meter type %v has no bursts", p.Kind())
}

// fitSecond returns the smallest burst of a meter's second bucket with which at most some packets
// of each key are red.
func (s *Stream) fitSecond(red []int64, with func(burst int64) meter.Params) (int64, error) {
	largest := s.Total().Bytes + 1
	p, err := with(largest).Profile()
	if err != nil {
		return 0, err
	}
	lowest := largest
	s.color(p, func(m *meter.Meter, a arrival, _ meter.Color) bool {
		_, tokens := m.Tokens(a.at)
		lowest = min(lowest, tokens)
		return true
	})
	lossFree := largest - lowest
	if slices.Max(red) == 0 {
		return lossFree, nil
	}
	return smallest(0, lossFree, func(burst int64) (bool, error) {
		p, err := with(burst).Profile()
		if err != nil {
			return false, err
		}
		return s.within(p, meter.Red, red), nil
	})
}

// smallest returns a burst between least and enough for which holds is true, but false for one byte
// less. A larger burst can lose more packets, so there may be several. holds must be true for
// enough.
func smallest(least, enough int64, holds func(burst int64) (bool, error)) (int64, error) {
	for least < enough {
		middle := least + (enough-least)/2
		good, err := holds(middle)
		if err != nil {
			return 0, err
		}
		if good {
			enough = middle
		} else {
			least = middle + 1
		}
	}
	return enough, nil
}

// parallel calls f with 0 to n-1 on all CPUs, and joins the errors.
func parallel(n int, f func(i int) error) error {
	errs := make([]error, n)
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = f(i)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
