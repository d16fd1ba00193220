package pipeline

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// tokens is a list in heldTokens: the tokens that one packet took from meters.
type tokens int32

const noTokens tokens = 0

// held is an entry of the list: the tokens that the packet took from one meter. The rest of its
// meter.Charge follows from the verdict.
type held struct {
	stage     int32
	next      tokens
	customer  uint32
	key       int32       // of a meter per key, in heldTokens.keys; 0 if the key has no meter
	in, color meter.Color // as in meter.Charge
}

// heldTokens keeps the tokens of packets until no queue can drop them any more. Its memory is used
// again, so it grows only if more packets than ever before wait in links.
type heldTokens struct {
	list     []held // the first one is unused
	free     tokens
	keys     []dataplane.PacketKey // likewise
	freeKeys []int32
}

// add adds an entry to the list of a packet, and returns the entry and the new list.
func (h *heldTokens) add(to tokens) (*held, tokens) {
	i := h.free
	if i == noTokens {
		if len(h.list) == 0 {
			h.list, h.keys = append(h.list, held{}), append(h.keys, dataplane.PacketKey{})
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
			s := &l.stages[e.stage]
			charge := meter.Charge{At: v.Now, N: s.amount(v), In: e.in, Color: e.color}
			s.refund(e, &h.keys[e.key], charge, now)
		}
		if e.key != 0 {
			h.freeKeys = append(h.freeKeys, e.key)
			e.key = 0
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

// keyOf returns the key of a packet after the stage metered it, as a number in keys. refused is the
// result of stage.refused from before.
func (h *heldTokens) keyOf(s *stage, p *dataplane.Packet, refused uint64) int32 {
	if s.keyed == nil {
		return 0
	}
	key, ok := s.keyed.Key(p)
	if !ok || s.refused() != refused {
		return 0
	}
	if last := len(h.freeKeys) - 1; last >= 0 {
		i := h.freeKeys[last]
		h.freeKeys, h.keys[i] = h.freeKeys[:last], key
		return i
	}
	h.keys = append(h.keys, key)
	return int32(len(h.keys) - 1)
}

// amount returns the number of bytes or packets that the stage counts of a packet.
func (s *stage) amount(v *dataplane.Verdict) int {
	if s.plan.Packets {
		return v.Packets
	}
	return v.Length
}

// refund gives a packet's tokens back to the meter, at a time, ns.
func (s *stage) refund(e *held, key *dataplane.PacketKey, c meter.Charge, now int64) {
	m := &s.Meter
	switch s.source {
	case perKey:
		if e.key != 0 {
			s.keyed.refund(key, c)
			return
		}
		m = s.keyed.table().Rest()
	case replaced:
		s.shared.Refund(c)
		return
	case inEnvelope:
		s.envelope.Refund(s.plan.Flow, now, c)
		return
	case onServer:
		s.leased.enterPhases(now)
		m = &s.leased.meter
	case perCustomer:
		owner := s.customers.at(e.customer, c.At)
		if owner == nil {
			return
		}
		m = &owner.Meter
	}
	if m.Profile() != nil { // the plan of a customer, or a lease, may have changed
		m.Refund(c)
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
