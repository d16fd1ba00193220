package queue

// level schedules the children of one priority of a link by WF2Q+ (Bennett and Zhang 1997). The
// first packet of each child, of n bytes, starts at a virtual time and finishes n*grain/weight
// later. Among the packets whose start is reached, the one that finishes first is sent.
type level struct {
	weight  int64 // sum of the weights of all its children
	count   int   // children that can send
	now     int64 // virtual time
	latest  int64 // largest finish of the packets sent
	sending int64 // length of the packet being sent, in bytes, not yet included in now
	waiting       // by virtual time
}

// waiting holds children that can send. At a selection those whose start is reached move from
// future to ready.
type waiting struct {
	future heap // by start
	ready  heap // by finish
}

const (
	grain    = 1 << 20 // virtual time of one byte at weight 1
	rewindAt = 1 << 61 // rewind threshold: far below 2^63, and a packet adds at most 2^52
)

// virtualTime returns the virtual time of n bytes at a weight, rounded down.
func virtualTime(n, weight int64) int64 { return n * grain / weight }

// activate returns the start of the first packet of a child that is added. last is the finish of its
// previous packet.
func (v *level) activate(last int64) (start int64) {
	if v.count == 0 && v.sending == 0 { // the priority is idle: all children start afresh
		v.now = max(v.now, v.latest)
	}
	return max(last, v.now)
}

// startPacket begins the sending of a packet of n bytes.
func (v *level) startPacket(n, finish int64) {
	v.sending = n
	v.latest = max(v.latest, finish)
}

// finishPacket advances virtual time by the packet sent.
func (v *level) finishPacket() {
	v.now += virtualTime(v.sending, v.weight)
	v.sending = 0
}
