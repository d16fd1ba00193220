package oracle

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
)

// flow holds the queued packets of one flow of a queue, or the flows of one host, or all of a queue. An
// ordinary queue has a single flow.
type flow struct {
	number  uint64
	above   *flow // nil for all of a queue
	deficit int64
	listed  bool

	// Of a flow.
	waiting []*queued
	codel   *codel // nil: none

	// Of others.
	kids       map[uint64]*flow
	fresh, old []*flow // in their turn
	turn       *flow   // whose packet is next; nil if not yet chosen
}

// fullFrame is the quantum of a flow per turn, and the backlog below which CoDel does not drop.
const fullFrame = 1514

// of returns the flow of a packet.
func (q *queue) of(p *queued) *flow {
	f := q.all.kid(0)
	if q.key != nil {
		f = &q.all
		if q.hosts != nil {
			f = f.kid(flowNumber(q.seed+1, q.hosts(p.row.leaves())))
		}
		f = f.kid(flowNumber(q.seed, q.key(p.row.leaves())))
	}
	if f.codel == nil && q.codel != nil {
		fresh := *q.codel
		f.codel = &fresh
	}
	return f
}

// kid returns a host or a flow by its number.
func (f *flow) kid(number uint64) *flow {
	if f.kids == nil {
		f.kids = map[uint64]*flow{}
	}
	if f.kids[number] == nil {
		f.kids[number] = &flow{number: number, above: f}
	}
	return f.kids[number]
}

// leaves returns the packet's frame with the class's marks, as the queue sees it.
func (r *row) leaves() frame {
	f := r.frame
	if r.action.dscp >= 0 {
		f.trafficClass = byte(r.action.dscp<<2) | f.trafficClass&3
	}
	return f
}

// flowNumber hashes five words to one of 1024 flows.
func flowNumber(seed uint64, words [5]uint64) uint64 {
	h := seed
	for _, w := range words {
		h = splitmix64(h ^ w)
	}
	return h % 1024
}

// take appends a packet to its flow. Its flow and its host join their lists.
func (q *queue) take(p *queued) {
	f := q.of(p)
	f.waiting = append(f.waiting, p)
	q.waiting = append(q.waiting, p)
	for ; f.above != nil; f = f.above {
		if !f.listed {
			f.listed, f.deficit = true, fullFrame
			f.above.fresh = append(f.above.fresh, f)
		}
	}
}

// remove removes the first packet of a flow.
func (q *queue) remove(p *queued) {
	f := q.of(p)
	f.waiting = f.waiting[1:]
	for i, other := range q.waiting {
		if other == p {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			break
		}
	}
	for ; f.above != nil; f = f.above {
		if f.above.turn == f && f.bytes() == 0 {
			f.above.turn = nil
		}
	}
}

// pay subtracts a packet that is sent from the deficits of its flow and its host, whose turns end.
func (f *flow) pay(length int64) {
	for ; f.above != nil; f = f.above {
		f.deficit -= length
		f.above.turn = nil
	}
}

// bytes returns the backlog. No packet is empty.
func (f *flow) bytes() (n int64) {
	for _, p := range f.waiting {
		n += p.length
	}
	for _, k := range f.kids {
		n += k.bytes()
	}
	return n
}

// shed drops the first packet of the flow with the most bytes, of the host with the most bytes, and returns it.
func (q *queue) shed() *queued {
	f := &q.all
	for f.waiting == nil {
		var most *flow
		for number := range uint64(1024) {
			if k := f.kids[number]; k != nil && k.bytes() > 0 && (most == nil || k.bytes() > most.bytes()) {
				most = k
			}
		}
		f = most
	}
	p := f.waiting[0]
	q.remove(p)
	p.drop("queue-full")
	return p
}

// flow returns the flow whose packet is next. It stays the same until the packet is removed.
func (q *queue) flow() *flow {
	f := &q.all
	for len(f.waiting) == 0 {
		f = f.next()
	}
	return f
}

// next returns the kid whose turn it is.
func (f *flow) next() *flow {
	for f.turn == nil {
		from := &f.fresh
		if len(*from) == 0 {
			from = &f.old
		}
		k := (*from)[0]
		if k.deficit > 0 && k.bytes() > 0 {
			f.turn = k
			break
		}
		*from = (*from)[1:]
		if k.deficit <= 0 {
			k.deficit += fullFrame
			f.old = append(f.old, k)
		} else if from == &f.fresh {
			f.old = append(f.old, k)
		} else {
			k.leaveLists()
		}
	}
	return f.turn
}

// leaveLists follows a removal from a list: the flows of a host leave their lists with it.
func (f *flow) leaveLists() {
	f.listed = false
	for _, k := range append(f.fresh, f.old...) {
		k.leaveLists()
	}
	f.fresh, f.old = nil, nil
}

// standing returns the queueing delay seen by CoDel for a packet departing at t. It is zero if less
// than a frame is queued behind it.
func (f *flow) standing(p *queued, t *big.Int) *big.Int {
	if f.bytes() <= fullFrame {
		return new(big.Int)
	}
	return new(big.Int).Sub(t, p.arrival)
}

// parseFair returns the key of a fair queue as five words.
func parseFair(s string) (func(frame) [5]uint64, error) {
	what, sizes, isPrefix := strings.Cut(s, "/")
	bits4, bits6 := 32, 128
	if isPrefix {
		var err error
		if bits4, bits6, err = parseSizes(sizes); err != nil || what != "src" && what != "dst" {
			return nil, fmt.Errorf("fair: %q is unknown", s)
		}
	}
	version := func(f frame) uint64 {
		if f.src.Is4() {
			return 4
		}
		return 6
	}
	ip := func(of func(frame) [5]uint64) func(frame) [5]uint64 {
		return func(f frame) (words [5]uint64) {
			if f.isIP() {
				words = of(f)
				words[4] |= version(f)
			}
			return words
		}
	}
	switch what {
	case "src":
		return ip(func(f frame) [5]uint64 {
			high, low := halves(f.src, bits4, bits6)
			return [5]uint64{high, low}
		}), nil
	case "dst":
		return ip(func(f frame) [5]uint64 {
			high, low := halves(f.dst, bits4, bits6)
			return [5]uint64{2: high, 3: low}
		}), nil
	case "hosts", "flow":
		return ip(func(f frame) (words [5]uint64) {
			words[0], words[1] = halves(f.src, bits4, bits6)
			words[2], words[3] = halves(f.dst, bits4, bits6)
			switch {
			case what == "flow" && f.fragmented:
				words[4] = uint64(f.fragmentProto) << 8
			case what == "flow":
				words[4] = uint64(f.sport)<<32 + uint64(f.dport)<<16 + uint64(f.proto)<<8
			}
			return words
		}), nil
	case "vlan":
		return func(f frame) [5]uint64 { return [5]uint64{1: uint64(f.vlan)} }, nil
	case "dscp":
		return func(f frame) [5]uint64 {
			if !f.isIP() {
				return [5]uint64{}
			}
			return [5]uint64{1: uint64(f.dscp())}
		}, nil
	}
	return nil, fmt.Errorf("fair: %q is unknown", s)
}

// halves returns the leading bits of an address in two words. An IPv4 address is in the lower
// word.
func halves(a netip.Addr, bits4, bits6 int) (high, low uint64) {
	bits := bits6
	if a.Is4() {
		bits = bits4
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return 0, 0
	}
	if a.Is4() {
		b := p.Masked().Addr().As4()
		return 0, uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := p.Masked().Addr().As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}
