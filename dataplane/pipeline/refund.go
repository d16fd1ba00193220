package pipeline

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// tokens is a list in heldTokens: the tokens that one packet took from meters.
type tokens int32

const noTokens tokens = 0

// held is an entry of the list: the tokens that the packet took from one meter.
type held struct {
	meter.Charge
	stage    int32
	next     tokens
	customer uint32
	key      heldKey
}

// heldKey is the key of a packet at a meter per key.
type heldKey struct {
	dataplane.PacketKey
	found bool // the key's meter exists; false without keys
}

// heldTokens keeps the tokens of packets until no queue can drop them any more. Its memory is used
// again, so it grows only if more packets than ever before wait in links.
type heldTokens struct {
	list []held // the first one is unused
	free tokens
}

// add adds an entry to the list of a packet, and returns the entry and the new list. Its key is
// that of an earlier packet.
func (h *heldTokens) add(to tokens) (*held, tokens) {
	i := h.free
	if i == noTokens {
		if len(h.list) == 0 {
			h.list = append(h.list, held{})
		}
		i = tokens(len(h.list))
		h.list = append(h.list, held{})
	} else {
		h.free = h.list[i].next
	}
	e := &h.list[i]
	e.next = to
	return e, i
}

// end ends the list of a decided packet. If a queue dropped the packet, its tokens go back to
// the meters at a time, ns.
func (h *heldTokens) end(l *Pipeline, taken tokens, v *dataplane.Verdict, now int64) {
	for i := taken; ; i = h.list[i].next {
		e := &h.list[i]
		if v.Done.Dropped() && v.Reason >= dataplane.QueueFull {
			l.stages[e.stage].refund(e, now)
		}
		if e.next == noTokens {
			e.next, h.free = h.free, taken
			return
		}
	}
}

// refused returns the number of packets whose key had no room.
func (s *stage) refused() uint64 {
	if s.keyed == nil {
		return 0
	}
	return s.keyed.table().Stats().Refused
}

// setKey sets the key of a packet after the stage metered it. refused is the result of
// stage.refused from before.
func (e *held) setKey(s *stage, p *dataplane.Packet, refused uint64) {
	if s.keyed != nil {
		e.key.PacketKey, e.key.found = s.keyed.Key(p)
		e.key.found = e.key.found && s.refused() == refused
	}
}

// refund gives a packet's tokens back to the meter, at a time, ns.
func (s *stage) refund(e *held, now int64) {
	m := &s.Meter
	switch s.source {
	case perKey:
		if e.key.found {
			s.keyed.refund(&e.key.PacketKey, e.Charge)
			return
		}
		m = s.keyed.table().Rest()
	case replaced:
		s.shared.Refund(e.Charge)
		return
	case inEnvelope:
		s.envelope.Refund(s.plan.Flow, now, e.Charge)
		return
	case onServer:
		s.leased.enterPhases(now)
		m = &s.leased.meter
	case perCustomer:
		m = &s.customers.customer(e.customer).Meter
	}
	if m.Profile() != nil { // the plan of a customer, or a lease, may have changed
		m.Refund(e.Charge)
	}
}

// refund gives tokens back to the meter of a key.
func (k *keyTable) refund(key *dataplane.PacketKey, c meter.Charge) {
	if k.small != nil {
		k.small.Refund(key.Small(), c)
		return
	}
	k.all.Refund(*key, c)
}
