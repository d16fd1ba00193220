package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

const (
	numCustomers = 100_000
	numPlans     = 1000
)

// subscribers is a policy at work, with packets to random customers, half of them IPv6.
type subscribers struct {
	engine   processor
	packets  []dataplane.Packet
	verdicts []dataplane.Verdict
	now      int64
}

// smallFrame6 is an IPv6 UDP frame of 64 bytes without FCS.
var smallFrame6 = func() []byte {
	frame := make([]byte, 64)
	copy(frame, smallFrame[:12])
	copy(frame[12:], []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 10, 17, 64})
	frame[59] = 10 // length in the UDP header
	return frame
}()

// customers returns customers with an address and an IPv6 prefix each.
func customers(n int) *dataplane.Customers {
	out := &dataplane.Customers{Key: dataplane.ByDestination}
	for i := range numPlans {
		out.Plans = append(out.Plans, &dataplane.ServicePlan{
			Name: fmt.Sprint("plan", i), Params: meter.TokenBucket{Rate: meter.BitRate(int64(i+1) * 1e9), Burst: bucket},
		})
	}
	for i := range n {
		var v6 [16]byte
		v6[0], v6[1] = 0x20, 0x01
		binary.BigEndian.PutUint32(v6[4:], uint32(i))
		out.List = append(out.List, dataplane.Customer{
			Name: fmt.Sprint(i), Plan: out.Plans[i%numPlans],
			Prefixes: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32),
				netip.PrefixFrom(netip.AddrFrom16(v6), 64),
			},
		})
	}
	return out
}

// newSubscribers has a policy with a meter for each customer, or with one meter for all.
func newSubscribers(each, inKernel bool) (*subscribers, error) {
	class := dataplane.Class{Name: "all", Meter: &dataplane.Meter{Name: "m"}}
	policy := &dataplane.Policy{}
	if each {
		class.Match.Customer, policy.Customers = true, customers(numCustomers)
	} else {
		class.Meter.Params = meter.TokenBucket{Rate: meter.BitRate(1e12), Burst: bucket}
	}
	policy.Classes = []dataplane.Class{class}
	plan, err := dataplane.Compile(policy)
	if err != nil {
		return nil, err
	}
	s, size := &subscribers{now: int64(time.Second)}, burst
	if inKernel {
		w, err := kernel.NewWalker(plan, 0)
		if err != nil {
			return nil, err
		}
		s.engine, size = w, w.Batch()
	} else {
		s.engine = batches{dataplane.NewPipeline(plan)}
	}
	s.verdicts = make([]dataplane.Verdict, size)
	for i := range size {
		frame := smallFrame
		if i%2 == 1 {
			frame = smallFrame6
		}
		s.packets = append(s.packets, dataplane.Packet{Data: append([]byte(nil), frame...), Link: dataplane.LinkEthernet})
	}
	return s, nil
}

// random returns the time of a packet to a random customer.
func (s *subscribers) random() (float64, error) {
	pick := stream().pick[:limited]
	var wrong error
	ns := thread(limited, func() {
		for ; len(pick) >= len(s.packets) && wrong == nil; pick = pick[len(s.packets):] {
			wrong = s.process(pick)
		}
	})
	return ns, wrong
}

// process meters a batch of packets to the picked customers.
func (s *subscribers) process(pick []uint32) error {
	for i := range s.packets {
		p, n := &s.packets[i], pick[i]%numCustomers
		if i%2 == 0 {
			binary.BigEndian.PutUint32(p.Data[30:], 10<<24|n)
		} else {
			binary.BigEndian.PutUint32(p.Data[38:], 0x20010000)
			binary.BigEndian.PutUint32(p.Data[42:], n)
		}
		p.Time = s.now
		s.now += 1000
	}
	if err := s.engine.Process(s.packets, s.verdicts); err != nil {
		return err
	}
	for i := range s.verdicts {
		if v := &s.verdicts[i]; v.Color != meter.Green || v.Class != 0 {
			return fmt.Errorf("packet %d was %v, of class %d: %v", i, v.Color, v.Class, v.Reason)
		}
	}
	return nil
}

// overOne is the time of a packet with a meter for each customer, less that with one meter
// for all.
func overOne(what string, bar, aim float64, inKernel bool) figure {
	with := func(each bool) side {
		return onSource(sync.OnceValues(func() (*subscribers, error) { return newSubscribers(each, inKernel) }), (*subscribers).random)
	}
	more := amount(what, bar, aim, " ns", with(true), with(false))
	more.measured = func(ours, one float64) float64 { return ours - one }
	return more
}

func subscriberFigures() []figure {
	return []figure{overOne("kernel: 100,000 customers (IPv4 and IPv6) over one meter for all, random hits", 300, 150, true)}
}
