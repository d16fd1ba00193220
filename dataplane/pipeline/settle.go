package pipeline

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// waiting is a packet in a link: its verdict without the departure, and the tokens to give back if the
// link drops it. There may be many, so lengths have no more bits than they need: metered lengths are
// below 2^32, and no link admits more than 65536 packets.
type waiting struct {
	now, id         int64
	length, packets uint32
	class, stage    int32
	customer        uint32
	lack            int32
	taken           tokens
	done            dataplane.Done
	pre, color      meter.Color
	reason          dataplane.Reason
	hasDSCP         bool
	dscpIn, dscpOut uint8
}

func newWaiting(v *dataplane.Verdict, taken tokens) waiting {
	return waiting{
		now: v.Now, id: v.ID, length: uint32(v.Length), packets: uint32(v.Packets),
		class: v.Class, stage: v.Stage, customer: v.Customer, lack: v.Lack, taken: taken,
		done: v.Done, pre: v.Pre, color: v.Color, reason: v.Reason,
		hasDSCP: v.HasDSCP, dscpIn: v.DSCPIn, dscpOut: v.DSCPOut,
	}
}

// verdict returns the verdict about a packet with its departure.
func (w *waiting) verdict(departure int64) dataplane.Verdict {
	return dataplane.Verdict{
		Now: w.now, Departure: departure, ID: w.id, Length: int(w.length), Packets: int(w.packets),
		Class: w.class, Stage: w.stage, Customer: w.customer, Lack: w.lack,
		Done: w.done, Pre: w.pre, Color: w.color, Reason: w.reason,
		HasDSCP: w.hasDSCP, DSCPIn: w.dscpIn, DSCPOut: w.dscpOut,
	}
}

// decideLinks lets the links decide about the packets due by now, in order of time.
func (l *Pipeline) decideLinks(now int64) {
	var v dataplane.Verdict
	for l.decideNext(now, &v) {
		l.settled = append(l.settled, v)
	}
}

// decideNext lets the links decide about the first packet due by now. It returns false if there is none.
func (l *Pipeline) decideNext(now int64, v *dataplane.Verdict) bool {
	at, i, due := l.nextLink()
	if !due || at > now {
		return false
	}
	d, ok := l.trees[i].Decide(at)
	if !ok {
		return false
	}
	*v = d.Value.verdict(d.Depart)
	l.applyFate(d.Fate, v)
	if taken := d.Value.taken; taken != noTokens {
		l.held.end(l, taken, v, min(d.Depart, l.now))
	}
	return true
}

// nextLink returns the link with the earliest decision, and its time.
func (l *Pipeline) nextLink() (at int64, link int, due bool) {
	for i := range l.trees {
		if t, queued := l.trees[i].Due(); queued && (!due || t < at) {
			at, link, due = t, i, true
		}
	}
	return at, link, due
}

// Settle returns the decision about a Waiting packet: it completes its verdict in v, with the
// departure or the drop. It returns false if there are no more decisions up to now, in ns. The
// caller finds the packet by v.ID, and must call its SetCE if v.Done contains ECNSet.
func (l *Pipeline) Settle(now int64, v *dataplane.Verdict) bool {
	if l.returned == len(l.settled) {
		// One at a time, since there may be as many decisions as queued packets.
		l.settled, l.returned = l.settled[:0], 0
		return l.decideNext(now, v)
	}
	*v = l.settled[l.returned]
	l.returned++
	return true
}

// Due returns the time of the next decision of Settle, in ns, or false if no packet is
// queued in a link.
func (l *Pipeline) Due() (at int64, ok bool) {
	if l.returned < len(l.settled) {
		return l.settled[l.returned].Departure, true
	}
	at, _, ok = l.nextLink()
	return at, ok
}
