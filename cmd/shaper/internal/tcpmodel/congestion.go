package tcpmodel

import (
	"math"
	"math/bits"
	"time"
)

// congestion is the window of a flow. Windows are in segments.
type congestion struct {
	control  Control
	paced    bool
	cwnd     int64
	ssthresh int64
	limit    int64 // largest window
	credit   int64 // growth of less than a segment, in the unit of grow
	minRTT   int64 // smallest round-trip time since the last timeout, ns
	cubic    cubic
	hystart  hystart
}

const (
	initialWindow = 10 // RFC 6928
	infinite      = math.MaxInt64 / 4
)

func newCongestion(c Control, limit int64) congestion {
	return congestion{
		control: c, cwnd: min(initialWindow, limit), ssthresh: infinite, limit: limit, minRTT: infinite,
	}
}

func (c *congestion) inSlowStart() bool { return c.cwnd < c.ssthresh }

// loss returns the window after a loss, and stores the window before it for CUBIC.
func (c *congestion) loss() int64 {
	c.credit = 0
	if c.control == Reno {
		return max(2, c.cwnd/2) // RFC 5681 §3.1, equation 4
	}
	c.cubic.loss(c.cwnd)
	return max(2, c.cwnd*7/10) // RFC 9438 §4.6
}

// timeout resets the state after a retransmission timeout (RFC 9438 §4.8).
func (c *congestion) timeout() {
	c.cubic, c.hystart, c.minRTT, c.credit = cubic{}, hystart{}, infinite, 0
}

// sample takes a round-trip time. una is the number of the first unacknowledged segment, next the
// number of the next segment to send.
func (c *congestion) sample(now, rtt, una, next int64) {
	c.minRTT = min(c.minRTT, rtt)
	if c.control == CUBIC && c.inSlowStart() &&
		c.hystart.ends(now, rtt, c.minRTT, c.cwnd, una, next, c.paced) {
		c.ssthresh = c.cwnd
	}
}

// acked grows the window after n segments were acknowledged.
func (c *congestion) acked(now, n int64) {
	if c.inSlowStart() {
		grown := min(n, c.ssthresh-c.cwnd)
		c.cwnd += grown
		n -= grown
	}
	if n > 0 {
		if c.control == Reno {
			c.grow(n, 1<<fraction) // a segment for each window: RFC 5681 §3.1, equation 3
		} else {
			c.grow(n, c.cubic.growth(now, c.minRTT, c.cwnd, n))
		}
	}
	c.cwnd = min(c.cwnd, c.limit)
}

// fraction is the number of fractional bits of segments and seconds in CUBIC.
const fraction = 10

// grow adds perWindow to the window for each window of acknowledged segments.
func (c *congestion) grow(n, perWindow int64) {
	c.credit += n * perWindow
	more := c.credit / (c.cwnd << fraction)
	c.credit -= more * (c.cwnd << fraction)
	c.cwnd += more
}

// cubic is the state of RFC 9438.
type cubic struct {
	epoch    int64 // begin of the congestion avoidance, ns, plus 1; 0: not begun
	wmax     int64 // W_max of §4.6; 0: none yet
	origin   int64 // plateau of this epoch, segments
	k        int64 // time from the begin of the epoch to the plateau, 1/1024 s
	friendly int64 // W_est, Reno's window in this epoch
	// acknowledged segments since the last growth of friendly, in 1/17 of those needed for the next
	reno      int64
	window    int64 // window for which perWindow was computed
	at        int64 // its time, ns
	perWindow int64
}

// renewed is the time after which Linux computes the growth again for an unchanged window.
const renewed = int64(time.Second / 32)

// loss ends an epoch. A window below the previous maximum releases bandwidth
// (fast convergence, §4.7).
func (c *cubic) loss(cwnd int64) {
	c.epoch = 0
	if cwnd < c.wmax {
		c.wmax = cwnd * 17 / 20 // (1 + 0.7) / 2
	} else {
		c.wmax = cwnd
	}
}

// growth returns the segments to add for each window, in 1/1024.
func (c *cubic) growth(now, rtt, cwnd, n int64) int64 {
	c.reno += 9 * n
	if c.epoch != 0 && cwnd == c.window && now-c.at <= renewed {
		return c.perWindow
	}
	c.window, c.at = cwnd, now
	first := c.wmax == 0
	if c.epoch == 0 {
		c.epoch, c.friendly, c.reno = now+1, cwnd, 9*n
		c.origin, c.k = max(cwnd, c.wmax), 0
		if below := c.origin - cwnd; below > 0 {
			c.k = cubeRoot(uint64(below) * 5 / 2 << (3 * fraction)) // C = 0.4, §4.2
		}
	}
	// The window of §4.2, one RTT ahead (§4.4). 1024 s bound the cube.
	t := min((now+1-c.epoch+rtt)/1000<<fraction/1e6-c.k, 1<<20)
	target := c.origin<<fraction + t*t*t*2/5>>(2*fraction)
	grow := target - cwnd<<fraction
	if grow <= 0 {
		grow = 1 << fraction / 100 // Linux: a segment in 100 windows
	}
	if first { // after HyStart, before any loss: Linux grows by a twentieth at least
		grow = max(grow, cwnd<<fraction/20)
	}
	// Reno-friendly region, §4.3: alpha is 3 * (1-0.7) / (1+0.7), 9/17.
	for c.reno > 17*cwnd {
		c.reno -= 17 * cwnd
		c.friendly++
	}
	grow = max(grow, (c.friendly-cwnd)<<fraction)
	c.perWindow = min(grow, cwnd<<fraction/2)
	return c.perWindow // §4.4: target is at most 1.5 * cwnd
}

// cubeRoot returns the cube root, rounded down.
func cubeRoot(x uint64) int64 {
	var root uint64
	for b := bits.Len64(x) / 3; b >= 0; b-- {
		if r := root | 1<<b; r < 1<<21 && r*r*r <= x {
			root = r
		}
	}
	return int64(root)
}

// hystart ends slow start before it overflows the path.
type hystart struct {
	begun   bool
	end     int64 // number of the last segment of the round
	start   int64 // begin of the round, ns
	last    int64 // last acknowledgment of a train, ns
	least   int64 // smallest round-trip time in the round, ns
	samples int   // round-trip times in the round
}

const (
	hystartWindow  = 16 // smallest window to end slow start
	hystartGap     = int64(2 * time.Millisecond)
	hystartDelay   = int64(time.Millisecond) // for the delay of collected packets
	hystartSamples = 8
	hystartMin     = int64(4 * time.Millisecond) // limits of the delay increase to end slow start
	hystartMax     = int64(16 * time.Millisecond)
)

// ends reports whether a train of acknowledgments lasts for half of the round-trip time, or all of it if
// the sender paces, so the window fills the path, or whether the round-trip times have grown by an
// eighth.
func (h *hystart) ends(now, rtt, minRTT, cwnd, una, next int64, paced bool) bool {
	if !h.begun || una >= h.end {
		*h = hystart{begun: true, end: next, start: now, last: now, least: infinite}
	}
	if cwnd < hystartWindow {
		return false
	}
	if now-h.last <= hystartGap {
		h.last = now
		full := minRTT + hystartDelay
		if !paced {
			full /= 2
		}
		if now-h.start > full {
			return true
		}
	}
	h.least = min(h.least, rtt)
	h.samples++
	return h.samples > hystartSamples && h.least > minRTT+min(max(minRTT/8, hystartMin), hystartMax)
}
