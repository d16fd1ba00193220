package tcpmodel

import "time"

// receiver is the receiving end of a flow.
type receiver struct {
	next     int64 // number of the first missing segment
	beyond   int64 // segments received beyond a gap
	arrived  int64 // segments received, each counted once
	acked    int64 // next at the last acknowledgment
	quick    int   // segments to acknowledge at once
	gapAt    int64 // next at the last acknowledgment of segments beyond a gap
	repeated int   // acknowledgments with this number
	held     int   // acknowledgments held back since
	delayed  int64 // time of the delayed acknowledgment, ns; infinite: none
}

const (
	quickSegments = 16 // Linux, TCP_MAX_QUICKACKS
	delayedAck    = int64(40 * time.Millisecond)
	// Segments arriving within this time are acknowledged together: by receive offload (GRO), or
	// because the program has not yet read the first ones.
	coalesced = int64(20 * time.Microsecond)
	heldAcks  = 44 // Linux, tcp_comp_sack_nr
	heldFor   = int64(time.Millisecond)
)

// receive handles the arrival of a segment, and reports whether it is acknowledged at once.
// Otherwise r.delayed is set.
func (f *flow) receive(now, seq int64) bool {
	r := &f.receiver
	s := f.segments.at(seq)
	if seq < r.next || s.arrived {
		return true // RFC 5681 §4.2
	}
	s.arrived = true
	r.arrived++
	gap := r.beyond > 0
	if seq == r.next {
		r.next++
		for r.next < f.segments.end && f.segments.at(r.next).arrived {
			r.next++
			r.beyond--
		}
	} else {
		r.beyond++
	}
	switch {
	case r.quick > 0:
		r.quick--
		return true
	case gap && r.beyond == 0:
		return true
	case r.next-r.acked >= 2:
		r.delayed = min(r.delayed, now+coalesced)
		return false
	case r.beyond == 0:
		r.delayed = min(r.delayed, now+delayedAck)
		return false
	}
	if r.gapAt != r.next {
		r.gapAt, r.repeated = r.next, 0
	}
	if r.repeated < 3 || r.held >= heldAcks {
		r.repeated++
		return true
	}
	r.held++
	r.delayed = min(r.delayed, now+min(heldFor, f.rtt/20))
	return false
}

// acknowledge is called when an acknowledgment is sent.
func (r *receiver) acknowledge() { r.acked, r.held, r.delayed = r.next, 0, infinite }
