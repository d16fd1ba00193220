package tcpmodel

// acknowledge handles an acknowledgment of all segments before next, and of all arrivals before
// upTo.
func (f *flow) acknowledge(now, next, upTo int64) {
	n := f.deliver(now, upTo)
	progress := f.advance(next)
	again := f.detect(now, false)
	if f.state != open && f.segments.first >= f.high {
		if f.state == recovering {
			f.cwnd = f.ssthresh
		}
		f.state = open
	}
	// Linux begins another recovery if segments beyond the first one were lost, even if they have
	// been sent again.
	if f.state == open && f.marked > 0 || f.state == timedOut && again > 1 {
		f.recover()
	}
	switch {
	case f.state == recovering:
		f.reduce(n, progress, again > 0)
	case progress:
		f.acked(now, n)
	}
	if progress {
		f.backoff, f.probed = 0, false
		f.arm(now)
	}
	f.push(now)
}

// deliver marks arrived segments as delivered and returns their number.
func (f *flow) deliver(now, upTo int64) (n int64) {
	rtt := int64(-1)
	for f.arrivals.first < upTo {
		serial := f.arrivals.pop()
		sent := f.sent.at(serial)
		if serial > f.newest {
			f.newest, f.newestAt = serial, now-sent.at
		}
		if sent.seq < f.segments.first {
			continue
		}
		s := f.segments.at(sent.seq)
		if s.fate == delivered {
			continue
		}
		if s.fate == flying {
			f.inflight--
		}
		if s.marked {
			f.marked--
		}
		s.fate, s.marked = delivered, false
		f.sacked++
		n++
		rtt = now - sent.at
	}
	if rtt >= 0 {
		f.estimate(rtt)
		f.sample(now, rtt, f.segments.first, f.segments.end)
	}
	return n
}

// estimate updates the estimates of RFC 6298 §2.
func (f *flow) estimate(rtt int64) {
	if f.srtt == 0 {
		f.srtt, f.deviation = rtt, rtt/2
		return
	}
	f.deviation += (max(rtt-f.srtt, f.srtt-rtt) - f.deviation) / 4
	f.srtt += (rtt - f.srtt) / 8
}

// advance removes all segments before next.
func (f *flow) advance(next int64) (progress bool) {
	progress = f.segments.first < next
	for f.segments.first < next {
		f.segments.pop()
		f.sacked--
	}
	return progress
}

// detect marks segments as lost if they were sent before one known to have arrived (RACK, RFC 8985
// §6.2), and returns their number. Without reordering on the path it does so at once if three
// segments were delivered beyond a gap or a recovery has begun, otherwise after a quarter of the
// round-trip time.
func (f *flow) detect(now int64, timeout bool) (n int) {
	for f.sent.first < min(f.newest+1, f.sent.end) {
		t := f.sent.at(f.sent.first)
		if t.seq >= f.segments.first {
			if s := f.segments.at(t.seq); s.serial == f.sent.first && s.fate == flying {
				if wait := min(f.minRTT/4, f.srtt/8); f.state == open && f.sacked < reorder && !timeout {
					f.timer, f.due = reordering, now+wait
					return n
				}
				f.lose(t.seq)
				n++
			}
		}
		f.sent.pop()
	}
	return n
}

// recover enters fast recovery.
func (f *flow) recover() {
	f.priorWindow = f.cwnd
	f.ssthresh = f.congestion.loss()
	f.state, f.high, f.reduced, f.out = recovering, f.segments.end, 0, 0
}

// reduce sets the window in recovery after n segments were delivered: proportional rate
// reduction, RFC 6937 §3.
func (f *flow) reduce(n int64, progress, lostMore bool) {
	if n <= 0 {
		return
	}
	f.reduced += n
	var more int64
	if f.inflight > f.ssthresh {
		more = (f.ssthresh*f.reduced+f.priorWindow-1)/f.priorWindow - f.out
	} else {
		more = max(f.reduced-f.out, n)
		if progress && !lostMore {
			more++
		}
		more = min(more, f.ssthresh-f.inflight)
	}
	if f.out == 0 {
		more = max(more, 1) // the first retransmission
	}
	f.cwnd = f.inflight + max(0, more)
}
