package pipeline

import "github.com/a-seed-32e5a53f/shaper/dataplane"

// waiting is a packet in a link, with the tokens to give back if the link drops it.
type waiting struct {
	dataplane.Verdict
	taken tokens
}

// decideLinks lets the links decide about the packets due by now, in order of time.
func (l *Pipeline) decideLinks(now int64) {
	for {
		at, i, due := l.nextLink()
		if !due || at > now {
			return
		}
		d, ok := l.links[i].Decide(at)
		if !ok {
			return
		}
		v := &d.Value.Verdict
		v.Departure = d.Depart
		l.applyFate(d.Fate, v)
		if taken := d.Value.taken; taken != noTokens {
			l.held.end(l, taken, v, min(d.Depart, l.now))
		}
		l.settled = append(l.settled, *v)
	}
}

// nextLink returns the link with the earliest decision, and its time.
func (l *Pipeline) nextLink() (at int64, link int, due bool) {
	for i := range l.links {
		if t, queued := l.links[i].Due(); queued && (!due || t < at) {
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
		l.settled, l.returned = l.settled[:0], 0
		if l.decideLinks(now); len(l.settled) == 0 {
			return false
		}
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
