package oracle

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
)

// flow holds the queued packets of one flow of a fair queue. An ordinary queue is a single flow.
type flow struct {
	number  uint64
	waiting []*queued
	deficit int64
	codel   *codel // nil: none
	listed  bool
}

// fullFrame is the quantum of a flow per turn, and the backlog below which CoDel does not drop.
const fullFrame = 1514

// of returns the flow of a packet.
func (q *queue) of(p *queued) *flow {
	number := uint64(0)
	if q.key != nil {
		number = flowNumber(q.seed, q.key(p.row.leaves()))
	}
	f := q.flows[number]
	if f == nil {
		f = &flow{number: number}
		if q.codel != nil {
			fresh := *q.codel
			f.codel = &fresh
		}
		if q.flows == nil {
			q.flows = map[uint64]*flow{}
		}
		q.flows[number] = f
	}
	return f
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

// take appends a packet to its flow.
func (q *queue) take(p *queued) {
	f := q.of(p)
	if !f.listed {
		f.listed, f.deficit = true, fullFrame
		q.fresh = append(q.fresh, f)
	}
	f.waiting = append(f.waiting, p)
	q.waiting = append(q.waiting, p)
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
	if q.turn == f && len(f.waiting) == 0 {
		q.turn = nil
	}
}

func (f *flow) bytes() (n int64) {
	for _, p := range f.waiting {
		n += p.length
	}
	return n
}

// shed drops the first packet of the flow with the most bytes, and returns it.
func (q *queue) shed() *queued {
	var most *flow
	for number := range uint64(1024) {
		if f := q.flows[number]; f != nil && len(f.waiting) > 0 && (most == nil || f.bytes() > most.bytes()) {
			most = f
		}
	}
	p := most.waiting[0]
	q.remove(p)
	p.drop("queue-full")
	return p
}

// flow returns the flow whose packet is next. It stays the same until the packet is removed.
func (q *queue) flow() *flow {
	for q.turn == nil {
		from := &q.fresh
		if len(*from) == 0 {
			from = &q.old
		}
		f := (*from)[0]
		if f.deficit > 0 && len(f.waiting) > 0 {
			q.turn = f
			break
		}
		*from = (*from)[1:]
		if f.deficit <= 0 {
			f.deficit += fullFrame
			q.old = append(q.old, f)
		} else if from == &q.fresh {
			q.old = append(q.old, f)
		} else {
			f.listed = false
		}
	}
	return q.turn
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
