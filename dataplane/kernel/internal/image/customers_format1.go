package image

import (
	"encoding/binary"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/bpf"
)

// Format 1 of saved customers, which is only read: a header1, plans, and customers as savedCustomer1.
// The structs are layouts of bytes. Do not change them.

type header1 struct {
	Boot             [36]byte
	Monotonic, Wall  int64
	Plans, Customers uint32 // numbers
	PlanSize         uint32 // bytes
}

type savedCustomer1 struct {
	ID    uint64
	Plan  uint32
	Word  [2]uint64
	Stamp uint64
	Queue [3]uint64
}

// plan1 is struct plan of the programs that wrote format 1.
type plan1 struct {
	_       [3]uint8
	Paced   uint8
	_       uint32
	Buckets [2]struct {
		Num, Den   uint64
		Size       int64
		Over, Full uint64
	}
	Horizon, Window                       uint64
	Coupled, Peak, Excess, Limit, Sliding uint8
	_                                     [3]uint8
	PaceNs, PaceRest, PaceDen             uint64
	_                                     [24]byte
	Time                                  uint64
	_                                     [32]byte
	Target, Interval                      uint64
	_                                     [85]byte
	Ecn                                   uint8
	_                                     [74]byte
}

func (p *plan1) plan() (out bpf.ShaperPlan) {
	out.Paced = p.Paced
	for i, b := range p.Buckets {
		to := &out.Profile.Buckets[i]
		to.Num, to.Den, to.Size, to.Over, to.Full = b.Num, b.Den, b.Size, b.Over, b.Full
	}
	out.Profile.Horizon, out.Profile.Window = p.Horizon, p.Window
	out.Profile.Coupled, out.Profile.Peak, out.Profile.Excess = p.Coupled, p.Peak, p.Excess
	out.Profile.Limit, out.Profile.Sliding = p.Limit, p.Sliding
	out.Queue.Paces[0] = bpf.ShaperPace{Ns: p.PaceNs, Rest: p.PaceRest, Den: p.PaceDen}
	out.Queue.Time, out.Queue.Target, out.Queue.Interval, out.Queue.Ecn = p.Time, p.Target, p.Interval, p.Ecn
	return out
}

func decodeFormat1(b []byte) (*savedCustomers, error) {
	var head header1
	n, err := binary.Decode(b, binary.LittleEndian, &head)
	if err != nil {
		return nil, errSavedDamaged
	}
	size := uint64(binary.Size(plan1{}))
	if uint64(head.PlanSize) != size {
		return nil, fmt.Errorf("%w: written by another version", errSaved)
	}
	b = b[n:]
	row := uint64(binary.Size(savedCustomer1{}))
	if uint64(len(b)) != uint64(head.Plans)*size+uint64(head.Customers)*row {
		return nil, errSavedDamaged
	}
	plans, list := make([]plan1, head.Plans), make([]savedCustomer1, head.Customers)
	if n, err = binary.Decode(b, binary.LittleEndian, plans); err == nil {
		_, err = binary.Decode(b[n:], binary.LittleEndian, list)
	}
	if err != nil {
		return nil, errSavedDamaged
	}
	s := &savedCustomers{boot: head.Boot, monotonic: head.Monotonic, wall: head.Wall}
	for i := range plans {
		s.plans = append(s.plans, plans[i].plan())
	}
	for _, c := range list {
		s.list = append(s.list, savedCustomer(c))
	}
	return s, nil
}
