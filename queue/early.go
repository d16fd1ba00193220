package queue

import (
	"fmt"
	"math"
	"time"
)

// Certain is the probability that is one.
const Certain = 1 << 24

// Early drops packets of a color before the queue is full (WRED): none while
// the backlog is below Min, all from Max on, and between them with a probability
// that climbs from none to Probability. Min and Max are in ns, bytes or packets,
// as Config.Axis says. The zero Early drops nothing.
type Early struct {
	Min, Max    int64
	Probability uint32 // of Certain
}

// bound keeps the products of takes within 64 bits.
const bound int64 = 1 << 39

func (e Early) check(limit int64) string {
	switch {
	case e == Early{}:
		return ""
	case e.Max <= 0 || e.Min < 0 || e.Min > e.Max:
		return "wants a max above zero, and min between nothing and max"
	case e.Max > limit:
		return "has a max above the queue's limit"
	case e.Max >= bound:
		return fmt.Sprintf("has a max above %v, %d B or %[2]d packets", time.Duration(bound), bound)
	case e.Probability > Certain:
		return "wants a probability between 0 and 1"
	}
	return ""
}

// dice are random numbers that are the same each time.
type dice struct {
	seed  uint64
	drawn uint64
}

// draw returns 24 random bits: SplitMix64 of Steele, Lea and Flood (OOPSLA 2014).
func (d *dice) draw() uint64 {
	d.drawn++
	return mix(d.seed+d.drawn*0x9e3779b97f4a7c15) >> 40
}

// mix is SplitMix64's.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// takes says whether a packet is dropped that finds this backlog, and whether
// that is for certain: then ECN does not save it (RFC 3168 §7).
func (e *Early) takes(backlog int64, d *dice) (victim, certain bool) {
	switch {
	case e.Max == 0 || backlog < e.Min:
		return false, false
	case backlog >= e.Max:
		return true, true
	}
	return d.draw()*uint64(e.Max-e.Min) < uint64(e.Probability)*uint64(backlog-e.Min), false
}

// CoDel drops packets where the wait stays above Target for an Interval, ever
// more of them (RFC 8289 §5). The zero CoDel drops nothing.
type CoDel struct{ Target, Interval time.Duration }

// maxInterval keeps the square of an interval within 63 bits.
const maxInterval = 3 * time.Second

func (c CoDel) check() string {
	switch {
	case c == CoDel{}:
		return ""
	case c.Target <= 0 || c.Interval <= 0:
		return "wants a target and an interval above zero, such as 5ms and 100ms"
	case c.Interval > maxInterval:
		return "wants an interval of at most 3s"
	}
	return ""
}

// codel is the state of CoDel. RFC 8289 asks when a packet leaves, and knows
// what waits behind it; here packets that wait alone are not spared, so that
// the answer may be given when a packet comes.
type codel struct {
	CoDel
	firstAbove int64 // ns, when a wait that stays above Target begins to cost; none where it is below
	dropNext   int64 // ns
	count      uint32
	lastCount  uint32
	dropping   bool
}

const never = math.MinInt64

func newCoDel(c CoDel) codel { return codel{CoDel: c, firstAbove: never} }

// takes says whether a packet that leaves at now after a wait is dropped, or
// marked. Packets are asked for in the order in which they leave.
func (c *codel) takes(now, wait int64) bool {
	switch {
	case c.Target == 0:
		return false
	case wait < int64(c.Target):
		c.firstAbove, c.dropping = never, false
		return false
	case c.firstAbove == never:
		c.firstAbove = now + int64(c.Interval)
		c.dropping = false
		return false
	case now < c.firstAbove:
		c.dropping = false
		return false
	case c.dropping && now < c.dropNext:
		return false
	case c.dropping:
		c.count++
		c.dropNext += c.step()
		return true
	}
	// Begun again soon after: go on where the rate of drops was about right.
	if again := c.count - c.lastCount; again > 1 && now-c.dropNext < 16*int64(c.Interval) {
		c.count = again
	} else {
		c.count = 1
	}
	c.lastCount, c.dropping = c.count, true
	c.dropNext = now + c.step()
	return true
}

// step is the time between two drops, interval/sqrt(count), rounded down.
func (c *codel) step() int64 {
	return int64(sqrt(uint64(c.Interval) * uint64(c.Interval) / uint64(c.count)))
}

// sqrt is the square root, rounded down, bit by bit.
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
