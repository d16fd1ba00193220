package episodes

import "github.com/a-seed-32e5a53f/shaper/dataplane"

// waiting holds the flows of packets a link may drop later, by number. They are in a ring, which is
// faster than a map. If another packet needs its place, a packet moves to a map.
type waiting struct {
	ring  [ringSize]waitingFlow
	older map[int64]dataplane.Flow
}

const ringSize = 1 << 12

type waitingFlow struct {
	number int64 // 0: free
	flow   dataplane.Flow
}

func newWaiting() *waiting { return &waiting{older: map[int64]dataplane.Flow{}} }

// put adds a packet. Its number is above zero.
func (w *waiting) put(number int64, flow dataplane.Flow) {
	at := &w.ring[number%ringSize]
	if at.number != 0 {
		w.older[at.number] = at.flow
	}
	at.number, at.flow = number, flow
}

// take removes a packet.
func (w *waiting) take(number int64) dataplane.Flow {
	if at := &w.ring[number%ringSize]; at.number == number {
		at.number = 0
		return at.flow
	}
	flow := w.older[number]
	delete(w.older, number)
	return flow
}
