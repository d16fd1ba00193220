package tcpmodel

import (
	"math/big"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// event is the arrival of a packet or an acknowledgment.
type event struct {
	at   int64 // ns
	flow *flow
	a, b int64 // segment and serial, or the acknowledged segment and arrivals
}

// network is the flows and the packets between them. All of a flow's delay is between the
// receiver and the sender. Each ring is in order of time.
type network struct {
	path    Path
	admit   gate
	line    *queue.Leaky // nil: unlimited
	flows   []*flow
	started int

	toGate, toReceiver, toSender ring[event]

	timers int64 // no timer of a flow is earlier

	packets, dropped, passed int64
}

func newNetwork(p Path, admit gate) (*network, error) {
	n := &network{path: p, admit: admit, timers: infinite}
	if p.Line != (meter.Rate{}) {
		var err error
		if n.line, err = queue.New(queue.Config{Rate: p.Line, Time: time.Hour}); err != nil {
			return nil, err
		}
	}
	for range p.Flows {
		n.flows = append(n.flows, nil)
	}
	for i := range n.flows {
		f := newFlow(p, nil)
		f.send = func(now, seq, serial int64) { n.send(event{now, f, seq, serial}) }
		n.flows[i] = f
	}
	return n, nil
}

// watch notes the timers of a flow.
func (n *network) watch(f *flow) { n.timers = min(n.timers, f.due, f.wake, f.receiver.delayed) }

// send gives a packet to the line.
func (n *network) send(e event) {
	if n.line == nil {
		n.arrive(e)
		return
	}
	_, fate := n.line.Admit(e.at, queue.Packet{Bytes: n.path.packet()})
	if fate.Dropped() {
		return
	}
	// A packet arrives with its last bit.
	e.at += int64(n.line.Delay(e.at))
	n.toGate.push(e)
}

// arrive gives a packet to the bottleneck.
func (n *network) arrive(e event) {
	n.packets++
	depart, ok := n.admit(e.at, n.path.packet())
	switch {
	case !ok:
		n.dropped++
	case depart > e.at:
		e.at = depart
		n.toReceiver.push(e)
	default:
		n.receive(e)
	}
}

// receive gives a packet to its receiver.
func (n *network) receive(e event) {
	n.passed++
	f := e.flow
	f.arrivals.push(e.b)
	if f.receive(e.at, e.a) {
		n.acknowledge(e.at, f)
	}
	n.watch(f)
}

// acknowledge sends an acknowledgment.
func (n *network) acknowledge(now int64, f *flow) {
	f.receiver.acknowledge()
	n.toSender.push(event{now + int64(n.path.RTT), f, f.receiver.next, f.arrivals.end})
}

// run processes all events before end.
func (n *network) run(end int64) error {
	for {
		at, from := n.timers, (*ring[event])(nil)
		for _, r := range []*ring[event]{&n.toGate, &n.toReceiver, &n.toSender} {
			if r.len() > 0 && r.at(r.first).at <= at {
				at, from = r.at(r.first).at, r
			}
		}
		start := int64(n.path.RTT) * int64(n.started) / int64(n.path.Flows)
		if n.started < len(n.flows) && start <= at {
			at = start
		}
		if at >= end {
			return nil
		}
		if n.packets > maxPackets {
			return ErrTooFast
		}
		switch {
		case n.started < len(n.flows) && start <= at:
			f := n.flows[n.started]
			n.started++
			f.push(at)
			n.watch(f)
		case from == nil:
			n.expire(at)
		case from == &n.toGate:
			n.arrive(from.pop())
		case from == &n.toReceiver:
			n.receive(from.pop())
		default:
			e := from.pop()
			e.flow.acknowledge(at, e.a, e.b)
			n.watch(e.flow)
		}
	}
}

// expire handles all timers due at now. Most were reset to a later time.
func (n *network) expire(now int64) {
	n.timers = infinite
	for _, f := range n.flows[:n.started] {
		if f.receiver.delayed <= now {
			n.acknowledge(now, f)
		}
		if f.due <= now {
			f.expire(now)
		}
		if f.wake <= now {
			f.wake = infinite
			f.push(now)
		}
		n.watch(f)
	}
}

// totals returns the counts since the begin, with payload in segments.
func (n *network) totals() Result {
	r := Result{Packets: n.packets, Dropped: n.dropped, Passed: n.passed}
	for _, f := range n.flows {
		r.Flows = append(r.Flows, f.receiver.arrived)
		r.Retransmits += f.retransmits
		r.Timeouts += f.timeouts
	}
	return r
}

// since returns the difference of two counts as a Result.
func (r Result) since(before Result, p Path) Result {
	r.Packets -= before.Packets
	r.Dropped -= before.Dropped
	r.Retransmits -= before.Retransmits
	r.Timeouts -= before.Timeouts
	r.Passed = perSecond(r.Passed-before.Passed, p.packet(), p.Duration)
	for i := range r.Flows {
		r.Flows[i] -= before.Flows[i]
		r.Goodput += r.Flows[i]
		r.Flows[i] = perSecond(r.Flows[i], p.MSS, p.Duration)
	}
	r.Goodput = perSecond(r.Goodput, p.MSS, p.Duration)
	return r
}

// perSecond returns the rate of packets of a length, in bit/s.
func perSecond(packets int64, length int, d time.Duration) int64 {
	bits := new(big.Int).Mul(big.NewInt(packets), big.NewInt(8*int64(length)*int64(time.Second)))
	return bits.Quo(bits, big.NewInt(int64(d))).Int64()
}
