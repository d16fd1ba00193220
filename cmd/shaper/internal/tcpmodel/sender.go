package tcpmodel

import "time"

// state is a state of loss recovery.
type state uint8

const (
	open       state = iota
	recovering       // fast recovery, RFC 6675 §5
	timedOut         // slow start after a retransmission timeout, RFC 6298 §5
)

// fate is the state of a segment as known to its sender.
type fate uint8

const (
	flying    fate = iota // sent
	lost                  // to be sent again
	delivered             // acknowledged selectively
)

type segment struct {
	serial  int64 // number of its last transmission
	fate    fate
	marked  bool // was lost, and is not known to have arrived since
	arrived bool // of the receiver
}

// transmission is one packet.
type transmission struct{ seq, at int64 }

// timer is the purpose of a flow's timer.
type timer uint8

const (
	retransmission timer = iota // RFC 6298
	probe                       // tail loss probe, RFC 8985 §7
	reordering                  // RFC 8985 §6.2, step 5
)

// flow is a TCP connection. Segments have numbers from 0, and all are full.
type flow struct {
	path Path
	send func(now, seq, serial int64) // gives a packet to the line

	segments ring[segment]      // first: the first segment not acknowledged; end: the next new one
	sent     ring[transmission] // in order of time; the oldest may be known lost or delivered
	arrivals ring[int64]        // serials in the order of arrival, which acknowledgments report
	receiver receiver
	rtt      int64 // Path.RTT, ns

	congestion
	state    state
	waiting  heap  // lost segments
	inflight int64 // segments flying
	marked   int64 // segments marked
	sacked   int64 // segments delivered beyond the first missing one
	high     int64 // next new segment when the recovery began
	newest   int64 // serial of the last transmission known to have arrived
	newestAt int64 // its round-trip time

	priorWindow, reduced, out int64 // of proportional rate reduction: RecoverFS, prr_delivered, prr_out

	srtt, deviation int64 // RFC 6298 §2, ns
	backoff         uint  // successive timeouts
	probed          bool  // a tail loss probe is unanswered
	timer           timer
	due             int64 // time of the timer; infinite: none
	lastSent        int64 // time of the last transmission
	free, wake      int64 // next time at which a paced sender may send; its timer, or infinite

	retransmits, timeouts int64
}

const (
	minTimeout = int64(200 * time.Millisecond) // Linux, tcp_rto_min_us
	maxTimeout = int64(120 * time.Second)      // Linux, TCP_RTO_MAX
	maxWindow  = 1 << 20                       // segments; bounds memory
	reorder    = 3                             // DupThresh, RFC 6675 §2
)

func newFlow(p Path, send func(now, seq, serial int64)) *flow {
	f := &flow{path: p, send: send, rtt: int64(p.RTT), due: infinite, wake: infinite, newest: -1}
	f.estimate(f.rtt) // of the handshake
	f.congestion = newCongestion(p.Control, min(maxWindow, p.Window/int64(p.MSS)))
	f.paced = p.Paced
	f.receiver = receiver{quick: quickSegments, delayed: infinite}
	return f
}

// timeoutAfter returns the retransmission timeout, RFC 6298 §2 and §5.5.
func (f *flow) timeoutAfter() int64 {
	t := f.srtt + max(minTimeout, 4*f.deviation)
	return min(t<<min(f.backoff, 20), maxTimeout)
}

// transmit sends a segment, for the first time or again.
func (f *flow) transmit(now, seq int64) {
	s := f.segments.at(seq)
	s.serial, s.fate = f.sent.end, flying
	f.sent.push(transmission{seq, now})
	f.inflight++
	f.lastSent = now
	if f.state == recovering {
		f.out++
	}
	f.send(now, seq, s.serial)
}

// transmitNew sends new segments.
func (f *flow) transmitNew(now, n int64) {
	idle := f.segments.len() == 0
	for range n {
		f.segments.push(segment{})
		f.transmit(now, f.segments.end-1)
	}
	if idle || f.timer == probe || f.due == infinite {
		f.arm(now)
	}
}

// push sends segments until the window is full: lost ones first, then new ones.
func (f *flow) push(now int64) {
	for f.inflight < f.cwnd && !f.paces(now) {
		seq, ok := f.nextLost()
		if !ok {
			break
		}
		f.retransmits++
		f.transmit(now, seq)
		f.pace(now, 1)
		if seq == f.segments.first {
			f.timer, f.due = retransmission, now+f.timeoutAfter()
		}
	}
	goal := f.chunk()
	for f.inflight < f.cwnd && len(f.waiting) == 0 && !f.paces(now) {
		room := f.cwnd - f.inflight
		if room < goal && f.defers(now, room) {
			return
		}
		n := min(room, goal)
		f.transmitNew(now, n)
		f.pace(now, n)
	}
}

// nextLost removes the first lost segment.
func (f *flow) nextLost() (seq int64, ok bool) {
	for len(f.waiting) > 0 {
		if seq = f.waiting.pop(); seq >= f.segments.first && f.segments.at(seq).fate == lost {
			return seq, true
		}
	}
	return 0, false
}

