package queue

import (
	"fmt"
	"math"
	"math/big"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Certain is the probability 1.
const Certain = 1 << 24

// Early drops packets of a color before the queue is full (WRED): none while
// the backlog is below Min, all from Max on. Between them the probability rises
// linearly from 0 to Probability. Min and Max are in ns, bytes or packets, by
// Config.Axis. The zero Early drops nothing.
type Early struct {
	Min, Max    int64
	Probability uint32 // in units of 1/Certain
}

// maxThreshold bounds Min and Max, to keep the products in drops below 2^63: a random number or a
// probability has up to 24 bits.
const maxThreshold int64 = 1 << 39

func (e Early) check(limit int64) string {
	switch {
	case e == Early{}:
		return ""
	case e.Max <= 0 || e.Min < 0 || e.Min > e.Max:
		return "max must be above zero, and min between 0 and max"
	case e.Max > limit:
		return "max is above the queue's limit"
	case e.Max >= maxThreshold:
		return fmt.Sprintf("max must be below %v, %d bytes or %[2]d packets", time.Duration(maxThreshold),
			maxThreshold)
	case e.Probability > Certain:
		return "probability must be between 0 and 1"
	}
	return ""
}

// dice draws random numbers, the same sequence for the same seed.
type dice struct {
	seed  uint64
	drawn uint64
}

// draw returns 24 random bits: the upper bits of SplitMix64 (Steele, Lea and
// Flood, OOPSLA 2014).
func (d *dice) draw() uint64 {
	d.drawn++
	return splitMix64(d.seed+d.drawn*0x9e3779b97f4a7c15) >> 40
}

// splitMix64 is the output function of SplitMix64.
func splitMix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// drops reports whether a packet arriving at this backlog is dropped. From Max on the drop is
// certain: ECN does not save the packet (RFC 3168 §7).
func (e *Early) drops(backlog int64, d *dice) (victim, certain bool) {
	switch {
	case e.Max == 0 || backlog < e.Min:
		return false, false
	case backlog >= e.Max:
		return true, true
	}
	return d.draw()*uint64(e.Max-e.Min) < uint64(e.Probability)*uint64(backlog-e.Min), false
}

// CoDel begins to drop packets when the queueing delay was at or above Target for an Interval, and
// then drops at a rising rate (RFC 8289 §5). The zero CoDel drops nothing.
type CoDel struct{ Target, Interval time.Duration }

// MaxInterval is the maximum of CoDel.Interval. It keeps the square of an interval, in ns, below 2^63.
const MaxInterval = 3 * time.Second

// Defaults of CoDel (RFC 8289 §4.3, §4.4).
const (
	defaultTarget   = 5 * time.Millisecond
	defaultInterval = 100 * time.Millisecond
	defaultMTU      = 1500 // bytes
)

// CoDelAt returns the defaults of CoDel at a rate, those of RFC 8289. At low rates the target is
// the time of two packets of 1500 bytes, up to a ms more: with less, CoDel would drop although one
// packet is queued behind the one being sent. For an invalid rate it returns the defaults of high
// rates.
func CoDelAt(r meter.Rate) CoDel {
	target := defaultTarget
	if r.Bytes > 0 && r.Period > 0 {
		ns := new(big.Int).Mul(big.NewInt(2*defaultMTU), big.NewInt(int64(r.Period)))
		ns.Quo(ns.Add(ns, big.NewInt(r.Bytes-1)), big.NewInt(r.Bytes))
		ms := new(big.Int).Add(ns, big.NewInt(int64(time.Millisecond-1)))
		if ms.Quo(ms, big.NewInt(int64(time.Millisecond))); ms.Cmp(
			big.NewInt(int64(MaxInterval/2/time.Millisecond))) > 0 {
			return CoDelOf(MaxInterval / 2)
		}
		target = max(target, time.Duration(ms.Int64())*time.Millisecond)
	}
	return CoDelOf(target)
}

// CoDelOf returns a target with the default of its interval: 100 ms, but at least two targets.
func CoDelOf(target time.Duration) CoDel {
	return CoDel{target, max(defaultInterval, 2*min(target, MaxInterval/2))}
}

func (c CoDel) check() string {
	switch {
	case c == CoDel{}:
		return ""
	case c.Target <= 0 || c.Interval <= 0:
		return "target and interval must be above zero, for example 5ms and 100ms"
	case c.Interval > MaxInterval:
		return "interval must be at most 3s"
	}
	return ""
}

// codel is the state of CoDel. RFC 8289 decides when a packet departs, and spares it if less than a
// frame is queued behind it. This state knows no such exception, so a Leaky can decide on arrival;
// Link adds it. The zero codel has seen no packet.
type codel struct {
	firstAbove int64 // ns: if above, dropping starts if the delay stays at or above Target until then
	dropNext   int64 // ns: the next drop
	count      uint32
	lastCount  uint32
	above      bool // whether the delay was at or above Target
	dropping   bool
}

// switches reports whether next switches CoDel on or off. Its state is that of a new queue then.
func (c CoDel) switches(next CoDel) bool { return (c.Target == 0) != (next.Target == 0) }

// drops reports whether a packet departing at now after a delay, both in ns, is to be dropped or
// marked. Packets must be passed in order of departure. A GSO packet of several packets on the wire
// counts as so many drops: the next drop is due after so many steps. Otherwise flows with large GSO
// packets would lose less.
func (s *codel) drops(c *CoDel, now, delay int64, packets int) bool {
	switch {
	case c.Target == 0:
		return false
	case delay < int64(c.Target):
		s.above, s.dropping = false, false
		return false
	case !s.above:
		s.firstAbove, s.above = now+int64(c.Interval), true
		return false
	case now < s.firstAbove:
		s.dropping = false
		return false
	case s.dropping && now < s.dropNext:
		return false
	case s.dropping:
		s.count = saturated(s.count, packets)
		s.dropNext += int64(packets) * s.step(c)
		return true
	}
	// If the last drops were recent, resume near the rate at which they worked.
	if s.again() > 1 && now-s.dropNext < 16*int64(c.Interval) {
		s.count = s.again()
	} else {
		s.count = 1
	}
	s.lastCount, s.dropping = s.count, true
	s.count = saturated(s.count, packets-1)
	s.dropNext = now + int64(packets)*s.step(c)
	return true
}

// again is the count with which dropping may resume.
func (s *codel) again() uint32 { return s.count - s.lastCount }

// isNew reports whether the state decides as the zero codel does about all packets: the delay is below
// Target, and dropping would begin with a count of 1. Then drops overwrites all fields before it
// reads them.
func (s *codel) isNew() bool { return !s.above && s.again() <= 1 }

// isStale reports whether the state decides as the zero codel does about packets departing at now or
// later, even if the interval changes: the last drops are not recent any more.
func (s *codel) isStale(now int64) bool {
	return !s.above && now-s.dropNext >= 16*int64(MaxInterval)
}

// saturated returns count + packets, or the largest count.
func saturated(count uint32, packets int) uint32 {
	return uint32(min(uint64(count)+uint64(packets), math.MaxUint32))
}

// step is the time between two drops, interval/sqrt(count), rounded down, in
// ns.
func (s *codel) step(c *CoDel) int64 {
	return int64(sqrt(uint64(c.Interval) * uint64(c.Interval) / uint64(s.count)))
}

// sqrt is the square root, rounded down, computed bit by bit.
func sqrt(n uint64) uint64 {
	root := uint64(0)
	for bit := uint64(1) << 62; bit > 0; bit >>= 2 {
		if n >= root+bit {
			n -= root + bit
			root = root>>1 + bit
		} else {
			root >>= 1
		}
	}
	return root
}