// rate returns the pacing rate of Linux in bytes/s: 1.2 times the window per round-trip time, or
// twice in slow start.
func (f *flow) rate() int64 {
	tenths := int64(12)
	if f.cwnd < f.ssthresh/2 {
		tenths = 20
	}
	return max(f.cwnd, int64(f.segments.len())) * int64(f.path.MSS) * tenths / 10 * 1e6 / (f.srtt/1000 + 1)
}

// paces reports whether a paced sender must wait, and sets the timer for it.
func (f *flow) paces(now int64) bool {
	if f.path.Paced && now < f.free {
		f.wake = f.free
		return true
	}
	return false
}

// pace notes that n segments were sent. A late sender catches up by at most a half.
func (f *flow) pace(now, n int64) {
	if late := max(0, now-f.free); f.sent.end > initialWindow {
		gap := n * int64(f.path.MSS) * 1e9 / max(1, f.rate())
		f.free = max(now, f.free) + gap - min(gap/2, late)
	}
}

// chunk returns the number of segments Linux collects before it sends: a 1024th of a second at the
// pacing rate, and more at RTTs below 16 ms.
func (f *flow) chunk() int64 {
	const most = 1 << 16 // bytes of the largest packet
	bytes := f.rate() / 1024
	if r := f.minRTT / 1000 >> 9; r < 32 {
		bytes += most >> r
	}
	return max(2, min(bytes, most)/int64(f.path.MSS))
}

// defers reports whether Linux waits for more acknowledgments before it sends less than a chunk: if
// it is about to get one, just sent, and the room is below a third of the window.
func (f *flow) defers(now, room int64) bool {
	if f.state != open || room >= f.cwnd/3 || now-f.lastSent > int64(time.Millisecond) ||
		f.segments.len() == 0 {
		return false
	}
	head := f.sent.at(f.segments.at(f.segments.first).serial).at
	return now-head >= f.srtt/2
}

// arm starts the timer after progress: a tail loss probe, or the retransmission timeout.
func (f *flow) arm(now int64) {
	f.timer, f.due = retransmission, now+f.timeoutAfter()
	if f.state != open || f.probed || f.sacked > 0 {
		return
	}
	after := 2 * f.srtt // RFC 8985 §7.2
	if f.segments.len() == 1 {
		after += minTimeout
	}
	if now+after < f.due {
		f.timer, f.due = probe, now+after
	}
}

// expire handles the timer.
func (f *flow) expire(now int64) {
	switch f.timer {
	case probe:
		f.probed = true
		f.transmitNew(now, 1)
		f.timer, f.due = retransmission, now+f.timeoutAfter()
	case reordering:
		f.due = infinite
		if f.detect(now, true) > 0 {
			f.recover()
			f.reduce(1, false, false)
			f.push(now)
		}
		if f.due == infinite {
			f.timer, f.due = retransmission, now+f.timeoutAfter()
		}
	default:
		f.expireRetransmission(now)
	}
}

// expireRetransmission enters slow start with one segment, RFC 6298 §5.4 to §5.6.
func (f *flow) expireRetransmission(now int64) {
	f.timeouts++
	if f.state != timedOut && (f.state == open || f.segments.first >= f.high) || f.state == timedOut &&
		f.backoff == 0 {
		f.ssthresh = f.congestion.loss()
	}
	f.congestion.timeout()
	f.backoff++
	f.state, f.probed = timedOut, false
	f.high = f.segments.end
	for seq := f.segments.first; seq < f.segments.end; seq++ {
		s := f.segments.at(seq)
		// A segment sent less than one round trip ago may still arrive (RFC 8985 §6.3).
		if s.fate == flying && (seq == f.segments.first || now-f.sent.at(s.serial).at >= f.newestAt) {
			f.lose(seq)
		}
	}
	f.cwnd = f.inflight + 1
	f.due = infinite
	f.push(now)
}

func (f *flow) lose(seq int64) {
	s := f.segments.at(seq)
	if s.fate = lost; !s.marked {
		s.marked = true
		f.marked++
	}
	f.inflight--
	f.waiting.push(seq)
}

// heap is a set of segment numbers, the smallest first.
type heap []int64

func (h *heap) push(v int64) {
	*h = append(*h, v)
	s := *h
	for i := len(s) - 1; i > 0 && s[(i-1)/2] > s[i]; i = (i - 1) / 2 {
		s[i], s[(i-1)/2] = s[(i-1)/2], s[i]
	}
}

func (h *heap) pop() int64 {
	s := *h
	least, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	for i := 0; 2*i+1 < last; {
		child := 2*i + 1
		if child+1 < last && s[child+1] < s[child] {
			child++
		}
		if s[i] <= s[child] {
			break
		}
		s[i], s[child] = s[child], s[i]
		i = child
	}
	*h = s
	return least
}
